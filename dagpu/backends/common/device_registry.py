"""The registry of a backend's devices, by number. The host and explore backends share it."""

from collections.abc import Callable
from typing import Generic, Literal, TypeVar, final

from dagpu.common.errors import NoDeviceError
from dagpu.handles.device_handles import Device, Driver

_D = TypeVar("_D", bound=Driver)


@final
class DeviceRegistry(Generic[_D]):
    """The devices of one kind, each with its driver. A device is created at its first use.

    Args:
        kind: kind of the devices.
        make: creates the driver of a device, given the device's number.
        refuse: raises NoDeviceError if no device has a given number.
    """

    __slots__ = ("_devices", "_kind", "_make", "_refuse")

    def __init__(
        self, kind: Literal["host", "explore"], make: Callable[[int], _D], refuse: Callable[[int], None]
    ) -> None:
        self._kind: Literal["host", "explore"] = kind
        self._make = make
        self._refuse = refuse
        self._devices: dict[int, tuple[Device, _D]] = {}

    def find(self, index: int) -> tuple[Device, _D]:
        """Return device number `index`, always the same object, and its driver.

        Raises:
            NoDeviceError: there is no such device.
        """
        found = self._devices.get(index)
        if found is None:
            self._refuse(index)
            driver = self._make(index)
            # setdefault is atomic: two threads that call at once get the same device.
            found = self._devices.setdefault(index, (Device(self._kind, index, driver), driver))
        return found

    def driver(self, name: str) -> _D:
        """Return the driver of a device, given the device's name in a plan.

        Raises:
            NoDeviceError: this backend has no device of that name.
        """
        kind, _, index = name.partition(":")
        if kind != self._kind or not index.isdecimal():
            raise NoDeviceError(
                f"a plan for the {self._kind} backend names device {name!r}. "
                f"Its devices are {self._kind}:0, {self._kind}:1, ..."
            )
        return self.find(int(index))[1]
