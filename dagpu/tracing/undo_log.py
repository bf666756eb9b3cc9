"""The state of a run while it is traced: the handles it has taken, and where new memory lies.

The undo log of a run: the handles that the run takes out of its op. They are put back if the run fails before its
first submission.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

from dagpu.common.containers import is_container
from dagpu.common.errors import NoDeviceError
from dagpu.common.places import Origin
from dagpu.common.wrong_arguments import add_call_place
from dagpu.handles import HANDLES, OWNING, Handle, Tensor, find_live_state, live_state, move_handle
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.handle_state import HandleState, restore_state, take_state
from dagpu.handles.tensors import handles_in, map_handles
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import On, Unzip
from dagpu.plans.placing import on_one_device, spreads
from dagpu.plans.policies import OnStream
from dagpu.tracing.program_builder import Loans
from dagpu.tracing.run_memo import take_published
from dagpu.tracing.traced_arguments import TracedArguments

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]


@final
class UndoLog:
    """The undo log of one run, traced or not."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[Handle, HandleState] | Callable[[], None]] | None = []
        """The entries in the order of the moves; None once nothing can be put back. The entry of a handle has the state
        that it had before."""

    def take_handle(self, handle: Handle, origin: Origin) -> Any:
        """Move an owning handle out of its op, and return the handle of the run.

        Raises:
            MovedError: it has been moved before. The note of that earlier move stays as it was.
        """
        undo = handle, live_state(handle)
        taken = move_handle(handle, TAKEN, origin)
        self.add(undo)
        return taken

    def take_leaves(self, leaves: list[Any], moves: Iterable[int], origin: Origin) -> None:
        """Move the handles at the indices `moves` out of their op, and put the handles of the run in their places. Take
        the component of an `Unzip` there.

        Raises:
            MovedError: one of them has been moved or taken before.
        """
        entries = self._entries
        assert entries is not None
        for index in moves:
            handle = leaves[index]
            if type(handle) is Tensor:
                state = take_state(handle, TAKEN, origin)
                entries.append((handle, state))
                leaves[index] = Tensor(state)
            elif type(handle) is Unzip:
                take_published(handle, handle.once.remembered()[0], self.add)
            else:
                leaves[index] = self.take_handle(handle, origin)

    def add(self, undo: tuple[Handle, HandleState] | Callable[[], None]) -> None:
        """Add an entry that puts back a handle or component that was taken."""
        if self._entries is not None:
            self._entries.append(undo)

    def discard(self) -> None:
        """Discard the log: from now on nothing can be put back."""
        self._entries = None

    def taken(self) -> list[tuple[Handle, HandleState]]:
        """Return the handles that were taken, each with its state before."""
        return [entry for entry in self._entries or () if isinstance(entry, tuple)]

    def put_back(self) -> None:
        """Put back everything that was taken, because the run failed or was cancelled. After `discard`, and when
        called again, this does nothing."""
        entries, self._entries = self._entries, None
        for undo in reversed(entries or ()):
            if isinstance(undo, tuple):
                handle, state = undo
                restore_state(handle, state)
            else:
                undo()


TAKEN: Final = "a run of the op that owned it, started"
"""The cause of the moves, for the messages of later errors."""


@final
@dataclass(slots=True, eq=False)
class HandleTaker:
    """Takes the handles of one traced run out of its op. It also records in `leaves` which handles a later run of the
    op needs."""

    _leaves: TracedArguments
    _loans: Loans
    _origin: Origin
    undo_log: UndoLog = field(default_factory=UndoLog)

    def own(self, value: Any) -> None:
        """Let the run own what a run of a part of it has made."""
        for handle in handles_in(value):
            state = find_live_state(handle)
            if state is not None and state.kind is Tensor:
                self._loans.owned.add(state.storage)

    def take_handles(self, value: Any, node: AnyOp) -> Any:
        """Move handles out of the op that owns them, so that the next run of the op finds them moved. `node` is the op
        that holds them.

        Raises:
            MovedError: they have been moved before.
        """
        if is_container(value):
            return map_handles(lambda handle: self.take_handles(handle, node), value)
        if type(value) not in HANDLES:
            return value
        inputs = self._leaves.inputs
        # Closures may build other ops around the same handles.
        leaf = None if inputs is None or node not in inputs.nodes else self._leaves.index_of(value)
        state = live_state(value)
        made = self._loans.made_by_run(state.storage)
        if type(value) in OWNING:
            if leaf is None and (inputs is None or not (made or self._leaves.is_derived(value))):
                self._leaves.forbid_reuse()
            if made:  # a reference from the log would make its memory an output
                return move_handle(value, TAKEN, self._origin)
            value = self.undo_log.take_handle(value, self._origin)
            if state.kind is Tensor:
                self._loans.owned.add(state.storage)
        elif leaf is None and not made:
            self._leaves.record_handle(value)
        return value if leaf is None else self._leaves.standin_of_handle(value, leaf)


# ---- placements
#
# The placement at one point of a trace: the device for new memory, and the policy that places instructions.

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
