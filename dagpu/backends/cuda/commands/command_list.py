"""Command lists: the commands of a plan's runs, in the order in which they are submitted.

One run at a time submits a command list: its kernel parameters are written for that run, and its events refer to what
that run has recorded. A run that begins meanwhile gets a copy.
"""

import ctypes
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.driver.driver_protocol import LAUNCH, KernelLaunch, Launches, RawEvent
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.kernel_text.launch_params import letter_of
from dagpu.common.compiled import teach
from dagpu.common.places import describe
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.program import Instruction, Launch

# ---- the kernel parameters of a plan's launches, and their relocations: addresses, and numbers in cells, that change
# from
# run to run.
#
# Each address is counted from a *base*: the start of a device's arena, of a buffer with a block of its own, of the
# run's bounds reports, or of an array on its way to or from the host. `LaunchParameters` store the bases and numbers
# that they were written for. They are rewritten only where one has changed, which is rare.


NOWHERE: Final = -1
"""The base of parameters that have not been written yet. It differs from every address."""

MANY: Final = 16
"""The number of addresses from one base from which on NumPy writes them: its call takes as long as 16 single writes."""

_ALIGNMENT: Final = 16
"""Bytes: the parameters of each launch in a packed copy start at a multiple of this."""

Bytes: TypeAlias = bytearray | memoryview
"""Writable memory at a fixed address."""

_write_address: Final = Struct("<Q").pack_into
_NO_NUMBER: Final = object()


@final
class BaseOffset(NamedTuple):
    """A place in memory: a base, and the distance from it in bytes."""

    base: int
    offset: int


@final
@dataclass(slots=True)
class Relocations:
    """The places in a plan's launch parameters that change from run to run. All `LaunchParameters` of the plan share
    them.

    The *sources* of changes are the bases, followed by the cells with numbers.
    """

    addresses: list[list[tuple[int, int, int]]]
    """For each base: number of the launch, byte in its parameters, distance from the base."""
    numbers: dict[int, list[tuple[int, int, Callable[[Any], bytes]]]] = field(default_factory=dict)
    """For each cell: number of the launch, byte in its parameters, function that converts the cell's value to bytes."""

    def launches(self) -> list[set[int]]:
        """Return for each source the launches whose parameters depend on it."""
        found = [{launch for launch, _, _ in places} for places in self.addresses]
        return found + [{launch for launch, _, _ in places} for places in self.numbers.values()]


@final
class LaunchParameters:
    """The kernel parameters of all launches of a plan, written for certain bases and numbers."""

    __slots__ = ("_cells", "_columns", "_number_columns", "_words", "bases", "numbers", "relocations", "texts")

    def __init__(
        self, texts: Sequence[Bytes], relocations: Relocations, words: NDArray[np.int64] | None = None
    ) -> None:
        self._words = words
        """All of `texts` as one array, in which each starts at a multiple of `_ALIGNMENT` bytes; None if they are not
        packed."""
        self._columns: dict[int, tuple[NDArray[np.intp], NDArray[np.int64]] | None] = {}
        """For a base with many addresses their places in `_words`, and their distances from the base; None if one of
        them is not at a whole word."""
        self._number_columns: dict[int, tuple[NDArray[np.intp], NDArray[Any], Callable[[Any], bytes]] | None] = {}
        """For a cell with a number in many launches its places, counted in elements of the number's size; `_words` as
        such elements; and the conversion. None if the launches convert it in several ways, or one is not at a whole
        element."""
        self.relocations = relocations
        self.texts = texts
        """The packed parameters of each launch. Their addresses do not change."""
        self.bases = [NOWHERE] * len(relocations.addresses)
        self.numbers = [_NO_NUMBER] * len(relocations.numbers)
        self._cells = [(cell, index, places) for index, (cell, places) in enumerate(relocations.numbers.items())]
        """For each number its cell, its index in `numbers`, and its places."""

    def relocate(self, bases: Sequence[int], memory: Sequence[object]) -> list[int]:
        """Write the parameters for these bases, and for the numbers in the cells of this memory.

        Return the sources that have changed.
        """
        changed, mine, texts = [], self.bases, self.texts
        if bases != mine:
            addresses = self.relocations.addresses
            for source, base in enumerate(bases):
                if base != mine[source]:
                    changed.append(source)
                    places = addresses[source]
                    if self._words is None or len(places) < MANY or not self._write_column(source, base):
                        for launch, at, distance in places:
                            _write_address(texts[launch], at, base + distance)
                    mine[source] = base  # last: an interrupt must not leave a base that looks written and is not
        numbers = self.numbers
        for cell, index, relocations in self._cells:
            number = memory[cell]
            if number is not numbers[index]:  # not by value: 0.0 equals -0.0
                many = self._words is not None and len(relocations) >= MANY
                if not many or not self._write_number_column(cell, number):
                    before: object = None
                    text = b""
                    for launch, at, convert in relocations:
                        if convert is not before:  # the launches of one kernel share it
                            before, text = convert, convert(number)
                        texts[launch][at : at + len(text)] = text
                changed.append(len(mine) + index)
                numbers[index] = number
        return changed

    def places(self) -> list[tuple[int, list[tuple[int, int]], list[tuple[int, str]]]] | None:
        """Return for each source its cell, or -1 for a base; the addresses of memory that have an address which is
        counted from it, each with the distance; and those that have its number, each with the letter of the number's C
        type for struct. None if struct has no letter for one of them."""
        starts = [ctypes.addressof(ctypes.c_char.from_buffer(text)) if len(text) else 0 for text in self.texts]
        found: list[tuple[int, list[tuple[int, int]], list[tuple[int, str]]]] = [
            (-1, [(starts[launch] + at, distance) for launch, at, distance in places], [])
            for places in self.relocations.addresses
        ]
        for cell, of_number in self.relocations.numbers.items():
            letters = [(starts[launch] + at, letter_of(convert)) for launch, at, convert in of_number]
            known = [(at, letter) for at, letter in letters if letter is not None]
            if len(known) < len(letters):
                return None
            found.append((cell, [], known))
        return found

    def copy(self) -> "LaunchParameters":
        """Return a copy for a run that is submitted at the same time. The copy is not written for any base: another
        thread may be writing this object meanwhile."""
        starts = _starts(self.texts)
        words = np.zeros(max(starts.pop() // 8, 1), np.int64)
        memory = words.data.cast("B")
        texts = [memory[start : start + len(text)] for start, text in zip(starts, self.texts, strict=True)]
        for copied, text in zip(texts, self.texts, strict=True):
            copied[:] = text
        return LaunchParameters(texts, self.relocations, words)

    def _write_column(self, source: int, base: int) -> bool:
        """Write all addresses that are counted from a base by one assignment. Return False if that is not possible."""
        assert self._words is not None
        if source not in self._columns:
            starts, places = _starts(self.texts), self.relocations.addresses[source]
            whole = all(at % 8 == 0 for _, at, _ in places)
            self._columns[source] = (
                None
                if not whole
                else (
                    np.array([(starts[launch] + at) // 8 for launch, at, _ in places], np.intp),
                    np.array([distance for _, _, distance in places], np.int64),
                )
            )
        column = self._columns[source]
        if column is None:
            return False
        index, distances = column
        self._words[index] = distances + base
        return True

    def _write_number_column(self, cell: int, number: object) -> bool:
        """Write the number of a cell into all launches by one assignment. Return False if that is not possible."""
        assert self._words is not None
        if cell not in self._number_columns:
            starts, places = _starts(self.texts), self.relocations.numbers[cell]
            convert = places[0][2]
            size = len(convert(number))
            whole = size in (1, 2, 4, 8) and all(each is convert and at % size == 0 for _, at, each in places)
            self._number_columns[cell] = (
                None
                if not whole
                else (
                    np.array([(starts[launch] + at) // size for launch, at, _ in places], np.intp),
                    self._words.view(f"u{size}"),
                    convert,
                )
            )
        column = self._number_columns[cell]
        if column is None:
            return False
        index, elements, convert = column
        elements[index] = np.frombuffer(convert(number), elements.dtype)
        return True


teach(launch_parameters=LaunchParameters)


def _starts(texts: Sequence[Bytes]) -> list[int]:
    """Return the first byte of each text where they are packed, and the bytes of all."""
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + -(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return starts


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


# ---- instructions as the errors of a run name them: with the user's file and line -------------------------------


def describe_instruction(instruction: Instruction) -> str:
    """Return the text by which messages name an instruction."""
    name = f"kernel {instruction.kernel.name!r}" if isinstance(instruction, Launch) else type(instruction).__name__
    return f"{name} at {describe(instruction.origin)}"


_ASSERT: Final = re.compile(r"\b(?:assert|__assert_fail|__assertfail)\s*\(")


def has_assert(instruction: Instruction) -> bool:
    """Return True for the launch of a kernel whose text has an assert."""
    return isinstance(instruction, Launch) and _ASSERT.search(instruction.kernel.cuda) is not None


def instructions_of(plan: Plan) -> list[Instruction]:
    """Return all instructions of a plan, in the plan's order."""
    return [step.instruction for step in plan.steps if isinstance(step, Execute)]
