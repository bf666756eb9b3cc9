"""Arrays of libraries that have DLPack's table of C functions, read without a call of the library's Python.

The table is DLPackExchangeAPI of DLPack 1.3 (https://dmlc.github.io/dlpack/latest/c_api.html), an attribute of the
type: `__dlpack_c_exchange_api__`. Its functions order nothing: they name the stream in which the library works.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, final

from dagpu.interop.capsules import CUDA, LEGACY, MAJOR, ArrayMemory, read_versioned

_NAME: Final = b"dlpack_exchange_api"
_TABLE: Final = struct.Struct("=IIQQQQQQ")
"""DLPackExchangeAPI: major and minor version, the table of an earlier version, and the functions: allocate a tensor,
make a managed tensor of an object, make an object of one, describe an object, give the current stream."""

_FromObject: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
_CurrentStream: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
_pointer_of: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@final
class _Functions(NamedTuple):
    from_object: Callable[..., int]
    current_stream: Callable[..., int]


_functions: Final[dict[type, _Functions | None]] = {}
"""The functions of each type of array that has been seen; None for a type without a table that dagpu can read."""


def _find_functions(kind: type) -> _Functions | None:
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    try:
        address = _pointer_of(capsule, _NAME)
    except (TypeError, ValueError):
        return None
    while address:
        major, _, earlier, _, from_object, _, _, stream = _TABLE.unpack(ctypes.string_at(address, _TABLE.size))
        if major == MAJOR:
            return _Functions(_FromObject(from_object), _CurrentStream(stream))
        address = earlier
    return None


def read_by_table(x: Any) -> tuple[ArrayMemory, int | None] | None:
    """Return the memory of an array, and the CUstream in which its library works now; None for a stream on the host.

    Return None if the array's type has no table, or if the library's Python has to decide whether it can be exchanged.
    """
    kind = type(x)
    if kind not in _functions:
        _functions[kind] = _find_functions(kind)
    functions = _functions[kind]
    # The C functions of PyTorch leave out what its Python checks: gradients, and views that conjugate.
    if functions is None or getattr(x, "requires_grad", False):
        return None
    out = ctypes.c_void_p()
    try:
        if functions.from_object(x, ctypes.byref(out)) or not out.value:
            return None
        array = read_versioned(out.value)
        if array is None or array.form.layout.dtype.kind == "c":
            return None
        device = array.device
        if device[0] != CUDA:
            return array, None
        if functions.current_stream(*device, ctypes.byref(out)):
            return None
    except Exception:  # whatever the library raises, its `__dlpack__` raises again, with its own words
        return None
    return array, out.value or LEGACY  # C calls the default stream 0
