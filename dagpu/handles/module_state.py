"""The variables of a kernel's module, which all its launches on a device share.

A launch writes them as it writes an output, so the launches of a plan follow each other; and a run locks them, so no
other run launches the kernel meanwhile.
"""

from typing import Final, final
from weakref import WeakValueDictionary

from dagpu.handles.device_handles import Device
from dagpu.handles.storage import Storage


@final
class ModuleState:
    """The variables of the module of one kernel, on any device. `title` names them for messages."""

    __slots__ = ("__weakref__", "_storages", "title")

    def __init__(self, title: str) -> None:
        self.title = title
        self._storages: dict[Device, Storage] = {}

    def on(self, device: Device) -> Storage:
        """Return what a run locks for the variables on a device. It has no memory of dagpu's."""
        found = self._storages.get(device)
        return self._storages.setdefault(device, Storage(device, 0, shares=self.title)) if found is None else found


_STATES: Final[WeakValueDictionary[tuple[object, ...], ModuleState]] = WeakValueDictionary()


def module_state(title: str, *module: object) -> ModuleState:
    """Return the variables of a module, which is known by its text, its kernel and its options. Two declarations of one
    kernel have one module."""
    found = _STATES.get(module)
    if found is None:
        found = _STATES.setdefault(module, ModuleState(title))
    return found
