"""Streams of the host. Each has a worker thread that does the work of a first-in, first-out queue.

A thread starts with the first work for its stream, and ends when the last reference to the stream is dropped. It
refers only to its queue, never to the stream, so an idle thread keeps nothing else alive.
"""

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, final

from dagpu.common.critical import enter_user_code
from dagpu.common.errors import DeviceError
from dagpu.common.places import describe, start_of_run

EXIT_SECONDS = 1.0
"""Seconds that the interpreter waits at exit for unfinished work, for all streams together."""


class Work(Protocol):
    """A piece of work for a stream."""

    def run(self) -> None:
        """Do the work. Raises nothing. By its end, it has dropped all of its references."""
        ...


@final
class _Queue:
    """The queue of a worker thread, and a flag that tells whether the thread is busy."""

    __slots__ = ("_stream", "busy", "waiting")

    def __init__(self, stream: "WorkerStream") -> None:
        self.waiting: SimpleQueue[tuple[Context, Work] | weakref.ref[WorkerStream] | None] = SimpleQueue()
        self.busy = False
        # The thread ends once the stream is freed. `SimpleQueue.put` is C code: no interrupt occurs inside it (see
        # dagpu.common.critical), and it may be called while the thread holds any lock.
        self._stream = weakref.ref(stream, self.waiting.put)

    def put(self, work: Work | None) -> None:
        """Append work for the thread, which does it in a copy of the context of this call. None ends the thread."""
        self.waiting.put(None if work is None else (copy_context(), work))


@final
class _Process:
    """The worker threads of this process. A forked child process starts with no threads and a free lock."""

    __slots__ = ("dispatch", "generation", "over", "threads")

    def __init__(self) -> None:
        self.generation = 0
        self.over = False
        """True once the interpreter is exiting. No thread starts after that."""
        self.reset()

    def reset(self) -> None:
        self.generation += 1  # a stream whose thread is of an older generation has no thread
        # Held while work is put into queues. Reentrant, like every lock that a finaliser may take.
        self.dispatch = threading.RLock()
        self.threads: dict[threading.Thread, _Queue] = {}

    def shut_down(self) -> None:
        """End all threads once their queues are empty. A thread that takes too long is left to the interpreter."""
        with self.dispatch:
            self.over = True
            self.generation += 1
            threads, self.threads = self.threads, {}
        for queue in threads.values():
            queue.put(None)
        deadline = time.monotonic() + EXIT_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


process = _Process()
os.register_at_fork(after_in_child=process.reset)
atexit.register(process.shut_down)


@final
@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class WorkerStream:
    """One stream of the host. It is compared by identity."""

    device: int
    """Index of its device."""
    _name: str
    _generation: int = 0
    _queue: _Queue | None = None

    def ready(self) -> _Queue:
        """Return the queue, after starting its thread if needed. The caller holds `process.dispatch`.

        Raises:
            DeviceError: the interpreter is exiting, and no thread would ever do the work; or no thread can be started.
        """
        if process.over:
            raise DeviceError(
                "the interpreter is ending, and its worker threads are gone: no op can run any more. Run ops before "
                "the program ends, not in a finaliser (__del__) or an atexit function."
            )
        queue = self._queue
        if queue is None or self._generation != process.generation:
            queue = _Queue(self)
            thread = threading.Thread(target=_serve, args=(queue,), name=f"dagpu-{self._name}", daemon=True)
            start_thread(thread)
            process.threads[thread] = queue
            self._queue, self._generation = queue, process.generation
        return queue

    def load(self) -> int:
        """Return the number of pieces of work in progress or waiting: a hint, outdated as soon as it is read."""
        queue = self._queue
        return 0 if queue is None else queue.waiting.qsize() + queue.busy

    def __repr__(self) -> str:
        return f"<HostStream {self._name}>"

    def __str__(self) -> str:
        return self._name.rpartition("/")[2]


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        DeviceError: the machine can start no other thread. The message has the place of the run that needs it.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread(thread.name, error) from error


def no_thread(name: str, error: RuntimeError) -> DeviceError:
    """Return the error of a run whose thread of this name could not be started, for the reason `error`."""
    return DeviceError(
        f"the run at {describe(start_of_run())} needs the thread {name}, which could not be started: {error}. Run it "
        "again when other threads have ended, or raise the limit of threads (ulimit -u) or of memory (ulimit -v)."
    )


def enqueue(work: Mapping[WorkerStream, Work]) -> None:
    """Put one piece of work into each of these streams, into all of them or none.

    Pieces of work that wait for each other must be put in by one call. This cannot deadlock: each call holds one lock
    while it puts in its work, so any two calls have the same order in all streams that they share. Therefore the work
    of the first unfinished call is at the head of each of its queues, and waits only for work of the same call.
    """
    with process.dispatch:
        queues = [stream.ready() for stream in work]  # before any work is put in, because starting a thread may fail
        for queue, item in zip(queues, work.values(), strict=True):
            queue.put(item)


def _serve(queue: _Queue) -> None:
    """Do the work of a queue until its stream is freed or the process ends. The body of a worker thread."""
    enter_user_code()  # all work here belongs to a run, so ops are always refused
    while (item := queue.waiting.get()) is not None and not isinstance(item, weakref.ref):
        queue.busy = True
        context, work = item
        try:
            context.run(work.run)
        except BaseException:  # a defect, which must not prevent all later work
            report_lost()
        del item, context, work  # otherwise they would live until the next work arrives
        queue.busy = False
    process.threads.pop(threading.current_thread(), None)


def report_lost() -> None:
    """Report the exception that is being handled, like Python does for an uncaught exception of a thread.

    For exceptions that cannot be raised in any caller.
    """
    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
