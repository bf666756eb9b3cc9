"""A script: the actions of a plan's runs, in the order in which they are submitted.

One run at a time submits a script: its kernel parameters are written for that run, and its events mean what that run
has recorded. A run that begins meanwhile gets a copy.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from dagpu.backends.cuda.commands.relocation import BaseOffset, LaunchParameters
from dagpu.backends.cuda.driver.driver_protocol import LAUNCH, KernelLaunch, Launches, RawEvent
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.lowering.program import Instruction


class Reporting(Protocol):
    """A command that can fail after it was submitted: its errors are known when the run is over."""

    @property
    def instruction(self) -> Instruction: ...

    def violations(self) -> Iterator[BaseException]:
        """The errors of this run. They are forgotten here."""
        ...


class RunBuffers(Protocol):
    """The part of a run that its commands act on: its buffers, and what must live until the run is over."""

    @property
    def bound(self) -> list[object]:
        """For each buffer of the plan its block, for each cell its value."""
        ...

    @property
    def bases(self) -> Sequence[int]:
        """The addresses from which the plan's addresses are counted."""
        ...

    @property
    def kept(self) -> list[object]:
        """Objects that live until the run is over."""
        ...

    @property
    def launched(self) -> list[Reporting]:
        """Commands that are asked for their errors when the run is over."""
        ...

    def address(self, place: BaseOffset) -> int:
        """The address of a place in this run."""
        ...


Do: TypeAlias = Callable[[RunBuffers, CudaDevice, Any], None]
"""A command: acts on a run's buffers, on a device, in a stream."""


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


class Command(NamedTuple):
    """One thing to do, in `lane`. What the operands are is said by `kind`."""

    kind: Kind
    lane: int
    instruction: Instruction | None = None
    a: Any = None
    """LAUNCH: its number among the launches. RECORD, WAIT: the event's number. DO, HOST: a `Do`. MARK: how many
    instructions. SWITCH: the device's number."""


@final
@dataclass(frozen=True, slots=True)
class Encoded:
    """What came of a plan's steps."""

    actions: Sequence[Command]
    """All, in the order in which they are submitted."""
    launches: Sequence[tuple[KernelLaunch, int]]
    """Those of the actions that launch, by number, each with its lane."""
    parameters: LaunchParameters
    """Of these launches."""
    puts: Sequence[int]
    """Instructions put into each lane after its last MARK."""
    device_of_event: Sequence[int]
    """The number of the device on which each of the plan's events is recorded."""


@final
@dataclass(slots=True, weakref_slot=True)
class CommandList:
    """The actions, with parameters, launches and events of their own."""

    written: Encoded
    parameters: LaunchParameters
    """What is in them when it is played is what it launches."""
    devices: Sequence[CudaDevice]
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

    def copy(self) -> "CommandList":
        """Another one, for a run that is submitted at the same time."""
        return CommandList(self.written, self.parameters.copy(), self.devices)


@final
class ScriptPool:
    """The scripts of one plan. Any thread may borrow one."""

    __slots__ = ("_first", "_idle", "written")

    def __init__(self, written: Encoded, devices: Sequence[CudaDevice]) -> None:
        self.written = written
        self._first = CommandList(written, written.parameters, devices)
        self._idle: deque[CommandList] = deque((self._first,))

    def borrow(self) -> CommandList:
        """A script for one submission. Give it back when everything has been submitted."""
        try:
            return self._idle.popleft()
        except IndexError:
            return self._first.copy()

    def give_back(self, script: CommandList) -> None:
        """Make it free for the next run."""
        self._idle.append(script)
