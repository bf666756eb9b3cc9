"""Makes a device's context current on a thread, and keeps threads out of the driver while the interpreter exits."""

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, final

from dagpu.backends.cuda.driver.driver_errors import device_error

EXIT_SECONDS: Final = 2.0
"""Seconds that the interpreter waits at exit for threads that are in the driver."""


@final
class Context:
    """A context manager in which a CUDA context is current. All threads share one object: it stores no state of a
    thread.

    It uses the driver's context stack, not PyCUDA's: PyCUDA aborts the process if a thread ends with a context on its
    stack, as daemon threads do at interpreter exit.
    """

    __slots__ = ("_pop", "_push", "context")

    def __init__(self, bindings: Any, context: Any) -> None:
        self.context = context
        self._push: Callable[[Any], tuple[Any, ...]] = bindings.cuCtxPushCurrent
        self._pop: Callable[[], tuple[Any, ...]] = bindings.cuCtxPopCurrent

    def __enter__(self) -> None:
        if _ending.begun:
            _ending.stop_other_threads()
        _ending.inside.append(None)
        code = self._push(self.context)[0]
        if code:
            _ending.inside.pop()
            raise device_error("cuCtxPushCurrent", int(code), "the context cannot be made current")

    def __exit__(self, *_error: object) -> None:
        self._pop()
        _ending.inside.pop()


@final
class _Ending:
    """Interpreter exit. The interpreter ends daemon threads at any point by unwinding their stacks, and the process
    crashes if a thread is in the driver or in PyCUDA's C++ then. So threads are stopped earlier, before they enter the
    driver."""

    def __init__(self) -> None:
        self.begun = False
        self.inside: list[None] = []
        """One element for each thread that is within `with gpu.current()`. Appending and popping are atomic."""
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


_ending = _Ending()
