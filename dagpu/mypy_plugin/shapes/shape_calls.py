"""Effects of dagpu's functions and methods on shapes: `zeros((8, 8)).partition((4, 4))` is an `Op` with a `Cut`."""

from collections.abc import Callable, Mapping
from math import prod
from typing import TypeAlias as Alias

from mypy.nodes import CallExpr, RefExpr, TypeAlias, TypeInfo

from dagpu.common import facts
from dagpu.common.facts import full_name
from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.shapes.shape_values import (
    Array,
    Cut,
    Extents,
    Nothing,
    Number,
    Op,
    Several,
    Value,
    as_extents,
    result_of,
)

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
