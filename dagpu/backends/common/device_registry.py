"""The devices of a backend by number: each is made when it is first asked for. Shared by the host's backends."""

from collections.abc import Callable
from typing import Generic, Literal, TypeVar, final

from dagpu.common.errors import NoDeviceError
from dagpu.handles.device_handles import Device, Driver

_D = TypeVar("_D", bound=Driver)


@final
class DeviceRegistry(Generic[_D]):
    """Devices of one kind, each with its driver.

    Args:
        kind: of the devices.
        make: makes the driver of the device of a number.
        refuse: raises NoDeviceError for a number that no device has.
    """

    __slots__ = ("_devices", "_kind", "_make", "_refuse")

    def __init__(
        self, kind: Literal["host", "explore"], make: Callable[[int], _D], refuse: Callable[[int], None]
    ) -> None:
        self._kind = kind
        self._make = make
        self._refuse = refuse
        self._devices: dict[int, tuple[Device, _D]] = {}

    def find(self, index: int) -> tuple[Device, _D]:
        """Device number `index`, always the same object, and its driver.

        Raises:
            NoDeviceError: there is none.
        """
        found = self._devices.get(index)
        if found is None:
            self._refuse(index)
            driver = self._make(index)
            # setdefault is atomic: of two threads that ask at once, both get the same device.
            found = self._devices.setdefault(index, (Device(self._kind, index, driver), driver))
        return found

    def driver(self, name: str) -> _D:
        """The driver of a device, by the name that a plan gives the device.

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
