"""The stage of `run` and `fold`: items that are worked on ahead of the consumer, as many as there are permits."""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import CoroutineType
from typing import Any, Final, Generic, TypeVar, final

import trio

from dagpu.backends.host.measuring import SpanTrack
from dagpu.common.containers import own_containers
from dagpu.common.critical import run_user_code
from dagpu.common.places import Origin, StartedAt, describe, passes_on
from dagpu.common.wrong_arguments import format_value, refuse_stop_iteration
from dagpu.ops.base import DeviceOp, Static
from dagpu.reactive.flows.stage import Asker, Begin, End, FlowStage, ItemOutcome, Opening, failure
from dagpu.runtime.interpreter import plan_of

_T = TypeVar("_T")
_U = TypeVar("_U")


@final
class MemoryBudget:
    """Lets items begin in the order in which they were pulled, while the bytes of all of them fit.

    An item that does not fit by itself begins once no other item holds bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._waiting: deque[ItemOutcome[Any]] = deque()
        self._lot = trio.lowlevel.ParkingLot()

    async def acquire(self, item: ItemOutcome[Any], nbytes: int) -> None:
        """Wait until the item may begin. It holds `nbytes` until `release`."""
        self._waiting.append(item)
        try:
            while self._waiting[0] is not item or (self.held and self.held + nbytes > self.limit):
                await self._lot.park()
            item.held = nbytes
            self.held += nbytes
        finally:
            self._waiting.remove(item)
            self._lot.unpark_all()

    def release(self, item: ItemOutcome[Any]) -> None:
        """Give back what an item holds."""
        self.held -= item.held
        item.held = 0
        self._lot.unpark_all()


@final
@dataclass(frozen=True, slots=True)
class ItemWork(Generic[_T, _U]):
    """The work of an `InFlightStage` on each item."""

    begin: Callable[[_T], Awaitable[_U]]
    """Starts the work on an item, which ends when the result has been awaited."""
    permits: int
    """How many items may be pulled and not handed out."""
    tasks: int
    """How many items may be worked on at once."""
    ordered: bool = True
    ends_with_error: bool = False
    """True to end the stage with the first item that fails. The error is raised in its place."""
    memory: int | None = None
    """Bytes for the items in flight together."""
    nbytes_of: Callable[[Any], int] = lambda begun: 0
    """The bytes that the awaitable of an item takes. Called only where `memory` is set."""


@final
class InFlightStage(FlowStage[_U]):
    """Works on items ahead of the consumer, and hands out the results: in order, or as they come.

    Its tasks start with the first call of `next`. One of them at a time pulls an item. It needs a permit for that,
    which is given back when the result is handed out. So the number of permits bounds the items that were pulled and
    not handed out, and with a slow consumer nothing more is pulled.
    """

    def __init__(self, source: FlowStage[_T], work: ItemWork[_T, _U], opening: Opening, origin: Origin) -> None:
        self.sources = (source,)
        self._source = source
        self._work = work
        self._opening = opening
        self._stats = opening.stats
        self._origin = origin
        self._budget = None if work.memory is None else MemoryBudget(work.memory)
        self._track: SpanTrack | None = None
        self._begun = False
        self._ended = False
        self._pulling = False
        self._pulled = 0
        self._permits = work.permits
        self._slots: deque[ItemOutcome[_U]] = deque()
        """In order, the items in flight. Otherwise, the items that are done."""
        self._idle = trio.lowlevel.ParkingLot()
        self._consumer = trio.lowlevel.ParkingLot()

    @passes_on
    async def next(self) -> _U:
        if not self._begun:
            self._start()
        slots = self._slots
        while not slots or not slots[0].done:
            if self._ended and self._permits == self._work.permits:
                raise End
            await self._consumer.park()
        slot = slots.popleft()
        self._permits += 1
        self._stats.in_flight -= 1
        if self._budget is not None:
            self._budget.release(slot)
        if self._idle:
            self._idle.unpark()
        self.since = slot.since
        return slot.take()

    def _start(self) -> None:
        self._begun = True
        if self._opening.track is not None:
            self._track = self._opening.track(f"{self.kind} at {describe(self._origin)}")
        for _ in range(self._work.tasks):
            self._opening.nursery.start_soon(self._loop, name=f"dagpu {self.kind}")

    @trio.lowlevel.enable_ki_protection
    async def _loop(self) -> None:
        """Pull items and work on them, until there are no more. Each of the tasks runs this."""
        with StartedAt(self._origin):
            while not self._ended:
                if self._pulling or not self._permits:
                    await self._idle.park()
                else:
                    await self._step()

    @passes_on
    async def _step(self) -> None:
        """Pull an item and work on it."""
        self._pulling = True
        self._permits -= 1
        try:
            item = await self._source.next()
        except End:
            self._permits += 1
            self._ended = True
            self._idle.unpark_all()
            self._consumer.unpark()
            return
        except Exception as error:
            self._stats.in_flight += 1
            self._put(failure(error))
            return
        finally:
            self._pulling = False
        self._stats.in_flight += 1
        slot: ItemOutcome[_U] = ItemOutcome(self._source.since)
        self._pulled += 1
        if self._work.ordered:
            self._slots.append(slot)
        if self._permits and self._idle:
            self._idle.unpark()
        done = None if self._track is None else _span(self._track, f"{self.kind} {self._pulled}")
        try:
            begun = self._work.begin(item)
            del item  # what it owns belongs to the work from here on
            if self._budget is not None:
                await self._budget.acquire(slot, self._work.nbytes_of(begun))
            slot.succeed(await begun)
        except Exception as error:
            slot.fail(error)
            self._ended = self._ended or self._work.ends_with_error
        if done is not None:
            done()
        if not self._work.ordered:
            self._put(slot)
        elif self._consumer and self._slots[0].done:
            self._consumer.unpark()

    def _put(self, slot: ItemOutcome[_U]) -> None:
        self._slots.append(slot)
        self._consumer.unpark()

    def state(self) -> str:
        taken = self._work.permits - self._permits - self._pulling
        return f"{taken} of {self._work.permits} in flight, {'in order' if self._work.ordered else 'as they come'}"


def _span(track: SpanTrack, name: str) -> Callable[[], None]:
    """Begin a span of a track. The returned function ends it."""
    begin = time.perf_counter()
    return lambda: track.add(name, begin, time.perf_counter())


def begin_in_flight(begin: Begin[_T], work: ItemWork[_T, _U], opening: Opening, origin: Origin) -> InFlightStage[_U]:
    """Begin a stage that does this work on the items of a flow."""
    return InFlightStage(begin(opening.asked_by(Asker.RUNS)), work, opening, origin)


# ---- run work
#
# The work of `run` and `fold` for each item: the user's function makes an op, and the op runs.

_S = TypeVar("_S")

_UNSET: Final[Any] = object()


def run_work(
    f: Callable[[_T], DeviceOp[_U, Static, Any]], permits: int, memory: int | None, ordered: bool, origin: Origin
) -> ItemWork[_T, _U]:
    """Return the work of `run`: each item in a task of its own."""
    whose = f"the function of run at {describe(origin)}"
    begin: Callable[[_T], Awaitable[_U]] = partial(begin_op, f, whose)
    return ItemWork(begin, permits, tasks=permits, ordered=ordered, memory=memory, nbytes_of=_peak_bytes)


def fold_work(
    state: DeviceOp[_S, Static, Any],
    f: Callable[[_S, _T], DeviceOp[tuple[_S, _U], Static, Any]],
    permits: int,
    origin: Origin,
) -> ItemWork[_T, _U]:
    """Return the work of `fold` for one open flow: one step at a time, which takes the state of the step before it."""
    whose = f"the function of fold at {describe(origin)}"
    held: Any = _UNSET

    @passes_on
    async def step(item: _T) -> _U:
        nonlocal held
        if held is _UNSET:
            held = await state
        before, held = held, None  # it moves into the step
        op = begin_op(partial(f, before), whose, item)
        del before, item
        found: Any = await op
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(
                f"{whose} returned an op with the result {format_value(found)}, but a tuple of the next state and an "
                "output is wanted. Join two ops: zip_ops(state, output)."
            )
        held, output = found
        given: _U = own_containers(output)  # an op may put one list into both
        return given

    return ItemWork(step, permits, tasks=1, ends_with_error=True)


@passes_on
def begin_op(f: Callable[[_T], DeviceOp[_U, Static, Any]], whose: str, item: _T) -> DeviceOp[_U, Static, Any]:
    """Return the op that a function of the user's makes of an item.

    Raises:
        TypeError: it made something else.
    """
    try:
        made: Any = run_user_code(f, item)
    except StopIteration as error:
        refuse_stop_iteration(error, whose)
    if isinstance(made, DeviceOp):
        return made
    if type(made) is CoroutineType:
        made.close()  # else Python warns that it was never awaited
    raise TypeError(
        f"{whose} returned {format_value(made)}, but an op is wanted. Return an op: value(x) makes one of a value, and "
        ".map(f) of a flow takes a function of the host."
    )


def _peak_bytes(op: Any) -> int:
    return plan_of(op).peak_bytes
