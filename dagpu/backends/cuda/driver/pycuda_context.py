"""Makes a device's context current on a thread."""

from collections.abc import Callable
from typing import Any, final

from dagpu.backends.cuda.driver.driver_errors import device_error
from dagpu.backends.cuda.driver.exit_guard import EXIT_GUARD


@final
class Context:
    """A context manager in which a CUDA context is current. All threads share one object: it stores no state of a
    thread.

    It uses the driver's context stack, not PyCUDA's: PyCUDA aborts the process if a thread ends with a context on its
    stack, as daemon threads do at interpreter exit.
    """

    __slots__ = ("_pop", "_push", "_record", "context")

    def __init__(self, bindings: Any, context: Any) -> None:
        self.context = context
        self._push: Callable[[Any], tuple[Any, ...]] = bindings.cuCtxPushCurrent
        self._pop: Callable[[], tuple[Any, ...]] = bindings.cuCtxPopCurrent
        self._record: Callable[[Any, Any], tuple[Any, ...]] = bindings.cuEventRecord

    def __enter__(self) -> None:
        if EXIT_GUARD.begun:
            EXIT_GUARD.stop_other_threads()
        EXIT_GUARD.inside.append(None)
        code = self._push(self.context)[0]
        if code:
            EXIT_GUARD.inside.pop()
            raise device_error("cuCtxPushCurrent", int(code), "the context cannot be made current")

    def __exit__(self, *_error: object) -> None:
        self._pop()
        EXIT_GUARD.inside.pop()

    def has_recorded(self, event: Any, stream: Any) -> bool:
        """Record an event of this context in a stream of it, and return True. Return False if the driver refuses.

        It saves two calls where the context is current already, as on a thread that has just used PyTorch or CuPy. The
        default stream is that of the current context, and the driver refuses to record an event of another one there.
        """
        if EXIT_GUARD.begun:
            EXIT_GUARD.stop_other_threads()
        inside = EXIT_GUARD.inside
        inside.append(None)
        try:
            return not self._record(event.cu, stream.cu)[0]
        finally:
            inside.pop()
