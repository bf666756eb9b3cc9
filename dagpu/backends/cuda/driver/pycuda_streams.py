"""Streams and events through cuda.bindings, which releases the GIL in each of their calls.

PyCUDA holds the GIL. A thread that creates a stream, or creates or records an event, waits in the driver while another
thread loads a module or frees memory; with the GIL held, that stops every Python thread. A record or a query takes 0.2
us longer than PyCUDA's on a driver that does nothing (CPython 3.12). ctypes is not quicker.

Streams and events are never destroyed: `dagpu.backends.cuda.resources.streams` pools streams and events for the
process's life.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, final

from dagpu.backends.cuda.driver.driver_errors import NOT_READY

Checked: TypeAlias = Callable[[str, tuple[Any, ...]], tuple[Any, ...]]
"""Function that returns the values after the CUresult in the result of a named call, or raises the call's error."""


@final
class PyCudaStream:
    """A CUDA stream. Implements `dagpu.backends.cuda.driver.driver_protocol.RawStream`."""

    __slots__ = ("_bindings", "_checked", "cu", "handle")

    def __init__(self, bindings: Any, checked: Checked, cu: Any) -> None:
        self._bindings = bindings
        self._checked = checked
        self.cu = cu
        """The CUstream of cuda.bindings. Its functions accept an integer too, but are slower then."""
        self.handle = int(cu)

    def wait_for_event(self, event: Any, /) -> None:
        returned = self._bindings.cuStreamWaitEvent(self.cu, event.cu, 0)
        if returned[0]:
            self._checked("cuStreamWaitEvent", returned)

    def query(self) -> bool:
        returned = self._bindings.cuStreamQuery(self.cu)
        if not returned[0]:
            return True
        if returned[0] != NOT_READY:
            self._checked("cuStreamQuery", returned)
        return False

    def synchronize(self) -> None:
        self._checked("cuStreamSynchronize", self._bindings.cuStreamSynchronize(self.cu))


@final
class PyCudaEvent:
    """A CUDA event. Implements `dagpu.backends.cuda.driver.driver_protocol.RawEvent`, and `TimingEvent` if it was
    created with timing.
    """

    __slots__ = ("_bindings", "_checked", "cu")

    def __init__(self, bindings: Any, checked: Checked, cu: Any) -> None:
        self._bindings = bindings
        self._checked = checked
        self.cu = cu
        """The CUevent of cuda.bindings."""

    def record(self, stream: Any, /) -> None:
        returned = self._bindings.cuEventRecord(self.cu, stream.cu)
        if returned[0]:
            self._checked("cuEventRecord", returned)

    def query(self) -> bool:
        returned = self._bindings.cuEventQuery(self.cu)
        if not returned[0]:
            return True
        if returned[0] != NOT_READY:
            self._checked("cuEventQuery", returned)
        return False

    def synchronize(self) -> None:
        self._checked("cuEventSynchronize", self._bindings.cuEventSynchronize(self.cu))

    def time_since(self, earlier: Any, /) -> float:
        returned = self._bindings.cuEventElapsedTime(earlier.cu, self.cu)
        return float(self._checked("cuEventElapsedTime", returned)[0])
