"""Making a device's context current on a thread, and seeing to it that no thread is in the driver when Python ends."""

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, final

from dagpu.backends.cuda.driver.driver_protocol import device_error

EXIT_SECONDS: Final = 2.0
"""How long the interpreter waits at its end for threads that are in the driver."""


@final
class Context:
    """A `with` block in which a context is current. One object serves all threads: it holds no state of theirs.

    It is the driver's own stack, not PyCUDA's: that aborts the process if a thread ends with something on it, as
    daemon threads do when the interpreter ends.
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
    """The end of the interpreter. It ends daemon threads wherever they are, by unwinding their stacks; if that is in
    the driver, or in PyCUDA's C++, the process crashes. So they are stopped before, where nothing is on the stack."""

    def __init__(self) -> None:
        self.begun = False
        self.inside: list[None] = []
        """As long as there are threads within `with gpu.current()`; appending and popping are atomic."""
        atexit.register(self._begin)
        os.register_at_fork(after_in_child=self.inside.clear)  # those threads are the parent's

    def _begin(self) -> None:
        self.begun = True
        deadline = time.monotonic() + EXIT_SECONDS
        while self.inside and time.monotonic() < deadline:
            time.sleep(1e-3)

    def stop_other_threads(self) -> None:
        """Let the main thread pass, which may have more to do at the end, and nobody else ever again."""
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()


_ending = _Ending()
