"""A watchdog thread that polls the runs for which tasks sleep.

The driver calls no host function once a context is lost, so a task that sleeps on a pipe would sleep for ever. The
watchdog ends the pipe then. If very many tasks sleep at once, there are not enough pipes and streams; the watchdog
wakes the tasks without a pipe.
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, final

from dagpu.backends.common.worker_threads import start_thread
from dagpu.backends.cuda.driver.driver_errors import STICKY
from dagpu.common.critical import enter_section
from dagpu.common.errors import DeviceError, DeviceLostError

PERIOD: Final = 0.1
"""Seconds between two polls of the runs with a pipe: the delay until a lost device is noticed."""

PATIENCE: Final = 5.0
"""Seconds without a sleeper after which the thread ends."""

PIPES: Final = 64
"""The most sleepers with a pipe, which takes two descriptors and a stream. A process may have 1,024 descriptors."""

CROWDED_PERIOD: Final = 1e-3
"""Seconds between two polls while there are sleepers without a pipe."""

POLL_SIZE: Final = 32
"""The number of sleepers without a pipe that one poll covers, in turn: some 100 us."""


class MayBeLost(Protocol):
    """The part of a device that the watchdog reads."""

    @property
    def lost(self) -> DeviceLostError | None:
        """The error with which the device was lost; None while it works."""
        ...


class SleptOn(Protocol):
    """The part of a run that the watchdog polls."""

    @property
    def devices(self) -> Sequence[MayBeLost]: ...

    def done(self) -> bool:
        """Poll the run, and return True if it is over."""
        ...


@final
@dataclass(slots=True)
class _Sleeper:
    """A run for which a task sleeps until the write end of a pipe is closed: by the run, by the driver, or by the
    watchdog."""

    run: weakref.ref[SleptOn]
    """The run. The reference is weak, because the run's errors keep all its results alive; the sleeping task has a
    strong one."""
    devices: Sequence[MayBeLost]
    """The devices of the run. The driver closes the pipe in a stream of the first one."""
    pipe: tuple[int, int]
    """Device and inode of the pipe. They show whether the descriptor is still the pipe's end."""


@final
class Watchdog:
    """The runs of one device for which tasks sleep, and a thread while there are any."""

    def __init__(self) -> None:
        self._sleepers: dict[int, _Sleeper] = {}
        """The sleepers with a pipe, by the descriptor of its write end. A descriptor is reused only after it was
        closed."""
        self._without_pipe: deque[tuple[SleptOn, Callable[[], None]]] = deque()
        self._lock = threading.Lock()
        self.polling = threading.Lock()
        """Held while a thread polls: a poll keeps a run alive, and may close its pipe."""
        self._thread: threading.Thread | None = None

    @property
    def pipes_exhausted(self) -> bool:
        """True if there are as many sleepers with pipes as are allowed."""
        return len(self._sleepers) >= PIPES

    def call(self, run: SleptOn, wake: Callable[[], None]) -> None:
        """Call `wake` when the run is over.

        Raises:
            DeviceError: no thread can be started.
        """
        with self._lock:
            self._start()
            self._without_pipe.append((run, wake))

    def add(self, run: SleptOn, wakeup_fd: int, pipe: tuple[int, int]) -> None:
        """Poll this run until the write end of its pipe is closed. If it is closed already, do nothing: the descriptor
        may belong to a sleeper of another run."""
        with self._lock:
            if identity(wakeup_fd) == pipe:
                self._sleepers[wakeup_fd] = _Sleeper(weakref.ref(run), run.devices, pipe)
                with suppress(DeviceError):  # the driver closes the pipe all the same, and the next sleeper tries again
                    self._start()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="dagpu-watch", daemon=True)
            start_thread(thread)
            self._thread = thread

    def poll_all(self) -> None:
        """Poll each run with a pipe once."""
        with self.polling:
            for wakeup_fd, sleeper in list(self._sleepers.items()):
                self._poll_sleeper(wakeup_fd, sleeper)

    def _poll_sleeper(self, wakeup_fd: int, sleeper: _Sleeper) -> None:
        run = sleeper.run()
        if run is not None and not _ended(run):
            return
        # The driver is about to close the pipe, unless a device is lost.
        is_open = identity(wakeup_fd) == sleeper.pipe
        if is_open and any(device.lost is not None for device in sleeper.devices):
            _end_pipe(wakeup_fd, sleeper.devices[0].lost)
            is_open = False
        with self._lock:
            if not is_open and self._sleepers.get(wakeup_fd) is sleeper:
                del self._sleepers[wakeup_fd]

    def poll_some(self) -> None:
        """Poll some of the runs without a pipe, and wake the tasks of those that are over."""
        for _ in range(min(len(self._without_pipe), POLL_SIZE)):
            run, wake = self._without_pipe.popleft()
            if _ended(run):
                wake()
            else:
                self._without_pipe.append((run, wake))

    def _serve(self) -> None:
        enter_section("an op was run")  # this thread runs only dagpu's code
        looked = busy = time.monotonic()
        while True:
            time.sleep(CROWDED_PERIOD if self._without_pipe else PERIOD)
            self.poll_some()
            now = time.monotonic()
            if now - looked >= PERIOD:
                looked = now
                self.poll_all()
            with self._lock:
                if self._sleepers or self._without_pipe:
                    busy = now
                elif now - busy > PATIENCE:
                    self._thread = None
                    return


def _end_pipe(wakeup_fd: int, lost: DeviceLostError | None) -> None:
    """End a pipe that the driver has not closed, and wake the task that reads it. `lost` is the error of the device in
    whose stream the driver closes it.

    The driver never closes it in a context with an error. If the device counts as lost for another reason, or if only
    another device of the run is lost, the driver may still close the descriptor. So its number stays taken, by a file
    that nothing reads: otherwise the driver might close a file of the program's that has got the number.
    """
    if lost is None or lost.code not in STICKY:
        try:
            taken = os.open(os.devnull, os.O_RDONLY)
        except OSError:  # the process has too many files open
            pass
        else:
            os.dup2(taken, wakeup_fd, inheritable=False)
            os.close(taken)
            return
    os.close(wakeup_fd)


def _ended(run: SleptOn) -> bool:
    """Return True if the run is over, or if polling it raises: the waiting task then polls it and receives the
    error."""
    try:
        return run.done()
    except Exception:  # the waiting task gets the same error
        return True


def identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open descriptor; None if it is closed."""
    try:
        about = os.fstat(descriptor)
    except OSError:
        return None
    return about.st_dev, about.st_ino
