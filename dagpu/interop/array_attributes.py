"""Arrays read by their attributes, which takes a third of the time of DLPack: those of NumPy, and those of PyTorch and
CuPy on a GPU.

Of the latter, DLPack is asked for the first array of each form: element type, shape and strides, in the library's own
terms. What it says, and what the attributes say of the address, has to agree before the attributes are read in its
place. The libraries are found by the types of their arrays; none is imported.
"""

import sys
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.layout import address_of
from dagpu.interop.capsules import CPU, CUDA, LEGACY, ArrayForm, ArrayMemory, form_of

MOST_FORMS: Final = 4096
"""The most forms of arrays that are remembered for one library."""


_HOST: Final = CPU, 0

_Seen: TypeAlias = tuple[Hashable, int, tuple[int, int], int, object]
"""The attributes of an array: its form; its address; its device as in DLPack; the CUstream in which the library works
there now, 0 for the default stream; an object that keeps the memory alive, whatever becomes of the array."""

_Look: TypeAlias = Callable[[Any], _Seen | None]
"""Returns the attributes of an array; None if the library's DLPack has to decide about it."""


def _torch_look(torch: Any) -> _Look:
    stream = torch._C._cuda_getCurrentRawStream  # noqa: SLF001  # the way of code that PyTorch compiles

    def look(x: Any) -> _Seen | None:
        if not x.is_cuda or x.requires_grad or x.is_neg() or x.is_conj():
            return None
        index = x.get_device()
        return (x.dtype, x.shape, x.stride()), x.data_ptr(), (CUDA, index), stream(index), x.untyped_storage()

    return look


def _cupy_look(cupy: Any) -> _Look:
    stream = cupy.cuda.get_current_stream

    def look(x: Any) -> _Seen | None:
        memory = x.data
        device = x.__dlpack_device__()  # other kinds of memory, such as managed memory, have the same attributes
        return (x.dtype, x.shape, x.strides, device[0]), memory.ptr, device, stream(device[1]).ptr, memory

    return look


_LIBRARIES: Final[dict[str, tuple[str, Callable[[Any], _Look]]]] = {
    "torch": ("Tensor", _torch_look),
    "cupy": ("ndarray", _cupy_look),
}
"""For each library the name of its type of arrays, and what makes the function that reads one."""


def _read_numpy(x: "np.ndarray[Any, Any]") -> tuple[ArrayMemory, None]:
    form = form_of(x.dtype, x.shape, x.strides)
    array: ArrayMemory = tuple.__new__(ArrayMemory, (address_of(x), form, _HOST, not x.flags.writeable, x))
    return array, None


def _read_numpy_subclass(x: "np.ndarray[Any, Any]") -> tuple[ArrayMemory, None]:
    return _read_numpy(x.view(np.ndarray))  # as NumPy's DLPack; a matrix, an array of a file


@final
class _Reader:
    """Reads the arrays of one type."""

    __slots__ = ("forms", "look")

    def __init__(self, look: _Look) -> None:
        self.look = look
        self.forms: dict[Hashable, ArrayForm] = {}

    def read(self, x: Any) -> tuple[ArrayMemory, int] | None:
        try:
            seen = self.look(x)
        except Exception:  # whatever the library raises, its `__dlpack__` raises again, with its own words
            return None
        if seen is None:
            return None
        attributes, address, device, stream, owner = seen
        form = self.forms.get(attributes)
        if form is None or not (address or not form.nbytes):  # a tensor without memory, as of PyTorch's transforms
            return None
        array: ArrayMemory = tuple.__new__(ArrayMemory, (address, form, device, False, owner))  # half of the time
        return array, stream or LEGACY

    def remember(self, x: Any, array: ArrayMemory) -> None:
        try:
            seen = self.look(x)
        except Exception:
            return
        if seen is not None and seen[1:3] == (array.address, array.device):
            if len(self.forms) >= MOST_FORMS:
                self.forms.clear()
            self.forms[seen[0]] = array.form


_libraries: Final[dict[type, _Reader]] = {}
"""The reader of each type of array that has one, but NumPy's."""

_Read: TypeAlias = Callable[[Any], tuple[ArrayMemory, int | None] | None]


@final
class _Readers(dict[type, _Read]):
    """The function that reads the arrays of a type."""

    def __missing__(self, kind: type) -> _Read:
        name = kind.__module__.partition(".")[0]
        read: _Read = _by_dlpack_alone
        if issubclass(kind, np.ndarray) and not issubclass(kind, np.ma.MaskedArray):
            read = _read_numpy_subclass
        elif name in _LIBRARIES:
            named, make = _LIBRARIES[name]
            module = sys.modules.get(name)
            if getattr(module, named, None) is kind:
                read = _libraries.setdefault(kind, _Reader(make(module))).read
        self[kind] = read
        return read


def _by_dlpack_alone(x: object) -> None:
    """Return None: arrays of this type are read by DLPack."""


readers: Final = _Readers({np.ndarray: _read_numpy})
"""For each type of array the function that returns the memory of one, and the CUstream in which its library works now,
None on the host. It returns None for an array that has to be read by DLPack."""


def remember_form(x: Any, array: ArrayMemory) -> None:
    """Remember the form of an array that DLPack has given, for other arrays like it."""
    reader = _libraries.get(type(x))
    if reader is not None and not array.read_only:
        reader.remember(x, array)
