"""NVIDIA's mathematical libraries: their bindings, and what they have made for calls of one shape.

With some plans a library frees memory of the device, for which it may wait for the device. So a thread that drops the
last reference to a plan does not free it: the next thread that makes a plan for the device does.
"""

import importlib
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar, final

from dagpu.common.errors import DeviceError, NoDeviceError


class LibraryPlan(Protocol):
    """What a library has made for calls of one shape."""

    @property
    def release(self) -> Callable[[], object]:
        """Frees it. The function does not refer to the plan."""
        ...


_P = TypeVar("_P", bound=LibraryPlan)


@final
class KeptPlans(Generic[_P]):
    """For each device the plans that were used last, up to `most` of them.

    Any thread may ask for a plan. One that is no longer kept lives as long as a prepared run refers to it, and is freed
    by a later call of `find` for its device.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._kept: dict[int, OrderedDict[Hashable, _P]] = {}
        self._dropped: dict[int, deque[Callable[[], object]]] = {}

    def get(self, device: int, key: Hashable) -> _P | None:
        """Return a plan that is kept, or None. It waits for no other thread that makes one."""
        with self._lock:
            kept = self._kept.setdefault(device, OrderedDict())
            found = kept.get(key)
            if found is not None:
                kept.move_to_end(key)
            return found

    def find(self, device: int, key: Hashable, make: Callable[[], _P]) -> _P:
        """Return the plan of a key, or make it. The context of the device must be current.

        Raises:
            whatever `make` raises; then nothing is kept.
        """
        found = self.get(device, key)
        if found is not None:
            return found
        with self._making:
            found = self.get(device, key)
            if found is None:
                self._free_dropped(device)
                found = make()
                self._keep(device, key, found)
                self._free_dropped(device)
            return found

    def _keep(self, device: int, key: Hashable, plan: _P) -> None:
        with self._lock:
            dropped = self._dropped.setdefault(device, deque())
            # The end of the process frees everything, when the library may be gone.
            weakref.finalize(plan, dropped.append, plan.release).atexit = False
            kept = self._kept[device]
            kept[key] = plan
            oldest = kept.popitem(last=False) if len(kept) > self._most else None
        del oldest  # outside of the lock: it may be the last reference

    def _free_dropped(self, device: int) -> None:
        """Free the plans of a device that nothing refers to. Its context is current."""
        dropped = self._dropped.get(device)
        while dropped:
            with suppress(Exception):  # of a device that is lost, the library frees nothing
                dropped.popleft()()


# ---- nvmath bindings
#
# NVIDIA's mathematical libraries by address, through `nvmath.bindings`: imported by the first op that needs one.
#
# The bindings release the GIL, and take addresses, a stream and a workspace as integers. nvmath-python calls them
# experimental, so the extra `math` keeps below its next major version.

INSTALL = "pip install 'nvmath-python>=1.0,<2' 'nvidia-cublas>=13' 'nvidia-cufft>=12' 'nvidia-cusolver>=12'"
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
