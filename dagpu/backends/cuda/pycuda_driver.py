"""The driver through PyCUDA, and through cuda.bindings for what PyCUDA lacks: host functions, pointer attributes.

PyCUDA's objects are never destroyed. Their destructors call the driver, on whatever thread and however late in the
interpreter's life the last reference goes; so streams, events and modules are kept for the process's life (their users
pool them), and memory is held by its address.
"""

import ctypes
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.driver import (
    NOT_SUPPORTED,
    Extents,
    Function,
    Gpu,
    GraphNode,
    KernelNode,
    Limits,
    RawEvent,
    RawStream,
    TimingEvent,
    device_error,
)
from dagpu.backends.cuda.pycuda_context import Context
from dagpu.backends.cuda.pycuda_graphs import PyCudaGraph, function_of
from dagpu.device import INSTALL_CUDA
from dagpu.errors import DeviceError, NoDeviceError

if TYPE_CHECKING:
    # At run time `_Libraries` binds it, when a device is first asked for: where there is no PyCUDA, this module is
    # imported all the same. A module kept in an attribute would be Any to mypy.
    import pycuda.driver as cuda  # noqa: TC004 - more than a type, and bound later

_P = ParamSpec("_P")
_T = TypeVar("_T")


def open_gpus() -> list[Gpu]:
    """Every CUDA device that this process may use.

    Raises:
        NoDeviceError: PyCUDA, cuda.bindings, the driver or a device is missing; it says which.
    """
    libraries = _Libraries()
    return [PyCudaGpu(libraries, index) for index in range(cuda.Device.count())]


@final
class _Libraries:
    """PyCUDA's driver module and that of cuda.bindings, imported and initialised."""

    def __init__(self) -> None:
        self.process = os.getpid()
        _import_pycuda()
        self.bindings: Any = _import_bindings()
        try:
            cuda.init()
        except Exception as error:
            raise NoDeviceError(
                f"there is no CUDA device here: {error}. See that the NVIDIA driver is loaded (nvidia-smi) and that "
                "CUDA_VISIBLE_DEVICES hides no device.",
                self.code_of(error),
            ) from None
        _keep_for_ever(cuda)
        self.close: int = _address_of_close()
        self.launch_host_function = _launch_host_function()

    def code_of(self, error: BaseException) -> int:
        """The CUresult of a PyCUDA exception, which carries its text alone: `cuMemAlloc failed: out of memory`."""
        return self._codes.get(_reason(error), 0)

    @property
    def _codes(self) -> dict[str, int]:
        global _codes_by_text
        if not _codes_by_text:
            results = self.bindings.CUresult
            texts = {int(result): self.bindings.cuGetErrorString(result)[1] for result in results}
            _codes_by_text = {text.decode(): code for code, text in texts.items() if text is not None}
        return _codes_by_text


_codes_by_text: dict[str, int] = {}


def _reason(error: BaseException) -> str:
    return str(error).partition(" failed: ")[2].partition(" - ")[0]


def _import_pycuda() -> None:
    global cuda
    try:
        import pycuda.driver as cuda
    except ImportError as error:
        raise _missing("PyCUDA", error, "needs a C++ compiler and the CUDA toolkit to build") from None


def _import_bindings() -> Any:
    try:
        # By name: the module has no types.
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise _missing("cuda.bindings", error, "comes as a wheel") from None


def _missing(what: str, error: ImportError, how: str) -> NoDeviceError:
    return NoDeviceError(
        f"{what} cannot be imported ({error}), so there are no CUDA devices here. Install it: {INSTALL_CUDA} ({what} "
        f"{how}), on a machine with an NVIDIA driver."
    )


def _address_of_close() -> int:
    """libc's `int close(int)`: as a host function it gets a descriptor for its argument, and needs no GIL."""
    address = ctypes.cast(ctypes.CDLL(None).close, ctypes.c_void_p).value
    assert address is not None
    return address


def _launch_host_function() -> Callable[[int, int, int], int]:
    """The driver's own `cuLaunchHostFunc(stream, function, argument)`; it gives the CUresult.

    That of cuda.bindings wraps every function, a C one too, in a trampoline that takes the GIL on the driver's thread.
    Whoever holds the GIL and waits for the device, as PyCUDA does when it loads a module, then waits for ever.
    """
    call = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    call.restype = ctypes.c_int
    function: Callable[[int, int, int], int] = call
    return function


def _keep_for_ever(thing: object) -> None:
    """Add a reference that nobody takes away: the object outlives the interpreter, and its destructor never runs."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@final
class PyCudaGpu:
    """One device. Implements `dagpu.backends.cuda.driver.Gpu`."""

    def __init__(self, libraries: _Libraries, index: int) -> None:
        self._libraries = libraries
        self._bindings = libraries.bindings
        self._device = cuda.Device(index)
        self.index = index
        self.name = self._device.name()
        major, minor = self._device.compute_capability()
        self.arch = f"sm_{major}{minor}"
        self.limits = self._read_limits()
        self._context: Context | None = None
        self._pushed: cuda.Context | None = None
        self._gate = threading.Lock()
        self._handles: dict[Function, Any] = {}
        """The CUfunctions of kernels that were in a graph. Both live as long as the process."""
        self._capturing: RawStream | None = None

    def _read_limits(self) -> Limits:
        attributes = cuda.device_attribute.names

        def read(name: str) -> int:
            return self._device.get_attribute(attributes[name])

        def extents(name: str) -> Extents:
            return read(f"{name}_X"), read(f"{name}_Y"), read(f"{name}_Z")

        default, most = read("MAX_SHARED_MEMORY_PER_BLOCK"), read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        return Limits(
            read("MAX_THREADS_PER_BLOCK"),
            extents("MAX_BLOCK_DIM"),
            extents("MAX_GRID_DIM"),
            max(default, most),
            default,
        )

    def current(self) -> Context:
        """Push the primary context, shared with every other library in the process, and pop it at the end."""
        found = self._context
        if found is None:
            with self._gate:
                found = self._context
                if found is None:
                    found = self._context = Context(self._bindings, self._retained())
        if os.getpid() != self._libraries.process:
            raise DeviceError(
                "CUDA was used before this process was forked off, and cannot be used in the child. Start children "
                "with multiprocessing's 'spawn' method, or fork before the first use of a GPU."
            )
        return found

    def _retained(self) -> Any:
        """The primary context, kept for the process's life. PyCUDA gets an object of its own for it, which is asked for
        where PyCUDA makes streams, events and modules: these want to know theirs."""
        self._pushed = self._guarded(self._device.retain_primary_context)
        _keep_for_ever(self._pushed)
        return self._checked("cuDevicePrimaryCtxRetain", self._bindings.cuDevicePrimaryCtxRetain(self.index))[0]

    def _pycuda_context(self) -> "cuda.Context":
        assert self._pushed is not None, "every call is made within `with gpu.current()`"
        return self._pushed

    def _made(self, make: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """An object of PyCUDA's, which lives as long as the process."""
        self._pycuda_context().push()
        try:
            made = self._guarded(make, *arguments, **named)
        finally:
            cuda.Context.pop()
        _keep_for_ever(made)
        return made

    def error(self, error: BaseException) -> DeviceError | None:
        if isinstance(error, DeviceError):
            return error
        if not isinstance(error, cuda.Error):
            return None
        return device_error(str(error).partition(" failed: ")[0], self._libraries.code_of(error), _reason(error))

    def _checked(self, call: str, returned: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values that a function of cuda.bindings returned behind its CUresult."""
        code = int(returned[0])
        if code:
            raise device_error(call, code, self._bindings.cuGetErrorString(returned[0])[1].decode())
        return returned[1:]

    def _guarded(self, call: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """Call PyCUDA, with its errors as ours."""
        try:
            return call(*arguments, **named)
        except cuda.Error as error:
            ours = self.error(error)
            assert ours is not None
            raise ours from None

    # ---- streams and events -------------------------------------------------------------------------------------

    def new_stream(self) -> RawStream:
        return self._made(cuda.Stream, 1)  # CU_STREAM_NON_BLOCKING

    def new_event(self) -> RawEvent:
        return self._made(cuda.Event, cuda.event_flags.DISABLE_TIMING)

    def new_timing_event(self) -> TimingEvent:
        return self._made(cuda.Event)

    def close_when_reached(self, stream: RawStream, descriptor: int) -> None:
        libraries = self._libraries
        code = libraries.launch_host_function(stream.handle, libraries.close, descriptor)
        if code:
            self._checked("cuLaunchHostFunc", (self._bindings.CUresult(code),))

    def synchronize(self) -> None:
        self._guarded(cuda.Context.synchronize)

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
        return self._guarded(cuda.mem_get_info)

    def is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        wanted = self._bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        found = self._bindings.cuPointerGetAttribute(wanted, array.__array_interface__["data"][0])
        return int(found[0]) == 0 and int(found[1]) == int(self._bindings.CUmemorytype.CU_MEMORYTYPE_HOST)

    # ---- copies ---------------------------------------------------------------------------------------------------

    def copy_in(self, address: int, source: NDArray[Any], stream: RawStream) -> None:
        self._guarded(cuda.memcpy_htod_async, address, source, _pycuda_stream(stream))

    def copy_out(self, target: NDArray[Any], address: int, stream: RawStream) -> None:
        self._guarded(cuda.memcpy_dtoh_async, target, address, _pycuda_stream(stream))

    def copy(self, target: int, source: int, nbytes: int, stream: RawStream) -> None:
        self._guarded(cuda.memcpy_dtod_async, target, source, nbytes, _pycuda_stream(stream))

    def copy_pitched(
        self, target: int, source: int, width: int, height: int, pitches: tuple[int, int], stream: RawStream
    ) -> None:
        copy = cuda.Memcpy2D()
        copy.set_src_device(source)
        copy.set_dst_device(target)
        copy.dst_pitch, copy.src_pitch = pitches
        copy.width_in_bytes, copy.height = width, height
        self._guarded(copy, _pycuda_stream(stream))

    def reach_peer(self, peer: Gpu) -> bool:
        assert isinstance(peer, PyCudaGpu)
        if not self._device.can_access_peer(peer._device):
            return False
        peer.current()  # it has its context
        already = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: another library was first
        try:
            self._guarded(cuda.Context.enable_peer_access, peer._pycuda_context())
        except DeviceError as error:
            if error.code == NOT_SUPPORTED:
                return False
            if error.code != already:
                raise
        return True

    def fill(self, address: int, width: int, value: int, count: int, stream: RawStream) -> None:
        call = {1: cuda.memset_d8_async, 2: cuda.memset_d16_async, 4: cuda.memset_d32_async}[width]
        self._guarded(call, address, value, count, _pycuda_stream(stream))

    # ---- graphs -----------------------------------------------------------------------------------------------------

    def make_graph(self, nodes: Sequence[tuple[GraphNode, Sequence[int]]]) -> PyCudaGraph:
        context = self.current().context
        return PyCudaGraph(self._bindings, context, self._checked, self._handle_of, nodes)

    def _handle_of(self, node: KernelNode) -> Any:
        found = self._handles.get(node.function)
        if found is None:
            with self._gate:
                if self._capturing is None:
                    self._capturing = self.new_stream()
                found = self._guarded(function_of, self._bindings, self._checked, node, self._capturing)
                self._handles[node.function] = found
        return found

    # ---- kernels --------------------------------------------------------------------------------------------------

    def load(self, cubin: bytes, symbol: str) -> Function:
        module = self._made(cuda.module_from_buffer, cubin)
        function = self._made(module.get_function, symbol)
        wanted = cuda.function_attribute

        def allow_shared(nbytes: int) -> None:
            self._guarded(function.set_attribute, wanted.MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes)

        return Function(
            function._launch_kernel,
            function.get_attribute(wanted.MAX_THREADS_PER_BLOCK),
            function.get_attribute(wanted.SHARED_SIZE_BYTES),
            function.get_attribute(wanted.NUM_REGS),
            allow_shared,
        )


def _pycuda_stream(stream: RawStream) -> "cuda.Stream":
    """The stream as what it is: `new_stream` makes them all."""
    assert isinstance(stream, cuda.Stream)
    return stream
