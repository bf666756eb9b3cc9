"""Command lists: the commands of a plan's runs, in the order in which they are submitted.

One run at a time submits a command list: its kernel parameters are written for that run, and its events refer to what
that run has recorded. A run that begins meanwhile gets a copy.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from dagpu.backends.cuda.commands.relocation import BaseOffset, LaunchParameters
from dagpu.backends.cuda.driver.driver_protocol import LAUNCH, KernelLaunch, Launches, RawEvent
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.plans.program import Instruction


class Reporting(Protocol):
    """A command that can fail after its submission. Its errors are known when the run is over."""

    @property
    def instruction(self) -> Instruction: ...

    def violations(self) -> Iterator[BaseException]:
        """Return the errors of this run, and reset them."""
        ...


class RunBuffers(Protocol):
    """The part of a run that its commands act on: its buffers, and the objects that must live until the run is over."""

    @property
    def bound(self) -> list[object]:
        """For each buffer of the plan its block, for each cell its value."""
        ...

    @property
    def bases(self) -> Sequence[int]:
        """The addresses from which the plan's addresses are counted."""
        ...

    @property
    def kept_alive(self) -> list[object]:
        """Objects that the run keeps alive until it is over."""
        ...

    @property
    def launched(self) -> list[Reporting]:
        """Commands whose errors are read when the run is over."""
        ...

    @property
    def may_wait(self) -> bool:
        """True if the submitting thread waits for the run anyway, and for nothing else."""
        ...

    def address(self, place: BaseOffset) -> int:
        """Return the address of a place in this run."""
        ...


Do: TypeAlias = Callable[[RunBuffers, CudaDevice, Any], None]
"""A function that acts on a run's buffers, on a device, in a stream."""


class Kind(IntEnum):
    """The kind of a command. Kinds are integers because each run compares thousands of them."""

    LAUNCH = 0
    RECORD = 1
    WAIT = 2
    DO = 3
    HOST = 4
    """As `DO`, but the command may take long: a `HostCall`."""
    MARK = 5
    """The lane has received many instructions: check that its queue is not full."""
    SWITCH = 6
    """The commands that follow are on another device."""


class Command(NamedTuple):
    """One command in `lane`. `kind` determines the meaning of `a`."""

    kind: Kind
    lane: int
    instruction: Instruction | None = None
    a: Any = None
    """LAUNCH: its number among the launches. RECORD, WAIT: the event's number. DO, HOST: a `Do`. MARK: the number of
    instructions. SWITCH: the device's number."""


@final
@dataclass(frozen=True, slots=True)
class Encoded:
    """The commands, launches and parameters that encode a plan's steps."""

    actions: Sequence[Command]
    """All commands, in the order in which they are submitted."""
    launches: Sequence[tuple[KernelLaunch, int]]
    """The kernel launches by number, each with its lane."""
    parameters: LaunchParameters
    """The parameters of these launches."""
    unmarked: Sequence[int]
    """For each lane the number of instructions after its last MARK."""
    device_of_event: Sequence[int]
    """The number of the device on which each of the plan's events is recorded."""


@final
@dataclass(slots=True, weakref_slot=True)
class CommandList:
    """A plan's commands, with parameters, launches and events of their own. One run at a time submits them."""

    encoded: Encoded
    parameters: LaunchParameters
    """The parameters of the launches. A launch reads them when it is submitted."""
    devices: Sequence[CudaDevice]
    launches: Launches = field(init=False)
    """The prepared launches. They are aimed at a run's streams before they are submitted."""
    events: list[RawEvent] = field(init=False)
    """The plan's events. A wait refers to the record before it, even if the event is recorded again later."""

    def __post_init__(self) -> None:
        launches = self.encoded.launches
        if self.parameters is not self.encoded.parameters:
            texts = self.parameters.texts
            launches = [
                (launch._replace(parameters=text), lane) for (launch, lane), text in zip(launches, texts, strict=True)
            ]
        self.launches = self.devices[0].gpu.prepare_launches(launches)
        self.events = []
        for number in self.encoded.device_of_event:
            device = self.devices[number]
            event = device.new_event()
            self.events.append(event)
            device.streams.abandoned.watch(self, (event,))

    def launch(self, number: int) -> None:
        """Submit the launch of this number. The context of its device must be current.

        Raises:
            DeviceError: the driver refuses it.
        """
        if code := self.launches.each[number]():
            raise self.devices[0].gpu.refused(LAUNCH, code)

    def copy(self) -> "CommandList":
        """Return a copy with its own parameters and events, for a run that is submitted at the same time."""
        return CommandList(self.encoded, self.parameters.copy(), self.devices)


@final
class CommandListPool:
    """The command lists of one plan. Any thread may borrow one."""

    __slots__ = ("_first", "_idle", "encoded")

    def __init__(self, encoded: Encoded, devices: Sequence[CudaDevice]) -> None:
        self.encoded = encoded
        self._first = CommandList(encoded, encoded.parameters, devices)
        self._idle: deque[CommandList] = deque((self._first,))

    def borrow(self) -> CommandList:
        """Return a command list for one submission. Give it back when all its commands are submitted."""
        try:
            return self._idle.popleft()
        except IndexError:
            return self._first.copy()

    def give_back(self, command_list: CommandList) -> None:
        """Return a borrowed command list to the pool."""
        self._idle.append(command_list)
