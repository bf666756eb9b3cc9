"""The CUDA driver: PyCUDA initialises it and describes the devices; all other calls use cuda.bindings or ctypes.

PyCUDA holds the GIL in most calls that need a context. A thread that waits in the driver with the GIL held stops all
others. It waits for ever if a stream contains a host function that acquires the GIL, as those of CuPy, Numba and
cuda.bindings 12 do. So a call that may wait goes through a function that releases the GIL, and dagpu runs no Python on
the driver's threads.

A call may wait for the device. It may also wait behind a thread, of dagpu or of any library, that loads a module or
frees memory: such a thread holds a lock of the context while it waits for the device. `DRIVER_CALLS` lists all calls
that dagpu makes, with what each may wait for.

Streams are not PyCUDA's, so copies and fills are not PyCUDA's either: PyCUDA's accept only its own streams. An
alternative is to create PyCUDA's streams only while no thread of dagpu loads or frees; it does not protect against the
threads of other libraries.
"""

import ctypes
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.driver.driver_protocol import (
    IN_DRIVER,
    LAUNCH,
    NOT_SUPPORTED,
    PEER_ACCESS_ALREADY_ENABLED,
    CapturedNode,
    EnqueuedWork,
    Gpu,
    GraphNode,
    KernelLaunch,
    RawEvent,
    RawGraph,
    RawStream,
    TimingEvent,
    device_error,
)
from dagpu.backends.cuda.driver.pycuda_graphs import GraphSite, PyCudaGraph, StreamCapture
from dagpu.backends.cuda.driver.pycuda_streams import Context, PyCudaEvent, PyCudaLaunches, PyCudaStream
from dagpu.backends.kernel_text.loaded_function import Function, GridExtents, Limits
from dagpu.common.compiled import READER
from dagpu.common.errors import DeviceError, NoDeviceError
from dagpu.common.layout import address_of
from dagpu.handles.device_handles import INSTALL_CUDA

if TYPE_CHECKING:
    # At run time `_Libraries` binds it, when a device is first requested, so this module can be imported without
    # PyCUDA. A module in an attribute would be Any to mypy.
    import pycuda.driver as cuda  # noqa: TC004 - more than a type, and bound later


def open_gpus() -> list[Gpu]:
    """Return every CUDA device that this process may use.

    Raises:
        NoDeviceError: PyCUDA, cuda.bindings, the driver or a device is missing; the message names it.
    """
    libraries = _Libraries()
    return [PyCudaGpu(libraries, index) for index in range(cuda.Device.count())]


_OF_READER: Final = {
    "cuGraphLaunch": "cuGraphLaunch", "cuStreamQuery": "cuStreamQuery", "cuStreamSynchronize": "cuStreamSynchronize",
    "cuGraphExecKernelNodeSetParams": "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams": "cuGraphExecMemcpyNodeSetParams", "cuCtxPushCurrent": "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent": "cuCtxPopCurrent_v2", "cuEventRecord": "cuEventRecord", "cuEventQuery": "cuEventQuery",
    "cuEventSynchronize": "cuEventSynchronize", "cuMemcpyHtoDAsync": "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync": "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync": "cuMemcpyDtoDAsync_v2",
}  # fmt: skip
"""The functions of the driver that the compiled reader calls, with their symbols: those of the library, which the names
of cuda.h stand for."""


@final
class _Libraries:
    """PyCUDA's driver module and that of cuda.bindings, imported and initialised."""

    def __init__(self) -> None:
        self.forked = False
        """True in a child process that was forked after the initialisation."""
        _import_pycuda()
        self.bindings: Any = _import_bindings()
        try:
            cuda.init()
        except Exception as error:
            raise NoDeviceError(
                f"no CUDA device is available: {error}. Check that the NVIDIA driver is loaded (nvidia-smi) and that "
                "CUDA_VISIBLE_DEVICES hides no device.",
                self.code_of(error),
            ) from None
        self.close: int = _address_of_close()
        driver = ctypes.CDLL("libcuda.so.1")
        self.launch_kernel = _function(driver, LAUNCH)
        self.launch_host_function = _function(driver, "cuLaunchHostFunc")
        if READER is not None:
            names = {name: getattr(driver, symbol) for name, symbol in _OF_READER.items()}
            READER.set_driver({name: ctypes.cast(each, ctypes.c_void_p).value for name, each in names.items()})
        os.register_at_fork(after_in_child=self._after_fork)

    @cached_property
    def lacks_conditions(self) -> str:
        """The reason why no graph can have conditional nodes; empty if graphs can."""
        if not hasattr(self.bindings, "cuGraphConditionalHandleCreate"):
            return "cuda.bindings is older than CUDA 12.3, and knows no conditional nodes"
        failed, version = self.bindings.cuDriverGetVersion()
        if failed or version < CONDITIONS_FROM:
            return f"the driver is of CUDA {version // 1000}.{version % 1000 // 10}, and conditional nodes need 12.4"
        return ""

    def _after_fork(self) -> None:
        self.forked = True

    def code_of(self, error: BaseException) -> int:
        """Return the CUresult of an error of PyCUDA's, which contains only its text: `cuInit failed: no CUDA-capable
        device is detected`. Return 0 if it is not an error of the driver."""
        reason = str(error).partition(" failed: ")[2].partition(" - ")[0]
        return next((int(known) for known in self.bindings.CUresult if self.text_of(int(known)) == reason), 0)

    def text_of(self, code: int) -> str:
        """Return the driver's description of a CUresult."""
        try:
            known = self.bindings.CUresult(code)
        except ValueError:  # the driver is newer than cuda.bindings
            return "an error that cuda.bindings does not know"
        text: bytes = self.bindings.cuGetErrorString(known)[1]
        return text.decode()


def _import_pycuda() -> None:
    global cuda
    try:
        import pycuda.driver as cuda
    except ImportError as error:
        raise _missing("PyCUDA", error, "needs a C++ compiler and the CUDA toolkit to build") from None


def _import_bindings() -> Any:
    try:
        # By name: the module has no type annotations.
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise _missing("cuda.bindings", error, "comes as a wheel") from None


def _missing(what: str, error: ImportError, how: str) -> NoDeviceError:
    return NoDeviceError(
        f"{what} cannot be imported ({error}), so no CUDA device is available. Install it: {INSTALL_CUDA} ({what} "
        f"{how}), on a machine with an NVIDIA driver."
    )


def _address_of_close() -> int:
    """Return the address of libc's `int close(int)`. As a host function it takes a file descriptor as its argument, and
    does not need the GIL."""
    address = ctypes.cast(ctypes.CDLL(None).close, ctypes.c_void_p).value
    assert address is not None
    return address


def _function(driver: ctypes.CDLL, name: str) -> Callable[..., int]:
    """Return a function of the driver, which returns the CUresult. ctypes releases the GIL during a call. Arguments
    must be instances of ctypes' types: ctypes passes only 32 bits of a plain int."""
    try:
        function: Callable[..., int] = getattr(driver, name)
    except AttributeError:
        raise NoDeviceError(
            f"the NVIDIA driver has no {name}: it is older than CUDA 12. Update it (nvidia-smi shows its version)."
        ) from None
    return function


CONDITIONS_FROM: Final = 12040
"""The first driver, as cuDriverGetVersion tells it, whose graphs have conditional nodes in the form that this uses."""

KEPT_STREAMS: Final = 64
"""The most streams of other libraries whose wrappers are kept."""


@final
class PyCudaGpu:
    """One CUDA device. Implements `dagpu.backends.cuda.driver.driver_protocol.Gpu`."""

    is_native = True

    def __init__(self, libraries: _Libraries, index: int) -> None:
        self._libraries = libraries
        self._bindings = libraries.bindings
        device = cuda.Device(index)
        self.index = index
        self.name = device.name()
        major, minor = device.compute_capability()
        self.arch = f"sm_{major}{minor}"
        self.limits = _limits_of(device)
        self._multiprocessors = device.get_attribute(cuda.device_attribute.names["MULTIPROCESSOR_COUNT"])
        self._context: Context | None = None
        self._needs_context: bool | None = None
        self._foreign_streams: dict[int, PyCudaStream] = {}
        """The streams of other libraries that were asked for last, by their CUstreams: wrapped numbers."""
        self._gate = threading.Lock()
        self._capture = StreamCapture(libraries.bindings, self._checked, self.new_stream)

    def current(self) -> Context:
        """Return a context manager that makes the primary context current. All libraries in the process share this
        context. dagpu retains it for the process's life."""
        found = self._context
        if found is None:
            with self._gate:
                found = self._context
                if found is None:
                    retained = self._bindings.cuDevicePrimaryCtxRetain(self.index)
                    context = self._checked("cuDevicePrimaryCtxRetain", retained)[0]
                    found = self._context = Context(self._bindings, context)
        if self._libraries.forked:
            raise DeviceError(
                "CUDA was used before this process was forked, and cannot be used in the child. Start child processes "
                "with multiprocessing's 'spawn' method, or fork before the first use of a GPU."
            )
        return found

    def record(self, event: Any, stream: Any) -> None:
        if not self.current().has_recorded(event, stream):
            with self.current():
                event.record(stream)

    @property
    def needs_context(self) -> bool:
        """See `Gpu.needs_context`. It is tried once, with an empty graph and a byte, in a thread of its own: no context
        is current there. CUDA 13.0 needs none."""
        if self._needs_context is None:
            self._needs_context = not self._works_without_context()
        return self._needs_context

    def entered(self) -> AbstractContextManager[object]:
        return self.current() if self.needs_context else IN_DRIVER

    def _works_without_context(self) -> bool:
        with self.current():
            stream, event, graph = self.new_stream(), self.new_event(), self.make_graph(())
            address = self.allocate(1)  # it is kept: to free it would wait for all work of the device
            outcome: list[bool] = []
            thread = threading.Thread(
                target=lambda: outcome.append(self._works_anywhere(graph, address, stream, event))
            )
            thread.start()
            thread.join()
            stream.synchronize()
            graph.destroy()
        return outcome == [True]

    def _works_anywhere(self, graph: RawGraph, address: int, stream: RawStream, event: RawEvent) -> bool:
        """Launch a graph, and copy a byte to and fro. Return False if the driver refuses that, or to wait for it."""
        byte = np.zeros(1, np.uint8)
        try:
            graph.launch(stream)
            self.copy_in(address, byte, stream)
            self.copy_out(byte, address, stream)
            stream.query()
            event.record(stream)
            event.synchronize()
        except DeviceError:
            return False
        return True

    def refused(self, call: str, code: int) -> DeviceError:
        return device_error(call, code, self._libraries.text_of(code))

    def _checked(self, call: str, returned: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values after the CUresult in the result of a function of cuda.bindings. Raise the error if there
        is one."""
        if returned[0]:
            raise self.refused(call, int(returned[0]))
        return returned[1:]

    # ---- streams and events -------------------------------------------------------------------------------------

    def new_stream(self) -> RawStream:
        flags = int(self._bindings.CUstream_flags.CU_STREAM_NON_BLOCKING)
        made = self._checked("cuStreamCreate", self._bindings.cuStreamCreate(flags))[0]
        return PyCudaStream(self._bindings, self._checked, made)

    def foreign_stream(self, handle: int) -> RawStream:
        found = self._foreign_streams.get(handle)
        if found is None:
            if len(self._foreign_streams) >= KEPT_STREAMS:
                self._foreign_streams.clear()
            found = PyCudaStream(self._bindings, self._checked, self._bindings.CUstream(handle))
            self._foreign_streams[handle] = found
        return found

    def device_of(self, address: int) -> int:
        wanted = self._bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self._checked("cuPointerGetAttribute", self._bindings.cuPointerGetAttribute(wanted, address))[0])

    def new_event(self) -> RawEvent:
        return self._event(int(self._bindings.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def new_timing_event(self) -> TimingEvent:
        return self._event(int(self._bindings.CUevent_flags.CU_EVENT_DEFAULT))

    def _event(self, flags: int) -> PyCudaEvent:
        made = self._checked("cuEventCreate", self._bindings.cuEventCreate(flags))[0]
        return PyCudaEvent(self._bindings, self._checked, made)

    def close_when_reached(self, stream: RawStream, descriptor: int) -> None:
        libraries = self._libraries
        handle, pointer = ctypes.c_void_p(stream.handle), ctypes.c_void_p(libraries.close)
        code = libraries.launch_host_function(handle, pointer, ctypes.c_void_p(descriptor))
        if code:
            raise self.refused("cuLaunchHostFunc", code)

    def synchronize(self) -> None:
        with self._capture.lock:
            self._checked("cuCtxSynchronize", self._bindings.cuCtxSynchronize())

    # ---- memory -------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        return int(self._checked("cuMemAlloc", self._bindings.cuMemAlloc(nbytes))[0])

    def free(self, address: int) -> None:
        self._checked("cuMemFree", self._bindings.cuMemFree(address))

    def allocate_pinned(self, nbytes: int) -> int:
        portable = self._bindings.CU_MEMHOSTALLOC_PORTABLE | self._bindings.CU_MEMHOSTALLOC_DEVICEMAP
        return int(self._checked("cuMemHostAlloc", self._bindings.cuMemHostAlloc(nbytes, portable))[0])

    def free_pinned(self, address: int) -> None:
        self._checked("cuMemFreeHost", self._bindings.cuMemFreeHost(address))

    def memory_info(self) -> tuple[int, int]:
        free, total = self._checked("cuMemGetInfo", self._bindings.cuMemGetInfo())
        return free, total

    def is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        wanted = self._bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        with self.current():
            found = self._bindings.cuPointerGetAttribute(wanted, address_of(array))
        return int(found[0]) == 0 and int(found[1]) == int(self._bindings.CUmemorytype.CU_MEMORYTYPE_HOST)

    # ---- copies ---------------------------------------------------------------------------------------------------

    def copy_in(self, address: int, source: NDArray[Any], stream: Any) -> None:
        # cuda.bindings takes an array too, but not one without the buffer protocol, such as one of bfloat16: of that it
        # takes the value of a single element for the address.
        returned = self._bindings.cuMemcpyHtoDAsync(address, address_of(source), source.nbytes, stream.cu)
        if returned[0]:
            self._checked("cuMemcpyHtoDAsync", returned)

    copy_in_and_wait = copy_in  # the driver itself stages what is not page-locked, before the call returns

    def copy_out(self, target: NDArray[Any], address: int, stream: Any) -> None:
        returned = self._bindings.cuMemcpyDtoHAsync(address_of(target), address, target.nbytes, stream.cu)
        if returned[0]:
            self._checked("cuMemcpyDtoHAsync", returned)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        returned = self._bindings.cuMemcpyDtoDAsync(target, source, nbytes, stream.cu)
        self._checked("cuMemcpyDtoDAsync", returned)

    def copy_pitched(
        self, target: int, source: int, width: int, height: int, pitches: tuple[int, int], stream: Any
    ) -> None:
        copy, device = self._bindings.CUDA_MEMCPY2D(), self._bindings.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcMemoryType, copy.srcDevice = device, source
        copy.dstMemoryType, copy.dstDevice = device, target
        copy.dstPitch, copy.srcPitch = pitches
        copy.WidthInBytes, copy.Height = width, height
        self._checked("cuMemcpy2DAsync", self._bindings.cuMemcpy2DAsync(copy, stream.cu))

    def reach_peer(self, peer: Gpu) -> bool:
        assert isinstance(peer, PyCudaGpu)
        can = self._bindings.cuDeviceCanAccessPeer(self.index, peer.index)
        if not self._checked("cuDeviceCanAccessPeer", can)[0]:
            return False
        returned = self._bindings.cuCtxEnablePeerAccess(peer.current().context, 0)
        if returned[0] == NOT_SUPPORTED:
            return False
        if returned[0] != PEER_ACCESS_ALREADY_ENABLED:  # another library has enabled it
            self._checked("cuCtxEnablePeerAccess", returned)
        return True

    def fill(self, address: int, width: int, value: int, count: int, stream: Any) -> None:
        bindings = self._bindings
        if width == 1:
            self._checked("cuMemsetD8Async", bindings.cuMemsetD8Async(address, value, count, stream.cu))
        elif width == 2:
            self._checked("cuMemsetD16Async", bindings.cuMemsetD16Async(address, value, count, stream.cu))
        else:
            self._checked("cuMemsetD32Async", bindings.cuMemsetD32Async(address, value, count, stream.cu))

    # ---- graphs -----------------------------------------------------------------------------------------------------

    @property
    def lacks_conditions(self) -> str:
        return self._libraries.lacks_conditions

    def make_graph(
        self,
        nodes: Sequence[tuple[GraphNode, Sequence[int]]],
        gpus: Sequence[Gpu] = (),
        bodies: Sequence[int] = (),
    ) -> PyCudaGraph:
        here = GraphSite(self.current(), self._capture)
        sites = [each.graph_site(here) for each in gpus if isinstance(each, PyCudaGpu)] or [here] * len(nodes)
        return PyCudaGraph(self._bindings, self._checked, here, list(zip(nodes, sites, strict=True)), bodies)

    def graph_site(self, launched: GraphSite) -> GraphSite:
        """Return the site of this device's nodes in a graph: `launched`, if the graph is launched on this device."""
        context = self.current()
        return launched if context is launched.context else GraphSite(context, self._capture)

    def captured_work(self, node: CapturedNode) -> Sequence[EnqueuedWork]:
        return self._capture.work(node)

    # ---- kernels --------------------------------------------------------------------------------------------------

    def load(self, cubin: bytes, symbol: str, variables: Sequence[str] = ()) -> Function:
        bindings = self._bindings
        module = self._checked("cuModuleLoadData", bindings.cuModuleLoadData(cubin))[0]
        function = self._checked("cuModuleGetFunction", bindings.cuModuleGetFunction(module, symbol.encode()))[0]
        found = [
            self._checked("cuModuleGetGlobal", bindings.cuModuleGetGlobal(module, name.encode())) for name in variables
        ]
        wanted = bindings.CUfunction_attribute

        def read(attribute: Any) -> int:
            return int(self._checked("cuFuncGetAttribute", bindings.cuFuncGetAttribute(attribute, function))[0])

        def allow_shared(nbytes: int) -> None:
            attribute = wanted.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._checked("cuFuncSetAttribute", bindings.cuFuncSetAttribute(function, attribute, nbytes))

        def resident(threads: int, shared: int) -> int:
            each = bindings.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)
            blocks = self._checked("cuOccupancyMaxActiveBlocksPerMultiprocessor", each)[0]
            return int(blocks) * self._multiprocessors

        return Function(
            int(function),
            read(wanted.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            read(wanted.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            read(wanted.CU_FUNC_ATTRIBUTE_NUM_REGS),
            allow_shared,
            resident=resident,
            variables=tuple([int(address) for address, _ in found]),
            sizes=tuple([int(nbytes) for _, nbytes in found]),
        )

    def prepare_launches(self, launches: Sequence[tuple[KernelLaunch, int]]) -> PyCudaLaunches:
        return PyCudaLaunches(self._libraries.launch_kernel, launches)


def _limits_of(device: "cuda.Device") -> Limits:
    attributes = cuda.device_attribute.names

    def read(name: str) -> int:
        return device.get_attribute(attributes[name])

    def extents(name: str) -> GridExtents:
        return read(f"{name}_X"), read(f"{name}_Y"), read(f"{name}_Z")

    default, most = read("MAX_SHARED_MEMORY_PER_BLOCK"), read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    return Limits(
        read("MAX_THREADS_PER_BLOCK"),
        extents("MAX_BLOCK_DIM"),
        extents("MAX_GRID_DIM"),
        max(default, most),
        default,
    )
