"""The driver through PyCUDA, through cuda.bindings for what PyCUDA lacks or does with the GIL held, and itself.

PyCUDA's objects are never destroyed. Their destructors call the driver, on whatever thread and however late in the
interpreter's life the last reference goes; so streams and events are kept for the process's life (their users pool
them), and memory is held by its address. Modules live as long as the process.

A thread that waits for the device with the GIL held stops all others; and if a host function of anybody's that takes
the GIL is in a stream, as those of CuPy, Numba and cuda.bindings 12 do, it waits for ever. So a call that may wait is
made through a function that lets go of the GIL, and the driver's threads run no Python of ours. These are all the calls
that dagpu makes (measured on an H200, driver 580, while a kernel of 200 ms ran):

    call                            through                          may wait for      GIL
    cuInit                          cuda.init                        -                 released
    cuDeviceGetCount                cuda.Device.count                -                 held
    cuDeviceGet                     cuda.Device                      -                 held
    cuDeviceGetName                 Device.name                      -                 held
    cuDeviceComputeCapability       Device.compute_capability        -                 held
    cuDeviceGetAttribute            Device.get_attribute             -                 held
    cuDeviceCanAccessPeer           Device.can_access_peer           -                 held
    cuDevicePrimaryCtxRetain        bindings                         a new context     released
    cuDevicePrimaryCtxRetain        Device.retain_primary_context    -                 held
    cuCtxPushCurrent                bindings                         -                 released
    cuCtxPopCurrent                 bindings                         -                 released
    cuCtxPushCurrent                Context.push                     -                 held
    cuCtxPopCurrent                 cuda.Context.pop                 -                 held
    cuCtxSynchronize                cuda.Context.synchronize         the device        released
    cuCtxEnablePeerAccess           bindings                         the device        released
    cuStreamCreate                  cuda.Stream                      -                 held
    cuStreamWaitEvent               Stream.wait_for_event            (a full queue)    held
    cuEventCreate                   cuda.Event                       -                 held
    cuEventRecord                   Event.record                     (a full queue)    held
    cuEventQuery                    Event.query                      -                 held
    cuEventSynchronize              Event.synchronize                the event         released
    cuEventElapsedTime              Event.time_since                 -                 held
    cuLaunchHostFunc                ctypes                           a full queue      released
    cuLaunchKernelEx                ctypes                           a full queue      released
    cuMemAlloc                      bindings                         -                 released
    cuMemFree                       bindings                         the device        released
    cuMemHostAlloc                  bindings                         pages to lock     released
    cuMemFreeHost                   bindings                         the device        released
    cuMemGetInfo                    bindings                         -                 released
    cuPointerGetAttribute           bindings                         -                 released
    cuMemcpyHtoDAsync               cuda.memcpy_htod_async           pageable memory   released
    cuMemcpyDtoHAsync               cuda.memcpy_dtoh_async           pageable memory   released
    cuMemcpyDtoDAsync               cuda.memcpy_dtod_async           a full queue      released
    cuMemcpy2DAsync                 cuda.Memcpy2D                    a full queue      released
    cuMemsetD8Async                 cuda.memset_d8_async             a full queue      released
    cuMemsetD16Async                cuda.memset_d16_async            a full queue      released
    cuMemsetD32Async                cuda.memset_d32_async            a full queue      released
    cuModuleLoadData                bindings                         the device        released
    cuModuleGetFunction             bindings                         -                 released
    cuFuncGetAttribute              bindings                         -                 released
    cuFuncSetAttribute              bindings                         -                 released
    cuGraphCreate                   bindings                         -                 released
    cuGraphAddKernelNode            bindings                         -                 released
    cuGraphAddMemcpyNode            bindings                         -                 released
    cuGraphAddMemsetNode            bindings                         -                 released
    cuGraphInstantiate              bindings                         the device        released
    cuGraphExecKernelNodeSetParams  bindings                         -                 released
    cuGraphExecMemcpyNodeSetParams  bindings                         -                 released
    cuGraphExecMemsetNodeSetParams  bindings                         -                 released
    cuGraphUpload                   bindings                         a full queue      released
    cuGraphLaunch                   bindings                         a full queue      released
    cuGraphExecDestroy              bindings                         -                 released
    cuGraphDestroy                  bindings                         -                 released
    cuGetErrorString                bindings                         -                 released

In parentheses: it would, if streams were not kept from filling up (`streams.CudaStream.full`). The second reference to
a context costs nothing: it is there by then.
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
    LAUNCH,
    NOT_SUPPORTED,
    PEER_ACCESS_ALREADY_ENABLED,
    Extents,
    Function,
    Gpu,
    GraphNode,
    KernelLaunch,
    Limits,
    RawEvent,
    RawStream,
    TimingEvent,
    device_error,
)
from dagpu.backends.cuda.pycuda_context import Context
from dagpu.backends.cuda.pycuda_graphs import PyCudaGraph
from dagpu.backends.cuda.pycuda_launches import PyCudaLaunches
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
        self.forked = False
        """Is this a child of the process that initialised them?"""
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
        driver = ctypes.CDLL("libcuda.so.1")
        self.launch_kernel = _function(driver, LAUNCH)
        self.launch_host_function = _function(driver, "cuLaunchHostFunc")
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self.forked = True

    def code_of(self, error: BaseException) -> int:
        """The CUresult of a PyCUDA exception, which carries its text alone: `cuMemAlloc failed: out of memory`."""
        return self._codes.get(_reason(error), 0)

    def text_of(self, code: int) -> str:
        """What the driver says of a CUresult."""
        try:
            known = self.bindings.CUresult(code)
        except ValueError:  # the driver is newer than cuda.bindings
            return "an error that cuda.bindings does not know"
        text: bytes = self.bindings.cuGetErrorString(known)[1]
        return text.decode()

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


def _function(driver: ctypes.CDLL, name: str) -> Callable[..., int]:
    """A function of the driver itself; it returns the CUresult. ctypes lets go of the GIL while it runs. Arguments are
    instances of ctypes' types: of a plain int it would pass on 32 bits."""
    try:
        function: Callable[..., int] = getattr(driver, name)
    except AttributeError:
        raise NoDeviceError(
            f"the NVIDIA driver has no {name}: it is older than CUDA 12. Install a newer one (nvidia-smi names it)."
        ) from None
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
        if self._libraries.forked:
            raise DeviceError(
                "CUDA was used before this process was forked off, and cannot be used in the child. Start children "
                "with multiprocessing's 'spawn' method, or fork before the first use of a GPU."
            )
        return found

    def _retained(self) -> Any:
        """The primary context, kept for the process's life. PyCUDA gets an object of its own for it, which is asked for
        where PyCUDA makes streams and events: these want to know theirs. It comes second: to make a context takes some
        100 ms, in which PyCUDA would hold the GIL."""
        made = self._checked("cuDevicePrimaryCtxRetain", self._bindings.cuDevicePrimaryCtxRetain(self.index))[0]
        self._pushed = self._guarded(self._device.retain_primary_context)
        _keep_for_ever(self._pushed)
        return made

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

    def refused(self, call: str, code: int) -> DeviceError:
        return device_error(call, code, self._libraries.text_of(code))

    def _checked(self, call: str, returned: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values that a function of cuda.bindings returned behind its CUresult."""
        if returned[0]:
            raise self.refused(call, int(returned[0]))
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
        handle, pointer = ctypes.c_void_p(stream.handle), ctypes.c_void_p(libraries.close)
        code = libraries.launch_host_function(handle, pointer, ctypes.c_void_p(descriptor))
        if code:
            raise self.refused("cuLaunchHostFunc", code)

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
        free, total = self._checked("cuMemGetInfo", self._bindings.cuMemGetInfo())
        return free, total

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
        returned = self._bindings.cuCtxEnablePeerAccess(peer.current().context, 0)
        if returned[0] == NOT_SUPPORTED:
            return False
        if returned[0] != PEER_ACCESS_ALREADY_ENABLED:  # another library was first
            self._checked("cuCtxEnablePeerAccess", returned)
        return True

    def fill(self, address: int, width: int, value: int, count: int, stream: RawStream) -> None:
        call = {1: cuda.memset_d8_async, 2: cuda.memset_d16_async, 4: cuda.memset_d32_async}[width]
        self._guarded(call, address, value, count, _pycuda_stream(stream))

    # ---- graphs -----------------------------------------------------------------------------------------------------

    def make_graph(self, nodes: Sequence[tuple[GraphNode, Sequence[int]]]) -> PyCudaGraph:
        context = self.current().context
        return PyCudaGraph(self._bindings, context, self._checked, nodes)

    # ---- kernels --------------------------------------------------------------------------------------------------

    def load(self, cubin: bytes, symbol: str) -> Function:
        bindings = self._bindings
        module = self._checked("cuModuleLoadData", bindings.cuModuleLoadData(cubin))[0]
        function = self._checked("cuModuleGetFunction", bindings.cuModuleGetFunction(module, symbol.encode()))[0]
        wanted = bindings.CUfunction_attribute

        def read(attribute: Any) -> int:
            return int(self._checked("cuFuncGetAttribute", bindings.cuFuncGetAttribute(attribute, function))[0])

        def allow_shared(nbytes: int) -> None:
            attribute = wanted.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._checked("cuFuncSetAttribute", bindings.cuFuncSetAttribute(function, attribute, nbytes))

        return Function(
            int(function),
            read(wanted.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            read(wanted.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            read(wanted.CU_FUNC_ATTRIBUTE_NUM_REGS),
            allow_shared,
        )

    def prepare_launches(self, launches: Sequence[tuple[KernelLaunch, int]]) -> PyCudaLaunches:
        return PyCudaLaunches(self._libraries.launch_kernel, launches)


def _pycuda_stream(stream: RawStream) -> "cuda.Stream":
    """The stream as what it is: `new_stream` makes them all."""
    assert isinstance(stream, cuda.Stream)
    return stream
