"""NVIDIA's mathematical libraries by address, through `nvmath.bindings`: imported by the first op that needs one.

The bindings release the GIL, and take addresses, a stream and a workspace as integers. nvmath-python calls them
experimental, so the extra `math` keeps below its next major version.
"""

import importlib
from typing import Any

from dagpu.common.errors import DeviceError, NoDeviceError

INSTALL = "pip install 'nvmath-python>=1.0,<2' 'nvidia-cublas>=13' 'nvidia-cufft>=12'"
"""The command that installs the libraries: the extra `math`."""


def import_bindings(module: str, library: str) -> Any:
    """Return module `nvmath.bindings.<module>`, which has no type annotations.

    Raises:
        NoDeviceError: it cannot be imported. The message names the library and the cure.
    """
    try:
        return importlib.import_module(f"nvmath.bindings.{module}")
    except ImportError as error:
        raise _missing(library, error) from None


def open_handle(bindings: Any, library: str) -> int:
    """Return a new handle of a library. The context must be current.

    Raises:
        NoDeviceError: the library itself is not installed, or cannot be loaded.
    """
    try:
        handle: int = bindings.create()
    except Exception as error:
        raise _missing(library, error) from None
    return handle


def library_error(call: str, error: Exception) -> DeviceError:
    """Return the error for a call that a library has refused."""
    return DeviceError(f"{call} failed: {error}. It is a defect in dagpu, or in the library.")


def _missing(library: str, error: Exception) -> NoDeviceError:
    return NoDeviceError(
        f"it needs {library}, which cannot be loaded ({error}). Install it: {INSTALL}. On the host it needs nothing: "
        'op.on("host").'
    )
