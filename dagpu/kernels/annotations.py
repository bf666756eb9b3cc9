"""The Python signature of a kernel, and the arguments of a call in its order.

The decorator reads the annotations once, and refuses those without a meaning. The error names the parameter and the
file and line of the declaration. So a call checks values only.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, TypeAlias, Union, final, get_args, get_origin, get_type_hints

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import scalar_dtype
from dagpu.common.places import Origin, describe
from dagpu.handles import Partition, SharedTensor, Tensor, TensorMut, TensorRef
from dagpu.kernels.call_arguments import refuse_call
from dagpu.kernels.cuda_signature import ScalarKind
from dagpu.ops.base import Borrowed, DeviceOp
from dagpu.ops.kernel_spec import Form, KernelSpec

_T = TypeVar("_T")
_D = TypeVar("_D", bound=np.generic)


In: TypeAlias = Annotated[
    Tensor[_D]
    | SharedTensor[_D]
    | TensorRef[_D]
    | TensorMut[_D]
    | DeviceOp[Tensor[_D], Borrowed]
    | DeviceOp[SharedTensor[_D], Borrowed]
    | DeviceOp[TensorRef[_D], Borrowed]
    | DeviceOp[TensorMut[_D], Borrowed],
    Form.IN,
]
"""An input of a kernel, with elements of type D: a tensor handle, or an op whose result is one.

The kernel only reads a `TensorMut` that is passed as an input. The result of the call returns it, for later writes.
"""

Out: TypeAlias = Annotated[
    Partition[Tensor[_D]]
    | Partition[TensorMut[_D]]
    | DeviceOp[Partition[Tensor[_D]], Borrowed]
    | DeviceOp[Partition[TensorMut[_D]], Borrowed],
    Form.OUT,
]
"""An output of a kernel, with elements of type D: a partition, or an op whose result is one."""

Lazy: TypeAlias = _T | DeviceOp[_T, Borrowed]
"""A scalar of a kernel: a number, or an op whose result is one."""

_ARRAYS = (Tensor, SharedTensor, TensorRef, TensorMut, Partition, DeviceOp, np.ndarray)

_CURE = (
    "Annotate it In[f32] (read), Out[f32] (written), int, float, bool, a NumPy scalar type, "
    "np.void (a structure that CUDA declares), or Lazy[float] (a scalar that may be an op)"
)


@final
@dataclass(frozen=True, slots=True)
class Annotation:
    """The meaning of the annotation of one parameter.

    `dtype` is the element type, or the type of a scalar that is annotated with a NumPy type. It is None for a type
    variable and for a Python `int`, `float` or `bool`. `scalar` is None for a tensor. `lazy` is true for a
    scalar that may be an op.
    """

    form: Form
    dtype: "np.dtype[Any] | None"
    scalar: ScalarKind | None
    lazy: bool
    optional: bool = False
    """True for a tensor in whose place None may be passed."""
    listed: bool = False
    """True for a list of tensors."""


RECORD: Final = np.dtype(np.void)
"""The element type of `In[np.void]`, and the type of a value `np.void`: a structure that CUDA declares."""


@final
@dataclass(frozen=True, slots=True)
class PySignature:
    """The parameters of a kernel in order, and the ways in which a call may pass them."""

    names: tuple[str, ...]
    annotations: tuple[Annotation, ...]
    positional: int
    """The number of leading parameters that may be passed by position."""
    keywords: frozenset[str]
    """The names of the parameters that may be passed by name."""
    defaults: Mapping[str, object]
    """The default values by the names of their parameters."""


def declaration_error(kernel: str, place: str, what: str, cure: str) -> KernelArgumentError:
    """Return the error for a wrong declaration of a kernel. `cure` is a sentence without its full stop."""
    return KernelArgumentError(f"kernel {kernel!r}, declared at {place}: {what}. {cure}.")


def read_signature(function: Callable[..., object], local_names: Mapping[str, object]) -> PySignature:
    """Return the signature of a kernel's Python function.

    `local_names` are the local variables of the scope that applies the decorator. An annotation that is text
    (`from __future__ import annotations`) may name a type that is local to that scope.

    Raises:
        KernelArgumentError: a parameter is neither an input, an output nor a scalar.
    """
    name, place = function.__name__, declared_at(function)
    scope = dict(local_names)
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[variable] = cell.cell_contents
        except ValueError:  # not assigned yet: an annotation that needs it raises an error with its name
            continue
    annotations: list[Annotation] = []
    defaults: dict[str, object] = {}
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        what = f"parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise declaration_error(name, place, f"{what} is {stars}{parameter.name}", "Name every parameter")
        if parameter.annotation is parameter.empty:
            raise declaration_error(name, place, f"{what} has no annotation", _CURE)
        hint = _resolved(function, parameter, scope)
        annotation = _read_hint(hint)
        if isinstance(annotation, str):
            raise declaration_error(name, place, f"{what} is annotated {_format_hint(hint)}, {annotation}", _CURE)
        if parameter.default is not parameter.empty:
            if annotation.form.is_tensor and not (annotation.optional and parameter.default is None):
                cure = "Leave the default out: a handle can be moved into one call only"
                raise declaration_error(name, place, f"{what} is a tensor with a default", cure)
            defaults[parameter.name] = parameter.default
        annotations.append(annotation)
    return PySignature(
        names=tuple(p.name for p in parameters),
        annotations=tuple(annotations),
        positional=sum(p.kind is not p.KEYWORD_ONLY for p in parameters),
        keywords=frozenset(p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY),
        defaults=defaults,
    )


def declared_at(function: Callable[..., object]) -> str:
    """Return the file and line of a function, or of its first decorator."""
    return describe((function.__code__, 0))


def _resolved(function: Callable[..., object], parameter: inspect.Parameter, scope: dict[str, object]) -> object:
    """Return the annotation of a parameter, evaluated if it is text."""
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    type_params = {p.__name__: p for p in getattr(function, "__type_params__", ())}
    try:
        hints = get_type_hints(holder, function.__globals__, scope | type_params, include_extras=True)
    except Exception as error:  # a text annotation is code, and may raise anything
        text = repr(parameter.annotation)
        what = f"the annotation {text} of parameter {parameter.name!r} cannot be read ({error})"
        cure = "Have every name in it defined when the kernel is declared, outside `if TYPE_CHECKING:`"
        raise declaration_error(function.__name__, declared_at(function), what, cure) from error
    return hints[parameter.name]


def _read_hint(hint: object) -> Annotation | str:
    """Return the meaning of an annotation, or the reason why it has none, as a clause for a message."""
    marks = getattr(hint, "__metadata__", ())
    if (form := _form_in(marks)) is not None:
        dtype = _element(get_args(hint)[0])
        return dtype if isinstance(dtype, str) else Annotation(form, dtype, None, False)
    if marks:  # Annotated[float, "metres"]
        return _read_hint(get_args(hint)[0])
    if get_origin(hint) in (list, Sequence) and get_args(hint):
        inner = _read_hint(get_args(hint)[0])
        if isinstance(inner, str) or not inner.form.is_tensor or inner.optional or inner.listed:
            return "which is not a type that a kernel can take"
        return replace(inner, listed=True)
    lazy = False
    if get_origin(hint) in (Union, types.UnionType):
        others = [member for member in get_args(hint) if member is not type(None)]
        if len(others) == 1 and _form_in(getattr(others[0], "__metadata__", ())) is not None:
            found = _read_hint(others[0])
            return found if isinstance(found, str) else replace(found, optional=True)
        plain = [member for member in get_args(hint) if get_origin(member) is not DeviceOp]
        results = [get_args(member)[0] for member in get_args(hint) if get_origin(member) is DeviceOp]
        if len(plain) != 1 or results != plain:
            return "which is not a type that a kernel can take"
        hint, lazy = plain[0], True
    kind: object = get_origin(hint) or hint
    if isinstance(kind, type) and issubclass(kind, _ARRAYS):
        return "which does not say whether the kernel reads or writes it"
    if not isinstance(hint, type):
        return "which is not a type that a kernel can take"
    if hint is int or hint is float or hint is bool:
        return Annotation(Form.SCALAR, None, "bool" if hint is bool else "int" if hint is int else "float", lazy)
    if hint is np.void:
        return "a structure, which cannot be an op" if lazy else Annotation(Form.SCALAR, RECORD, None, False)
    if issubclass(hint, np.generic) and (scalar := scalar_dtype(hint)) is not None:
        kinds: dict[str, ScalarKind] = {"b": "bool", "i": "int", "u": "int", "c": "complex"}
        number = kinds.get(scalar.kind, "float")
        return Annotation(Form.SCALAR, scalar, number, lazy)
    return "which is not a type that a kernel can take"


def _form_in(marks: Sequence[object]) -> Form | None:
    """Return the form that the metadata of an annotation names; None if there is none."""
    return next((mark for mark in marks if isinstance(mark, Form)), None)


def _element(union: object) -> "np.dtype[Any] | str | None":
    """Return the dtype D of an `In[D]` or `Out[D]`, None for a type variable, or the reason why it is wrong."""
    element: Any = get_args(union)[0]
    while get_origin(element) in (Tensor, Partition):
        element = get_args(element)[0]
    if element is _D:
        return "which lacks its element type"
    if isinstance(element, typing.TypeVar):
        return None
    if element is np.void:
        return RECORD
    dtype = scalar_dtype(element) if isinstance(element, type) and issubclass(element, np.generic) else None
    return dtype or "whose element type a tensor cannot have"


def _format_hint(hint: object) -> str:
    """Return an annotation as text that is close to its source."""
    if (form := _form_in(getattr(hint, "__metadata__", ()))) is not None:
        element: Any = get_args(get_args(hint)[0])[0]
        while get_origin(element) in (Tensor, Partition):
            element = get_args(element)[0]
        return form.word if element is _D else f"{form.word}[{getattr(element, '__name__', element)}]"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def takes_by_position(parameters: Sequence[inspect.Parameter], names: Sequence[str]) -> bool:
    """Return true if the parameters of a host body match the names of the kernel's parameters, in order.

    A parameter that the body does not use may be called `_` or `_name`. `*args` matches all remaining names.
    """
    rest = list(names)
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest.clear()
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                return False
        elif parameter.kind is not parameter.VAR_KEYWORD:
            if not rest or parameter.name not in ("_", rest[0], f"_{rest[0]}"):
                return False
            rest.pop(0)
    return not rest


# ---- argument binding
#
# The arguments of a call in the order of a kernel's parameters.


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
