"""Waits for a replay on a device, or for a value that another run is computing.

A run is one coroutine, which waits by the methods of a `Waits`. `TrioWaits` suspends the trio task. `BlockingWaits`,
for programs without trio, never suspends, so one `send` drives the coroutine to its end.

One pipe for each trio loop wakes all of its waiting tasks: a thread that finishes work appends a call to a queue and
makes the pipe readable, and one system task makes the calls. A thousand waiting runs need two file descriptors.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, Protocol, TypeVar, final

import trio

from dagpu.backends.protocol import Replay
from dagpu.common.critical import CURRENT_THREAD, SIGNALS_SECONDS, counting_interrupts, deferred_interrupt
from dagpu.common.errors import NestedRunError
from dagpu.common.origin import describe, here
from dagpu.ops.live.open_batches import FIND_TASK
from dagpu.ops.single_flight import Once
from dagpu.runtime.calls.pace import Pace

_T = TypeVar("_T")

TURN_SECONDS = 0.01
"""The time for which a trace blocks a trio loop before it pauses between two closures, in seconds."""


class Waits(Protocol):
    """The ways in which a run waits: by blocking its thread, or by suspending its trio task."""

    @property
    def polls_at_submit(self) -> bool:
        """True if a run polls its replay in the submission; false if other tasks may have a turn before."""
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

    async def wait_for_replay(self, replay: Replay, spin: float, pace: Pace | None = None) -> None:
        """Wait until the replay is done. If cancelled, skip steps that have not begun, drain the rest, and raise.

        `pace` tells how long such replays take, and learns it from this one.
        """
        ...

    async def drain_replay(self, replay: Replay) -> None:
        """Wait until a replay of another run is done. A cancellation skips none of its steps."""
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

    async def wait_for_replay(self, replay: Replay, spin: float, pace: Pace | None = None) -> None:
        del pace  # the driver polls for a thread that it blocks
        hold = deferred_interrupt()
        try:
            if hold is not None:
                hold.set_cancel(replay.cancel)
            if not replay.poll(spin):
                replay.wait()
        except BaseException:  # the work under way uses memory that is about to be freed
            replay.cancel()
            _block_until_done(replay)
            raise
        finally:
            if hold is not None:
                hold.set_cancel(None)
        if hold is not None:
            hold.check()  # if interrupted, the replay was cancelled and has no result

    async def drain_replay(self, replay: Replay) -> None:
        _block_until_done(replay)

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


def _block_until_done(replay: Replay) -> None:
    """Block until a replay is done. Of the errors that user signal handlers raise meanwhile, raise the last one."""
    raised: BaseException | None = None
    while not replay.done():
        try:
            replay.wait()
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


@final
class _LoopWaker:
    """Makes calls in one trio loop on behalf of other threads, to wake its tasks."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.RLock()
        self._signalled = False
        self._closed = False

    def call_in_loop(self, call: Callable[[], None]) -> None:
        """Make `call` in the loop soon. Any thread may use this. After the loop has ended, it does nothing."""
        self._calls.append(call)
        with self._lock:
            if self._signalled or self._closed:
                return
            self._signalled = True
            os.write(self._writable, b"\0")

    async def make_calls(self) -> None:
        """Make the calls of the queue. The loop's system task runs this."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._readable)
                with self._lock:
                    os.read(self._readable, 16)
                    self._signalled = False
                while self._calls:
                    self._calls.popleft()()
        finally:
            with self._lock:
                self._closed = True
                os.close(self._readable)
                os.close(self._writable)


_loop_waker: "trio.lowlevel.RunVar[_LoopWaker]" = trio.lowlevel.RunVar("dagpu_waker")


def _waker_of_this_loop() -> _LoopWaker:
    try:
        return _loop_waker.get()
    except LookupError:
        waker = _LoopWaker()
        _loop_waker.set(waker)
        trio.lowlevel.spawn_system_task(waker.make_calls)
        return waker


async def _suspend(register: Callable[[Callable[[], None]], None], cancelled: Callable[[], bool]) -> None:
    """Suspend the task until a thread calls the wake-up function that `register` gets.

    Trio calls `cancelled()` when it cancels the wait. If that returns True, the wait ends at once. If it returns False,
    because work under way cannot be stopped, the wait goes on to the wake-up and raises `Cancelled` then.
    """
    task = trio.lowlevel.current_task()
    waker = _waker_of_this_loop()
    waiting = True
    raise_cancelled: Callable[[], NoReturn] | None = None

    def resume() -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            trio.lowlevel.reschedule(task)

    def abort(raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        nonlocal waiting, raise_cancelled
        if cancelled():
            waiting = False
            return trio.lowlevel.Abort.SUCCEEDED
        raise_cancelled = raise_cancel
        draining.enter_context(counting_interrupts)
        return trio.lowlevel.Abort.FAILED

    with ExitStack() as draining:
        register(lambda: waker.call_in_loop(resume))
        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            waiting = False  # the task of a dropped run may wait for something else at the wake-up
    if raise_cancelled is not None:
        raise_cancelled()


async def _until_readable(descriptor: int, replay: Replay) -> None:
    """Suspend the task until a replay's descriptor is readable. If cancelled or interrupted, drain, then raise."""
    try:
        try:
            await trio.lowlevel.wait_readable(descriptor)
            replay.woken()
        except (trio.Cancelled, KeyboardInterrupt):
            replay.cancel()
            await _drain_descriptor(descriptor)
            raise
    finally:
        os.close(descriptor)


async def _drain_descriptor(descriptor: int) -> None:
    """Suspend the task until the descriptor is readable, even if the task is cancelled.

    A shielded scope does not defer Ctrl-C: trio raises it in the main task, in any wait. This function raises it after
    the descriptor is readable.
    """
    interrupted: KeyboardInterrupt | None = None
    with counting_interrupts:
        while True:
            try:
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.wait_readable(descriptor)
                break
            except KeyboardInterrupt as error:
                interrupted = error
    if interrupted is not None:
        try:
            raise interrupted
        finally:
            del interrupted


def _must_end() -> bool:
    """True if a checkpoint of this task would raise: it is cancelled, or it is the main task and Ctrl-C was pressed.

    Trio reports a Ctrl-C only by a checkpoint. So this runs the first step of one: in a task that may go on, that step
    ends the checkpoint without suspending. Takes 0.6 us.
    """
    checkpoint = trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC105  # reason: it is driven by hand
    try:
        checkpoint.send(None)
    except StopIteration:
        return False
    checkpoint.close()
    return True


@final
class TrioWaits:
    """Waits by suspending the trio task, for `await`.

    A Ctrl-C may be raised in a user's frame just as the task resumes. Then no task awaits the run any more, and its
    coroutine is closed. No loop resumes a closed coroutine, so it waits for its work under way by blocking.
    """

    polls_at_submit: bool = False

    def __init__(self, *, has_yielded: bool = False) -> None:
        """With `has_yielded` the run has given the other tasks their turn since it submitted its work."""
        self._dropped = False
        self._has_yielded = has_yielded
        self._turn_began: float | None = None

    async def run_slow_work(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work)

    def pause_is_due(self) -> bool:
        now = time.perf_counter()
        if self._turn_began is None:
            self._turn_began = now
        return now - self._turn_began >= TURN_SECONDS or _must_end()

    async def pause(self) -> None:
        self._turn_began = None
        await trio.lowlevel.checkpoint()

    def must_end(self) -> bool:
        return _must_end()

    async def raise_reason(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    async def wait_for_replay(self, replay: Replay, spin: float, pace: Pace | None = None) -> None:
        try:
            # Every `await` owes the other tasks a turn. If a cancellation can skip nothing any more, they have it now,
            # while the device works. Otherwise a cancellation must not wait for the end of a turn.
            has_yielded = self._has_yielded or not replay.cancellable
            if has_yielded and not self._has_yielded:
                await trio.lowlevel.cancel_shielded_checkpoint()
            if not replay.poll(spin):
                begin = time.perf_counter()
                if pace is None or replay.cancellable or not await pace.poll_in_turns(replay):
                    await self._suspend_for_replay(replay)
                if pace is not None:
                    pace.seconds = time.perf_counter() - begin
            elif not has_yielded:
                await trio.lowlevel.cancel_shielded_checkpoint()
        except GeneratorExit:
            self._dropped = True
            replay.cancel()
            _block_until_done(replay)
            raise

    async def _suspend_for_replay(self, replay: Replay) -> None:
        descriptor = replay.readable()
        if descriptor is not None:
            await _until_readable(descriptor, replay)
            return

        def drain() -> bool:
            replay.cancel()
            return False

        await _suspend(replay.when_done, drain)

    async def drain_replay(self, replay: Replay) -> None:
        if self._dropped:
            _block_until_done(replay)
            return
        with trio.CancelScope(shield=True):
            await self.wait_for_replay(replay, 0.0)

    async def wait_for_any(self, onces: list[Once]) -> None:
        def register(wake: Callable[[], None]) -> None:
            for once in onces:
                once.when_settled(wake)

        await _suspend(register, lambda: True)

    async def finish_run(self, waited: bool) -> None:
        if not waited:
            await trio.lowlevel.checkpoint()


def _find_task() -> object:
    """Return the task of trio that runs now on this thread; None outside of tasks."""
    try:
        return trio.lowlevel.current_task()
    except RuntimeError:
        return None


FIND_TASK.set(_find_task)
