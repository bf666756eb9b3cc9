"""Stages that depend on time: every, latest, at_most and batched. Times are on trio's clock."""

import math
from collections.abc import Callable
from typing import TypeVar, final

import trio

from dagpu.common.places import passes_on
from dagpu.reactive.flows.stage import FOREVER, Asker, Begin, End, FlowStage, ItemOutcome, Opening, Stats, ask, failure

_T = TypeVar("_T")


@final
class EveryStage(FlowStage[float]):
    """Returns the time at each tick: when it is asked first, and `period` seconds after each tick. Skips late ticks."""

    def __init__(self, period: float, stats: Stats) -> None:
        self._period = period
        self._stats = stats
        self._start: float | None = None
        self._number = -1

    async def next(self) -> float:
        now = trio.current_time()
        if self._start is None:
            self._start = now
        late = (now - self._start) / self._period - self._number  # in periods; not above 1 for a prompt consumer
        number = self._number + max(1, math.ceil(late - 1e-9))
        due = self._start + number * self._period
        await trio.sleep_until(due)
        self._stats.skipped += number - self._number - 1
        self._number = number
        self.since = max(due, now)
        return due


@final
class LatestStage(FlowStage[_T]):
    """Returns the newest value. A task pulls values as fast as they come, from when the flow is opened.

    A value that nobody has taken is replaced by the next. Errors are not replaced: the task waits until the consumer
    has the error.
    """

    def __init__(self, source: FlowStage[_T], opening: Opening) -> None:
        self.sources = (source,)
        self._source = source
        self._stats = opening.stats
        self._skipped = 0
        self._value: ItemOutcome[_T] | None = None
        self._error: ItemOutcome[_T] | None = None
        self._ended = False
        self._pump_waits = trio.lowlevel.ParkingLot()
        self._consumer = trio.lowlevel.ParkingLot()
        opening.nursery.start_soon(self._pump, name="dagpu latest")

    @passes_on
    async def next(self) -> _T:
        while True:
            if self._value is not None:
                outcome, self._value = self._value, None
                break
            if self._error is not None:
                outcome, self._error = self._error, None
                self._pump_waits.unpark()
                break
            if self._ended:
                raise End
            await self._consumer.park()
        self.since = outcome.since
        return outcome.take()

    @trio.lowlevel.enable_ki_protection
    async def _pump(self) -> None:
        try:
            while True:
                outcome = await ask(self._source)
                if outcome.error is not None:
                    self._error = outcome
                else:
                    if self._value is not None:
                        self._skipped += 1
                        self._stats.skipped += 1
                    self._value = outcome
                self._consumer.unpark()
                while self._error is not None:
                    await self._pump_waits.park()
        except End:
            self._ended = True
            self._consumer.unpark()

    def state(self) -> str:
        return f"{self._skipped} skipped"


def begin_latest(begin: Begin[_T], opening: Opening) -> LatestStage[_T]:
    """Begin a stage for the newest values of a flow."""
    return LatestStage(begin(opening.asked_by(Asker.PUMP)), opening)


@final
class AtMostStage(FlowStage[_T]):
    """Returns the newest value of a `LatestStage`, not earlier than `period` seconds after the value before it."""

    def __init__(self, source: LatestStage[_T], period: float) -> None:
        self.sources = (source,)
        self._source = source
        self._period = period
        self._due = -FOREVER

    async def next(self) -> _T:
        if trio.current_time() < self._due:
            await trio.sleep_until(self._due)
        value = await self._source.next()
        self._due = trio.current_time() + self._period
        self.since = self._source.since
        return value

    def explain(self) -> list[str]:
        """Describe the stage, which includes its `LatestStage`."""
        inner = self._source.explain()
        return [f"{super().explain()[0]}: {self._source.state()}", *inner[1:]]


@final
class BatchedStage(FlowStage[tuple[_T, ...]]):
    """Returns tuples of at most `most` values, each at the latest `within` seconds after its first value came."""

    def __init__(
        self,
        source: FlowStage[_T],
        most: int,
        within: float,
        came: Callable[[], float] = trio.current_time,
    ) -> None:
        self.sources = (source,)
        self._source = source
        self._most = most
        self._within = within
        self._came = came
        self._items: list[_T] = []
        self._begin = self._due = 0.0
        self._failed: ItemOutcome[_T] | None = None

    @passes_on
    async def next(self) -> tuple[_T, ...]:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            failed.take()
        try:
            await self._gather()
        except End:
            if not self._items:
                raise
        except Exception as error:
            if not self._items:
                raise
            self._failed = failure(error)
        found, self._items = tuple(self._items), []
        self.since = self._begin
        return found

    async def _gather(self) -> None:
        """Add values until the batch is complete. If this is cancelled, the next call goes on with the same batch."""
        items, source, most = self._items, self._source, self._most
        if not items:
            items.append(await source.next())
            self._begin = source.since
            self._due = self._came() + self._within
        if self._within == FOREVER:
            while len(items) < most:
                items.append(await source.next())
            return
        with trio.CancelScope(deadline=self._due):
            while len(items) < most:
                items.append(await source.next())

    def state(self) -> str:
        return f"{len(self._items)} of {self._most} gathered"


def begin_batched(begin: Begin[_T], most: int, within: float, opening: Opening) -> BatchedStage[_T]:
    """Begin a stage that gathers the values of a flow. Its deadline cancels a call of `next`, as a consumer may."""
    return BatchedStage(begin(opening if within == FOREVER else opening.asked_by(Asker.CONSUMER)), most, within)
