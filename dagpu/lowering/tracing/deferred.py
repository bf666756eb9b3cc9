"""Values that a trace does not have yet: host data that device work or another run is still making.

A closure is never called with such a value. A node that depends on one is suspended, and resumed in the next stage. The
attribute `value` is `PENDING` until then.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar, final

from dagpu.lowering.program import Cell, Items
from dagpu.ops.compose import Shared, Unzip
from dagpu.ops.nodes import Node

_T = TypeVar("_T")

Turns: TypeAlias = Generator[Callable[[], None] | None, None, _T]
"""A part of a trace that lets its driver do other work: it yields None to pause, or work for a thread that may wait."""

PENDING: Final = object()
"""The value of a `Deferred` that is not resolved yet."""


@final
class FromCell:
    """The value of a cell of the program that is being traced."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: int) -> None:
        self.buffer = buffer


@final
class FromItems:
    """A tuple, some of whose items are `Deferred`."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Any, ...]) -> None:
        self.items = items


@final
class FromPart:
    """Component `index` of an `Unzip` whose tuple does not exist yet."""

    __slots__ = ("index", "node", "whole")

    def __init__(self, whole: "Deferred", node: Unzip[Any], index: int) -> None:
        self.whole = whole
        self.node = node
        self.index = index


@final
class SuspendedOp:
    """A node some of whose inputs do not exist yet. `place` is its placement."""

    __slots__ = ("inputs", "node", "place")

    def __init__(self, node: Node, inputs: tuple[Any, ...], place: Any) -> None:
        self.node = node
        self.inputs = inputs
        self.place = place


@final
class ForeignSuspension:
    """A `Shared` or `Unzip` node whose value is being made: by another run, or in a later stage of this run."""

    __slots__ = ("node", "place")

    def __init__(self, node: Shared[Any] | Unzip[Any], place: Any) -> None:
        self.node = node
        self.place = place


Cause: TypeAlias = FromCell | FromItems | FromPart | SuspendedOp | ForeignSuspension


@final
class Deferred:
    """A value that does not exist yet, and the cause from which it will be computed."""

    __slots__ = ("cause", "value")

    def __init__(self, cause: Cause) -> None:
        self.cause = cause
        self.value: Any = PENDING


def resolve(value: Any) -> Any:
    """Return the value itself if it exists by now, else its `Deferred`."""
    while type(value) is Deferred and value.value is not PENDING:
        value = value.value
    return value


NOT_YET: Final = object()
"""The result of `argument_template` for a value that needs another stage."""

_DEEPEST = 20
"""The depth to which tuples are templates. Tuples nested deeper wait for the next stage, where they are plain
values."""


def argument_template(value: Any, depth: int = 0) -> Any:
    """Return a value as the argument of a `HostCall`, or `NOT_YET` if the value depends on more than cells of this
    program."""
    value = resolve(value)
    if type(value) is not Deferred:
        return value
    match value.cause:
        case FromCell(buffer=buffer):
            return Cell(buffer)
        case FromItems(items=items) if depth < _DEEPEST:
            parts = tuple(argument_template(item, depth + 1) for item in items)
            return NOT_YET if any(part is NOT_YET for part in parts) else Items(parts)
        case _:
            return NOT_YET
