"""PyTorch, CuPy and Numba on simulated GPUs: stand-ins with arrays, current streams and allocators of their own.

They compute with NumPy on the simulated memory when the stream gets to it. They are stricter than the libraries: an
array is used on the current stream alone, temporaries come from the allocator that the context has set, memory that a
capture took without a private pool is a problem, and freed memory is poisoned.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Final, final

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu.backends.host.arrays import bytes_at
from dagpu.common.layout import Shape, strides_of
from dagpu.interop.capsules import CPU, form_of, read_capsule
from dagpu.testing import EnqueuedWork
from tests.simulated.gpu import CAPTURING, SimulatedGpu
from tests.simulated.machine import Machine


class _OfThread(threading.local):
    """The contexts of a library in one thread."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.allocators: list[Any] = []
        self.without_grad = False


class FakeArray:
    """An array of a library: an address, and what its library does with it."""

    def __init__(
        self, library: "FakeLibrary", memory: Any, address: int, shape: Shape, strides: Shape, dtype: "np.dtype[Any]"
    ) -> None:
        self.library = library
        self.memory = memory
        self.address = address
        self.shape = shape
        self.strides = strides
        self.dtype = dtype

    def like(self, shape: Shape) -> "FakeArray":
        """Return a temporary of this shape."""
        nbytes = int(np.prod(shape)) * self.dtype.itemsize
        if self.on_host is not None:
            kept = np.empty(shape, self.dtype)
            return type(self)(self.library, kept, kept.ctypes.data, shape, kept.strides, self.dtype)
        memory = self.library.allocate(nbytes)
        strides = strides_of(shape, self.dtype.itemsize)
        return type(self)(self.library, memory, memory.address, shape, strides, self.dtype)

    @property
    def on_host(self) -> Any:
        """The memory of an array on the CPU; None on a GPU."""
        return self.memory if isinstance(self.memory, np.ndarray) or type(self.memory).__name__ == "PyCapsule" else None

    def again(self) -> "FakeArray":
        return type(self)(self.library, self.memory, self.address, self.shape, self.strides, self.dtype)

    def contents(self, gpu: SimulatedGpu | None) -> NDArray[Any]:
        """Return the elements, once the stream has come to it."""
        form = form_of(self.dtype, self.shape, self.strides)
        first, nbytes = form.layout.offset, form.nbytes
        found = _host_bytes(self.address - first, nbytes) if gpu is None else gpu.bytes_at(self.address - first, nbytes)
        if found is None:  # an illegal address: the device is lost
            return np.zeros(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, found, first, self.strides)

    def written_by(self, f: Callable[..., NDArray[Any]], *arrays: Any) -> "FakeArray":
        """Enqueue the work that writes this array from others."""
        self.library.enqueue(self, [self, *[each for each in arrays if isinstance(each, FakeArray)]], f, arrays)
        return self

    def binary(self, f: Callable[..., NDArray[Any]], other: Any) -> "FakeArray":
        return self.like(self.shape).written_by(f, self, other)

    def __add__(self, other: Any) -> "FakeArray":
        return self.binary(np.add, other)

    def __mul__(self, other: Any) -> "FakeArray":
        return self.binary(np.multiply, other)

    def __matmul__(self, other: "FakeArray") -> "FakeArray":
        self.library.take_workspace()
        return self.like((self.shape[0], other.shape[1])).written_by(np.matmul, self, other)

    def __setitem__(self, at: Any, value: Any) -> None:
        assert at is ...
        self.written_by(lambda x: np.asarray(x), value)

    copy_ = lambda self, value: self.written_by(lambda x: np.asarray(x), value)  # noqa: E731  # PyTorch's name
    data = property(again)  # PyTorch's name
    view = lambda self, *_: self.again()  # noqa: E731  # CuPy's and Numba's

    def item(self) -> Any:
        """Wait for the stream, as PyTorch does."""
        stream = self.library.current()
        if stream.handle == CAPTURING:
            raise RuntimeError("operation not permitted when stream is capturing")
        stream.synchronize()
        return self.contents(stream.gpu).item()


def _host_bytes(address: int, nbytes: int) -> NDArray[np.uint8]:
    return bytes_at(address, nbytes, None) if nbytes else np.empty(0, np.uint8)


@final
class _Block:
    """Memory of a library's own allocator, until it is dropped."""

    def __init__(self, address: int, idle: list[int]) -> None:
        self.address = address
        self._idle = idle

    def __del__(self) -> None:
        self._idle.append(self.address)


@final
class FakePool:
    """`torch.cuda.MemPool`: memory that nothing else gets, until the pool is dropped."""

    def __init__(self, library: "FakeLibrary") -> None:
        self._library = library
        self.idle: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.taken: list[int] = []

    def __del__(self) -> None:
        gpu = self._library.gpu
        with gpu.current():
            for address in self.taken if not gpu.lost else ():
                gpu.free(address)


class FakeLibrary:
    """What the stand-ins have in common."""

    records = False
    """True for PyTorch, which records operations unless it is told not to."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.gpu = machine.gpus[0]
        self.here = _OfThread()
        self.idle: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.held: dict[int, int] = {}
        """The bytes of each block of the driver's that the library holds, in use or idle, by the address."""
        self.used_streams: set[int] = set()
        """The CUstreams that work was enqueued to."""
        self.temporaries = 0
        self.workspaces: dict[int, Any] = {}
        """PyTorch's memory for cuBLAS, by the stream."""
        self.current_device = 0
        """The index of the device that PyTorch's functions mean."""
        self.stale: list[int] = []
        """Words that happen to be in the parameters of every kernel."""

    def current(self) -> Any:
        """Return the current stream."""
        return self.here.streams[-1] if self.here.streams else self.gpu.foreign_stream(1)

    def enqueue(
        self, out: FakeArray, arrays: list[FakeArray], f: Callable[..., NDArray[Any]], given: tuple[Any, ...]
    ) -> None:
        """Enqueue `out[...] = f(*given)` to the current stream; on the CPU do it."""
        assert self.here.without_grad or not self.records, "a body of PyTorch runs under no_grad"
        places = [(each.address, each.shape, each.strides, each.dtype) for each in arrays]
        if out.on_host is not None:
            values = [each.contents(None) if isinstance(each, FakeArray) else each for each in given]
            out.contents(None)[...] = f(*values)
            return
        stream = self.current()
        self.used_streams.add(stream.handle)
        target, *_ = [FakeArray(self, None, *place) for place in places]
        others = iter([FakeArray(self, None, *place) for place in places[1:]])
        copied = [next(others) if isinstance(each, FakeArray) else each for each in given]
        gpu = stream.gpu

        def act() -> None:
            target.contents(gpu)[...] = f(
                *[each.contents(gpu) if isinstance(each, FakeArray) else each for each in copied]
            )

        words = (target.address, *[each.address for each in copied if isinstance(each, FakeArray)], *self.stale)
        work = EnqueuedWork(f"kernel `{getattr(f, '__name__', 'copy')}`", words)
        with self.machine.changed:
            stream.put(act, takes_room=True, enqueued=work)

    def allocate(self, nbytes: int) -> Any:
        """Return memory for a temporary, from the allocator that is set."""
        self.temporaries += 1
        if self.here.allocators:
            return self.here.allocators[-1](nbytes)
        return self.own_memory(nbytes)

    def take_workspace(self) -> None:
        """Take the workspace that cuBLAS keeps for the current stream."""
        stream = self.current().handle
        if self.records and stream not in self.workspaces:
            self.workspaces[stream] = self.allocate(64)

    def own_memory(self, nbytes: int, pool: FakePool | None = None) -> _Block:
        """Return memory of the library. Dropped memory serves the same stream again."""
        stream = self.current().handle
        if pool is None and stream == CAPTURING:
            self.machine.problem("memory is taken in a capture that the library knows nothing of: others will get it")
        idle = (self.idle if pool is None else pool.idle)[nbytes, stream]
        if idle:
            return _Block(idle.pop(), idle)
        with self.gpu.current():
            address = self.gpu.allocate(nbytes)
        self.held[address] = nbytes
        if pool is not None:
            pool.taken.append(address)
        return _Block(address, idle)

    def free_idle(self) -> None:
        """Give the driver back the memory that no array is in."""
        with self.gpu.current():
            for address in [address for addresses in self.idle.values() for address in addresses]:
                self.gpu.free(address)
                del self.held[address]
        self.idle.clear()

    @contextmanager
    def on_stream(self, stream: Any) -> Iterator[None]:
        self.here.streams.append(stream)
        try:
            yield
        finally:
            assert self.here.streams.pop() is stream

    @contextmanager
    def with_allocator(self, allocator: Any) -> Iterator[None]:
        self.here.allocators.append(allocator)
        try:
            yield
        finally:
            assert self.here.allocators.pop() is allocator

    @contextmanager
    def without_grad(self) -> Iterator[None]:
        before, self.here.without_grad = self.here.without_grad, True
        try:
            yield
        finally:
            self.here.without_grad = before

    def set_grad_enabled(self, enabled: bool) -> None:
        self.here.without_grad = not enabled

    def stream(self, handle: int) -> Any:
        """Return a stream of the machine; that of a capture is looked up in each call."""
        return self.machine.stream_of(handle)


def _module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(members)
    return made


def fake_torch(library: FakeLibrary) -> ModuleType:
    """Return a stand-in for PyTorch 2.11: what dagpu and the bodies of the tests call."""
    library.records = True

    def from_dlpack(capsule: object) -> FakeArray:
        found = read_capsule(capsule)
        assert found is not None
        memory = found.owner if found.device[0] == CPU else "given"
        layout = found.form.layout
        return FakeArray(library, memory, found.address, layout.shape, layout.strides, layout.dtype)

    class ExternalStream:
        """A stream of another library's, with the numbers by which PyTorch's C functions know it."""

        def __init__(self, handle: int, *, device: Any) -> None:
            assert device == ("cuda", 0)
            self.handle = self.stream_id = handle
            self.device_index, self.device_type = 0, 1

    own_streams: dict[int, Any] = {}
    """The streams that the library itself has made current, by their numbers."""

    def current_stream(device: int) -> tuple[int, int, int]:
        current = library.current()
        own_streams[current.handle] = current
        return current.handle, device, 1

    def set_stream(handle: int, device: int, kind: int) -> None:
        assert kind == 1
        assert device == library.current_device, "the current device would change too"
        library.here.streams[:] = [own_streams.pop(handle, None) or library.stream(handle)]

    @contextmanager
    def stream_context(stream: Any) -> Iterator[None]:
        with library.on_stream(library.stream(stream.handle)):
            yield

    @contextmanager
    def use_mem_pool(pool: FakePool) -> Iterator[None]:
        with library.with_allocator(lambda nbytes: library.own_memory(nbytes, pool)):
            yield

    cuda = _module(
        "torch.cuda", ExternalStream=ExternalStream, MemPool=lambda: FakePool(library), use_mem_pool=use_mem_pool,
        stream=stream_context, is_initialized=lambda: True,
        empty_cache=library.free_idle, memory_reserved=lambda: sum(library.held.values()),
    )  # fmt: skip
    return _module(
        "torch",
        _C=_module(
            "torch._C",
            _cuda_clearCublasWorkspaces=library.workspaces.clear,
            _cuda_setStream=set_stream,
            _cuda_getDevice=lambda: library.current_device,
            _cuda_getCurrentStream=current_stream,
            _set_grad_enabled=library.set_grad_enabled,
        ),
        cuda=cuda,
        from_dlpack=from_dlpack,
        no_grad=library.without_grad,
        is_grad_enabled=lambda: not library.here.without_grad,
        set_grad_enabled=library.set_grad_enabled,
        device=lambda *given: given,
    )


def fake_cupy(library: FakeLibrary, *, version: int = 14) -> ModuleType:
    """Return a stand-in for CuPy, of this version."""

    class UnownedMemory:
        def __init__(self, address: int, nbytes: int, owner: object, device: int) -> None:
            assert device == 0
            assert nbytes >= 0
            self.address, self.owner = address, owner

    class MemoryPointer:
        def __init__(self, memory: UnownedMemory, offset: int) -> None:
            self.memory, self.address = memory, memory.address + offset

    class Stream:
        def __init__(self, handle: int, device: int = 0) -> None:
            self.ptr = handle
            self._entered: list[Any] = []

        def __enter__(self) -> None:
            context = library.on_stream(library.stream(self.ptr))
            context.__enter__()
            self._entered.append(context)

        def __exit__(self, *error: object) -> None:
            self._entered.pop().__exit__(None, None, None)

    if version >= 14:
        Stream.from_external = staticmethod(lambda lane: Stream(lane.__cuda_stream__()[1]))  # type: ignore[attr-defined]  # of version 14 alone

    class Device:
        def __init__(self, index: int) -> None:
            assert index == 0

        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    def ndarray(shape: Shape, dtype: Any, memory: Any, strides: Shape) -> FakeArray:
        return FakeArray(library, memory, memory.address, shape, strides, np.dtype(dtype))

    def set_allocator(allocator: Any) -> None:
        library.here.allocators[:] = [] if allocator is None else [allocator]

    memory = _module(
        "cupy.cuda.memory",
        _get_thread_local_allocator=lambda: library.here.allocators[-1] if library.here.allocators else None,
        _set_thread_local_allocator=set_allocator,
    )
    cuda = _module(
        "cupy.cuda", UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer, Stream=Stream, ExternalStream=Stream,
        Device=Device, memory=memory, runtime=SimpleNamespace(getDevice=lambda: library.current_device),
    )  # fmt: skip
    pool = SimpleNamespace(free_all_blocks=library.free_idle, total_bytes=lambda: sum(library.held.values()))
    return _module("cupy", cuda=cuda, ndarray=ndarray, get_default_memory_pool=lambda: pool)


def fake_numba(library: FakeLibrary) -> ModuleType:
    """Return a stand-in for `numba.cuda`, whose kernels are launched on a stream that is named."""

    def as_cuda_array(view: Any, *, sync: bool) -> FakeArray:
        assert not sync, "it would wait"
        about = view.__cuda_array_interface__
        assert about["stream"] is None
        dtype = np.dtype(about["typestr"])
        strides = about["strides"] or strides_of(about["shape"], dtype.itemsize)
        return FakeArray(library, "given", about["data"][0], about["shape"], strides, dtype)

    def external_stream(handle: int) -> Any:
        return library.on_stream(library.stream(handle))

    return _module("numba.cuda", as_cuda_array=as_cuda_array, external_stream=external_stream)


MAKERS: Final = {"torch": fake_torch, "cupy": fake_cupy, "numba": fake_numba}


@contextmanager
def array_libraries(machine: Machine, *names: str) -> Iterator[dict[str, FakeLibrary]]:
    """Within the `with` block, these libraries can be imported, and no other one: "torch", "cupy", "numba"."""
    with pytest.MonkeyPatch.context() as patch:
        made: dict[str, FakeLibrary] = {}
        for name, make in MAKERS.items():
            module = None
            if name in names:
                made[name] = FakeLibrary(machine)
                module = make(made[name])
            if name == "numba":
                patch.setitem(sys.modules, "numba", None if module is None else _module("numba", cuda=module))
                patch.setitem(sys.modules, "numba.cuda", module)
            else:
                patch.setitem(sys.modules, name, module)
        yield made
