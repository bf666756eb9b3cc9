"""Streams and events through cuda.bindings, which releases the GIL in each of their calls.

PyCUDA holds the GIL. A thread that creates a stream, or creates or records an event, waits in the driver while another
thread loads a module or frees memory; with the GIL held, that stops every Python thread. A record or a query takes 0.2
us longer than PyCUDA's on a driver that does nothing (CPython 3.12). ctypes is not quicker.

Streams and events are never destroyed: `dagpu.backends.cuda.resources.streams` pools streams and events for the
process's life.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any, Final, TypeAlias, final

from dagpu.backends.cuda.driver.driver_protocol import (
    EXIT_GUARD,
    NOT_READY,
    KernelLaunch,
    RawStream,
    device_error,
)
from dagpu.backends.kernel_text.loaded_function import GridExtents

# ---- makes a device's context current on a thread ---------------------------------------------------------------


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

    __slots__ = ("_bindings", "_checked", "cu", "handle")

    def __init__(self, bindings: Any, checked: Checked, cu: Any) -> None:
        self._bindings = bindings
        self._checked = checked
        self.cu = cu
        """The CUevent of cuda.bindings."""
        self.handle = int(cu)

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


# ---- prepares kernel launches for the driver: structs at fixed addresses, written once for many launches --------
# A launch in a stream is one call of the driver's cuLaunchKernelEx with four addresses: 0.35 us on a driver that does
# nothing (CPython 3.12, in a loop like the one that submits a command list). Two alternatives were tried. PyCUDA's
# launch takes 0.38 us, and holds the GIL while a full queue blocks it. cuLaunchKernel of cuda.bindings releases the
# GIL, but it unpacks eleven arguments for each launch: 0.64 us.


# cuda.h: CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
_POINTER, _SIZE, _END = 1, 2, 0
_EXTRA: Final = Struct("<6Q")
"""A launch's `extra`: two options, each with its value, and the end; then the size to which the second option
points."""
_NUMBER: Final = 40
"""Offset of the size in `_EXTRA`."""

_CONFIG: Final = Struct("<7I4xQQI4x")
"""CUlaunchConfig: x, y, z of the grid and of the block, dynamic shared bytes, the stream, the address and the number of
attributes."""
_STREAM: Final = 32
"""Offset of the stream in `_CONFIG`."""

_ATTRIBUTE: Final = Struct("<I4x3I52x")
"""CUlaunchAttribute: its id, and its value of up to three numbers."""
_COOPERATIVE, _CLUSTER = 2, 4  # cuda.h: CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION

_write_number: Final = Struct("<Q").pack_into


def _address(memory: bytearray | memoryview) -> tuple[object, int]:
    """Return a view of this memory, and its address. The address is fixed as long as the view exists."""
    view = ctypes.c_char.from_buffer(memory)
    return view, ctypes.addressof(view)


@final
class Extras:
    """For each launch the `extra`, which contains the address of its parameters. All are in one table: a ctypes array
    for each takes longer than the driver takes for a node of a graph."""

    __slots__ = ("_held", "_table", "addresses")

    def __init__(self, launches: Sequence[KernelLaunch]) -> None:
        self._table = bytearray(max(1, len(launches)) * _EXTRA.size)
        view, start = _address(self._table)
        self._held = [view]
        self.addresses = range(start, start + len(launches) * _EXTRA.size, _EXTRA.size)
        """For each launch the address of its `extra`."""
        for launch, address in zip(launches, self.addresses, strict=True):
            view, parameters = _address(launch.parameters)
            self._held.append(view)
            size = len(launch.parameters)
            _EXTRA.pack_into(
                self._table, address - start, _POINTER, parameters, _SIZE, address + _NUMBER, _END, size
            )  # fmt: skip


def _attributes(cooperative: bool, cluster: GridExtents | None) -> bytes:
    """Return the attributes of a launch, as the driver takes them."""
    text = _ATTRIBUTE.pack(_COOPERATIVE, 1, 0, 0) if cooperative else b""
    return text if cluster is None else text + _ATTRIBUTE.pack(_CLUSTER, *cluster)


@final
class PyCudaLaunches:
    """Prepared launches. Implements `dagpu.backends.cuda.driver.driver_protocol.Launches`."""

    __slots__ = ("_attributes", "_attributes_held", "_configs", "_extras", "_held", "_lanes", "_streams", "each")

    def __init__(self, launch_kernel: Callable[..., int], launches: Sequence[tuple[KernelLaunch, int]]) -> None:
        """Prepare launches for `launch_kernel`, the driver's cuLaunchKernelEx. Its arguments are instances of c_void_p:
        ctypes passes these on directly, and converts an int at each call."""
        self._extras = Extras([launch for launch, _ in launches])
        shapes: dict[tuple[GridExtents, GridExtents, int, int, bool, GridExtents | None], int] = {}
        """The distinct configurations, by number. Most launches of a plan share a few."""
        numbers = [
            shapes.setdefault(
                (launch.grid, launch.block, launch.shared, lane, launch.cooperative, launch.cluster), len(shapes)
            )
            for launch, lane in launches
        ]
        attributes = [_attributes(cooperative, cluster) for _, _, _, _, cooperative, cluster in shapes]
        self._attributes = bytearray(max(1, len(b"".join(attributes))))
        self._attributes_held, attributes_at = _address(self._attributes)
        self._configs = bytearray(max(1, len(shapes)) * _CONFIG.size)
        self._held, start = _address(self._configs)
        used = 0
        for number, ((grid, block, shared, *_), text) in enumerate(zip(shapes, attributes, strict=True)):
            at, count = attributes_at + used if text else 0, len(text) // _ATTRIBUTE.size
            _CONFIG.pack_into(self._configs, number * _CONFIG.size, *grid, *block, shared, 0, at, count)
            self._attributes[used : used + len(text)] = text
            used += len(text)
        self._lanes = [lane for _, _, _, lane, _, _ in shapes]
        configs = [ctypes.c_void_p(start + number * _CONFIG.size) for number in range(len(shapes))]
        functions: dict[Any, ctypes.c_void_p] = {}
        self.each: list[Callable[[], int]] = []
        for (launch, _), number, extra in zip(launches, numbers, self._extras.addresses, strict=True):
            handle = launch.function.handle
            function = functions.get(handle)
            if function is None:
                function = functions[handle] = ctypes.c_void_p(handle)
            self.each.append(partial(launch_kernel, configs[number], function, None, ctypes.c_void_p(extra)))
        self._streams: Sequence[RawStream] = ()

    def set_streams(self, streams: Sequence[RawStream]) -> None:
        if streams == self._streams:
            return
        self._streams = ()  # an interrupt must not leave streams that look written and are not
        for number, lane in enumerate(self._lanes):
            _write_number(self._configs, number * _CONFIG.size + _STREAM, streams[lane].handle)
        self._streams = streams
