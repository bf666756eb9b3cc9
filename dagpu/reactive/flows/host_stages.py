"""Stages that compute on the host, in the task that asks: items, map, where, take, window and zip."""

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from types import AsyncGeneratorType
from typing import Any, Generic, TypeVar, final

import trio

from dagpu.common.containers import own_containers
from dagpu.common.critical import run_user_code
from dagpu.common.places import Origin, describe, passes_on
from dagpu.common.wrong_arguments import refuse_stop_iteration
from dagpu.handles.tensors import make_unwritable
from dagpu.ops.base import DeviceOp
from dagpu.reactive.flows.merged_stages import MergeStage
from dagpu.reactive.flows.stage import Asker, Begin, End, FlowStage, ItemOutcome, Opening, ask
from dagpu.runtime.trio_waits import await_user

_T = TypeVar("_T")
_U = TypeVar("_U")


@final
class FlowItems(Generic[_T]):
    """The iterable of a flow, and whether it is an iterator that has ended in an open one."""

    __slots__ = ("_origin", "_used_up", "given")

    def __init__(self, given: AsyncIterable[_T] | Iterable[_T], origin: Origin) -> None:
        self.given = given
        self._origin = origin
        self._used_up = False

    def close(self, iterator: object) -> None:
        """Note that an iterator over the items has ended. An iterable that is no iterator makes another each time."""
        self._used_up = iterator is self.given

    def end(self, iterator: object, *, has_had_one: bool) -> Exception:
        """Return what a stage raises at the end of its iterator: `End`; but if an earlier stage has used the iterator
        up, and this one has had no item of it, an error that says so."""
        if self._used_up and not has_had_one:
            return RuntimeError(
                f"the flow made at {describe(self._origin)} is opened again, and the {type(self.given).__name__} that "
                "it was made of has no more items: it gives each of them once. Make a flow of a list, or another one "
                "of a new iterator."
            )
        self.close(iterator)
        return End()


def begin_items(items: FlowItems[_T], opening: Opening) -> FlowStage[_T]:
    """Begin a stage that returns the items of an iterable.

    An async generator is closed with the block of the feed. Other iterators may be used after it.

    A consumer may be cancelled while an iterator computes, and a cancelled async generator cannot go on. So for a
    consumer, a task of the flow asks an async iterator.
    """
    given = items.given
    if not isinstance(given, AsyncIterable):
        return ItemsStage(items, iter(given), opening.clock, yields=opening.asker is not Asker.RUNS)
    iterator = aiter(given)
    if isinstance(iterator, AsyncGeneratorType):  # trio warns of one that is left open
        opening.stack.callback(items.close, iterator)
        opening.stack.push_async_callback(iterator.aclose)
    found = AsyncItemsStage(items, iterator, opening.clock)
    if opening.asker is not Asker.CONSUMER:
        return found
    asked = MergeStage([found], opening)
    asked.sources = ()  # to users, it and what it asks are one stage
    return asked


@final
class ItemsStage(FlowStage[_T]):
    """Returns the items of an iterator."""

    def __init__(
        self, items: FlowItems[_T], iterator: Iterator[_T], clock: Callable[[], float], *, yields: bool
    ) -> None:
        self._items = items
        self._iterator = iterator
        self._clock = clock
        self._yields = yields
        self._begun = False
        """True once the iterator has been asked: it has given an item, or has ended."""

    @passes_on
    async def next(self) -> _T:
        if self._yields:
            await trio.lowlevel.checkpoint()
        begun, self._begun = self._begun, True
        try:
            value: _T = run_user_code(next, self._iterator)
        except StopIteration:
            raise self._items.end(self._iterator, has_had_one=begun) from None
        self.since = self._clock()
        return value


@final
class AsyncItemsStage(FlowStage[_T]):
    """Returns the items of an async iterator."""

    def __init__(self, items: FlowItems[_T], iterator: AsyncIterator[_T], clock: Callable[[], float]) -> None:
        self._items = items
        self._iterator = iterator
        self._clock = clock
        self._begun = False
        """True once the iterator has been asked: it has given an item, or has ended."""

    @passes_on
    async def next(self) -> _T:
        begun, self._begun = self._begun, True
        try:
            value = await await_user(anext(self._iterator))
        except StopAsyncIteration:
            raise self._items.end(self._iterator, has_had_one=begun) from None
        self.since = self._clock()
        return value


@final
class MapStage(FlowStage[_U]):
    """Applies a function to each value."""

    def __init__(self, source: FlowStage[_T], f: Callable[[_T], _U], origin: Origin) -> None:
        self.sources = (source,)
        self._source = source
        self._f = f
        self._origin = origin

    @passes_on
    async def next(self) -> _U:
        value = await self._source.next()
        self.since = self._source.since
        try:
            made = run_user_code(self._f, value)
        except StopIteration as error:
            refuse_stop_iteration(error, _whose("map", self._origin))
        if isinstance(made, DeviceOp):
            raise TypeError(
                f"{_whose('map', self._origin)} returned {made!r}, which a flow's map does not run. Use .run(f)."
            )
        return made


@final
class WhereStage(FlowStage[_T]):
    """Returns the values for which a function returns true."""

    def __init__(self, source: FlowStage[_T], f: Callable[[_T], bool], origin: Origin) -> None:
        self.sources = (source,)
        self._source = source
        self._f = f
        self._origin = origin

    @passes_on
    async def next(self) -> _T:
        while True:
            value = await self._source.next()
            try:
                kept = run_user_code(self._f, value)
            except StopIteration as error:
                refuse_stop_iteration(error, _whose("where", self._origin))
            if kept:
                self.since = self._source.since
                return value


@final
class TakeStage(FlowStage[_T]):
    """Returns the first values, and pulls no more than these."""

    def __init__(self, source: FlowStage[_T], count: int) -> None:
        self.sources = (source,)
        self._source = source
        self._left = count

    async def next(self) -> _T:
        if not self._left:
            raise End
        value = await self._source.next()
        self._left -= 1
        self.since = self._source.since
        return value

    def state(self) -> str:
        return f"{self._left} more"


@final
class WindowStage(FlowStage[tuple[_T, ...]]):
    """Returns windows of consecutive values, each `step` values after the one before. An incomplete one is dropped.

    A value that is in several windows is unwritable, as any value that is handed out several times.
    """

    def __init__(self, source: FlowStage[_T], count: int, step: int) -> None:
        self.sources = (source,)
        self._source = source
        self._count = count
        self._step = step
        self._items: deque[_T] = deque()
        self._to_drop = 0

    async def next(self) -> tuple[_T, ...]:
        items = self._items
        while self._to_drop:
            if items:
                items.popleft()
            else:
                await self._source.next()
            self._to_drop -= 1
        while len(items) < self._count:
            value = await self._source.next()
            items.append(make_unwritable(value) if self._step < self._count else value)
        self._to_drop = self._step
        self.since = self._source.since
        return own_containers(tuple(items)) if self._step < self._count else tuple(items)


@final
class ZipStage(FlowStage[tuple[Any, ...]]):
    """Returns tuples of one value of each source. It asks them one after another, and ends with the first that ends.

    If some of the sources fail, all values of that position are dropped, and the first error is raised in their place.
    """

    def __init__(self, sources: tuple[FlowStage[Any], ...]) -> None:
        self.sources = sources
        self._found: list[ItemOutcome[Any]] = []

    @passes_on
    async def next(self) -> tuple[Any, ...]:
        found = self._found
        while len(found) < len(self.sources):
            found.append(await ask(self.sources[len(found)]))
        self._found = []
        self.since = min([each.since for each in found])
        failed = next((each for each in found if each.error is not None), None)
        if failed is not None:
            failed.take()
        return tuple([each.value for each in found])


def begin_where(begin: Begin[_T], f: Callable[[_T], bool], opening: Opening, origin: Origin) -> WhereStage[_T]:
    """Begin a stage for some of a flow's values. It may pull any number for one, so its source executes checkpoints."""
    pumped = opening.asked_by(Asker.PUMP) if opening.asker is Asker.RUNS else opening
    return WhereStage(begin(pumped), f, origin)


def begin_zip(begins: tuple[Begin[Any], ...], opening: Opening) -> ZipStage:
    """Begin a stage that zips the stages of these flows."""
    return ZipStage(tuple([begin(opening) for begin in begins]))


def _whose(call: str, origin: Origin) -> str:
    return f"the function of {call} at {describe(origin)}"
