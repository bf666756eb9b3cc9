"""The placement at one point of a trace: the device for new memory, and the policy that places instructions."""

from collections.abc import Callable, Hashable
from typing import Any, TypeAlias, final

from dagpu.common.errors import NoDeviceError
from dagpu.common.wrong_arguments import at_call
from dagpu.handles.device_handles import Device, Stream
from dagpu.lowering.schedule.policies import OnStream
from dagpu.ops.compose import On

Placement: TypeAlias = tuple[Device, int, bool]
"""Device for new memory, number of the policy, and whether the device was asked for by name."""


@final
class Placements:
    """The policies of a program, and the placement that holds now. The innermost `On` wins."""

    __slots__ = ("_find", "now", "numbers", "policies")

    def __init__(self, device: Device, policy: Any, find: Callable[[str], Device]) -> None:
        self._find = find
        self.policies: list[Any] = [policy]
        self.numbers: dict[Hashable, int] = {id(policy): 0}
        """The number of each policy, by its key."""
        self.now: Placement = (device, 0, False)

    def follow(self, other: "Placements") -> None:
        """Number policies as another trace of the same program has."""
        self.policies, self.numbers = other.policies, other.numbers

    def inside(self, node: On[Any]) -> Placement:
        """The placement within an `On`."""
        device, policy, chosen = self.now
        place = node.place
        if isinstance(place, Device):
            return place, policy, True
        if isinstance(place, str):
            try:
                return self._find(place), policy, True
            except NoDeviceError as error:
                raise at_call(f"on({place!r})", node.origin, error) from None
        if isinstance(place, Stream):
            return place.device, self.on_stream(place), True
        return device, self._number(place, id(place)), chosen

    def on_stream(self, stream: Stream) -> int:
        """The number of the policy that puts everything on one stream."""
        name = stream.device.name
        return self._number(OnStream(name, stream.lane), (name, stream.lane))

    def _number(self, policy: Any, key: Hashable) -> int:
        """The number of a policy in the program. By identity, which needs no hash; `policies` keeps it alive."""
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.policies)
            self.policies.append(policy)
        return number
