"""The placement at one point of a trace: the device for new memory, and the policy that places instructions."""

from collections.abc import Callable, Hashable
from typing import Any, TypeAlias, final

from dagpu.common.errors import NoDeviceError
from dagpu.common.wrong_arguments import add_call_place
from dagpu.handles.device_handles import Device, Stream
from dagpu.lowering.schedule.policies import OnStream
from dagpu.lowering.schedule.spread import on_one_device, spreads
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import On

Placement: TypeAlias = tuple[Device, int, bool]
"""The device for new memory, the index of the policy, and whether the user named the device or a mesh."""


@final
class Placements:
    """The policies of a program, and the placement at the current point of the trace. The innermost `On` wins.

    With `one_device`, policies that spread work over a mesh choose streams alone.
    """

    __slots__ = ("_around", "_find", "_one_device", "current", "indices", "policies", "spread")

    def __init__(self, device: Device, policy: Any, find: Callable[[str], Device], *, one_device: bool = False) -> None:
        self._find = find
        self._one_device = one_device
        self.spread = {0} if spreads(policy) else set[int]()
        """The indices of the policies over a mesh, also of those that choose streams alone."""
        policy = on_one_device(policy) if one_device else policy
        self.policies: list[Any] = [policy]
        self.indices: dict[Hashable, int] = {id(policy): 0}
        """The index of each policy in `policies`, by its key."""
        self.current: Placement = (policy.mesh.automatic, 0, True) if spreads(policy) else (device, 0, False)
        self._around: dict[Placement, tuple[On[Any], ...]] = {self.current: ()}
        """The ops that lead to each placement, the outermost first."""

    def share_policies(self, other: "Placements") -> None:
        """Use the policies and indices of another trace of the same program."""
        self.policies, self.indices, self.spread = other.policies, other.indices, other.spread

    def over_mesh(self, policy: int) -> bool:
        """Return whether a mesh is in use for what the policy of this index places, or for the whole op."""
        return 0 in self.spread or policy in self.spread

    def enter(self, node: On[Any]) -> None:
        """Make the placement within an `On` the current one."""
        around = self._around[self.current]
        self.current = self._placement_inside(node)
        self._around.setdefault(self.current, (*around, node))

    def placed(self, op: DeviceOp[Any, Any, Any], place: Placement) -> DeviceOp[Any, Any, Any]:
        """Return an op as it is at a placement of this trace, for a run of its own."""
        for node in reversed(self._around[place]):
            op = On(op, node.place, node.origin)
        return op

    def _placement_inside(self, node: On[Any]) -> Placement:
        device, policy, chosen = self.current
        place = node.place
        if isinstance(place, Device):
            return place, policy, True
        if isinstance(place, str):
            try:
                return self._find(place), policy, True
            except NoDeviceError as error:
                raise add_call_place(f"on({place!r})", node.origin, error) from None
        if isinstance(place, Stream):
            return place.device, self.policy_of_stream(place), True
        key, over_mesh = id(place), spreads(place)
        place = on_one_device(place) if self._one_device else place
        index = self._policy_index(place, key)
        if over_mesh:
            self.spread.add(index)
        return (place.mesh.automatic, index, True) if spreads(place) else (device, index, chosen)

    def policy_of_stream(self, stream: Stream) -> int:
        """Return the index of the policy that puts all instructions on one stream."""
        name = stream.device.name
        return self._policy_index(OnStream(name, stream.lane), (name, stream.lane))

    def _policy_index(self, policy: Any, key: Hashable) -> int:
        """Return the index of a policy in the program; add the policy if it is new. Policies need no hash: their key is
        the identity, and `policies` keeps them alive."""
        number = self.indices.get(key)
        if number is None:
            number = self.indices[key] = len(self.policies)
            self.policies.append(policy)
        return number
