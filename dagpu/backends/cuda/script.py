"""A script: the actions of a plan's runs, in the order in which they are submitted.

One run at a time submits a script: its kernel parameters are written for that run, and its events mean what that run
has recorded. A run that begins meanwhile gets a copy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from dagpu.backends.cuda.driver import RawEvent
from dagpu.backends.cuda.parameters import Parameters
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
@dataclass(slots=True, weakref_slot=True)
class Script:
    """The actions, with parameters and events of their own."""

    actions: Sequence[Action]
    parameters: Parameters
    recorders: "Sequence[CudaDevice]"
    """The device on which each of the plan's events is recorded."""
    events: list[RawEvent] = field(init=False)
    """A wait means the record before it, whatever is recorded later."""

    def __post_init__(self) -> None:
        self.events = []
        for device in self.recorders:
            event = device.new_event()
            self.events.append(event)
            device.streams.abandoned.watch(self, (event,))

    def copy(self) -> "Script":
        """Another one, for a run that is submitted at the same time."""
        parameters = self.parameters.copy()
        texts = dict(zip(map(id, self.parameters.texts), parameters.texts, strict=True))
        actions = [
            action._replace(parameters=texts[id(action.parameters)]) if action.kind is Kind.LAUNCH else action
            for action in self.actions
        ]
        return Script(actions, parameters, self.recorders)
