"""Abstract values: the shape of an array, the tile of a partition and the result of an op, as known before a run.

`None` is the unknown value. An unknown extent is `None` as well: `(8, None)` has rank 2.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias as Alias
from typing import final

from mypy.nodes import CallExpr, Expression, RefExpr, TypeAlias, TypeInfo
from mypy.types import Instance, LiteralType, TupleType, Type, get_proper_type

from dagpu.common import facts
from dagpu.common.facts import full_name
from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.typing import op_types

Extents: Alias = tuple[int | None, ...]


@final
@dataclass(repr=False, slots=True)
class Number:
    """A whole number."""

    value: int


@final
@dataclass(repr=False, slots=True)
class Array:
    """A tensor or a borrow of one."""

    shape: Extents


@final
@dataclass(repr=False, slots=True)
class Cut:
    """A partition; `tile` is None if it is unknown."""

    shape: Extents
    tile: Extents | None


@final
@dataclass(repr=False, slots=True)
class Several:
    """A tuple."""

    items: "tuple[Value, ...]"


@final
@dataclass(repr=False, slots=True)
class Op:
    """An op, its result, and the call that allocates the memory of the result.

    Results of two ops with one `source` are on the same memory. None is the unknown source.
    """

    result: "Value"
    source: object = field(default=None, compare=False)


@final
@dataclass(repr=False, slots=True)
class NewOutput:
    """A kernel whose calls write to a new tensor."""

    shape: Extents | None
    """The shape of the tensor; None if it is not known."""
    kernel: Type
    callee: Expression
    """The expression that names the kernel."""


@final
@dataclass(repr=False, slots=True)
class Nothing:
    """The object `None`, which is known; the unknown value is None itself."""


@final
@dataclass(repr=False, slots=True)
class Made:
    """What a call of a class makes, or the decorator `kernel`."""

    name: str
    """The full name of the class or function."""
    arguments: "tuple[Value, ...]"


@final
@dataclass(repr=False, slots=True)
class Table:
    """A dict display whose keys are literal texts."""

    items: "tuple[tuple[str, Value], ...]"


@final
class Unread:
    """A value of which nothing is known, but that a variable has it: two reads of that are of one object."""


Value: Alias = Number | Array | Cut | Several | Op | NewOutput | Nothing | Made | Table | Unread | None


def joined(one: Value, other: Value) -> Value:
    """Join two alternatives: return what holds for both values, which is `one` itself if nothing is lost."""
    if one != other:
        return None
    match one, other:
        case Op(), Op() if one.source is not None and one.source != other.source:
            return Op(joined(one.result, other.result))
        case Several(), Several():
            items = tuple(map(joined, one.items, other.items))
            return one if all(map(operator.is_, items, one.items)) else Several(items)
        case _:
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
        if proper.type.fullname in names.ARRAYS:
            shape = _declared(proper.args[1])
            return None if shape is None else Array(shape)
        if proper.type.fullname == names.PARTITION:
            whole = value_of_type(proper.args[0])
            return Cut(whole.shape, _declared(proper.args[1])) if isinstance(whole, Array) else None
        op = op_types.as_op(proper)
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


# ---- calls

Arguments: Alias = Mapping[str, Value]
"""The known values of the arguments of a call, by parameter name."""


# ---- functions ----------------------------------------------------------------------------------
def _shaped(given: Arguments, source: object) -> Value:
    shape = as_extents(given.get("shape"))
    return None if shape is None else Op(Array(shape), source)


def _one_axis(name: str) -> Callable[[Arguments, object], Value]:
    """Return the function for a call that makes a tensor of one axis, whose extent is the argument `name`."""

    def call(given: Arguments, source: object) -> Value:
        return Op(Array((_whole(given.get(name)),)), source)

    return call


def _arange(given: Arguments, source: object) -> Value:
    """The value of `arange(stop)`, `arange(stop, f32)` or `arange(start, stop, step)`, with names or without."""
    second = source.args[1] if isinstance(source, CallExpr) and len(source.args) > 1 else None
    has_type = isinstance(second, RefExpr) and isinstance(second.node, TypeInfo | TypeAlias)
    if not {"start", "step", "third"} & given.keys() and ("second" not in given or has_type):
        alone = [given[name] for name in ("first", "stop") if name in given]
        if len(alone) == 1:
            return Op(Array((_whole(alone[0]),)), source)
    start, stop = given.get("start", given.get("first")), given.get("stop", given.get("second"))
    step = given.get("step", given.get("third", Number(1)))
    match start, stop, step:
        case Number(first), Number(last), Number(ahead) if ahead:
            return Op(Array((len(range(first, last, ahead)),)), source)
        case _:
            return Op(Array((None,)), source)


def _eye(given: Arguments, source: object) -> Value:
    rows = _whole(given.get("n"))
    return Op(Array((rows, _whole(given["m"]) if "m" in given else rows)), source)


def _copied(given: Arguments, source: object) -> Value:
    tensor = given.get("t")
    return Op(tensor, source) if isinstance(tensor, Array) else None


def _wrapped(given: Arguments, source: object) -> Value:
    return Op(given.get("x"), source)


def _whole(value: Value) -> int | None:
    return value.value if isinstance(value, Number) else None


FUNCTIONS: dict[str, tuple[tuple[str, ...], Callable[[Arguments, object], Value]]] = {
    **{full_name(name): (("shape",), _shaped) for name in facts.MAKES_SHAPE},
    full_name("arange"): (("first", "second", "third"), _arange),
    full_name("linspace"): (("start", "stop", "num"), _one_axis("num")),
    full_name("eye"): (("n", "m"), _eye),
    **{full_name(name): (("t",), _copied) for name in facts.COPIES_SHAPE},
    names.VALUE: (("x",), _wrapped),
}
"""For each function's full name: its first parameters, and the function that computes the value of a call."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    "partition": ("tile",), "reshape": ("shape",), "view": ("shape",), "new": ("shape", "tile"),
    "write": ("at", "data"),
}  # fmt: skip
"""The parameters of the methods that take shapes or parts."""

_SLICE: tuple[Value, ...] = (Nothing(), Nothing(), Nothing())
_ALONG: tuple[Value, ...] = (None, Number(0), Number(0))
MADE: dict[str, tuple[tuple[str, ...], tuple[Value, ...]]] = {
    names.SLICE: (("start", "stop", "step"), _SLICE),
    names.ALONG: (("axis", "before", "after"), _ALONG),
    names.HERE: ((), ()),
    names.ROWS: ((), ()),
    names.COLUMNS: ((), ()),
    names.KERNEL_DECORATOR: (("sees",), (Nothing(),)),
}
"""For the full names of classes, and of the decorator `kernel`: parameters and defaults. A call evaluates to `Made`."""


# ---- methods ------------------------------------------------------------------------------------
def call_method(receiver: Value, name: str, given: Arguments, source: object) -> Value:
    """Return the value of a method call on a handle or an op; None if the method has no known effect on shapes."""
    match receiver:
        case Array(shape):
            return _call_array(shape, name, given)
        case Cut(shape, _):
            return Array(shape) if name == "unpartition" else None
        case Op():
            return _call_op(receiver, name, given, source)
        case _:
            return None


def _call_array(shape: Extents, name: str, given: Arguments) -> Value:
    match name:
        case "partition":
            return Cut(shape, as_extents(given.get("tile")))
        case "share" | "clone" | "try_unwrap" | "borrow" | "borrow_mut":
            return Array(shape)
        case "reshape" | "view":
            wanted = given.get("shape")
            new = (-1,) if wanted == Number(-1) else as_extents(wanted)
            return None if new is None else Array(_with_open_extent(shape, new))
        case "slice":
            return Array((None,) * len(shape))
        case _:
            return None


def _with_open_extent(shape: Extents, new: Extents) -> Extents:
    """Return a new shape with what is left of the elements in the place of its -1, None if that is not known."""
    if -1 not in new:
        return new
    known = [extent for extent in new if extent is not None and extent != -1]
    sizes = [extent for extent in shape if extent is not None]
    count, left = prod(known), None
    if len(known) == len(new) - 1 and len(sizes) == len(shape) and count and not prod(sizes) % count:
        left = prod(sizes) // count
    return tuple([left if extent == -1 else extent for extent in new])


def _call_op(op: Op, name: str, given: Arguments, source: object) -> Value:
    match name:
        case "partition" | "unpartition" | "share" | "reshape":
            return Op(call_method(op.result, name, given, source), op.source)
        case "on" | "schedule" | "inspect" | "shared":
            return op
        case "sync" | "sync_on":
            return op.result
        case "first" | "last" if isinstance(op.result, Several) and op.result.items:
            return Op(op.result.items[0 if name == "first" else -1], source)
        case "unzip" if isinstance(op.result, Several):
            return Several(tuple([Op(item, (source, place)) for place, item in enumerate(op.result.items)]))
        case _:
            return None


def call_zip_ops(values: list[Value], source: object) -> Value:
    """Return the value of `zip_ops(a, b)`."""
    return Op(Several(tuple(map(result_of, values))), source)
