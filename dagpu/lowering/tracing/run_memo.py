"""The memo of one run for `Shared` and `Unzip`: the values that the run makes itself, until they are complete.

`claims[once]` is, for each of them,
    PENDING         while its source is being evaluated,
    a list          the components of an `Unzip`, with `Taken` where one was taken,
    anything else   the value of a `Shared`; a `Deferred` where it does not exist yet.
A complete value is published to its `Once`, for other runs and for the next, and leaves `claims`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, final

from dagpu.common.errors import MovedError, NestedRunError, OwnershipError, ShapeError
from dagpu.common.origin import Origin, describe
from dagpu.handles import OWNING, Handle, Partition, SharedTensor, Tensor, TensorMut, live
from dagpu.handles.handle_trees import for_several, handles_in, map_handles, moves
from dagpu.lowering.tracing.deferred import PENDING, Deferred, FromItems, resolved
from dagpu.ops.compose import Shared, Split, Taken, Unzip
from dagpu.ops.single_flight import Once

Remembering: TypeAlias = Shared[Any] | Unzip[Any]


@final
class RunMemo:
    """The claims of one run."""

    def __init__(self) -> None:
        self._claims: dict[Once, Any] = {}
        self._splits: dict[Once, Split] = {}

    def has(self, once: Once) -> bool:
        """True if this run makes that value now, or has made it in the stage that is being traced."""
        return once in self._claims

    def begin(self, once: Once) -> None:
        """This run evaluates the source."""
        self._claims[once] = PENDING

    def put_off(self, once: Once, later: Deferred) -> None:
        """The value of a `Shared` is still to come."""
        self._claims[once] = later

    def waits(self, once: Once) -> bool:
        """True for the value of a `Shared` that this run makes in a later stage."""
        return type(resolved(self._claims.get(once))) is Deferred

    def again(self, node: Remembering) -> Any:
        """A use of what this run itself evaluates."""
        kept = self._claims[once_of(node)]
        if kept is PENDING:
            raise own_result(node.origin)
        return self.component(node) if isinstance(node, Unzip) else _for_one_more(kept)

    def recall(self, node: Remembering, undo: Callable[[Callable[[], None]], None]) -> Any:
        """A value that an earlier run has made. `undo` receives a function that puts back a component that is taken."""
        if isinstance(node, Shared):
            return _for_one_more(node.once.value)
        once, index = node.split.once, node.index
        found = once.exchange(index, Taken(node.origin))
        if isinstance(found, Taken):
            once.exchange(index, found)
            raise _taken(node)
        undo(lambda: _put_back(once, index, found))
        return found

    def keep_shared(self, node: Shared[Any], made: Any) -> Any:
        """The value of a `Shared` is made: keep it, in a form that any number of consumers may have."""
        if type(made) is Tensor:
            made = made.share()
        elif moves(made):
            owned = next(handle for handle in handles_in(made) if type(handle) in OWNING)
            what = repr(owned) if made is owned else f"a {type(made).__name__} that owns {owned!r}"
            raise OwnershipError(
                f"shared() at {describe(node.origin)} of {what}. Only one bare Tensor can be shared whole. "
                f"{_how_to_share(made)}."
            )
        else:
            made = for_several(made)
        self._claims[node.once] = made
        return _for_one_more(made)

    def keep_split(self, split: Split, made: Any, origin: Origin) -> None:
        """The tuple of an `Unzip` is made: keep its components, some of which may be still to come."""
        self.put_off_split(split, components(made, split.n, origin))

    def put_off_split(self, split: Split, parts: Iterable[Any]) -> None:
        """Record the components of an `Unzip`, each as a value or as a `Deferred`."""
        self._claims[split.once] = list(parts)
        self._splits[split.once] = split

    def component(self, node: Unzip[Any]) -> Any:
        """Take one component."""
        parts, index = self._claims[node.split.once], node.index
        if isinstance(parts[index], Taken):
            raise _taken(node)
        part, parts[index] = parts[index], Taken(node.origin)
        return part

    def forget_unreachable(self) -> None:
        """Drop components whose ops are gone: no op can ask for them any more, so they are temporaries."""
        for once, split in self._splits.items():
            parts = self._claims.get(once)
            if type(parts) is list:
                for index, taker in enumerate(split.takers):
                    if taker() is None:
                        parts[index] = Taken(None)

    def left_over(self) -> Unzip[Any] | None:
        """An op that may still ask for a component that this run has made and not given."""
        for once, split in self._splits.items():
            parts = self._claims.get(once)
            if type(parts) is list:
                for part, taker in zip(parts, split.takers, strict=True):
                    op = taker()
                    if op is not None and not isinstance(part, Taken):
                        return op
        return None

    def handles(self) -> list[Handle]:
        """The handles in what is made and not published yet."""
        return [handle for kept in self._claims.values() if kept is not PENDING for handle in handles_in(kept)]

    def publish(self, constant: Callable[[Any], Any]) -> list[Any]:
        """Remember what is complete, for other runs and for the next: of a `Shared`, what `constant` makes of it. Gives
        what is remembered now."""
        published: list[Any] = []
        for once, kept in list(self._claims.items()):
            if kept is PENDING:
                continue
            value = [resolved(part) for part in kept] if type(kept) is list else resolved(kept)
            incomplete = (
                any(type(part) is Deferred for part in value) if type(kept) is list else type(value) is Deferred
            )
            if not incomplete:
                del self._claims[once]
                published.append(value if self._splits.pop(once, None) else constant(value))
                once.publish(published[-1])
        return published

    def abandon(self) -> None:
        """The run will not make what it has claimed: the next to come may."""
        for once in self._claims:
            once.abandon()
        self._claims.clear()


def _how_to_share(made: Any) -> str:
    """The cure for `shared()` of a value with handles that cannot be shared."""
    kind = type(made)
    if kind is TensorMut or (kind is Partition and live(made).kind is TensorMut):
        return (
            "What is lent for writing has one user at a time: pass on what each call gives back; or lend the tensor "
            "for reading, t.borrow(), as often as it is read"
        )
    if kind is Partition:
        return "Put it together first: .unpartition().shared()"
    return "Say unzip() first, and share the parts"


def components(made: Any, count: int, origin: Origin) -> Sequence[Any]:
    """The components of a tuple, or of one some of whose items are still to come.

    Raises:
        ShapeError: there are not `count` of them.
    """
    items = made.cause.items if type(made) is Deferred and type(made.cause) is FromItems else made
    if not isinstance(items, tuple | list) or len(items) != count:
        there = len(items) if isinstance(items, tuple | list) else None
        what = type(items).__name__ if there is None else f"{there} components"
        cure = f"Say unzip({there})" if there else f"Let the op give a tuple of {count}"
        raise ShapeError(f"unzip({count}) at {describe(origin)}: the op's result is {what}. {cure}.")
    return items


def once_of(node: Remembering) -> Once:
    """The `Once` that remembers the value of a node."""
    return node.split.once if isinstance(node, Unzip) else node.once


def own_result(origin: Origin) -> NestedRunError:
    """The error for an op that needs its own result."""
    return NestedRunError(
        f"the shared() or unzip() op at {describe(origin)} depends on its own result: a closure leads back to it. "
        "Let the closure build an op of its own."
    )


def _for_one_more(kept: Any) -> Any:
    """A remembered value for one more taker: handles, lists and dicts of his own."""
    return map_handles(lambda handle: handle.clone() if type(handle) is SharedTensor else handle, kept)


def _put_back(once: Once, index: int, found: Any) -> None:
    once.exchange(index, found)


def _taken(node: Unzip[Any]) -> MovedError:
    return MovedError(
        f"{node!r}: this component was taken before, and its source runs only once. "
        "Say .shared() to give it to several."
    )
