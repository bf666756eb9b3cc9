"""Values of one run that are not there yet: those it makes itself, and those another run is making.

A closure is never called with such a value. A node that depends on one is suspended, and resumed in the next stage. The
attribute `value` is `PENDING` until then.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar, final

from dagpu.common.containers import own_containers
from dagpu.common.errors import MovedError, NestedRunError, OwnershipError, ShapeError
from dagpu.common.places import Origin, describe, is_ours
from dagpu.handles import HANDLES, OWNING, Handle, Partition, SharedTensor, Tensor, TensorMut, live_state
from dagpu.handles.symbolic import replace_standins
from dagpu.handles.tensors import handles_in, has_owning_handle, make_unwritable, map_handles
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import ByResults, ByTrace, Map, Shared, Split, Taken, Then, Unzip
from dagpu.ops.nodes import Node
from dagpu.ops.single_flight import Claims, Once, exchange_item
from dagpu.plans.program import Cell, Items
from dagpu.tracing.value_tokens import is_fixed

_T = TypeVar("_T")


@final
@dataclass(slots=True, eq=False)
class LeftOut:
    """A component that an earlier stage of a feed's trace has not made, because no op had taken it."""

    handle: Handle


Turns: TypeAlias = Generator[Callable[[], None] | LeftOut | None, None, _T]
"""A part of a trace that lets its driver do other work: it yields None to pause, work for a thread that may wait, or a
component that the driver must make before the trace goes on."""

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
    call: Any = None
    """The call that a gradient records and that this belongs to; None for none."""


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
    cure = "Say the length of its result, size=100, or make" if waits_for_length(deferred) else "Make"
    return (
        f"{_work_of(cause.node)} needs values that come to the host during the run. {cure} one pipeline of what comes "
        "before it, and one of what comes after, which gets these values as arguments"
    )


def waits_for_length(deferred: Deferred) -> str | None:
    """Return the name and place of a call that waits for the length of its result; None for another value."""
    node: Any = deferred.cause.node if type(deferred.cause) is SuspendedOp else None
    waits = type(node) is Then and isinstance(node.f, ByResults) and node.f.waits_for_length
    return _work_of(node) if waits else None


def _work_of(node: Any) -> str:
    """Return the name of the work of a suspended op, as its user wrote it: a function of dagpu's that chooses a kernel
    by the results of ops is a `Then` too. A public one is what the user gave to `.then`."""
    if type(node) is not Then:
        return repr(node)
    if isinstance(node.f, ByResults | ByTrace):
        return f"{node.f.name} at {describe(node.origin)}"
    code = getattr(node.f, "__code__", None)
    ours = code is not None and is_ours(code.co_filename) and "<locals>" in node.f.__qualname__
    return f"{node.f.__name__ if ours else 'the function of .then'} at {describe(node.origin)}"


NOT_YET: Final = object()
"""The result of `argument_template` for a value that needs another stage."""

_DEEPEST = 20
"""The depth to which tuples are templates. Tuples nested deeper wait for the next stage, where they are plain
values."""


OfShared: TypeAlias = Callable[[Shared[Any], int], Any]
"""A function that does for the value of a `Shared` what `argument_template` does, at a depth."""


def argument_template(value: Any, of_shared: OfShared, depth: int = 0) -> Any:
    """Return a value as the argument of a `HostCall`, or `NOT_YET` if the value depends on more than cells of this
    program. `of_shared` does so for the value of a `Shared` that does not exist yet."""
    value = resolve(value)
    if type(value) is not Deferred:
        return value
    match value.cause:
        case FromCell(buffer=buffer):
            return Cell(buffer)
        case FromItems(items=items) if depth < _DEEPEST:
            parts = tuple(argument_template(item, of_shared, depth + 1) for item in items)
            return NOT_YET if any(part is NOT_YET for part in parts) else Items(parts)
        case SuspendedOp(node=Shared() as node) | ForeignSuspension(node=Shared() as node) if depth < _DEEPEST:
            return of_shared(node, depth + 1)
        case _:
            return NOT_YET


def is_plain_template(template: Any) -> bool:
    """Return true for a template of cells, and of values that cannot be changed and hold no handles."""
    if type(template) is Items:
        return all(map(is_plain_template, template.items))
    return type(template) is Cell or is_fixed(replace_standins(template))


# ---- run memo
#
# The memo of one run for `Shared` and `Unzip`: the values that the run makes itself, until they are complete.
#
# `making[once]` is, for each of them,
#     PENDING         while its source is being evaluated,
#     a list          the components of an `Unzip`, with `Taken` in place of each that was taken,
#     anything else   the value of a `Shared`; a `Deferred` if it does not exist yet.
#
# A complete value is published to its `Once`, for other runs and for the next run, and removed from `making`.

Remembering: TypeAlias = Shared[Any] | Unzip[Any]


@final
@dataclass(slots=True, eq=False)
class RunMemo:
    """The values of one run, and its claims."""

    claims: Claims = field(default_factory=Claims)
    """The claims of the values that the run makes for all runs."""
    _making: dict[Once, Any] = field(default_factory=dict)
    _splits: dict[Once, Split] = field(default_factory=dict)
    _coming: dict[Once, list[Deferred]] = field(default_factory=dict)
    """The components that were taken before they exist: until then nobody knows which sources their value has read, and
    this run may leave it to another one."""
    _private: set[Once] = field(default_factory=set)
    """The values that this run makes for itself alone: it publishes none of them."""
    late: list[LeftOut] = field(default_factory=list)
    """The components that have been taken now, and that an earlier stage has left out."""
    _of_sources: dict[Once, tuple[Any, Mapping[Any, int]]] = field(default_factory=dict)
    """The values that an earlier stage has published, with the sources on which they depend. A run of another instant
    may replace them at any time."""

    @property
    def makes_values(self) -> bool:
        """True if this run makes values that are not published yet."""
        return bool(self._making)

    def is_claimed(self, once: Once) -> bool:
        """Return true if this run is making that value, or has made it in the stage that is being traced."""
        return once in self._making

    def published_value(self, once: Once) -> tuple[Any, Mapping[Any, int]] | None:
        """Return a value that an earlier stage of this run has made of sources, with their revisions; None if there is
        none."""
        return self._of_sources.get(once)

    def start(self, once: Once, *, private: bool) -> None:
        """Record that this run evaluates the source; with `private` for itself alone."""
        if private:
            self._private.add(once)
        self._making[once] = PENDING

    def forget_private(self) -> None:
        """Drop the values that this run has made for itself alone. Nothing of the run needs them any more."""
        self.forget_private_components()
        for once in self._private:
            self._making.pop(once, None)
        self._private.clear()

    def forget_private_components(self) -> None:
        """Drop the components that this run has made for itself alone. Nothing of the run takes one any more."""
        for once in self._private & self._splits.keys():
            del self._making[once], self._splits[once]
            self._private.discard(once)

    def defer_shared(self, once: Once, deferred: Deferred) -> None:
        """Record that the value of a `Shared` does not exist yet."""
        self._making[once] = deferred

    def is_deferred(self, once: Once) -> bool:
        """Return true for the value of a `Shared` that this run makes in a later stage."""
        return type(resolve(self._making.get(once))) is Deferred

    def use_again(self, node: Remembering) -> Any:
        """Return a value that this run itself has evaluated, for one more use."""
        claimed = self._making[node.once]
        if claimed is PENDING:
            raise own_result_error(node.origin)
        return self.take_component(node) if isinstance(node, Unzip) else copy_for_consumer(claimed)

    def record_shared(self, node: Shared[Any], value: Any) -> Any:
        """Record the value of a `Shared` in a form that any number of consumers may have. Return it for the first
        consumer."""
        if type(value) is Tensor:
            value = value.share()
        elif has_owning_handle(value):
            owned = next(handle for handle in handles_in(value) if type(handle) in OWNING)
            what = repr(owned) if value is owned else f"a {type(value).__name__} that owns {owned!r}"
            raise OwnershipError(
                f"shared() at {describe(node.origin)} of {what}. Only one bare Tensor can be shared whole. "
                f"{_how_to_share(value)}."
            )
        else:
            value = make_unwritable(value)
        self._making[node.once] = value
        return copy_for_consumer(value)

    def record_components(self, split: Split, value: Any, origin: Origin) -> None:
        """Record the components of an `Unzip`'s tuple, some of which may not exist yet."""
        self.defer_components(split, check_components(value, split.n, origin))

    def defer_components(self, split: Split, parts: Iterable[Any]) -> None:
        """Record the components of an `Unzip`, each as a value or as a `Deferred`."""
        self._making[split.once] = list(parts)
        self._splits[split.once] = split

    def take_component(self, node: Unzip[Any]) -> Any:
        """Take one component."""
        parts, index = self._making[node.split.once], node.index
        if isinstance(parts[index], Taken):
            raise _taken_error(node)
        part, parts[index] = parts[index], Taken()
        if type(part) is LeftOut:
            self.late.append(part)
            return part.handle
        if type(resolve(part)) is Deferred:
            self._coming.setdefault(node.split.once, []).append(part)
        return part

    def forget_unreachable(self) -> None:
        """Drop the components whose ops no longer exist. No op can ask for them any more, so their memory is
        temporary."""
        for once, split in self._splits.items():
            parts = self._making.get(once)
            if type(parts) is list:
                for index, taker in enumerate(split.takers):
                    if taker() is None:
                        parts[index] = Taken()

    def untaken_handles(self) -> Iterator[tuple[list[Any], int, Handle]]:
        """Yield the components that this run makes for itself alone, that no op has taken, and that are one handle
        each, with the list and the place where they wait."""
        for once in self._private & self._splits.keys():
            parts = self._making.get(once)
            if type(parts) is list:
                for index, part in enumerate(parts):
                    handle = resolve(part)
                    if type(handle) in HANDLES:
                        yield parts, index, handle

    def find_untaken(self) -> Unzip[Any] | None:
        """Return an op that may still ask for a component that this run has made and no op has taken; None if there is
        none."""
        for once, split in self._splits.items():
            parts = self._making.get(once)
            if type(parts) is list:
                for part, taker in zip(parts, split.takers, strict=True):
                    op = taker()
                    if op is not None and not isinstance(part, Taken):
                        return op
        return None

    def complete_values(self) -> dict[Once, Any]:
        """Return the values that are made and not published yet."""
        found: dict[Once, Any] = {}
        for once, claimed in self._making.items():
            parts = [resolve(part) for part in claimed] if type(claimed) is list else [resolve(claimed)]
            coming = [resolve(part) for part in self._coming.get(once, ())]
            if claimed is not PENDING and Deferred not in map(type, [*parts, *coming]):
                found[once] = parts if type(claimed) is list else parts[0]
        return found

    def unpublished_handles(self) -> list[Handle]:
        """Return the handles in the values that are made and not published yet."""
        return [handle for value in self.complete_values().values() for handle in handles_in(value)]

    def claimed_value(self, once: Once) -> Any:
        """Return what this run has recorded for a value (see the module); `PENDING` also if it does not make it."""
        return self._making.get(once, PENDING)

    def publish(
        self,
        restore: Callable[[Any], Any],
        constant: Callable[[Any], Any],
        made_for: Callable[[Once], Mapping[Any, int]],
    ) -> list[Any]:
        """Remember the complete values, for other runs and for the next run, but of those that this run makes for
        itself alone only constants. `restore` removes the stand-ins from a value, `constant` maps the value of a
        `Shared` to the value that is published, and `made_for` returns the sources on which a value depends. Return the
        published values."""
        published: list[Any] = []
        for once, value in self.complete_values().items():
            components = once in self._splits
            if once in self._private:
                if not components and not once.remembers() and made_for(once) == {}:
                    published.append(constant(restore(value)))
                    once.offer(published[-1])  # nothing has claimed it: it is a constant, whoever makes it
                continue
            sources = made_for(once)
            del self._making[once]
            self._splits.pop(once, None)
            restored = restore(value)
            published.append(restored if components else constant(restored))
            if sources:
                self._of_sources[once] = published[-1], sources
            self.claims.publish(once, published[-1], sources)
        return published

    def abandon(self) -> None:
        """Give up all claims: this run will not make the values, so another run may."""
        self.claims.abandon()
        self._making.clear()


def take_published(node: Unzip[Any], parts: list[Any], undo: Callable[[Callable[[], None]], None]) -> Any:
    """Take a component of those that an earlier run has made. `undo` receives a function that puts it back.

    Raises:
        MovedError: the component was taken before.
    """
    index = node.index
    found = exchange_item(parts, index, Taken())
    if isinstance(found, Taken):
        exchange_item(parts, index, found)
        raise _taken_error(node)
    undo(lambda: _put_component_back(parts, index, found))
    return found


def _how_to_share(value: Any) -> str:
    """Return the cure for `shared()` of a value with handles that cannot be shared."""
    kind = type(value)
    if kind is TensorMut or (kind is Partition and live_state(value).kind is TensorMut):
        return (
            "What is lent for writing has one user at a time: pass on the value that each call returns; or lend the "
            "tensor for reading, t.borrow(), as often as it is read"
        )
    if kind is Partition:
        return "Put it together first: .unpartition().shared()"
    return "Say unzip() first, and share the parts"


def check_components(value: Any, count: int, origin: Origin) -> Sequence[Any]:
    """Return the components of a tuple, some of whose items may not exist yet.

    Raises:
        ShapeError: there are not `count` of them.
    """
    items = value.cause.items if type(value) is Deferred and type(value.cause) is FromItems else value
    if not isinstance(items, tuple | list) or len(items) != count:
        there = len(items) if isinstance(items, tuple | list) else None
        what = type(items).__name__ if there is None else f"{there} components"
        cure = f"Say unzip({there})" if there else f"Let the op return a tuple of {count}"
        raise ShapeError(f"unzip({count}) at {describe(origin)}: the op's result is {what}. {cure}.")
    return items


def own_result_error(origin: Origin) -> NestedRunError:
    """Return the error for an op that needs its own result."""
    return NestedRunError(
        f"the shared() or unzip() op at {describe(origin)} depends on its own result: a closure leads back to it. "
        "Let the closure build an op of its own."
    )


def copy_for_consumer(claimed: Any) -> Any:
    """Return a remembered value for one more consumer, with handles and containers of its own."""
    return own_containers(
        map_handles(lambda handle: handle.clone() if type(handle) is SharedTensor else handle, claimed)
    )


def _put_component_back(parts: list[Any], index: int, found: Any) -> None:
    """Undo the taking of a component. Another snapshot's components are another list, and stay as they are."""
    exchange_item(parts, index, found)


def _taken_error(node: Unzip[Any]) -> MovedError:
    """Return the error for a component that was taken before."""
    return MovedError(
        f"{node!r}: this component was taken before, and its source runs only once. "
        "Say .shared() to give it to several."
    )
