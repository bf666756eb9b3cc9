"""Arrays of another library on a simulated GPU, with its own memory and its own stream; a count of dagpu's capsules."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast, final

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu.backends.host.arrays import array_at
from dagpu.common.critical import Reference
from dagpu.common.layout import Shape, strides_of
from dagpu.interop.capsules import CUDA, ArrayMemory, form_of, make_capsule, read_capsule
from tests.simulated.gpu import SimulatedGpu
from tests.simulated.machine import Machine, SimulatedStream


@final
class Library:
    """Another library that uses `cuda:0` of the machine: it has a stream, and allocates memory."""

    def __init__(self, machine: Machine) -> None:
        self.gpu: SimulatedGpu = machine.gpus[0]
        self.freed = 0
        with self.gpu.current():
            self.stream = cast(SimulatedStream, self.gpu.new_stream())

    def array(self, contents: NDArray[Any], *, read_only: bool = False) -> "LibraryArray":
        """Return an array with these contents, which the library is still writing: the work is in its stream."""
        made = LibraryArray(self, contents.shape, contents.dtype, contents.nbytes, read_only)
        kept = contents.copy()
        self.enqueue(made.address, kept.nbytes, lambda memory: np.copyto(memory, kept.reshape(-1).view(np.uint8)))
        return made

    def enqueue(self, address: int, nbytes: int, act: Callable[[NDArray[np.uint8]], object]) -> None:
        """Enqueue work on this memory."""

        def work() -> None:
            memory = self.gpu.bytes_at(address, nbytes)
            if memory is not None:
                act(memory)

        with self.gpu.machine.changed:
            self.stream.put(work, takes_room=True)

    def take(self, x: Any, *, max_version: tuple[int, int] | None = (1, 0)) -> "Taken":
        """Take an array of dagpu by DLPack, for work in the library's stream."""
        if max_version is None:
            return Taken(self, x.__dlpack__(stream=self.stream.handle))
        return Taken(self, x.__dlpack__(stream=self.stream.handle, max_version=max_version))


@final
class LibraryArray:
    """An array of the library. It speaks DLPack; `interface` gives it the CUDA array interface instead."""

    def __init__(self, library: Library, shape: Shape, dtype: "np.dtype[Any]", nbytes: int, read_only: bool) -> None:
        self.library = library
        self.shape = shape
        self.dtype = dtype
        self.read_only = read_only
        with library.gpu.current():
            self.address = library.gpu.allocate(max(nbytes, 1))

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.library.gpu.index

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> Any:
        library = self.library
        with library.gpu.current():
            event = library.gpu.new_event()
            event.record(library.stream)
            library.gpu.foreign_stream(1 if stream is None else stream).wait_for_event(event)
        strides = strides_of(self.shape, self.dtype.itemsize)
        form = form_of(self.dtype, self.shape, strides)
        array = ArrayMemory(self.address, form, self.__dlpack_device__(), self.read_only, Owner(self))
        return make_capsule(array, versioned=max_version is not None)

    def interface(self, **changed: Any) -> "WithInterface":
        """Return the same array for consumers of the CUDA array interface."""
        return WithInterface(self, changed)


@final
class Owner:
    """The library's reference to memory that it has given out."""

    def __init__(self, array: LibraryArray) -> None:
        self._array = array

    def __del__(self) -> None:
        self._array.library.freed += 1


@final
class WithInterface:
    """An array of the library that speaks the CUDA array interface alone."""

    def __init__(self, array: LibraryArray, changed: dict[str, Any]) -> None:
        self._array = array
        self._changed = changed

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        array = self._array
        return {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.address, array.read_only),
            "version": 3,
            "stream": array.library.stream.handle,
            **self._changed,
        }


class TorchArray:
    """The same array as one of PyTorch: with the attributes of a tensor, and a `__dlpack__` that refuses gradients."""

    __module__ = "torch"

    def __init__(self, array: LibraryArray) -> None:
        self.array = array
        self.requires_grad = False
        self.is_cuda = True
        self.dtype = f"torch.{array.dtype}"
        self.shape = array.shape
        self.owner = Owner(array)

    def stride(self) -> Shape:
        return tuple(
            [stride // self.array.dtype.itemsize for stride in strides_of(self.shape, self.array.dtype.itemsize)]
        )

    def is_neg(self) -> bool:
        return False

    def is_conj(self) -> bool:
        return False

    def get_device(self) -> int:
        return self.array.library.gpu.index

    def data_ptr(self) -> int:
        return self.array.address

    def untyped_storage(self) -> object:
        return self.owner

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> Any:
        if self.requires_grad:
            raise BufferError("it requires grad")
        return self.array.__dlpack__(stream=stream, max_version=max_version)


class CuPyArray:
    """The same array as one of CuPy."""

    __module__ = "cupy"

    def __init__(self, array: LibraryArray) -> None:
        self.data = SimpleNamespace(ptr=array.address, device_id=array.library.gpu.index, owner=Owner(array))
        self.array = array
        self.dtype = array.dtype
        self.shape = array.shape
        self.strides = strides_of(array.shape, array.dtype.itemsize)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> Any:
        return self.array.__dlpack__(stream=stream, max_version=max_version)


@contextmanager
def imported_libraries(library: Library) -> Iterator[dict[str, Callable[[LibraryArray], Any]]]:
    """Within the `with` block, PyTorch and CuPy are imported: stand-ins that have the library's stream. The block gives
    what makes an array of each."""

    class Tensor(TorchArray):  # types of this block: what dagpu has found of a type it keeps
        __module__ = "torch"

    class ndarray(CuPyArray):  # noqa: N801  # CuPy's name
        __module__ = "cupy"

    handle = library.stream.handle
    torch = SimpleNamespace(Tensor=Tensor, _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda index: handle))
    cuda = SimpleNamespace(get_current_stream=lambda index: SimpleNamespace(ptr=handle))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=ndarray, cuda=cuda))
        yield {"PyTorch": Tensor, "CuPy": ndarray}


@final
class Taken:
    """An array that the library took from dagpu. Its work on it is in the library's stream."""

    def __init__(self, library: Library, capsule: object) -> None:
        found = read_capsule(capsule)
        assert found is not None
        self._library = library
        self.memory = found
        self._nbytes = found.form.nbytes

    def read_later(self) -> list[NDArray[Any]]:
        """Enqueue a read. The list has the contents once the library's stream has come to it."""
        seen: list[NDArray[Any]] = []
        layout = self.memory.form.layout  # the work in the stream keeps no memory alive
        self._library.enqueue(
            self.memory.address,
            self._nbytes,
            lambda raw: seen.append(raw.view(layout.dtype).reshape(layout.shape).copy()),
        )
        return seen

    def write_later(self, value: float) -> None:
        """Enqueue a write of this value to all elements."""
        dtype = self.memory.form.layout.dtype
        self._library.enqueue(self.memory.address, self._nbytes, lambda raw: raw.view(dtype).fill(value))


@contextmanager
def counted_exports() -> Iterator[Callable[[], int]]:
    """Within the `with` block, count the capsules that are made in it. The block gives a function that returns the
    number of those that consumers, or nobody yet, still hold."""
    alive: set[Reference[None]] = set()

    def counting(*given: Any, **named: Any) -> Any:
        view = array_at(*given, **named)
        alive.add(Reference(view, alive.discard))
        return view

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagpu.interop.capsules.array_at", counting)
        yield lambda: len(alive)
