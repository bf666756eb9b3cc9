"""Stages with a task for each stage that they ask: merge, and switch."""

from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar, final

import trio

from dagpu.common.places import passes_on
from dagpu.reactive.flows.stage import Asker, Begin, End, FlowStage, ItemOutcome, Opening, ask, failure

_T = TypeVar("_T")
_U = TypeVar("_U")


@final
class MergeStage(FlowStage[_T]):
    """Returns the values of several stages in the order in which they come. Ends when all of them have ended.

    When it is asked and has no value, it asks all of the stages that are not being asked. So of each stage at most one
    value is pulled before the consumer wants it.
    """

    def __init__(self, sources: list[FlowStage[_T]], opening: Opening) -> None:
        self.sources = tuple(sources)
        self._asked = sources
        self._opening = opening
        self._begun = False
        self._live = len(sources)
        self._ready: deque[ItemOutcome[_T]] = deque()
        self._idle = trio.lowlevel.ParkingLot()
        self._consumer = trio.lowlevel.ParkingLot()

    @passes_on
    async def next(self) -> _T:
        while not self._ready:
            if not self._live:
                raise End
            if self._begun:
                self._idle.unpark_all()
            else:
                self._begun = True
                for source in self._asked:
                    self._opening.nursery.start_soon(self._pump, source, name=f"dagpu {self.kind}")
            await self._consumer.park()
        outcome = self._ready.popleft()
        self.since = outcome.since
        return outcome.take()

    @trio.lowlevel.enable_ki_protection
    async def _pump(self, source: FlowStage[_T]) -> None:
        try:
            while True:
                self._ready.append(await ask(source))
                self._consumer.unpark()
                await self._idle.park()
        except End:
            self._live -= 1
            self._consumer.unpark()


def begin_merge(begins: tuple[Begin[_T], ...], opening: Opening) -> MergeStage[_T]:
    """Begin a stage that merges the stages of these flows."""
    pumped = opening.asked_by(Asker.PUMP)
    return MergeStage([begin(pumped) for begin in begins], opening)


@final
class SwitchStage(FlowStage[_U]):
    """Returns the values of the flow that a function makes of the newest value; the flow before it is closed.

    A task pulls the values that flows are made of as soon as they come. It closes a flow, and waits until its runs are
    drained, before it opens the next. A value of a closed flow that nobody has taken is dropped.
    """

    def __init__(self, source: FlowStage[_T], f: Callable[[_T], Begin[_U]], opening: Opening) -> None:
        self.sources = (source,)
        self._source = source
        self._f = f
        self._opening = opening
        self._value: ItemOutcome[_U] | None = None
        self._errors: deque[ItemOutcome[Any]] = deque()
        self._inner: trio.CancelScope | None = None
        self._inner_ended = trio.Event()
        self._source_ended = False
        self._wanted = False
        self._pumps = trio.lowlevel.ParkingLot()
        self._consumer = trio.lowlevel.ParkingLot()
        opening.nursery.start_soon(self._pump, name="dagpu switch")

    @passes_on
    async def next(self) -> _U:
        outcome: ItemOutcome[_U]
        while True:
            if self._errors:
                outcome = self._errors.popleft()
                self._pumps.unpark_all()
                break
            if self._value is not None:
                outcome, self._value = self._value, None
                break
            if self._source_ended and self._inner is None:
                raise End
            self._wanted = True
            self._pumps.unpark_all()
            await self._consumer.park()
        self.since = outcome.since
        return outcome.take()

    @trio.lowlevel.enable_ki_protection
    async def _pump(self) -> None:
        """Pull values, and open the flow that is made of each."""
        try:
            while True:
                outcome = await ask(self._source)
                if outcome.error is None:
                    await self._close_inner()
                    try:
                        self._open_inner(self._f(outcome.take()))
                    except Exception as error:
                        outcome = failure(error)
                if outcome.error is not None:
                    self._errors.append(outcome)
                    self._consumer.unpark()
                    while self._errors:
                        await self._pumps.park()
        except End:
            self._source_ended = True
            self._consumer.unpark()

    def _open_inner(self, begin: Begin[_U]) -> None:
        self._inner, self._inner_ended = trio.CancelScope(), trio.Event()
        self._opening.nursery.start_soon(self._play, begin, self._inner, name="dagpu switch")

    async def _close_inner(self) -> None:
        if self._inner is not None:
            self._inner.cancel()
            await self._inner_ended.wait()
        outcome, self._value = self._value, None
        if outcome is not None:
            if outcome.error is not None:
                self._errors.append(outcome)
            else:
                self._opening.stats.skipped += 1

    @trio.lowlevel.enable_ki_protection
    async def _play(self, begin: Begin[_U], scope: trio.CancelScope) -> None:
        """Hand out the values of one flow, each when it is asked for."""
        try:
            with scope:
                async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
                    stage = begin(replace(self._opening, nursery=nursery, stack=stack, asker=Asker.PUMP))
                    try:
                        while True:
                            while not self._wanted or self._value is not None:
                                await self._pumps.park()
                            outcome = await ask(stage)
                            self._wanted, self._value = False, outcome
                            self._consumer.unpark()
                    except End:
                        nursery.cancel_scope.cancel()
        finally:
            self._inner = None
            self._inner_ended.set()
            self._consumer.unpark()
