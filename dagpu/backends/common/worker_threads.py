"""Streams of the host: a worker thread each, which takes work from a queue in the order in which it was put
in.

A thread starts with the first work for its stream, and ends when the last reference to the stream goes. It
refers to its queue alone, never to the stream, so an idle thread keeps nothing else alive.
"""

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Protocol, final

from dagpu.common.critical import enter_user_code
from dagpu.common.errors import DeviceError

EXIT_SECONDS = 1.0
"""How long the interpreter waits at its end, for all streams together, for work that is still under way."""


class Work(Protocol):
    """What is put into a stream."""

    def run(self) -> None:
        """Do it. Raises nothing; drops all that it refers to by its end."""
        ...


@final
class _Queue:
    """Work that waits for a thread, and whether that thread is at work."""

    __slots__ = ("_stream", "busy", "waiting")

    def __init__(self, stream: "WorkerStream") -> None:
        self.waiting: SimpleQueue[Work | weakref.ref[WorkerStream] | None] = SimpleQueue()
        self.busy = False
        # The thread ends once the stream is gone. `SimpleQueue.put` is C code: no interrupt comes between (see
        # dagpu.common.reference_queue), and it may be called whatever lock the thread holds.
        self._stream = weakref.ref(stream, self.waiting.put)

    def put(self, work: Work | None) -> None:
        """The thread does this; None ends it."""
        self.waiting.put(work)


@final
class _Process:
    """The worker threads of this process. A child that was forked off starts with none, and with a free lock."""

    __slots__ = ("dispatch", "generation", "over", "threads")

    def __init__(self) -> None:
        self.generation = 0
        self.over = False
        """Has the interpreter begun to end? No thread starts any more."""
        self.reset()

    def reset(self) -> None:
        self.generation += 1  # a stream whose thread is of another generation has none
        # Held while work goes into queues. Reentrant, as every lock that a finaliser might meet.
        self.dispatch = threading.RLock()
        self.threads: dict[threading.Thread, _Queue] = {}

    def shut_down(self) -> None:
        """End all threads once their queues are empty; one that takes too long is left to the interpreter."""
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
class WorkerStream:
    """One stream. Equal to itself alone."""

    __slots__ = ("__weakref__", "_generation", "_name", "_queue", "device")

    def __init__(self, device: int, name: str) -> None:
        self.device = device
        """Index of its device."""
        self._name = name
        self._generation = 0
        self._queue: _Queue | None = None

    def ready(self) -> _Queue:
        """Its queue, with a thread that serves it. The caller holds `process.dispatch`.

        Raises:
            DeviceError: the interpreter is ending, and no thread would ever take the work.
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
            thread.start()
            process.threads[thread] = queue
            self._queue, self._generation = queue, process.generation
        return queue

    def load(self) -> int:
        """How many pieces of work it has, under way or waiting: a hint, out of date as soon as it is read."""
        queue = self._queue
        return 0 if queue is None else queue.waiting.qsize() + queue.busy

    def __repr__(self) -> str:
        return f"<HostStream {self._name}>"

    def __str__(self) -> str:
        return self._name.rpartition("/")[2]


def enqueue(work: Mapping[WorkerStream, Work]) -> None:
    """Put one piece of work into each of these streams, all of them or none.

    Works that wait for each other are given in one call. All of it goes in under one lock, so any two calls
    have the same order in all streams that they share: the first call that has not finished is at the head of
    each of its queues and waits for nobody but itself. That is why streams cannot deadlock each other.
    """
    with process.dispatch:
        queues = [stream.ready() for stream in work]  # first, because starting a thread may fail
        for queue, item in zip(queues, work.values(), strict=True):
            queue.put(item)


def _serve(queue: _Queue) -> None:
    """The body of a stream's thread."""
    enter_user_code()  # all that runs here belongs to a run, so ops are refused for good
    while (work := queue.waiting.get()) is not None and not isinstance(work, weakref.ref):
        queue.busy = True
        try:
            work.run()
        except BaseException:  # a defect, but one that must not take all later work with it
            report_lost()
        del work  # or it would live until the next work comes
        queue.busy = False
    process.threads.pop(threading.current_thread(), None)


def report_lost() -> None:
    """Show the exception that is being handled, where nobody can be given it: as Python does for any
    thread's."""
    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
