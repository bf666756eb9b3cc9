"""The arguments of a call in the order of a kernel's parameters."""

from collections.abc import Sequence
from typing import Any

from dagpu.common.origin import Origin
from dagpu.kernels.annotations import PySignature
from dagpu.kernels.call_arguments import refuse_call
from dagpu.ops.kernel_spec import KernelSpec


def bind_arguments(
    spec: KernelSpec, signature: PySignature, args: Sequence[object], kwargs: dict[str, Any], origin: Origin
) -> list[Any]:
    """Return the arguments of a call in the order of the parameters, with defaults.

    Raises:
        KernelArgumentError: the arguments do not match the parameters.
    """
    names = signature.names
    takes = f"it takes ({', '.join(names)})"
    if len(args) > signature.positional:
        many = f"{len(args)} arguments by position, but at most {signature.positional} are wanted: {takes}"
        refuse_call(spec, origin, many, "Leave the rest out, or pass it by name")
    bound = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in signature.keywords:
            how = "by name, but it goes by position" if name in names else "which it does not have"
            refuse_call(spec, origin, f"got argument {name!r} {how}: {takes}", "Match the call to the declaration")
        if name in bound:
            refuse_call(spec, origin, f"got argument {name!r} twice, by position and by name", "Pass it once")
        bound[name] = value
    missing = [repr(name) for name in names if name not in bound and name not in signature.defaults]
    if missing:
        plural = "s" * (len(missing) > 1)
        what = f"lacks argument{plural} {', '.join(missing)}: {takes}"
        refuse_call(spec, origin, what, "Pass an argument for every parameter without a default")
    return [bound[name] if name in bound else signature.defaults[name] for name in names]
