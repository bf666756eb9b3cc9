"""Keeps threads out of the driver while the interpreter exits."""

import atexit
import os
import threading
import time
from typing import Final, final

EXIT_SECONDS: Final = 2.0
"""Seconds that the interpreter waits at exit for threads that are in the driver."""


@final
class ExitGuard:
    """Counts the threads that are in the driver. The interpreter ends daemon threads at any point by unwinding their
    stacks, and the process crashes if a thread is in the driver or in PyCUDA's C++ then. So threads are stopped
    before they enter the driver."""

    __slots__ = ("begun", "inside")

    def __init__(self) -> None:
        self.begun = False
        """True once the interpreter exits. Then a thread must not enter the driver without `stop_other_threads`."""
        self.inside: list[None] = []
        """One element for each thread that is in the driver. A thread appends it before its calls, and pops one after
        them. Both are atomic."""
        atexit.register(self._begin)
        os.register_at_fork(after_in_child=self.inside.clear)  # these threads exist in the parent only

    def _begin(self) -> None:
        self.begun = True
        deadline = time.monotonic() + EXIT_SECONDS
        while self.inside and time.monotonic() < deadline:
            time.sleep(1e-3)

    def stop_other_threads(self) -> None:
        """Block the calling thread for ever, unless it is the main thread, which may still have work at exit."""
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()


EXIT_GUARD: Final = ExitGuard()
