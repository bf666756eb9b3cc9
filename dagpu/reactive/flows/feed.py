"""`Feed`, an open flow, and the block that owns its tasks."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Generic, NoReturn, Self, TypeVar, final

import trio

from dagpu.backends.host.measuring import SpanTrack, track_maker
from dagpu.common.compiled import READER, teach
from dagpu.common.containers import own_containers
from dagpu.common.places import Origin, describe, without_our_frames
from dagpu.handles import copy_error
from dagpu.ops.svg import text_in_page
from dagpu.reactive.flows.stage import Begin, End, FlowStage, Opening, Stats

_T_co = TypeVar("_T_co", covariant=True)


@final
class Feed(Generic[_T_co]):
    """An open flow: `async for` over it, or `await feed.next()`, gives the values one after another.

    One task at a time asks it. Values are computed when they are asked for, and ahead of that only by what the flow's
    `run`, `fold`, `latest`, `at_most` and `switch` say.
    """

    __slots__ = ("_asked", "_clock", "_stage", "_track", "origin", "stats")

    def __init__(
        self,
        stage: FlowStage[_T_co],
        stats: Stats,
        track: SpanTrack | None,
        clock: Callable[[], float],
        origin: Origin,
    ) -> None:
        self._stage: FlowStage[_T_co] | None = stage
        self._track = track
        self._clock = clock
        self.origin = origin
        """The place where the flow was opened."""
        self._asked: tuple[float, FlowStage[_T_co]] | None = None
        """When a task has asked for the next value, which it waits for, and whom; None if no task does."""
        self.stats = stats
        """The numbers of this feed so far. They remain after the block."""

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise copy_error(
            repr(self), "A copy would take values from the same flow. Use the feed itself, or open the flow once more"
        )

    def __aiter__(self) -> Self:
        return self

    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> _T_co:
        try:
            return await self._next()
        except End:
            raise StopAsyncIteration from None
        except BaseException as error:
            without_our_frames(error)
            raise

    @trio.lowlevel.enable_ki_protection
    async def next(self) -> _T_co:
        """Return the next value, once its device work is complete. A checkpoint; a cancelled call loses no value.

        An error is raised in the place of the value that failed, after all values before it. The call after that goes
        on with the next value; only `fold` ends with the first step that fails.

        Raises:
            trio.EndOfChannel: there are no more values.
            trio.BusyResourceError: another task is asking this feed.
            trio.ClosedResourceError: the block of the feed is over.
        """
        try:
            return await self._next()
        except End:
            raise trio.EndOfChannel(f"the flow opened at {describe(self.origin)} has no more values") from None
        except BaseException as error:
            without_our_frames(error)
            raise

    async def _next(self, landing: Awaitable[_T_co] | None = None) -> _T_co:
        """Return the next value. With `landing` the compiled reader has asked for it, and has launched its update."""
        stats = self.stats
        if landing is None:
            if self._stage is None:
                self._refuse_closed()
            if self._asked is not None:
                raise trio.BusyResourceError(
                    f"two tasks ask the feed opened at {describe(self.origin)}. Open the flow twice, or share what it "
                    "computes with op.shared()."
                )
            self._asked = self._clock(), self._stage
        assert self._asked is not None
        asked, stage = self._asked
        try:
            if landing is None:
                await trio.lowlevel.checkpoint_if_cancelled()
                value = await stage.next()
            else:
                value = own_containers(await landing)
        except StopAsyncIteration as error:
            raise self._ends_wrongly("StopAsyncIteration", "async for", "await anext(iterator, None)") from error
        except trio.EndOfChannel as error:
            raise self._ends_wrongly("trio.EndOfChannel", "a loop over next()", "await anext(channel, None)") from error
        finally:
            self._asked = None
            now = self._clock()
            stats.count_call(asked, now)
        stats.hand_over(stage.since, now)
        if self._track is not None:
            end = time.perf_counter()
            self._track.add(f"value {stats.values}", end - (now - stage.since), end)
        return value

    @trio.lowlevel.enable_ki_protection
    async def _go_on(self, landing: Awaitable[_T_co]) -> _T_co:
        """Wait for an update that the compiled reader has launched, and return its value."""
        try:
            return await self._next(landing)
        except BaseException as error:
            without_our_frames(error)
            raise

    def _ends_wrongly(self, name: str, reader: str, default: str) -> RuntimeError:
        """Return the error in place of one of a function, of this name, which means the end to a reader."""
        return RuntimeError(
            f"a function of the flow opened at {describe(self.origin)} raised {name}, which {reader} takes for the end "
            f"of the values. Catch it there, or ask for a default: {default}."
        )

    def explain(self) -> str:
        """Describe the stages of the flow and their state, one a line. Each stage is above those that it asks.

        Raises:
            trio.ClosedResourceError: the block of the feed is over.
        """
        if self._stage is None:
            self._refuse_closed()
        return "\n".join(self._stage.explain())

    def _refuse_closed(self) -> NoReturn:
        raise trio.ClosedResourceError(
            f"the block of this feed, opened at {describe(self.origin)}, is over. Ask it inside."
        )

    def _repr_html_(self) -> str:
        """Return the stages and the numbers of the feed, for a notebook."""
        stages = [] if self._stage is None else self._stage.explain()
        return text_in_page("\n".join([repr(self), repr(self.stats), *stages]))

    def __repr__(self) -> str:
        return f"<{'closed ' if self._stage is None else ''}Feed opened at {describe(self.origin)}>"


teach(feed=Feed, own_containers=own_containers)
if READER is not None:  # as `DeviceOp.sync`
    Feed.next = READER.next_method(Feed, Feed.next)  # type: ignore[method-assign]  # the same, in C
    Feed.__anext__ = READER.anext_method(Feed, Feed.__anext__)  # type: ignore[method-assign]  # the same, in C


@final
class OpenBlock(Generic[_T_co]):
    """The block of a feed: it owns the tasks and the resources of the feed, and ends them."""

    __slots__ = ("_manager", "_nursery", "_stack", "_stats", "feed")
    feed: Feed[_T_co]

    @trio.lowlevel.enable_ki_protection
    async def open(self, begin: Begin[_T_co], origin: Origin) -> Feed[_T_co]:
        """Begin the stages of a flow, and return its feed."""
        self._stack = AsyncExitStack()
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._stats, maker, clock = Stats(), track_maker(), trio.lowlevel.current_clock().current_time
        try:
            stage = begin(Opening(self._nursery, self._stack, self._stats, maker, clock))
        except BaseException as error:
            self._nursery.cancel_scope.cancel()
            await self._leave(type(error), error, error.__traceback__)
            raise
        track = None if maker is None else maker(f"feed at {describe(origin)}")
        self.feed = Feed(stage, self._stats, track, clock, origin)
        return self.feed

    @trio.lowlevel.enable_ki_protection
    async def close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Cancel the tasks of the feed, wait until their runs are drained, and close what it opened.

        An error that the body of the block raised leaves the block as it is, and not in a group.
        """
        self.feed._stage = None  # noqa: SLF001  # the block closes its feed, and users cannot
        self._nursery.cancel_scope.cancel()
        return await self._leave(kind, error, trace)

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            async with self._stack:
                return await self._manager.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            found = [each for each in group.exceptions if not isinstance(each, trio.Cancelled)]
            if len(found) == 1 and found[0] is error:
                return False  # the body's error alone, perhaps beside a cancellation of the tasks around it
            if len(found) == 1 and isinstance(error, BaseExceptionGroup) and isinstance(found[0], BaseExceptionGroup):
                raise found[0] from None  # the same, from which trio took the cancellation
            raise
        finally:
            self._stats.in_flight = 0
            del error, trace
