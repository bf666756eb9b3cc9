"""Values that a trace does not have yet: host data that device work or another run is still making.

A closure is never called with such a value. A node that depends on one is suspended, and resumed in the next stage. The
attribute `value` is `PENDING` until then.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, final

from dagpu.common.origin import describe, is_ours
from dagpu.lowering.program import Cell, Items
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map, Shared, Then, Unzip
from dagpu.ops.nodes import Node

_T = TypeVar("_T")

Turns: TypeAlias = Generator[Callable[[], None] | None, None, _T]
"""A part of a trace that lets its driver do other work: it yields None to pause, or work for a thread that may wait."""

PENDING: Final = object()
"""The value of a `Deferred` that is not resolved yet."""


@final
@dataclass(slots=True, eq=False)
class FromCell:
    """The value of a cell of the program that is being traced."""

    buffer: int


@final
@dataclass(slots=True, eq=False)
class FromItems:
    """A tuple, some of whose items are `Deferred`."""

    items: tuple[Any, ...]


@final
@dataclass(slots=True, eq=False)
class FromPart:
    """Component `index` of an `Unzip` whose tuple does not exist yet."""

    whole: "Deferred"
    node: Unzip[Any]
    index: int


@final
@dataclass(slots=True, eq=False)
class SuspendedOp:
    """A node some of whose inputs do not exist yet. `place` is its placement."""

    node: Node
    inputs: tuple[Any, ...]
    place: Any


@final
@dataclass(slots=True, eq=False)
class ForeignSuspension:
    """A `Shared` or `Unzip` node whose value is being made: by another run, or in a later stage of this run."""

    node: Shared[Any] | Unzip[Any]
    place: Any


@final
@dataclass(slots=True, eq=False)
class PartOfOp:
    """A part of the op that runs by a plan of its own, after the stage in which it was met. `place` is its
    placement."""

    node: DeviceOp[Any, Any, Any]
    place: Any
    runs: bool = False
    """True once it has been started."""


Cause: TypeAlias = FromCell | FromItems | FromPart | SuspendedOp | ForeignSuspension | PartOfOp


@final
@dataclass(slots=True, eq=False)
class Deferred:
    """A value that does not exist yet, and the cause from which it will be computed."""

    cause: Cause
    value: Any = PENDING


def part_of(deferred: Deferred) -> DeviceOp[Any, Any, Any]:
    """Return the part of an op whose value this is, without its placement."""
    assert type(deferred.cause) is PartOfOp
    return deferred.cause.node


def resolve(value: Any) -> Any:
    """Return the value itself if it exists by now, else its `Deferred`."""
    while type(value) is Deferred and value.value is not PENDING:
        value = value.value
    return value


def ends_on_host(deferred: Deferred) -> bool:
    """Return true for a value that is put together, or computed on the host, of values that are known to come: no
    further part of the op is evaluated for it."""
    cause = deferred.cause
    return type(cause) is FromItems or (type(cause) is SuspendedOp and type(cause.node) is Map)


def is_host_part(deferred: Deferred) -> bool:
    """Return true for a value that no device needs: it is put together, or computed on the host, after the stage."""
    match deferred.cause:
        case SuspendedOp(node=node):
            return type(node) is Map or type(node) is Shared
        case ForeignSuspension(node=node):
            return type(node) is Shared
        case _:
            return True


def waits_for_host(deferred: Deferred) -> str | None:
    """Return what work begins only after results have come to the host, and how to run it with a plan; None if another
    run makes the value."""
    cause = deferred.cause
    if type(cause) is not SuspendedOp:
        return None
    return (
        f"{_work_of(cause.node)} needs values that come to the host during the run. Make one pipeline of what comes "
        "before it, and one of what comes after, which gets these values as arguments"
    )


def _work_of(node: Any) -> str:
    """Return the name of the work of a suspended op, as its user wrote it: a function of dagpu's that chooses a kernel
    by the results of ops is a `Then` too. A public one is what the user gave to `.then`."""
    if type(node) is not Then:
        return repr(node)
    code = getattr(node.f, "__code__", None)
    ours = code is not None and is_ours(code.co_filename) and "<locals>" in node.f.__qualname__
    return f"{node.f.__name__ if ours else 'the function of .then'} at {describe(node.origin)}"


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
