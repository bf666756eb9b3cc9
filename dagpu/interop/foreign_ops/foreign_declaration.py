"""`foreign`: the decorator of a typed declaration that gives shapes, for an op whose work another library does."""

import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import (
    Any,
    Final,
    ParamSpec,
    Protocol,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.env_vars import CHECKED
from dagpu.common.errors import ForeignError
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run, scope_of_caller
from dagpu.common.wrong_arguments import format_value, is_real_number
from dagpu.handles import Tensor
from dagpu.interop.foreign_ops.foreign_calls import (
    Capture,
    DeclaredOptions,
    Foreign,
    ForeignDeclaration,
    ForeignFunction,
    Verify,
)
from dagpu.kernels.annotations import declared_at, read_signature

_P = ParamSpec("_P")
_T = TypeVar("_T", bound=Tensor[Any] | tuple[Tensor[Any], ...])

_CAPTURES: Final = ("auto", "never", "required")
_VERIFICATIONS: Final = ("audit", "none")


class _Declare(Protocol):
    """`foreign` with options."""

    @overload
    def __call__(self, declaration: Callable[_P, None], /) -> Foreign[_P]: ...
    @overload
    def __call__(self, declaration: Callable[_P, _T], /) -> ForeignFunction[_P, _T]: ...


@overload
def foreign(declaration: Callable[_P, None], /) -> Foreign[_P]: ...
@overload
def foreign(declaration: Callable[_P, _T], /) -> ForeignFunction[_P, _T]: ...
@overload
def foreign(
    *, capture: Capture = ..., verify: Verify = ..., cost: float | None = ..., checked: bool | None = ...
) -> _Declare: ...
@leaves_run
def foreign(
    declaration: Callable[..., Any] | None = None,
    /,
    *,
    capture: Capture = "auto",
    verify: Verify = "audit",
    cost: float | None = None,
    checked: bool | None = None,
) -> Any:
    """Declare an op whose work another library does: PyTorch, CuPy, Numba, or one that takes addresses.

    The decorated function has the parameters of a kernel: `In`, `Out` and numbers. Its body runs at each call, on
    operands that know their shape and element type alone; it calls `extent`, `require`, `reserve` and `new`. With
    `-> None` the outputs are its `Out` parameters, and a call yields all arguments, as a kernel's. With
    `-> Tensor[...]`, or a tuple of these, the outputs are new tensors: it returns what `new` gives. Bodies are added to
    it: `.on("torch")`, `.on("cupy")`, `.on("numba")`, `.raw` and `.host`.

    A plan sees one instruction with exact reads and writes. An exception in a body fails the outputs of its op alone.

    Args:
        declaration: the function.
        capture: "auto" makes the work a part of CUDA graphs, and lets a plan whose body cannot be captured go through
            streams; `op.explain()` says why. "never" does not try. "required" raises a `CaptureError` if it cannot.
        verify: "audit" reads the work of a body before it becomes part of a CUDA graph: it must not point at memory of
            dagpu that is no argument of the call, and it must point at each output. "none" does not read it.
        cost: the seconds of a call on the device, for schedules and predictions; None to count its bytes. A time that
            the policy's `CostModel` declares for the op's name comes first.
        checked: True checks each call, on the host and on a GPU: inputs are compared before and after, outputs lie
            between bytes that must not change, new tensors and scratch memory begin with a pattern. A plan with such
            an op goes through streams. None means True if DAGPU_CHECKED is 1.

    Raises:
        ForeignError: the declaration has no output, or an option is none of these; from a run, the body does something
            else than the declaration says.
        KernelArgumentError: a parameter is neither an input, an output nor a number.
    """
    where = here()
    options = _checked_options(capture, verify, cost, checked, where)
    scope = scope_of_caller()

    @leaves_run
    def declare(function: Callable[..., Any]) -> Any:
        return _declare(function, options, scope, where)

    return declare if declaration is None else declare(declaration)


def _checked_options(capture: Any, verify: Any, cost: Any, checked: Any, where: Origin) -> DeclaredOptions:
    if type(capture) is not str or capture not in _CAPTURES:
        raise ForeignError(
            f"foreign at {describe(where)}: capture is {format_value(capture)}. "
            'Write capture="auto", "never" or "required".'
        )
    if type(verify) is not str or verify not in _VERIFICATIONS:
        raise ForeignError(
            f'foreign at {describe(where)}: verify is {format_value(verify)}. Write verify="audit" or "none".'
        )
    if cost is not None and not (is_real_number(cost) and 0 <= cost < math.inf):
        raise ForeignError(
            f"foreign at {describe(where)}: cost is {format_value(cost)}, not a number of seconds, 0 or more and "
            "finite. Write cost=3e-5, say."
        )
    if not isinstance(checked, bool | np.bool_ | None):
        raise ForeignError(
            f"foreign at {describe(where)}: checked is {format_value(checked)}. Write checked=True or False."
        )
    return DeclaredOptions(
        cast(Capture, capture),
        cast(Verify, verify),
        None if cost is None else float(cost),
        CHECKED.get() if checked is None else bool(checked),
    )


def _declare(function: Callable[..., Any], options: DeclaredOptions, scope: dict[str, Any], where: Origin) -> Any:
    if not inspect.isfunction(function):
        raise ForeignError(
            f"foreign at {describe(where)} is applied to {format_value(function)}, which is not a plain function. "
            "Decorate a def that names and types the parameters."
        )
    name, place = function.__name__, declared_at(function)
    signature = read_signature(function, scope)
    returned = function.__annotations__.get("return", inspect.Parameter.empty)
    if returned is inspect.Parameter.empty:
        raise ForeignError(
            f"{name}, declared at {place}: it does not say what it returns. Annotate it -> None if its outputs are Out "
            "parameters, -> Tensor[f32] if they are new tensors."
        )
    into_partitions = returned is None or returned == "None"
    returned = _evaluated(function, returned, scope) if isinstance(returned, str) else returned
    outs = [n for n, a in zip(signature.names, signature.annotations, strict=True) if a.form == "out"]
    lazy = [n for n, a in zip(signature.names, signature.annotations, strict=True) if a.lazy]
    if lazy:
        raise ForeignError(
            f"{name}, declared at {place}: parameter {lazy[0]!r} is Lazy, and a declaration needs the number. Annotate "
            "it float, and call the op inside .then(...) on the number."
        )
    if into_partitions and not outs:
        raise ForeignError(
            f"{name}, declared at {place}: it has no output. Annotate a parameter Out[f32], or annotate the function "
            "-> Tensor[f32] and return new(...)."
        )
    if not into_partitions and outs:
        raise ForeignError(
            f"{name}, declared at {place}: it has the Out parameter {outs[0]!r} and returns new tensors. Annotate it "
            "-> None, or make that output a new tensor too."
        )
    if into_partitions:
        return Foreign(ForeignDeclaration(function, signature, 0, options))
    components = _components_of(returned)
    results = 1 if (get_origin(returned) or returned) is Tensor else components
    return ForeignFunction(ForeignDeclaration(function, signature, results, options), components)


def _evaluated(function: Callable[..., Any], annotation: str, scope: dict[str, Any]) -> object:
    """Return a return annotation that is text as the object that it names; None if it cannot be evaluated."""
    holder = SimpleNamespace(__annotations__={"return": annotation})
    try:
        return get_type_hints(holder, function.__globals__, scope)["return"]
    except Exception:  # a text annotation is code, and may raise anything
        return None


def _components_of(returned: object) -> int | None:
    """Return the number of components of the tuple that a return annotation names; None if it is no tuple, or one of
    any length."""
    arguments = get_args(returned)
    return len(arguments) if get_origin(returned) is tuple and Ellipsis not in arguments else None
