"""A script: the actions of a plan's runs, and the kernel parameters in them, which are written for certain addresses.

Addresses are the only thing that changes from run to run. Each is counted from a *base*: the start of a device's arena,
of a buffer that has a block of its own, or of the run's bounds reports. A `Script` remembers the bases that its
parameters were written for, and writes anew only those whose base has moved: mostly none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import pack_into
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from dagpu.backends.cuda.driver import RawEvent
from dagpu.lowering.program import Instruction

if TYPE_CHECKING:
    from dagpu.backends.cuda.device import CudaDevice
    from dagpu.backends.cuda.run import CudaRun

Do: TypeAlias = "Callable[[CudaRun, Any], None]"
"""Does something in a run, on a stream."""


class Kind(IntEnum):
    """What an action is. They are told apart thousands of times for each run, hence numbers."""

    LAUNCH = 0
    RECORD = 1
    WAIT = 2
    DO = 3
    HOST = 4
    """As `DO`, but it may take long: a `HostCall`."""
    MARK = 5
    """The lane has got many instructions: see that its queue is not full."""
    SWITCH = 6
    """What follows is on another device."""


class Action(NamedTuple):
    """One thing to do, in `lane`. What the operands are is said by `kind`."""

    kind: Kind
    lane: int
    instruction: Instruction | None = None
    a: Any = None
    """LAUNCH: the function's `launch`. RECORD, WAIT: the event's number. DO, HOST: a `Do`. MARK: how many
    instructions. SWITCH: the device's number."""
    grid: Any = None
    block: Any = None
    parameters: Any = None
    shared: int = 0


@final
class Place(NamedTuple):
    """Where something lies: so many bytes from a base."""

    base: int
    offset: int


@final
@dataclass(slots=True)
class Script:
    """The actions, and the bases for which their parameters are written. One run at a time submits it."""

    actions: list[Action]
    patches: list[list[tuple[bytearray, int, int]]]
    """For each base: parameters, byte in them, distance from the base."""
    bases: list[int]
    recorders: "list[CudaDevice]"
    """The device on which each of the plan's events is recorded."""
    events: list[RawEvent] = field(init=False)
    """The script's own: a wait means the record before it, whatever is recorded later."""

    def __post_init__(self) -> None:
        self.events = [device.new_event() for device in self.recorders]

    def __del__(self) -> None:
        # The last run of it is over: runs refer to the plan, which has its scripts. A finaliser may append to a deque.
        for device, event in zip(self.recorders, getattr(self, "events", ()), strict=False):
            device.streams.give_back(event)

    def aim(self, bases: Sequence[int]) -> None:
        """Write the addresses for these bases."""
        mine = self.bases
        for number, base in enumerate(bases):
            if base != mine[number]:
                mine[number] = base
                for parameters, at, distance in self.patches[number]:
                    pack_into("<Q", parameters, at, base + distance)

    def copy(self) -> "Script":
        """Another one, for a run that is submitted at the same time. It aims at nothing yet: while it is made, another
        thread may be aiming this one."""
        copies = {
            id(action.parameters): bytearray(action.parameters)
            for action in self.actions
            if action.parameters is not None
        }
        actions = [
            action._replace(parameters=copies[id(action.parameters)]) if action.parameters is not None else action
            for action in self.actions
        ]
        patches = [[(copies[id(p)], at, distance) for p, at, distance in patch] for patch in self.patches]
        return Script(actions, patches, [-1] * len(self.bases), self.recorders)
