"""Arrays of another library on a simulated GPU, with its own memory and its own stream; a count of dagpu's capsules."""

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast, final

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu.backends.host.arrays import array_at
from dagpu.common.dtypes import Shape, strides_of
from dagpu.common.reference_queue import Reference
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

    def with_table(self) -> "WithTable":
        """Return the same array for consumers that read it by DLPack's C functions."""
        return WithTable(self)

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


@final
class WithTable:
    """An array of the library that is read by DLPack's C functions, which order nothing. As PyTorch's, it has an
    `__dlpack__` too, with checks that the C functions lack."""

    __dlpack_c_exchange_api__: ClassVar[object]
    current: ClassVar[list[Library]] = []
    """The library whose stream is current: the last one that gave out an array."""

    def __init__(self, array: LibraryArray) -> None:
        self.array = array
        self.requires_grad = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> Any:
        if self.requires_grad:
            raise BufferError("it requires grad")
        return self.array.__dlpack__(stream=stream, max_version=max_version)


def _from_object(x: Any, out: Any) -> int:
    WithTable.current[:] = [x.array.library]
    capsule = x.array.__dlpack__(stream=x.array.library.stream.handle, max_version=(1, 3))
    out[0] = _pointer_of(capsule, b"dltensor_versioned")
    _set_name(capsule, _USED)  # the structure is the reader's now: the capsule does not delete it
    return 0


def _current_stream(kind: int, index: int, out: Any) -> int:
    (library,) = WithTable.current
    assert (kind, index) == (CUDA, library.gpu.index)
    out[0] = library.stream.handle
    return 0


_OUT = ctypes.POINTER(ctypes.c_void_p)
_USED = ctypes.c_char_p(b"used_dltensor_versioned")
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
_FUNCTIONS = (
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, _OUT)(_from_object),
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, _OUT)(_current_stream),
)
_ADDRESSES = [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in _FUNCTIONS]
_NEW = ctypes.create_string_buffer(struct.pack("=IIQ5Q", 1, 3, 0, 0, _ADDRESSES[0], 0, 0, _ADDRESSES[1]))
_NEWEST = ctypes.create_string_buffer(struct.pack("=IIQ5Q", 2, 0, ctypes.addressof(_NEW), *[0] * 5))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_NAME = ctypes.c_char_p(b"dlpack_exchange_api")
WithTable.__dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_NEWEST), _NAME, None)


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
