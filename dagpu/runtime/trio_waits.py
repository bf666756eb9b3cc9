"""`TrioWaits`: waits for a run on a device, or for a value of another run, by suspending the trio task.

One pipe for each trio loop wakes all of its waiting tasks: a thread that finishes work appends a call to a queue and
makes the pipe readable, and one system task makes the calls. A thousand waiting runs need two file descriptors.
"""

import os
import threading
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import ExitStack
from typing import Any, NoReturn, TypeVar, final

import trio

from dagpu.backends.host.worker_threads import no_thread
from dagpu.backends.protocol import Run
from dagpu.common.critical import CRITICAL, CURRENT_THREAD, counting_interrupts, refuse_nested, run_user_code
from dagpu.ops.single_flight import Once
from dagpu.ops.versions import FIND_TASK
from dagpu.runtime.waits import Pace, block_until_done

_T = TypeVar("_T")

TURN_SECONDS = 0.01
"""The time for which a trace blocks a trio loop before it pauses between two closures, in seconds."""


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


async def _until_readable(descriptor: int, run: Run) -> None:
    """Suspend the task until a run's descriptor is readable. If cancelled or interrupted, drain, then raise."""
    try:
        try:
            await trio.lowlevel.wait_readable(descriptor)
            run.woken()
        except (trio.Cancelled, KeyboardInterrupt):
            run.cancel()
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
        begun = False

        def begin() -> None:
            nonlocal begun
            begun = True
            work()

        try:
            await trio.to_thread.run_sync(begin)
        except RuntimeError as error:
            if begun:
                raise
            raise no_thread("of trio", error) from error

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

    async def wait_for_run(self, run: Run, spin: float, pace: Pace | None = None) -> None:
        try:
            # Every `await` owes the other tasks a turn. If a cancellation can skip nothing any more, they have it now,
            # while the device works. Otherwise a cancellation must not wait for the end of a turn.
            has_yielded = self._has_yielded or not run.cancellable
            if has_yielded and not self._has_yielded:
                await trio.lowlevel.cancel_shielded_checkpoint()
            if not run.poll(spin):
                begin = time.perf_counter()
                if pace is None or run.cancellable or not await pace.poll_in_turns(run):
                    await self._suspend_for_run(run)
                if pace is not None:
                    pace.seconds = time.perf_counter() - begin
            elif not has_yielded:
                await trio.lowlevel.cancel_shielded_checkpoint()
        except GeneratorExit:
            self._dropped = True
            run.cancel()
            block_until_done(run)
            raise

    async def _suspend_for_run(self, run: Run) -> None:
        descriptor = run.readable()
        if descriptor is not None:
            await _until_readable(descriptor, run)
            return

        def drain() -> bool:
            run.cancel()
            return False

        await _suspend(run.when_done, drain)

    async def drain_run(self, run: Run) -> None:
        if self._dropped:
            block_until_done(run)
            return
        with trio.CancelScope(shield=True):
            await self.wait_for_run(run, 0.0)

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


# ---- the steps of a task: protected from Ctrl-C at every bytecode, and in a critical section of dagpu


@trio.lowlevel.enable_ki_protection
@types.coroutine
def await_steps(steps: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
    """Await what a generator such as `protected` does. Only a method `__await__` may return such a generator as it
    is."""
    return (yield from steps)


@trio.lowlevel.enable_ki_protection
def protected(coroutine: Coroutine[Any, Any, _T], what: str) -> Generator[Any, Any, _T]:
    """Do the steps of a coroutine, each in a section of dagpu.common.critical.

    In frames called from here, except those of user functions, trio raises no Ctrl-C: it is raised at the next
    checkpoint, or wakes the task if that waits. Between two steps other tasks run, outside the section.

    Raises:
        NestedRunError: the thread is in a section already. The message contains `what`, the name of the call.
    """
    step: Callable[[Any], Any] = coroutine.send
    argument: Any = None
    while True:
        thread = CURRENT_THREAD.state  # as by `enter_section` and `restore_section`, without two calls for each step
        before = thread.where
        if before == CRITICAL:
            coroutine.close()
            refuse_nested(what)
        thread.where = CRITICAL
        try:
            awaited = step(argument)
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            thread.where = before
            argument = None  # an exception that was thrown in must not keep this frame alive
        try:
            argument, step = (yield awaited), coroutine.send
        except BaseException as error:
            argument, step = error, coroutine.throw


@trio.lowlevel.disable_ki_protection
async def await_user(awaitable: Awaitable[_T]) -> _T:
    """Await what is the user's, which Ctrl-C may interrupt, in a task of dagpu's, which it may not."""
    return await awaitable


trio.lowlevel.disable_ki_protection(run_user_code)
