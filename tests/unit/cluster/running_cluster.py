"""A cluster of two processes on this machine, and the ends of its workers."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from dagpu import Cluster, value

SECONDS = 120.0
"""The longest wait for a process, on a machine that is busy with other things."""


def until(true: Callable[[], Any]) -> Any:
    """Wait for other processes, and return what is true."""
    deadline = time.monotonic() + SECONDS
    while not (found := true()):
        assert time.monotonic() < deadline, "a process did not do its part"
        time.sleep(0.01)
    return found


@contextmanager
def running(device: str) -> Iterator[Cluster]:
    """A cluster on a thread, in parts of one instruction, each worker with this device."""
    release, found = threading.Event(), list[Cluster]()

    async def hold() -> None:
        opening = Cluster.local(2, [device], part_seconds=1e-9, allowed_failures=1, timeout=SECONDS)
        async with opening as cluster:
            found.append(cluster)
            await trio.to_thread.run_sync(release.wait)

    thread = threading.Thread(target=trio.run, args=(hold,))
    thread.start()
    until(lambda: found or not thread.is_alive())
    try:
        yield found[0]
    finally:
        release.set()
        thread.join()


def process_of(worker: str) -> int:
    """The process of a worker, by its first device's name without the number: `w0/host`."""
    found: int = value(0).host_map(_process_number).on(f"{worker}:0").sync()
    return found


def _process_number(_: object) -> int:
    return os.getpid()


def kill(cluster: Cluster, process: int) -> None:
    """Kill a worker, and wait until the scheduler has seen it."""
    before = cluster.workers
    os.kill(process, signal.SIGKILL)
    until(lambda: cluster.workers != before)
