"""`Elem`, one element of a tensor, the errors for what it cannot do, and the trace of an expression on elements."""

import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, final, overload

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import COMPLEX, FLOATING, bool_, c64, c128, f32, f64, part_type, scalar_dtype
from dagpu.common.places import Origin, describe, here
from dagpu.common.wrong_arguments import format_value, no_attribute
from dagpu.handles import ARRAY_NAMES, HANDLE_NAMES
from dagpu.handles.symbolic import read_value
from dagpu.kernels.operations import DOMAINS, OPERATIONS, Domain, type_name

_REDUCTIONS: Final = frozenset(
    ("all", "amax", "amin", "any", "argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum", "log_softmax",
     "logsumexp", "max", "mean", "min", "norm", "prod", "softmax", "std", "sum", "var")
)  # fmt: skip

REDUCE: Final = (
    "Reduce the results of the expression, expr(f32)(lambda x: x * x).sum(axis), or reduce the tensor before and pass "
    "the result as one more argument"
)
"""The cure for a function of a whole tensor in an expression."""

_CHOICE: Final = "For a choice say where(condition, a, b); & | ~ stand for and, or, not; 0 < x < 1 is (0 < x) & (x < 1)"
_NUMBER: Final = (
    "The functions of math are in dagpu.array: array.sqrt(x), array.floor(x). Another element type is x.to(i32)"
)
_ITEM: Final = (
    "It is one element of a tensor, and has no items: slice the tensor before the call, or write a kernel (@kernel), "
    "which sees its neighbours"
)


def _no_value(cure: str) -> Callable[..., NoReturn]:
    """Return a method that refuses to give the value of an element."""

    def refuse(element: object, *_args: object) -> NoReturn:
        kind = repr(element).removeprefix("<Elem of ").removesuffix(">")
        raise TypeError(
            f"an element of type {kind} was asked for its value at {describe(here())}, while its expression is traced. "
            f"{cure}."
        )

    return refuse


refuse_choice: Final = _no_value(_CHOICE)
refuse_number: Final = _no_value(_NUMBER)
refuse_item: Final = _no_value(_ITEM)


def refuse_element_name(element: Any, name: str) -> NoReturn:
    """Raise for an unknown attribute, with a cure if arrays or handles have it. It is the `__getattr__` of elements.

    Raises:
        AttributeError: always.
    """
    if name in ("astype", "type", "float", "int"):
        cure = "Convert it: x.to(f32)"
    elif name in _REDUCTIONS:
        cure = f"It is one element. {REDUCE}"
    elif name in OPERATIONS and OPERATIONS[name].shown.isidentifier():
        cure = f"Use the function: array.{OPERATIONS[name].shown}(x)"
    elif name in ARRAY_NAMES or name in HANDLE_NAMES:
        cure = "It is one element: change the form of the tensor before the call"
    else:
        raise no_attribute(element, name)
    raise AttributeError(f"{element!r} at {describe(here())} has no {name!r}. {cure}.")


def refuse_call_in_expression(what: str, origin: Origin, cure: str) -> NoReturn:
    """Raise for an element that is passed where a tensor is wanted. `what` names the call.

    Raises:
        KernelArgumentError: always.
    """
    raise KernelArgumentError(
        f"{what} at {describe(origin)}: got an element of an expression, but it takes tensors. {cure}."
    )


# ---- element
#
# `Elem`: one element of a tensor, while the function of an expression is traced.

_D = TypeVar("_D", bound=np.generic)
_E = TypeVar("_E", bound=np.generic)
_F = TypeVar("_F", bound="np.floating[Any]")
_I = TypeVar("_I", bound="np.integer[Any]")
_Z = TypeVar("_Z", bound="np.complexfloating[Any, Any]")
_B = TypeVar("_B", bound="np.integer[Any] | np.bool_")


class _Part:
    """The type of `Elem.real` and `Elem.imag`, for type checkers: of a complex element a real one."""

    @overload
    def __get__(self, element: "Elem[c64]", owner: object = None, /) -> "Elem[f32]": ...
    @overload
    def __get__(self, element: "Elem[c128]", owner: object = None, /) -> "Elem[f64]": ...
    @overload
    def __get__(self, element: "Elem[_D]", owner: object = None, /) -> "Elem[_D]": ...
    def __get__(self, element: Any, owner: object = None, /) -> Any: ...


@final
class Elem(Generic[_D]):
    """One element of a tensor, while the function of an expression is traced.

    Operations on it build the expression and compute nothing. Both operands have one element type: it is not converted,
    so write `x.to(f32)`. A number among the operands is a constant of the element type of the other one.

    Integer `+ - *`, `<<` and `abs` wrap; `//` and `%` round down, and give 0 for a division by 0. `x ** 2` is `x * x`,
    and `x ** 0.5` of a float is `sqrt(x)`, so that it is NaN for -inf and -0 for -0, as with NumPy's operator.
    """

    __slots__ = ("_dtype", "_operands", "_operation", "_value")

    if TYPE_CHECKING:
        __hash__: None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]  # reason: as a list, it has no hash
    else:
        __hash__ = None

    def __init__(
        self, operation: str, dtype: "np.dtype[Any]", operands: "tuple[Elem[Any], ...]" = (), value: Any = None
    ) -> None:
        self._operation = operation
        self._dtype = dtype
        self._operands = operands
        self._value = value

    # ---- arithmetic

    @overload
    def __add__(self: "Elem[_Z]", other: "Elem[_Z] | complex", /) -> "Elem[_Z]": ...
    @overload
    def __add__(self, other: "Elem[_D] | float", /) -> "Elem[_D]": ...
    def __add__(self, other: Any, /) -> Any:
        return operate("add", self, other)

    @overload
    def __radd__(self: "Elem[_Z]", other: complex, /) -> "Elem[_Z]": ...
    @overload
    def __radd__(self, other: float, /) -> "Elem[_D]": ...
    def __radd__(self, other: Any, /) -> Any:
        return operate("add", other, self)

    @overload
    def __sub__(self: "Elem[_Z]", other: "Elem[_Z] | complex", /) -> "Elem[_Z]": ...
    @overload
    def __sub__(self, other: "Elem[_D] | float", /) -> "Elem[_D]": ...
    def __sub__(self, other: Any, /) -> Any:
        return operate("subtract", self, other)

    @overload
    def __rsub__(self: "Elem[_Z]", other: complex, /) -> "Elem[_Z]": ...
    @overload
    def __rsub__(self, other: float, /) -> "Elem[_D]": ...
    def __rsub__(self, other: Any, /) -> Any:
        return operate("subtract", other, self)

    @overload
    def __mul__(self: "Elem[_Z]", other: "Elem[_Z] | complex", /) -> "Elem[_Z]": ...
    @overload
    def __mul__(self, other: "Elem[_D] | float", /) -> "Elem[_D]": ...
    def __mul__(self, other: Any, /) -> Any:
        return operate("multiply", self, other)

    @overload
    def __rmul__(self: "Elem[_Z]", other: complex, /) -> "Elem[_Z]": ...
    @overload
    def __rmul__(self, other: float, /) -> "Elem[_D]": ...
    def __rmul__(self, other: Any, /) -> Any:
        return operate("multiply", other, self)

    @overload
    def __truediv__(self: "Elem[_Z]", other: "Elem[_Z] | complex", /) -> "Elem[_Z]": ...
    @overload
    def __truediv__(self: "Elem[_F]", other: "Elem[_F] | float", /) -> "Elem[_F]": ...
    def __truediv__(self, other: Any, /) -> Any:
        return operate("divide", self, other)

    @overload
    def __rtruediv__(self: "Elem[_Z]", other: complex, /) -> "Elem[_Z]": ...
    @overload
    def __rtruediv__(self: "Elem[_F]", other: float, /) -> "Elem[_F]": ...
    def __rtruediv__(self, other: Any, /) -> Any:
        return operate("divide", other, self)

    def __floordiv__(self, other: "Elem[_D] | float", /) -> "Elem[_D]":
        return operate("floor_divide", self, other)

    def __rfloordiv__(self, other: float, /) -> "Elem[_D]":
        return operate("floor_divide", other, self)

    def __mod__(self, other: "Elem[_D] | float", /) -> "Elem[_D]":
        return operate("remainder", self, other)

    def __rmod__(self, other: float, /) -> "Elem[_D]":
        return operate("remainder", other, self)

    def __pow__(self, other: "Elem[_D] | float", /) -> "Elem[_D]":
        return _power(self, other)

    def __rpow__(self: "Elem[_F]", other: float, /) -> "Elem[_F]":
        return operate("power", other, self)

    def __neg__(self) -> "Elem[_D]":
        return operate("negative", self)

    def __pos__(self) -> "Elem[_D]":
        return self

    @overload
    def __abs__(self: "Elem[c64]") -> "Elem[f32]": ...  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
    @overload
    def __abs__(self: "Elem[c128]") -> "Elem[f64]": ...
    @overload
    def __abs__(self) -> "Elem[_D]": ...
    def __abs__(self) -> Any:
        return operate("absolute", self)

    # ---- complex numbers

    if TYPE_CHECKING:
        real: Final = _Part()
        imag: Final = _Part()
    else:

        @property
        def real(self) -> Any:
            """The real part; of a real element itself."""
            return part_of("real", self)

        @property
        def imag(self) -> Any:
            """The imaginary part; of a real element 0."""
            return part_of("imag", self)

    def conj(self) -> "Elem[_D]":
        """Return the conjugate; of a real element itself."""
        return part_of("conj", self)

    # ---- comparisons

    def __lt__(self, other: "Elem[_D] | float", /) -> "Elem[bool_]":
        return operate("less", self, other)

    def __le__(self, other: "Elem[_D] | float", /) -> "Elem[bool_]":
        return operate("less_equal", self, other)

    def __gt__(self, other: "Elem[_D] | float", /) -> "Elem[bool_]":
        return operate("greater", self, other)

    def __ge__(self, other: "Elem[_D] | float", /) -> "Elem[bool_]":
        return operate("greater_equal", self, other)

    @overload  # type: ignore[override]  # reason: an expression, as for arrays of NumPy
    def __eq__(self: "Elem[_Z]", other: "Elem[_Z] | complex", /) -> "Elem[bool_]": ...
    @overload
    def __eq__(self, other: "Elem[_D] | float", /) -> "Elem[bool_]": ...
    def __eq__(self, other: Any, /) -> Any:
        return operate("equal", self, other)

    @overload  # type: ignore[override]  # reason: as for `==`
    def __ne__(self: "Elem[_Z]", other: "Elem[_Z] | complex", /) -> "Elem[bool_]": ...
    @overload
    def __ne__(self, other: "Elem[_D] | float", /) -> "Elem[bool_]": ...
    def __ne__(self, other: Any, /) -> Any:
        return operate("not_equal", self, other)

    @overload
    def equals(self: "Elem[_Z]", other: "Elem[_Z] | complex", /) -> "Elem[bool_]": ...
    @overload
    def equals(self, other: "Elem[_D] | float", /) -> "Elem[bool_]": ...
    def equals(self, other: Any, /) -> Any:
        """Return `self == other`."""
        return operate("equal", self, other)

    # ---- bits

    def __and__(self: "Elem[_B]", other: "Elem[_B] | int", /) -> "Elem[_B]":
        return operate("bitwise_and", self, other)

    def __rand__(self: "Elem[_B]", other: int, /) -> "Elem[_B]":
        return operate("bitwise_and", other, self)

    def __or__(self: "Elem[_B]", other: "Elem[_B] | int", /) -> "Elem[_B]":
        return operate("bitwise_or", self, other)

    def __ror__(self: "Elem[_B]", other: int, /) -> "Elem[_B]":
        return operate("bitwise_or", other, self)

    def __xor__(self: "Elem[_B]", other: "Elem[_B] | int", /) -> "Elem[_B]":
        return operate("bitwise_xor", self, other)

    def __rxor__(self: "Elem[_B]", other: int, /) -> "Elem[_B]":
        return operate("bitwise_xor", other, self)

    def __invert__(self: "Elem[_B]") -> "Elem[_B]":
        return operate("invert", self)

    def __lshift__(self: "Elem[_I]", other: "Elem[_I] | int", /) -> "Elem[_I]":
        return operate("left_shift", self, other)

    def __rlshift__(self: "Elem[_I]", other: int, /) -> "Elem[_I]":
        return operate("left_shift", other, self)

    def __rshift__(self: "Elem[_I]", other: "Elem[_I] | int", /) -> "Elem[_I]":
        return operate("right_shift", self, other)

    def __rrshift__(self: "Elem[_I]", other: int, /) -> "Elem[_I]":
        return operate("right_shift", other, self)

    # ---- element types

    def to(self, dtype: type[_E], /) -> "Elem[_E]":
        """Return the element converted to another type.

        To a narrower float it is rounded once (bf16: by way of f32), to an integer its fraction is cut off, and an
        integer that does not fit wraps. A float outside the range of an integer gives any number, as in NumPy and C.
        `to(bool_)` is `x != 0`.

        Raises:
            TypeError: no tensor has elements of this type.
        """
        found = scalar_dtype(dtype)
        if found is None:
            raise TypeError(
                f"to at {describe(here())}: {format_value(dtype)} is not an element type. Say x.to(f32), with "
                "f32 from dagpu."
            )
        if self._dtype.kind == "c" and found.kind not in "cb":
            raise TypeError(
                f"to at {describe(here())}: an element of {type_name(self._dtype)} has two parts, and "
                f"{type_name(found)} holds one. Take one of them, array.real(x) or array.imag(x), or its size, "
                "array.abs(x)."
            )
        return Elem("cast", found, (self,))

    def __repr__(self) -> str:
        return f"<Elem of {type_name(self._dtype)}>"

    if not TYPE_CHECKING:  # hidden from type checkers, which report these uses themselves
        __getattr__ = refuse_element_name
        __bool__ = refuse_choice
        __float__ = __int__ = __index__ = __complex__ = __floor__ = __ceil__ = __trunc__ = __round__ = refuse_number
        __getitem__ = __iter__ = __contains__ = __len__ = __array__ = refuse_item

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_options: Any) -> Any:
            """Accept an operator with a scalar of NumPy on the left; refuse functions of NumPy."""
            name = ufunc.__name__.replace("true_divide", "divide")
            if method == "__call__" and name in _OPERATORS and all(_is_operand(item) for item in inputs):
                return operate(name, *inputs)
            raise TypeError(
                f"numpy.{ufunc.__name__} at {describe(here())} was given an element of an expression, which has no "
                "contents. Use the function of that name from dagpu.array."
            )


operation_of: Final = Elem.__dict__["_operation"].__get__
"""Return the name of an element's operation."""
dtype_of: Final = Elem.__dict__["_dtype"].__get__
"""Return the NumPy dtype of an element."""
operands_of: Final = Elem.__dict__["_operands"].__get__
"""Return the operands of an element's operation."""
value_of: Final = Elem.__dict__["_value"].__get__
"""Return the number of a constant, or the `Parameter` of a parameter; None for any other element."""

_OPERATORS: Final = frozenset(name for name, entry in OPERATIONS.items() if not entry.shown.isidentifier())
_NUMBERS: Final = (int, float, complex, np.generic)


def _is_operand(x: object) -> bool:
    return isinstance(x, (Elem, *_NUMBERS))


def operate(name: str, *operands: Any) -> Elem[Any]:
    """Return the element that an operation of the table makes of elements and numbers.

    Raises:
        TypeError: the operation does not take elements of this type, the types differ, or a number does not fit.
    """
    shown = OPERATIONS[name].shown
    elements = as_elements(operands, shown)
    dtype = dtype_of(elements[0])
    if dtype not in DOMAINS[OPERATIONS[name].domain]:
        raise TypeError(
            f"{shown} at {describe(here())}: it does not take elements of {type_name(dtype)}. {_cure(name, dtype)}."
        )
    return Elem(name, OPERATIONS[name].result_type(dtype), elements)


PARTS: Final[dict[str, Domain]] = {"real": "number", "imag": "number", "conj": "number", "angle": "inexact"}
"""What `part_of` gives of an element, and the element types that have it."""


def part_of(name: str, element: Elem[Any]) -> Elem[Any]:
    """Return a part of an element, which is one of `PARTS`. Those of a real element are itself, 0, itself, and the
    angle 0 or pi.

    Raises:
        TypeError: the element is a bool, or has an angle and is a whole number.
    """
    dtype = dtype_of(element)
    if dtype not in DOMAINS[PARTS[name]] or dtype.kind == "c":
        return operate(name, element)
    if name == "angle":
        return operate("atan2", 0, element)
    return constant(0, dtype, name) if name == "imag" else element


def as_elements(operands: tuple[Any, ...], shown: str) -> tuple[Elem[Any], ...]:
    """Return the operands as elements of one type; a number becomes a constant. `shown` names the operation.

    Raises:
        TypeError: the element types differ, no operand is an element, or a number does not fit the type.
    """
    dtypes = [dtype_of(item) for item in operands if isinstance(item, Elem)]
    others = [item for item in operands if not _is_operand(item)]
    if not dtypes or others:
        given = format_value(others[0]) if others else "numbers alone"
        raise TypeError(f"{shown} at {describe(here())}: got {given}. Give it elements of one expression, and numbers.")
    if any(dtype != dtypes[0] for dtype in dtypes):
        names = " and ".join(dict.fromkeys(map(type_name, dtypes)))
        # a complex element does not become a real one
        wanted = np.result_type(*dtypes, np.complex64) if COMPLEX.intersection(dtypes) else dtypes[0]
        raise TypeError(
            f"{shown} at {describe(here())}: operands of {names}. Element types are not converted: "
            f"say x.to({type_name(wanted)})."
        )
    return tuple([item if isinstance(item, Elem) else constant(item, dtypes[0], shown) for item in operands])


def constant(number: Any, dtype: "np.dtype[Any]", shown: str, *, alone: bool = False) -> Elem[Any]:
    """Return a number as a constant element of this type: that of the element beside it, unless it is `alone`.

    Raises:
        TypeError: the type cannot hold the number.
    """
    plain = read_value(number)
    plain = plain.item() if isinstance(plain, np.generic) else plain
    if not isinstance(plain, int | float | complex):
        fits = False
    elif dtype.kind == "b" or isinstance(plain, bool):
        fits = dtype.kind == "b" and isinstance(plain, bool)
    elif dtype.kind == "c":
        fits = _fits(plain.real, part_type(dtype)) and _fits(plain.imag, part_type(dtype))
    elif isinstance(plain, complex):
        fits = False
    elif dtype in FLOATING:
        fits = _fits(plain, dtype)
    else:
        bounds = np.iinfo(dtype)
        fits = isinstance(plain, int) and bounds.min <= plain <= bounds.max
    if not fits:
        why = f"{shown} at {describe(here())}: the number {format_value(plain)} does not fit {type_name(dtype)}, the "
        if alone:
            raise TypeError(f"{why}type of two numbers. Scale smaller ones: where(c, 1.0, 0.0).to(f64) * x.")
        wider = "c128" if dtype.kind == "c" else "c64" if isinstance(plain, complex) else "f32"
        raise TypeError(f"{why}type of the element beside it. Convert that element first: x.to({wider}).")
    with np.errstate(over="ignore"):
        held = plain if isinstance(plain, complex) or dtype not in DOMAINS["inexact"] else _as_float(plain)
        value = np.array(held).astype(dtype)[()]
    return Elem("constant", dtype, (), value)


def _fits(number: float, dtype: "np.dtype[Any]") -> bool:
    """Return true if a number is infinite, or stays finite as a float of this type."""
    with np.errstate(over="ignore"):
        rounded = np.array(_as_float(number)).astype(dtype).astype(np.float64)
    return number in (math.inf, -math.inf) or not np.isinf(rounded)


def _as_float(number: float) -> float:
    return float(number) if abs(number) <= sys.float_info.max or not isinstance(number, int) else math.inf


def _power(base: Elem[Any], exponent: Any) -> Elem[Any]:
    """Return `base ** exponent` without `pow` for a whole power of an integer or a complex number, and for 2, 1, 0.5
    and -1 of a float."""
    plain, dtype = read_value(exponent), dtype_of(base)
    plain = plain.item() if isinstance(plain, np.generic) else plain
    if dtype.kind in "iuc" and type(plain) is int and plain >= 0:
        return _whole_power(base, plain)
    if dtype in DOMAINS["inexact"] and type(plain) in (int, float):
        if plain == 2:
            return operate("multiply", base, base)
        if plain == 0.5:
            return operate("sqrt", base)
        if plain == -1:
            return operate("divide", 1, base)
        if plain == 1:
            return base
    return operate("power", base, exponent)


def _whole_power(base: Elem[Any], exponent: int) -> Elem[Any]:
    """Return a power by repeated squaring; products of integers wrap, so their order does not matter."""
    found = constant(1, dtype_of(base), "**")
    while exponent:
        if exponent & 1:
            found = base if operation_of(found) == "constant" else operate("multiply", found, base)
        base = operate("multiply", base, base) if exponent > 1 else base
        exponent >>= 1
    return found


def _cure(name: str, dtype: "np.dtype[Any]") -> str:
    """Return the cure for an operation on elements of a wrong type."""
    if name == "divide":
        return "Convert it, x.to(f32) / y.to(f32), or divide whole numbers by //"
    if dtype.kind == "c":
        return "Compute with its parts, array.real(x) and array.imag(x), or its size, array.abs(x), which are real"
    return {
        "ordered": "",
        "number": "Convert it first: x.to(i32); for bools there are & | ^ ~",
        "real": "Convert it first: x.to(i32); for bools there are & | ^ ~",
        "inexact": "Convert it first: x.to(f32)",
        "float": "Convert it first: x.to(f32)",
        "complex": "Convert it first: x.to(c64)",
        "int": "Convert it first: x.to(i32)",
        "bits": "Compare it first, x > 0, or convert it: x.to(i32)",
        "any": "",
    }[OPERATIONS[name].domain]


# ---- the trace of an expression
#
# Its function is called once with elements, and their operations become a list of steps. A step that occurs twice is in
# the list once: steps are equal if they apply the same operation to the same operands.


class Parameter(NamedTuple):
    """The value of a parameter's element: its position, and the trace that it belongs to."""

    position: int
    trace: object
    is_number: bool = False
    """True if calls pass a number for it, for a derivative."""


class Step(NamedTuple):
    """One operation of an expression. `operands` are the indices of earlier steps.

    `value` is the number of a constant as a NumPy scalar, the position of a parameter, and None for all others.
    """

    operation: str
    dtype: "np.dtype[Any]"
    operands: tuple[int, ...]
    value: Any


@final
class TracedExpression(NamedTuple):
    """An expression as a list of steps in the order of their computation.

    `names` and `dtypes` are those of the parameters, `place` is the file and line of the function. `name` is that of
    the kernel; that of a `lambda` is "expression", and `is_lambda` is true. `results` are the numbers of the steps that
    are its results: the last one, unless it has several.
    """

    name: str
    names: tuple[str, ...]
    dtypes: tuple["np.dtype[Any]", ...]
    steps: tuple[Step, ...]
    place: str
    is_lambda: bool
    results: tuple[int, ...] = (-1,)

    def named(self, name: str) -> "TracedExpression":
        """Return the same expression under another name."""
        return self._replace(name=name, is_lambda=False)

    @property
    def label(self) -> str:
        """The name in tables, pictures and places of moves: that of the function, or `expression file.py:12`."""
        # Each call of the expression asks for it, and a `PurePath` takes 6 us.
        return f"expression {self.place.rpartition(os.sep)[2]}" if self.is_lambda else self.name

    @property
    def title(self) -> str:
        """The name at the beginning of a message."""
        return f"the expression at {self.place}" if self.is_lambda else f"expression {self.name!r}"

    @property
    def signature(self) -> inspect.Signature:
        """The parameters, which take arguments by position or by name."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.names])

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The element type of the result."""
        return self.steps[-1].dtype

    @property
    def result_dtypes(self) -> tuple["np.dtype[Any]", ...]:
        """The element type of each result."""
        return tuple([self.steps[number].dtype for number in self.results])


def declared_at(function: Callable[..., Any]) -> Origin:
    """Return the place of a function of elements; of a `derivative` that of the function that it is one of."""
    return inspect.unwrap(function).__code__, 0


def trace_expression(function: Callable[..., Any], dtypes: Sequence["np.dtype[Any]"]) -> TracedExpression:
    """Call the function of an expression once with an element for each parameter, and return its steps.

    Raises:
        TypeError: the function has another number of parameters, or its result is neither an element of this expression
            nor a tuple of several.
    """
    name = "expression" if function.__name__ == "<lambda>" else function.__name__
    place = describe(declared_at(function))
    names = tuple(inspect.signature(function).parameters)
    if len(names) != len(dtypes):
        raise TypeError(
            f"expr: {name} at {place} has {len(names)} parameters, but {len(dtypes)} element types are given. Give one "
            "for each parameter: expr(f32, f32)."
        )
    trace = object()
    root = function(*[Elem("parameter", dtype, (), Parameter(i, trace)) for i, dtype in enumerate(dtypes)])
    return traced_result(function, root, names, dtypes, trace, several=True)


def traced_result(
    function: Callable[..., Any],
    root: object,
    names: tuple[str, ...],
    dtypes: Sequence["np.dtype[Any]"],
    trace: object,
    *,
    several: bool = False,
) -> TracedExpression:
    """Return the steps of what a function has made of the parameters of a trace. `several` allows a tuple.

    Raises:
        TypeError: its result is not an element of this expression.
    """
    is_lambda = function.__name__ == "<lambda>"
    name, place = "expression" if is_lambda else function.__name__, describe(declared_at(function))
    roots: tuple[Any, ...] = root if several and type(root) is tuple else (root,)
    for each in roots or ((),):
        if not isinstance(each, Elem):
            raise TypeError(
                f"expr: {name} at {place} returned {format_value(each)}, which is not an element. Return what "
                "operations on its parameters give; for a fixed value there is dagpu.full."
            )
    if roots is root and len(roots) == 1:
        raise TypeError(
            f"expr: {name} at {place} returned a tuple of one. Return the element itself: x + y, not x + y,."
        )
    steps, numbers = number_steps(roots, trace, name, place)
    return TracedExpression(name, names, tuple(dtypes), steps, place, is_lambda, numbers if roots is root else (-1,))


def number_steps(
    roots: Sequence[Elem[Any]], trace: object, name: str, place: str
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Return the steps of elements, each after its operands, and equal ones once; and the number of each element's
    step."""
    steps: list[Step] = []
    known: dict[Any, int] = {}
    numbers: dict[int, int] = {}
    todo: list[tuple[Elem[Any], bool]] = [(root, False) for root in reversed(roots)]
    while todo:
        element, ready = todo.pop()
        if id(element) in numbers:
            continue
        operands = operands_of(element)
        if operands and not ready:
            todo.append((element, True))
            todo += [(operand, False) for operand in reversed(operands)]
            continue
        value = value_of(element)
        if isinstance(value, Parameter):
            if value.trace is not trace:
                raise TypeError(
                    f"expr: {name} at {place} uses an element of another expression. Make it a parameter, or write "
                    "both as one function."
                )
            value = value.position
        step = Step(operation_of(element), dtype_of(element), tuple([numbers[id(each)] for each in operands]), value)
        key = (*step[:3], value.tobytes() if isinstance(value, np.generic) else value)
        number = known.setdefault(key, len(steps))
        if number == len(steps):
            steps.append(step)
        numbers[id(element)] = number
    return tuple(steps), tuple([numbers[id(root)] for root in roots])
