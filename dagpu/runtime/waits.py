"""`Waits`, the ways in which a run waits for a device or for another run, and `BlockingWaits`, which blocks the thread.

A run is one coroutine, which waits by the methods of a `Waits`. `BlockingWaits`, for programs without trio, never
suspends, so one `send` drives the coroutine to its end. `TrioWaits` (dagpu.runtime.trio_waits) suspends the
trio task.
"""

import threading
from collections.abc import Callable, Coroutine
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar, final

from trio.lowlevel import cancel_shielded_checkpoint

from dagpu.backends.protocol import Run
from dagpu.common.critical import CURRENT_THREAD, SIGNALS_SECONDS, deferred_interrupt
from dagpu.common.errors import NestedRunError
from dagpu.common.places import describe, here
from dagpu.ops.single_flight import Once

_T = TypeVar("_T")


# ---- how long runs take
#
# A task that sleeps on a run is woken by the driver, through a thread and a pipe. On an H200 that takes 100 to 200 us
# longer than a look at the stream, which is most of a run of some hundred microseconds. Timers of an event loop are
# exact to a millisecond, so a task cannot sleep until shortly before the end either. So a task polls a run that is
# known to be short, and gives the other tasks their turn before each look.

LONGEST: Final = 2e-3
"""Seconds: the longest run that is polled in turns. A wake-up takes a twentieth of it."""

_LATE: Final = 50e-6
"""Seconds for which a run is polled beyond twice the time that the last one took."""

_TAKEN: Final[list[float]] = [0.0]
"""The time until which one run of the process is polled in turns. Others sleep meanwhile: each of many would be slowed
down by the looks of all others, and a pipe wakes each alone. At that time the next may be polled, also if a Ctrl-C has
ended the polling before its last line."""


@final
class Pace:
    """How long the awaited runs of one plan take."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = float("inf")
        """Seconds for which the last awaited run was waited for that did not end at once; infinity before."""

    async def poll_in_turns(self, run: Run) -> bool:
        """Poll a run that is expected to be short, and give the other tasks their turn before each look. Return True if
        it is over; False if the task is to sleep."""
        now = perf_counter()
        if self.seconds > LONGEST or now < _TAKEN[0]:
            return False
        deadline = _TAKEN[0] = now + 2 * self.seconds + _LATE
        try:
            while perf_counter() < deadline:
                await cancel_shielded_checkpoint()
                if run.done():
                    return True
        finally:
            _TAKEN[0] = 0.0
        return False


# ---- the ways to wait


class Waits(Protocol):
    """The ways in which a run waits: by blocking its thread, or by suspending its trio task."""

    @property
    def polls_at_submit(self) -> bool:
        """True if a run is polled in the submission; false if other tasks may have a turn before."""
        ...

    async def run_slow_work(self, work: Callable[[], None]) -> None:
        """Do work that takes long, such as compilation, without blocking other tasks."""
        ...

    def pause_is_due(self) -> bool:
        """True if a trace must pause before it calls the next user function."""
        ...

    async def pause(self) -> None:
        """Let other tasks run in the middle of a trace. Raises if the run is cancelled or interrupted."""
        ...

    def must_end(self) -> bool:
        """True if the run is cancelled or interrupted. A run asks before it submits work."""
        ...

    async def raise_reason(self) -> None:
        """Raise the cancellation or interrupt for which `must_end` is true."""
        ...

    async def wait_for_run(self, run: Run, spin: float, pace: Pace | None = None) -> None:
        """Wait until the run is done. If cancelled, skip steps that have not begun, drain the rest, and raise.

        `pace` tells how long such runs take, and learns it from this one.
        """
        ...

    async def drain_run(self, run: Run) -> None:
        """Wait until work that another run has started is done. A cancellation skips none of its steps."""
        ...

    async def wait_for_any(self, onces: list[Once]) -> None:
        """Wait until at least one of these values is not being computed by a run."""
        ...

    async def finish_run(self, waited: bool) -> None:
        """End a run: execute a checkpoint, unless the run `waited` and so has executed one."""
        ...


@final
class BlockingWaits:
    """Waits by blocking the thread, for `sync()`.

    On the main thread a critical section defers Ctrl-C (dagpu.common.critical). These methods raise it: before work is
    submitted, and during a wait, which it ends early.
    """

    polls_at_submit: bool = True

    async def run_slow_work(self, work: Callable[[], None]) -> None:
        work()

    def pause_is_due(self) -> bool:
        return False  # no other task has this thread; dagpu.common.critical.call_user raises interrupts

    async def pause(self) -> None:
        return

    def must_end(self) -> bool:
        hold = CURRENT_THREAD.state.hold
        return hold is not None and hold.raised is not None

    async def raise_reason(self) -> None:
        if (hold := deferred_interrupt()) is not None:
            hold.check()

    async def wait_for_run(self, run: Run, spin: float, pace: Pace | None = None) -> None:
        del pace  # the driver polls for a thread that it blocks
        hold = deferred_interrupt()
        try:
            if hold is not None:
                hold.set_cancel(run.cancel)
            if not run.poll(spin):
                run.wait()
        except BaseException:  # the work under way uses memory that is about to be freed
            run.cancel()
            block_until_done(run)
            raise
        finally:
            if hold is not None:
                hold.set_cancel(None)
        if hold is not None:
            hold.check()  # if interrupted, the run was cancelled and has no result

    async def drain_run(self, run: Run) -> None:
        block_until_done(run)

    async def wait_for_any(self, onces: list[Once]) -> None:
        # A queue, not an Event: a signal handler may put an item while this thread is waking up.
        settled: SimpleQueue[None] = SimpleQueue()
        for once in onces:
            owner = once.owner
            if getattr(owner, "thread", None) == threading.get_ident():
                raise NestedRunError(
                    f"sync() at {describe(here())} needs the result of a shared() or unzip() op that a run "
                    "in this same thread is making, "
                    "and would block it forever. Use await here."
                )
            once.when_settled(lambda: settled.put(None))
        hold = deferred_interrupt()
        if hold is not None:
            hold.set_cancel(lambda: settled.put(None))
        while True:
            try:
                settled.get(timeout=SIGNALS_SECONDS)
                break
            except Empty:
                continue
        if hold is not None:
            hold.set_cancel(None)
            hold.check()

    async def finish_run(self, waited: bool) -> None:
        return


def block_until_done(run: Run) -> None:
    """Block until a run is done. Of the errors that user signal handlers raise meanwhile, raise the last one."""
    raised: BaseException | None = None
    while not run.done():
        try:
            run.wait()
        except BaseException as error:
            raised = error
    if raised is not None:
        try:
            raise raised
        finally:
            del raised


def drive(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that waits by `BlockingWaits`, which never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise AssertionError("BlockingWaits never suspends")
