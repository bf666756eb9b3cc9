"""What dagpu knows of each library, and what a body sees of a run."""

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter, methodcaller
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import ForeignError
from dagpu.common.layout import Layout, Shape, address_of
from dagpu.common.places import describe, here
from dagpu.handles import DLPackExport, ExportRequest
from dagpu.handles.device_handles import Capturing, TemporaryMemory
from dagpu.interop.capsules import CPU, CUDA, ArrayForm, ArrayMemory, form_of, make_capsule

_D_co = TypeVar("_D_co", bound=np.generic, covariant=True)


@final
class BodyLane:
    """The stream that a body of a foreign op enqueues to, during its call. It speaks `__cuda_stream__`."""

    __slots__ = ("_capturing", "_device", "_handle", "library_stream")

    def __init__(self, handle: int, device: int, capturing: bool) -> None:
        self.library_stream: Any = None
        """The stream as an object of the body's library; None before the first body, and without such objects."""
        self._handle = handle
        self._device = device
        self._capturing = capturing

    @property
    def handle(self) -> int:
        """The CUstream."""
        return self._handle

    @property
    def device(self) -> int:
        """The index of the CUDA device."""
        return self._device

    @property
    def capturing(self) -> bool:
        """True if the stream is being captured, so that what the body enqueues becomes a part of a CUDA graph."""
        return self._capturing

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, 0, and the CUstream."""
        return 0, self._handle

    def __repr__(self) -> str:
        return f"<Lane {self._handle:#x} on cuda:{self._device}>"


@final
class OperandView(DLPackExport, Generic[_D_co]):
    """An operand of a `raw` body, during its call: an address with a shape.

    It speaks the CUDA array interface and DLPack. Neither names a stream: the plan orders the work, so no consumer
    waits.
    """

    __slots__ = ("_address", "_device", "_layout", "_read_only")

    def __init__(self, address: int, layout: Layout, device: int, read_only: bool) -> None:
        self._address = address
        self._layout = layout
        self._device = device
        self._read_only = read_only

    @property
    def address(self) -> int:
        """The address of the first element."""
        return self._address

    @property
    def shape(self) -> Shape:
        """The extents in elements, one for each axis."""
        return self._layout.shape

    @property
    def strides(self) -> Shape:
        """The distances between neighbours along each axis, in bytes."""
        return self._layout.strides

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The element type."""
        return self._layout.dtype

    @property
    def device(self) -> int:
        """The index of the CUDA device."""
        return self._device

    @property
    def nbytes(self) -> int:
        """The bytes that the elements span, gaps included."""
        return self._form.nbytes

    @property
    def _form(self) -> ArrayForm:
        layout = self._layout
        return form_of(layout.dtype, layout.shape, layout.strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3, without a stream."""
        layout = self._layout
        return {
            "shape": layout.shape,
            "typestr": layout.dtype.str,
            "data": (self._address, self._read_only),
            "strides": None if layout.contiguous else layout.strides,
            "version": 3,
            "stream": None,
        }

    def _capsule(self, request: ExportRequest) -> object:
        """Return a capsule of the memory. A capsule below DLPack 1.0 cannot say that an input is read-only."""
        memory = ArrayMemory(self._address, self._form, (CUDA, self._device), self._read_only, None)
        return make_capsule(memory, versioned=request.is_versioned)

    def _dlpack_device(self) -> tuple[int, int]:
        return CUDA, self._device

    def __repr__(self) -> str:
        return f"<View {self._layout.dtype.name}, {self._layout.shape}, cuda:{self._device}>"


class _Lanes(threading.local):
    """The lane of the body that this thread calls."""

    current: BodyLane | None = None


LANES: Final = _Lanes()


def current_lane() -> BodyLane:
    """Return the stream of the body that runs, for libraries that have no current stream: Numba's
    `kernel[grid, block, cuda.external_stream(current_lane().handle)]`.

    Raises:
        ForeignError: no body of a foreign op runs in this thread on a CUDA device.
    """
    if LANES.current is None:
        raise ForeignError(
            f"current_lane() at {describe(here())}: no body of a foreign op runs on a CUDA device in this thread. Call "
            "it in the body, on the thread that calls the body."
        )
    return LANES.current


# ---- array libraries
#
# What dagpu knows of each library: its arrays over an address, its current stream, its temporaries.
#
# A library is imported when a body for it is first prepared for a device, never by `import dagpu`.

LibraryName: TypeAlias = Literal["torch", "cupy", "numba"]
"""A library whose arrays a body of a foreign op can take."""


MOST_TORCH_STREAMS: Final = 4
"""PyTorch keeps a workspace for cuBLAS for each stream, 32 MiB on an H200."""


class ArrayLibrary(Protocol):
    """A library of arrays."""

    @property
    def module(self) -> Any:
        """The imported module."""
        ...

    @property
    def most_streams(self) -> int | None:
        """The most of dagpu's streams on which bodies are called; None for any number."""
        ...

    def array(self, view: OperandView[Any], /) -> Any:
        """Return an array over an operand, without a copy."""
        ...

    @property
    def again(self) -> Callable[[Any], Any]:
        """Returns an object of its own for an array, so that a body cannot change the shape of a later one."""
        ...

    @property
    def takes_memory(self) -> bool:
        """True if its temporaries are in memory that a call of a body is given."""
        ...

    def call(
        self,
        body: Callable[..., object],
        arguments: Sequence[Any],
        lane: BodyLane,
        memory: TemporaryMemory | None,
        capturing: Capturing | None,
        /,
    ) -> object:
        """Return what a body returns whose stream, the library's current one, is the lane. Its temporaries live long
        enough."""
        ...

    def host_array(self, array: "np.ndarray[Any, Any]", /) -> Any:
        """Return an array on the CPU over a NumPy array, without a copy."""
        ...

    def entered_on_host(self) -> AbstractContextManager[object]:
        """Return a context for a body on such arrays."""
        ...


@final
class Torch:
    """PyTorch. Its allocator knows streams: memory that a body drops serves the same stream again."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.most_streams: int | None = MOST_TORCH_STREAMS
        self.takes_memory = False
        # As `detach()`, which goes through the dispatcher and takes twice as long.
        self.again: Callable[[Any], Any] = attrgetter("data")
        self._streams: dict[tuple[int, int], tuple[Any, tuple[int, int, int]]] = {}
        # Below its public functions, which take ten times as long. PyTorch's own streams and graphs call these.
        inner: Any = module._C  # noqa: SLF001
        self._current_device: Callable[[], int] = inner._cuda_getDevice  # noqa: SLF001
        self._current_stream: Callable[[int], tuple[int, int, int]] = inner._cuda_getCurrentStream  # noqa: SLF001
        self._set_stream: Callable[[int, int, int], None] = inner._cuda_setStream  # noqa: SLF001
        self._records: Callable[[], bool] = module.is_grad_enabled
        self._set_records: Callable[[bool], None] = inner._set_grad_enabled  # noqa: SLF001

    def array(self, view: OperandView[Any]) -> Any:
        if any(step < 0 for step in view.strides):
            raise ForeignError(
                f"an operand of shape {view.shape} has the strides {view.strides}, and PyTorch has no negative ones. "
                "Copy it before the call: dup(x)."
            )
        return self.module.from_dlpack(view.__dlpack__())

    def call(
        self,
        body: Callable[..., object],
        arguments: Sequence[Any],
        lane: BodyLane,
        memory: TemporaryMemory | None,
        capturing: Capturing | None,
    ) -> object:
        """Call a body in a stream, and let PyTorch record no operations.

        `torch.cuda.stream(s)` and `torch.no_grad()` do the same; the first alone takes 13.5 us on an H200. This calls
        the C functions below them.
        """
        found = lane.library_stream
        if found is None:
            found = lane.library_stream = self._stream_of(lane.handle, lane.device)
        stream, number = found
        if self._current_device() != number[1]:  # the device that is current changes too
            with self.module.cuda.stream(stream), self.module.no_grad():
                return self._call(body, arguments, capturing)
        records, before = self._records(), self._current_stream(number[1])
        self._set_stream(*number)
        try:
            if records:
                self._set_records(False)
            return body(*arguments) if capturing is None else self._call(body, arguments, capturing)
        finally:
            self._set_stream(*before)
            self._set_records(records)  # a body may have changed it

    def _call(self, body: Callable[..., object], arguments: Sequence[Any], capturing: Capturing | None) -> object:
        with nullcontext() if capturing is None else self._private_memory(capturing):
            return body(*arguments)

    def _stream_of(self, handle: int, device: int) -> Any:
        """Return a stream as an object of PyTorch's, always the same one, and its numbers."""
        found = self._streams.get((handle, device))
        if found is None:
            place = self.module.device("cuda", device)
            stream = self.module.cuda.ExternalStream(handle, device=place)
            number = int(stream.stream_id), int(stream.device_index), int(stream.device_type)
            found = self._streams[handle, device] = stream, number
        return found

    @contextmanager
    def _private_memory(self, capturing: Capturing) -> Iterator[None]:
        """Within the `with` block, temporaries are in memory that lives as long as the graph."""
        torch = self.module
        pool = capturing.kept.get("torch")
        if pool is None:  # PyTorch knows nothing of the capture, and would give its memory to others afterwards
            pool = capturing.kept["torch"] = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            self._clear_workspaces()
            try:
                yield
            finally:
                self._clear_workspaces()

    def _clear_workspaces(self) -> None:
        """Make PyTorch take another workspace for cuBLAS, which it keeps for each stream. Each captured body needs one
        of its own, out of its own pool: graphs that are captured on one stream may run at once."""
        self.module._C._cuda_clearCublasWorkspaces()  # noqa: SLF001  # PyTorch's own graphs do so, and no public name

    def host_array(self, array: "np.ndarray[Any, Any]") -> Any:
        form = form_of(array.dtype, array.shape, array.strides)
        memory = ArrayMemory(address_of(array), form, (CPU, 0), False, array)
        return self.module.from_dlpack(make_capsule(memory, versioned=False))

    def entered_on_host(self) -> AbstractContextManager[object]:
        found: AbstractContextManager[object] = self.module.no_grad()
        return found


@final
class CuPy:
    """CuPy. Its pool does not know when a stream that it has not made is over, so temporaries come from dagpu's."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.most_streams: int | None = None
        self.takes_memory = True
        self.again: Callable[[Any], Any] = methodcaller("view")
        self._streams: dict[tuple[int, int], Any] = {}
        # What `cupy.cuda.using_allocator` calls, which is a generator and takes 2 us more.
        memory: Any = module.cuda.memory
        self._allocator: Callable[[], Any] = memory._get_thread_local_allocator  # noqa: SLF001
        self._set_allocator: Callable[[Any], None] = memory._set_thread_local_allocator  # noqa: SLF001
        self._current_device: Callable[[], int] = module.cuda.runtime.getDevice

    def array(self, view: OperandView[Any]) -> Any:
        cuda, form = self.module.cuda, form_of(view.dtype, view.shape, view.strides)
        first = form.layout.offset  # not 0 if a stride is negative
        memory = cuda.UnownedMemory(view.address - first, form.nbytes, view, view.device)
        return self.module.ndarray(view.shape, view.dtype, cuda.MemoryPointer(memory, first), view.strides)

    def call(
        self,
        body: Callable[..., object],
        arguments: Sequence[Any],
        lane: BodyLane,
        memory: TemporaryMemory | None,
        capturing: Capturing | None,
    ) -> object:
        cuda, device = self.module.cuda, lane.device
        assert memory is not None  # since it takes it

        def allocate(nbytes: int) -> Any:
            block = memory.take(nbytes)
            return cuda.MemoryPointer(cuda.UnownedMemory(block.address, nbytes, block, device), 0)

        stream = lane.library_stream
        if stream is None:
            stream = lane.library_stream = self._stream_of(lane)
        if self._current_device() == device:
            with stream:
                return self._call(body, arguments, allocate)
        with cuda.Device(device), stream:
            return self._call(body, arguments, allocate)

    def _call(self, body: Callable[..., object], arguments: Sequence[Any], allocate: Callable[[int], Any]) -> object:
        before = self._allocator()
        self._set_allocator(allocate)
        try:
            return body(*arguments)
        finally:
            self._set_allocator(before)

    def _stream_of(self, lane: BodyLane) -> Any:
        """Return a stream as an object of CuPy's, always the same one."""
        cuda, key = self.module.cuda, (lane.device, lane.handle)
        stream = self._streams.get(key)
        if stream is None:
            if hasattr(cuda.Stream, "from_external"):  # from version 14 on
                stream = cuda.Stream.from_external(lane)
            else:
                stream = cuda.ExternalStream(lane.handle, lane.device)
            self._streams[key] = stream
        return stream

    def host_array(self, array: "np.ndarray[Any, Any]") -> Any:
        return array

    def entered_on_host(self) -> AbstractContextManager[object]:
        return nullcontext()


@final
class Numba:
    """numba-cuda. It has no current stream: a body names it, `cuda.external_stream(current_lane().handle)`."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.most_streams: int | None = None
        self.takes_memory = False

    def array(self, view: OperandView[Any]) -> Any:
        return self.module.as_cuda_array(view, sync=False)

    def again(self, array: Any) -> Any:
        return array.view(array.dtype)

    def call(
        self,
        body: Callable[..., object],
        arguments: Sequence[Any],
        lane: BodyLane,
        memory: TemporaryMemory | None,
        capturing: Capturing | None,
    ) -> object:
        return body(*arguments)

    def host_array(self, array: "np.ndarray[Any, Any]") -> Any:
        return array

    def entered_on_host(self) -> AbstractContextManager[object]:
        return nullcontext()


_MODULES: Final[dict[str, tuple[str, Callable[[Any], ArrayLibrary]]]] = {
    "torch": ("torch", Torch),
    "cupy": ("cupy", CuPy),
    "numba": ("numba.cuda", Numba),
}
"""For each library the module that is imported, and what dagpu knows of it."""

_found: Final[dict[str, ArrayLibrary]] = {}


def find_library(name: str) -> ArrayLibrary:
    """Return a library. It is imported by the first call.

    Raises:
        ImportError: it cannot be imported.
    """
    module_name, make = _MODULES[name]
    module = importlib.import_module(module_name)
    library = _found.get(name)
    if library is None or library.module is not module:
        library = _found[name] = make(module)
    return library
