"""A look now and then at the runs that somebody sleeps on.

The driver calls no host function once a context is lost, so whoever sleeps on a pipe would sleep for ever. And where
very many runs are slept on at once, there are not pipes and streams enough: then this wakes the sleepers.
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from dagpu.common.critical import enter

PERIOD: Final = 0.1
"""Seconds: how late a lost device is noticed."""

PATIENCE: Final = 5.0
"""Seconds without a sleeper after which the thread ends."""

PIPES: Final = 64
"""Sleepers that have a pipe, which takes two descriptors and a stream; a process may have 1,024 descriptors."""

CROWDED_PERIOD: Final = 1e-3
"""Seconds between two looks while there are sleepers without one."""

GLANCE: Final = 32
"""How many of those are looked at each time, in turn: some 100 us."""


class MayBeLost(Protocol):
    """The part of a device that a watch looks at."""

    @property
    def lost(self) -> object:
        """The error with which it was lost; None while it is well."""
        ...


class SleptOn(Protocol):
    """The part of a run that a watch looks at."""

    @property
    def devices(self) -> Sequence[MayBeLost]: ...

    def done(self) -> bool:
        """Look whether everything has happened."""
        ...


@final
@dataclass(slots=True)
class _Sleeper:
    """A run that somebody sleeps on until a pipe's writing end is closed: by the run, by the driver, or here."""

    run: weakref.ref[SleptOn]
    """Whoever sleeps keeps it: its errors hold on to all that the run has made."""
    devices: Sequence[MayBeLost]
    pipe: tuple[int, int]
    """Device and inode of the pipe, which tell whether the descriptor is still its end."""


@final
class Watchdog:
    """The runs of one device that are slept on, and a thread while there are any."""

    def __init__(self) -> None:
        self._sleepers: dict[int, _Sleeper] = {}
        """By descriptor: one that comes again has been closed before."""
        self._crowd: deque[tuple[SleptOn, Callable[[], None]]] = deque()
        self._lock = threading.Lock()
        self.looking = threading.Lock()
        """One thread looks at a time: a look holds on to a run, and may close its pipe."""
        self._thread: threading.Thread | None = None

    @property
    def crowded(self) -> bool:
        """Are there as many sleepers with pipes as there may be?"""
        return len(self._sleepers) >= PIPES

    def call(self, run: SleptOn, wake: Callable[[], None]) -> None:
        """Call `wake` when the run is done."""
        with self._lock:
            self._crowd.append((run, wake))
            self._start()

    def add(self, run: SleptOn, bell: int, pipe: tuple[int, int]) -> None:
        """Look at this run until the writing end of its pipe is closed. If it is already, there may be a sleeper of
        another run under that number, which stays."""
        with self._lock:
            if identity(bell) == pipe:
                self._sleepers[bell] = _Sleeper(weakref.ref(run), run.devices, pipe)
                self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="dagpu-watch", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Look at each of them once."""
        with self.looking:
            for bell, sleeper in list(self._sleepers.items()):
                self._look_at(bell, sleeper)

    def _look_at(self, bell: int, sleeper: _Sleeper) -> None:
        run = sleeper.run()
        if run is not None and not _ended(run):
            return
        # The driver is about to close its pipe, unless a device was lost.
        is_open = identity(bell) == sleeper.pipe
        if is_open and any(device.lost is not None for device in sleeper.devices):
            os.close(bell)
            is_open = False
        with self._lock:
            if not is_open and self._sleepers.get(bell) is sleeper:
                del self._sleepers[bell]

    def glance(self) -> None:
        """Look at some of those that have no pipe."""
        for _ in range(min(len(self._crowd), GLANCE)):
            run, wake = self._crowd.popleft()
            if _ended(run):
                wake()
            else:
                self._crowd.append((run, wake))

    def _serve(self) -> None:
        enter("an op was run")  # all that this thread does is dagpu's, for good
        looked = busy = time.monotonic()
        while True:
            time.sleep(CROWDED_PERIOD if self._crowd else PERIOD)
            self.glance()
            now = time.monotonic()
            if now - looked >= PERIOD:
                looked = now
                self.look()
            with self._lock:
                if self._sleepers or self._crowd:
                    busy = now
                elif now - busy > PATIENCE:
                    self._thread = None
                    return


def _ended(run: SleptOn) -> bool:
    """Is it done, or in such a state that whoever waits for it had better look for himself?"""
    try:
        return run.done()
    except Exception:  # he gets it too, and can raise it where it belongs
        return True


def identity(descriptor: int) -> tuple[int, int] | None:
    """What an open descriptor stands for."""
    try:
        about = os.fstat(descriptor)
    except OSError:
        return None
    return about.st_dev, about.st_ino
