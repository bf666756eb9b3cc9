"""Abstract values: the shape of an array, the tile of a partition and the result of an op, as known before a run.

`None` is the unknown value. An unknown extent is `None` as well: `(8, None)` has rank 2.
"""

from dataclasses import dataclass, field
from typing import TypeAlias, final

from mypy.nodes import Expression
from mypy.types import Instance, LiteralType, TupleType, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.typing import op_parameters

Extents: TypeAlias = tuple[int | None, ...]

ARRAYS = frozenset((names.TENSOR, names.SHARED_TENSOR, names.TENSOR_REF, names.TENSOR_MUT))


@final
@dataclass(frozen=True, slots=True)
class Number:
    """A whole number."""

    value: int


@final
@dataclass(frozen=True, slots=True)
class Array:
    """A tensor or a borrow of one."""

    shape: Extents


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """A partition; `tile` is None if it is unknown."""

    shape: Extents
    tile: Extents | None


@final
@dataclass(frozen=True, slots=True)
class Several:
    """A tuple."""

    items: "tuple[Value, ...]"


@final
@dataclass(frozen=True, slots=True)
class Op:
    """An op, its result, and the call that allocates the memory of the result.

    Results of two ops with one `source` are on the same memory. None is the unknown source.
    """

    result: "Value"
    source: object = field(default=None, compare=False)


@final
@dataclass(frozen=True, slots=True)
class NewOutput:
    """A kernel whose calls write to a new tensor."""

    shape: Extents | None
    """The shape of the tensor; None if it is not known."""
    kernel: Type
    callee: Expression
    """The expression that names the kernel."""


@final
@dataclass(frozen=True, slots=True)
class Nothing:
    """The object `None`, which is known; the unknown value is None itself."""


@final
@dataclass(frozen=True, slots=True)
class Made:
    """What a call of a class makes, or the decorator `kernel`."""

    name: str
    """The full name of the class or function."""
    arguments: "tuple[Value, ...]"


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A dict display whose keys are literal texts."""

    items: "tuple[tuple[str, Value], ...]"


Value: TypeAlias = Number | Array | Cut | Several | Op | NewOutput | Nothing | Made | Table | None


def joined(one: Value, other: Value) -> Value:
    """Join two alternatives: return the facts that hold for both values."""
    if one != other:
        return None
    if isinstance(one, Op) and isinstance(other, Op) and one.source != other.source:
        return Op(one.result)
    return one


def as_extents(value: Value) -> Extents | None:
    """Convert a tuple of numbers to a shape or tile; None if the value is not known to be a tuple."""
    if isinstance(value, Several):
        return tuple([item.value if isinstance(item, Number) else None for item in value.items])
    return None


def format_extents(given: Extents) -> str:
    """Format a shape for a message, with `?` for an unknown extent: `(8, ?)`."""
    inside = ", ".join("?" if extent is None else str(extent) for extent in given)
    return f"({inside},)" if len(given) == 1 else f"({inside})"


def result_of(value: Value) -> Value:
    """Return the result of running an op; None for any other value."""
    return value.result if isinstance(value, Op) else None


def value_of_type(type_: Type | None) -> Value:
    """Return the value that a type determines: that of a literal or a `Final`, or the literal shape of a handle."""
    proper = get_proper_type(type_)
    if isinstance(proper, Instance):
        if proper.last_known_value is not None:
            return value_of_type(proper.last_known_value)
        if not proper.args:
            return None
        if proper.type.fullname in ARRAYS:
            shape = _declared(proper.args[1])
            return None if shape is None else Array(shape)
        if proper.type.fullname == names.PARTITION:
            whole = value_of_type(proper.args[0])
            return Cut(whole.shape, _declared(proper.args[1])) if isinstance(whole, Array) else None
        op = op_parameters.as_op(proper)
        found = None if op is None else value_of_type(op.args[0])
        return None if found is None else Op(found)
    if isinstance(proper, LiteralType):
        return Number(proper.value) if type(proper.value) is int else None
    if isinstance(proper, TupleType):
        items = tuple(map(value_of_type, proper.items))
        return Several(items) if any(item is not None for item in items) else None
    return None


def _declared(shape: Type) -> Extents | None:
    """Return the extents of a shape type: `(8, None)` for `tuple[Literal[8], int]`, None for `tuple[int, ...]`."""
    proper = get_proper_type(shape)
    if not isinstance(proper, TupleType):
        return None
    found = map(value_of_type, proper.items)
    return tuple([item.value if isinstance(item, Number) else None for item in found])
