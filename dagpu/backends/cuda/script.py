"""A script: the actions of a plan's runs, in the order in which they are submitted.

One run at a time submits a script: its kernel parameters are written for that run, and its events mean what that run
has recorded. A run that begins meanwhile gets a copy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from dagpu.backends.cuda.driver import LAUNCH, KernelLaunch, Launches, RawEvent
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
    """LAUNCH: its number among the launches. RECORD, WAIT: the event's number. DO, HOST: a `Do`. MARK: how many
    instructions. SWITCH: the device's number."""


@final
@dataclass(frozen=True, slots=True)
class Written:
    """What came of a plan's steps."""

    actions: Sequence[Action]
    """All, in the order in which they are submitted."""
    launches: Sequence[tuple[KernelLaunch, int]]
    """Those of the actions that launch, by number, each with its lane."""
    parameters: Parameters
    """Of these launches."""
    puts: Sequence[int]
    """Instructions put into each lane after its last MARK."""
    device_of_event: Sequence[int]
    """The number of the device on which each of the plan's events is recorded."""


@final
@dataclass(slots=True, weakref_slot=True)
class Script:
    """The actions, with parameters, launches and events of their own."""

    written: Written
    parameters: Parameters
    """What is in them when it is played is what it launches."""
    devices: "Sequence[CudaDevice]"
    launches: Launches = field(init=False)
    """To be aimed at the run's streams before it is played."""
    events: list[RawEvent] = field(init=False)
    """A wait means the record before it, whatever is recorded later."""

    def __post_init__(self) -> None:
        launches = self.written.launches
        if self.parameters is not self.written.parameters:
            texts = self.parameters.texts
            launches = [
                (launch._replace(parameters=text), lane) for (launch, lane), text in zip(launches, texts, strict=True)
            ]
        self.launches = self.devices[0].gpu.prepare_launches(launches)
        self.events = []
        for number in self.written.device_of_event:
            device = self.devices[number]
            event = device.new_event()
            self.events.append(event)
            device.streams.abandoned.watch(self, (event,))

    def launch(self, number: int) -> None:
        """Make a launch. Its device's context is current.

        Raises:
            DeviceError: the driver refuses it.
        """
        if code := self.launches.each[number]():
            raise self.devices[0].gpu.refused(LAUNCH, code)

    def copy(self) -> "Script":
        """Another one, for a run that is submitted at the same time."""
        return Script(self.written, self.parameters.copy(), self.devices)
