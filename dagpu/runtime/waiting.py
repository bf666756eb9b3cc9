"""Waiting: for a replay on a device, and for a value that another run is making.

A run is one coroutine, written once, that waits through a `Waits`. Under trio that suspends the task; in a plain
program `BlockingWaits` never suspends, so the coroutine is driven to its end by one `send`.

Under trio one pipe wakes all waiting tasks of a loop: a thread that finishes work appends to a queue and makes the pipe
readable, and one system task hands the wake-ups out. A thousand waiting runs cost two file descriptors.
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
from dagpu.common.critical import SIGNALS_SECONDS, interrupts, patience
from dagpu.common.errors import NestedRunError
from dagpu.common.origin import describe, here
from dagpu.ops.single_flight import Once

_T = TypeVar("_T")

TURN_SECONDS = 0.01
"""For how long a trace holds up the other tasks of a trio loop before it lets them have a turn, closures permitting."""


class Waits(Protocol):
    """The ways in which a run waits."""

    async def slowly(self, work: Callable[[], None]) -> None:
        """Do work that takes long, such as compiling."""
        ...

    def due(self) -> bool:
        """True if a trace must pause before it calls the next function of the user's."""
        ...

    async def pause(self) -> None:
        """Let others have their turn, and be cancelled or interrupted, in the middle of a trace."""
        ...

    async def before_submit(self) -> None:
        """Last chance to be cancelled with nothing submitted."""
        ...

    async def replay(self, replay: Replay, spin: float) -> None:
        """Wait until the replay is done. If cancelled: skip the steps that have not begun, drain, then raise."""
        ...

    async def drain(self, replay: Replay) -> None:
        """Wait until a replay of another run is done. None of its steps is skipped, whatever is cancelled."""
        ...

    async def once(self, onces: list[Once]) -> None:
        """Wait until at least one of these values is being made by no run."""
        ...

    async def finish(self, waited: bool) -> None:
        """A run ends: be a checkpoint if nothing before was."""
        ...


@final
class BlockingWaits:
    """Blocks the thread: for `sync()`.

    On the main thread a section holds Ctrl-C off (dagpu.common.critical). It is noticed here: before work is submitted,
    and by whatever waits, which it ends early.
    """

    async def slowly(self, work: Callable[[], None]) -> None:
        work()

    def due(self) -> bool:
        return False  # nobody else has this thread; an interrupt is raised by dagpu.common.critical.call_user

    async def pause(self) -> None:
        return

    async def before_submit(self) -> None:
        if (hold := interrupts()) is not None:
            hold.check()

    async def replay(self, replay: Replay, spin: float) -> None:
        hold = interrupts()
        try:
            if hold is not None:
                hold.cancels(replay.cancel)
            if not replay.poll(spin):
                replay.wait()
        except BaseException:  # what is under way uses memory that is about to go
            replay.cancel()
            _wait_for(replay)
            raise
        finally:
            if hold is not None:
                hold.cancels(None)
        if hold is not None:
            hold.check()  # it was cancelled, and has no result

    async def drain(self, replay: Replay) -> None:
        _wait_for(replay)

    async def once(self, onces: list[Once]) -> None:
        # A queue, and no Event: a signal handler may put into it while this very thread is waking up.
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
        hold = interrupts()
        if hold is not None:
            hold.cancels(lambda: settled.put(None))
        while True:
            try:
                settled.get(timeout=SIGNALS_SECONDS)
                break
            except Empty:
                continue
        if hold is not None:
            hold.cancels(None)
            hold.check()

    async def finish(self, waited: bool) -> None:
        return


def _wait_for(replay: Replay) -> None:
    """Block until it is done, whatever a signal handler of the user's raises meanwhile; the last of that is raised."""
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
    """Run a coroutine that waits through `BlockingWaits`, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise AssertionError("BlockingWaits never suspends")


@final
class _Bell:
    """Wakes tasks of one trio loop from other threads."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._calls: deque[Callable[[], None]] = deque()
        self._lock = threading.RLock()
        self._rung = False
        self._closed = False

    def ring(self, call: Callable[[], None]) -> None:
        """Have `call` made in the loop, soon. From any thread; after the loop has ended it does nothing."""
        self._calls.append(call)
        with self._lock:
            if self._rung or self._closed:
                return
            self._rung = True
            os.write(self._writable, b"\0")

    async def serve(self) -> None:
        """The system task that makes the calls."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._readable)
                with self._lock:
                    os.read(self._readable, 16)
                    self._rung = False
                while self._calls:
                    self._calls.popleft()()
        finally:
            with self._lock:
                self._closed = True
                os.close(self._readable)
                os.close(self._writable)


_bell: "trio.lowlevel.RunVar[_Bell]" = trio.lowlevel.RunVar("dagpu_bell")


def _bell_of_this_loop() -> _Bell:
    try:
        return _bell.get()
    except LookupError:
        bell = _Bell()
        _bell.set(bell)
        trio.lowlevel.spawn_system_task(bell.serve)
        return bell


async def _suspend(register: Callable[[Callable[[], None]], None], cancelled: Callable[[], bool]) -> None:
    """Suspend the task until the wake-up that `register` was given is called, from any thread.

    `cancelled()` is called when trio cancels the wait. If it says True, the wait ends at once; else (work is under way
    that cannot be called back) it goes on to the wake-up, and `Cancelled` is raised then.
    """
    task = trio.lowlevel.current_task()
    bell = _bell_of_this_loop()
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
        draining.enter_context(patience)
        return trio.lowlevel.Abort.FAILED

    with ExitStack() as draining:
        register(lambda: bell.ring(resume))
        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        finally:
            waiting = False  # the task of a run that was dropped may wait for something else when the wake-up comes
    if raise_cancelled is not None:
        raise_cancelled()


async def _until_readable(descriptor: int, replay: Replay) -> None:
    """Suspend the task until a replay's descriptor is readable. If cancelled or interrupted: drain, then raise."""
    try:
        try:
            await trio.lowlevel.wait_readable(descriptor)
        except (trio.Cancelled, KeyboardInterrupt):
            replay.cancel()
            await _drained(descriptor)
            raise
    finally:
        os.close(descriptor)


async def _drained(descriptor: int) -> None:
    """Suspend the task until the descriptor is readable, whatever is cancelled.

    A shield does not keep Ctrl-C out: trio raises it in the main task wherever that waits. It is raised here once all
    is drained.
    """
    interrupted: KeyboardInterrupt | None = None
    with patience:
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


def _has_to_end() -> bool:
    """True if a checkpoint of this task would raise: it is cancelled, or it is the main task and Ctrl-C was pressed.

    Trio tells of the second in no other way than by a checkpoint, whose first step is taken here and no more of it: a
    task that need not end comes through without suspending. 0.6 us.
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
    """Suspends the trio task: for `await`.

    A Ctrl-C may be raised in a frame of the user's just as the task goes on, and then no task awaits the run any more:
    its coroutine is closed. No loop will resume it, so the work under way is waited for by blocking.
    """

    def __init__(self) -> None:
        self._dropped = False
        self._turn_began: float | None = None

    async def slowly(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work)

    def due(self) -> bool:
        now = time.perf_counter()
        if self._turn_began is None:
            self._turn_began = now
        return now - self._turn_began >= TURN_SECONDS or _has_to_end()

    async def pause(self) -> None:
        self._turn_began = None
        await trio.lowlevel.checkpoint()

    async def before_submit(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    async def replay(self, replay: Replay, spin: float) -> None:
        try:
            await self._replay(replay, spin)
        except GeneratorExit:
            self._dropped = True
            replay.cancel()
            _wait_for(replay)
            raise

    async def _replay(self, replay: Replay, spin: float) -> None:
        if replay.poll(spin):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        descriptor = replay.readable()
        if descriptor is not None:
            await _until_readable(descriptor, replay)
            return

        def drain() -> bool:
            replay.cancel()
            return False

        await _suspend(replay.when_done, drain)

    async def drain(self, replay: Replay) -> None:
        if self._dropped:
            _wait_for(replay)
            return
        with trio.CancelScope(shield=True):
            await self.replay(replay, 0.0)

    async def once(self, onces: list[Once]) -> None:
        def register(wake: Callable[[], None]) -> None:
            for once in onces:
                once.when_settled(wake)

        await _suspend(register, lambda: True)

    async def finish(self, waited: bool) -> None:
        if not waited:
            await trio.lowlevel.checkpoint()
