"""Tokens of plain values, which are equal exactly where no program can distinguish the values."""

import sys
from collections.abc import Hashable
from functools import lru_cache
from struct import Struct
from types import ModuleType
from typing import Any, Final

import numpy as np

from dagpu.common.layout import COMPLEX, SUPPORTED
from dagpu.handles.device_handles import Device

PLAIN: Final = frozenset(
    {bool, int, float, complex, str, bytes, type(None)} | {np.dtype(element).type for element in SUPPORTED | COMPLEX}
)
"""The types of immutable values that refer to no other objects."""

COMPARABLE: Final = frozenset((bool, int, str, bytes, type(None)))
"""The types among these of which no program can distinguish equal values of one type. The float 0.0 equals -0.0."""

_NAMED: Final = (Device, np.dtype)
"""The classes of objects that are in a key by their identity."""

_FIXED_TYPE: Final = 1 << 8
"""The flag of a class whose attributes cannot be set (`Py_TPFLAGS_IMMUTABLETYPE`)."""

_INT: Final = frozenset((int,))

DEEPEST: Final = 20
"""The depth to which nested tuples, lists and dicts are inspected."""

_bits: Final = Struct("d").pack
"""Packs a float into its bytes. `float.hex` would call each NaN 'nan'."""


def is_fixed(value: Any, depth: int = 0) -> bool:
    """Return true for a value that cannot be changed in place, as far as it is inspected."""
    if is_tuple(value):
        return depth < DEEPEST and all(is_fixed(item, depth + 1) for item in value)
    return type(value) in PLAIN


def is_named(value: object) -> bool:
    """Return true for a value that is in a key by its identity: it never changes. A class of the program is none, since
    its attributes may be set."""
    return isinstance(value, _NAMED) or (isinstance(value, type) and is_foreign(value))


def is_foreign(owner: "type[Any] | ModuleType") -> bool:
    """Return true for a class or a module of Python, of dagpu or of an installed package, to which a program does
    nothing."""
    if isinstance(owner, type):
        return bool(owner.__flags__ & _FIXED_TYPE) or _is_installed(owner.__module__)
    return _is_installed(owner.__name__)


@lru_cache(maxsize=1024)
def _is_installed(module: str) -> bool:
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names or root in ("dagpu", "numpy"):
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def is_tuple(value: Any) -> bool:
    """Return true for a plain tuple, and for a named tuple that has no attributes except its fields."""
    return type(value) is tuple or (
        isinstance(value, tuple) and hasattr(value, "_fields") and not _has_attributes(value)
    )


def _has_attributes(value: object) -> bool:
    """Return true for an object that has attributes in a `__dict__`."""
    return bool(getattr(value, "__dict__", None))


def exact_token(value: Any) -> Hashable:
    """Return the token of a plain value. Equal tokens mean the same type and bits: 0.0 and -0.0 differ, True and 1
    differ, and two NaNs are equal only with the same sign and payload."""
    kind = type(value)
    if kind is float:
        return float, _bits(value)
    if kind is complex:
        return complex, _bits(value.real), _bits(value.imag)
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    return kind, value


def field_token(value: Any) -> Hashable:
    """Return the token of a plain value, or of a tuple of plain values; None for any other value. Equal tokens mean the
    same types and bits."""
    if type(value) in PLAIN:
        return exact_token(value)
    if type(value) is not tuple or not PLAIN.issuperset(map(type, value)):
        return None
    return value if _INT.issuperset(map(type, value)) else tuple(map(exact_token, value))
