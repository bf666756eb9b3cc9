"""`KeptPlans`: what a library has made for calls of one shape, kept for later calls and freed when nothing uses it.

With some plans a library frees memory of the device, for which it may wait for the device. So a thread that drops the
last reference to a plan does not free it: the next thread that makes a plan for the device does.
"""

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar, final


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
