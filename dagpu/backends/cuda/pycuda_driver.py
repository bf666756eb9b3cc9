"""The driver through PyCUDA, and through cuda.bindings for what PyCUDA lacks: host functions, pointer attributes.

PyCUDA's objects are never destroyed. Their destructors call the driver, on whatever thread and however late in the
interpreter's life the last reference goes; so streams, events and modules are kept for the process's life (their users
pool them), and memory is held by its address.
"""

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.driver import (
    NOT_SUPPORTED,
    Extents,
    Function,
    Gpu,
    Limits,
    RawEvent,
    RawStream,
    TimingEvent,
    device_error,
)
from dagpu.errors import DeviceError, NoDeviceError

_INSTALL: Final = "pip install 'dagpu[cuda]'"

EXIT_SECONDS: Final = 2.0
"""How long the interpreter waits at its end for threads that are in the driver."""


def open_gpus() -> list[Gpu]:
    """Every CUDA device that this process may use.

    Raises:
        NoDeviceError: PyCUDA, cuda.bindings, the driver or a device is missing; it says which.
    """
    libraries = _Libraries()
    return [PyCudaGpu(libraries, index) for index in range(libraries.pycuda.Device.count())]


@final
class _Libraries:
    """PyCUDA's driver module and that of cuda.bindings, imported and initialised."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.pycuda: Any = _imported("pycuda.driver", "PyCUDA", "needs a C++ compiler and the CUDA toolkit to build")
        self.bindings: Any = _imported("cuda.bindings.driver", "cuda.bindings", "comes as a wheel")
        try:
            self.pycuda.init()
        except Exception as error:
            raise NoDeviceError(
                f"there is no CUDA device here: {error}. See that the NVIDIA driver is loaded (nvidia-smi) and that "
                "CUDA_VISIBLE_DEVICES hides no device.",
                self.code_of(error),
            ) from None
        _keep_for_ever(self.pycuda)
        self.close: int = _address_of_close()

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


def _imported(name: str, what: str, how: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NoDeviceError(
            f"{what} cannot be imported ({error}), so there are no CUDA devices here. Install it: {_INSTALL} ({what} "
            f"{how}), on a machine with an NVIDIA driver."
        ) from None


def _address_of_close() -> int:
    """libc's `int close(int)`: as a host function it gets a descriptor for its argument, and needs no GIL."""
    address = ctypes.cast(ctypes.CDLL(None).close, ctypes.c_void_p).value
    assert address is not None
    return address


def _keep_for_ever(thing: object) -> None:
    """Add a reference that nobody takes away: the object outlives the interpreter, and its destructor never runs."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@final
class PyCudaGpu:
    """One device. Implements `dagpu.backends.cuda.driver.Gpu`."""

    def __init__(self, libraries: _Libraries, index: int) -> None:
        self._libraries = libraries
        self._cuda = libraries.pycuda
        self._bindings = libraries.bindings
        self._device = self._cuda.Device(index)
        self.index = index
        self.name: str = self._device.name()
        major, minor = self._device.compute_capability()
        self.arch = f"sm_{major}{minor}"
        self.limits = self._read_limits()
        self._context: _Context | None = None
        self._pushed: Any = None
        self._gate = threading.Lock()

    def _read_limits(self) -> Limits:
        names = self._cuda.device_attribute

        def read(name: str) -> int:
            return int(self._device.get_attribute(getattr(names, name)))

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

    def current(self) -> "_Context":
        """Push the primary context, shared with every other library in the process, and pop it at the end."""
        found = self._context
        if found is None:
            with self._gate:
                found = self._context
                if found is None:
                    found = self._context = _Context(self._bindings, self._retained())
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

    def _made(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """An object of PyCUDA's, which lives as long as the process."""
        self._pushed.push()
        try:
            made = self._guarded(make, *arguments)
        finally:
            self._cuda.Context.pop()
        _keep_for_ever(made)
        return made

    def error(self, error: BaseException) -> DeviceError | None:
        if isinstance(error, DeviceError):
            return error
        if not isinstance(error, self._cuda.Error):
            return None
        return device_error(str(error).partition(" failed: ")[0], self._libraries.code_of(error), _reason(error))

    def _checked(self, call: str, returned: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values that a function of cuda.bindings returned behind its CUresult."""
        code = int(returned[0])
        if code:
            raise device_error(call, code, self._bindings.cuGetErrorString(returned[0])[1].decode())
        return returned[1:]

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call PyCUDA, with its errors as ours."""
        try:
            return call(*arguments)
        except self._cuda.Error as error:
            ours = self.error(error)
            assert ours is not None
            raise ours from None

    # ---- streams and events -------------------------------------------------------------------------------------

    def new_stream(self) -> RawStream:
        stream: RawStream = self._made(self._cuda.Stream, 1)  # CU_STREAM_NON_BLOCKING
        return stream

    def new_event(self) -> RawEvent:
        event: RawEvent = self._made(self._cuda.Event, self._cuda.event_flags.DISABLE_TIMING)
        return event

    def new_timing_event(self) -> TimingEvent:
        event: TimingEvent = self._made(self._cuda.Event)
        return event

    def close_when_reached(self, stream: RawStream, descriptor: int) -> None:
        bindings = self._bindings
        function = bindings.CUhostFn(self._libraries.close)
        self._checked("cuLaunchHostFunc", bindings.cuLaunchHostFunc(stream.handle, function, descriptor))

    def synchronize(self) -> None:
        self._guarded(self._cuda.Context.synchronize)

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
        free, total = self._guarded(self._cuda.mem_get_info)
        return int(free), int(total)

    def is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        wanted = self._bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        found = self._bindings.cuPointerGetAttribute(wanted, array.__array_interface__["data"][0])
        return int(found[0]) == 0 and int(found[1]) == int(self._bindings.CUmemorytype.CU_MEMORYTYPE_HOST)

    # ---- copies ---------------------------------------------------------------------------------------------------

    def copy_in(self, address: int, source: NDArray[Any], stream: RawStream) -> None:
        self._guarded(self._cuda.memcpy_htod_async, address, source, stream)

    def copy_out(self, target: NDArray[Any], address: int, stream: RawStream) -> None:
        self._guarded(self._cuda.memcpy_dtoh_async, target, address, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: RawStream) -> None:
        self._guarded(self._cuda.memcpy_dtod_async, target, source, nbytes, stream)

    def copy_pitched(
        self, target: int, source: int, width: int, height: int, pitches: tuple[int, int], stream: RawStream
    ) -> None:
        copy = self._cuda.Memcpy2D()
        copy.set_src_device(source)
        copy.set_dst_device(target)
        copy.dst_pitch, copy.src_pitch = pitches
        copy.width_in_bytes, copy.height = width, height
        self._guarded(copy, stream)

    def reach_peer(self, peer: Gpu) -> bool:
        assert isinstance(peer, PyCudaGpu)
        if not self._device.can_access_peer(peer._device):
            return False
        peer.current()  # it has its context
        already = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED: another library was first
        try:
            self._guarded(self._cuda.Context.enable_peer_access, peer._pushed)
        except DeviceError as error:
            if error.code == NOT_SUPPORTED:
                return False
            if error.code != already:
                raise
        return True

    def fill(self, address: int, width: int, value: int, count: int, stream: RawStream) -> None:
        call = {1: self._cuda.memset_d8_async, 2: self._cuda.memset_d16_async, 4: self._cuda.memset_d32_async}[width]
        self._guarded(call, address, value, count, stream)

    # ---- kernels --------------------------------------------------------------------------------------------------

    def load(self, cubin: bytes, symbol: str) -> Function:
        module = self._made(self._cuda.module_from_buffer, cubin)
        function = self._made(module.get_function, symbol)
        wanted = self._cuda.function_attribute

        def allow_shared(nbytes: int) -> None:
            self._guarded(function.set_attribute, wanted.MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes)

        return Function(
            function._launch_kernel,
            int(function.get_attribute(wanted.MAX_THREADS_PER_BLOCK)),
            int(function.get_attribute(wanted.SHARED_SIZE_BYTES)),
            int(function.get_attribute(wanted.NUM_REGS)),
            allow_shared,
        )


@final
class _Context:
    """A `with` block in which a context is current. One object serves all threads: it holds no state of theirs.

    It is the driver's own stack, not PyCUDA's: that aborts the process if a thread ends with something on it, as
    daemon threads do when the interpreter ends.
    """

    __slots__ = ("_context", "_pop", "_push")

    def __init__(self, bindings: Any, context: Any) -> None:
        self._context = context
        self._push: Callable[[Any], tuple[Any, ...]] = bindings.cuCtxPushCurrent
        self._pop: Callable[[], tuple[Any, ...]] = bindings.cuCtxPopCurrent

    def __enter__(self) -> None:
        if _ending.begun:
            _ending.stop_other_threads()
        _ending.inside.append(None)
        code = self._push(self._context)[0]
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
