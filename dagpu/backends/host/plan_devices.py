"""What the names in a plan stand for: the devices of a backend, by number, and a stream for each lane."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, Literal, TypeVar, final

from dagpu.common.errors import NoDeviceError, PlanError
from dagpu.handles.device_handles import Device, Driver
from dagpu.plans.plan import Lane

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


_S = TypeVar("_S")


def streams_of_lanes(
    keys: Sequence[Hashable],
    device: str,
    own: Callable[[Hashable], _S | None],
    pooled: Callable[[int], Iterator[_S]],
) -> list[_S]:
    """Return a stream for each lane of a plan, given the lanes' keys.

    A lane whose key is a number belongs to this plan alone. It gets the least busy stream of the pool that the plan
    does not use yet, so that concurrent runs overlap. Any other key is a stream that the user has opened.

    Args:
        keys: one for each lane.
        device: name of the device, for the error.
        own: returns the stream of a key that is not a number, or None if the key is not a stream of this device.
        pooled: given a count, returns at least that many streams of the pool, the least busy one first.

    Raises:
        PlanError: a key is neither a number nor a stream of this device.
    """
    numbered = len([key for key in keys if isinstance(key, int)])
    free = pooled(numbered) if numbered else iter(())
    found = []
    for key in keys:
        if isinstance(key, int):
            found.append(next(free))
        elif (stream := own(key)) is not None:
            found.append(stream)
        else:
            raise PlanError(
                f"a lane on {device} has the key {key!r}, which is not a stream of that device. "
                "Use a number, or stream.lane of a stream = device.stream() of the same device."
            )
    return found


def streams_by_device(
    lanes: Sequence[Lane], devices: int, take: Callable[[int, Sequence[Hashable]], Sequence[_S]]
) -> list[_S]:
    """Return a stream for each lane of a plan on several devices, in the order of the lanes.

    Args:
        lanes: the lanes of the plan.
        devices: number of devices of the plan.
        take: given the number of a device and keys, returns a stream of that device for each key.
    """
    parts = [iter(take(number, [lane.key for lane in lanes if lane.device == number])) for number in range(devices)]
    return [next(parts[lane.device]) for lane in lanes]
