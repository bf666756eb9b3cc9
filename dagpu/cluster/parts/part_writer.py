"""`PartWriter`: writes the program of one part, with copies of the versions that it changes and must not write."""

from collections.abc import Sequence
from typing import Final, final

import numpy as np

from dagpu.cluster.parts.part import Part
from dagpu.cluster.parts.program_versions import ProgramVersions
from dagpu.common.layout import contiguous_layout
from dagpu.lowering.program import HOST, Buffer, CopyDtoD, Instruction, Program, Role, View
from dagpu.lowering.renumbering import Renumbering
from dagpu.lowering.schedule.list_schedule import ListSchedule

LIGHT: Final = 0.1
"""The share of a part's time up to which an instruction goes into the part of what it needs, or of what needs it."""
_POLICIES: Final = (ListSchedule(),)
"""The policy by which each worker plans its parts."""
_BYTES: Final = np.dtype(np.uint8)


@final
class Draft:
    """A part before its program is written."""

    __slots__ = ("_room", "at", "seconds", "steps")

    def __init__(self, at: tuple[str, int, int], part_seconds: float) -> None:
        self.at = at
        """The worker, the epoch and the chunk."""
        self.steps: list[int] = []
        """Its instructions. Each is after those that make what it uses."""
        self.seconds = 0.0
        self._room = part_seconds
        """The seconds up to which instructions are added; once it is full, a tenth more than it has."""

    def add(self, index: int, seconds: float) -> None:
        """Add an instruction, which takes `seconds`."""
        full = self.seconds >= self._room
        self.steps.append(index)
        self.seconds += seconds
        if not full and self.seconds >= self._room:
            self._room = self.seconds * (1 + LIGHT)

    def has_room(self, seconds: float) -> bool:
        """Return whether an instruction fits in that takes `seconds`."""
        return self.seconds + seconds <= self._room


@final
class PartWriter:
    """Writes the program of one part."""

    def __init__(self, program: Program, versions: ProgramVersions, home: Sequence[int], wanted: set[int]) -> None:
        self._program = program
        self._versions = versions
        self._home = home
        self._wanted = wanted
        self._local: dict[tuple[int, int], int] = {}
        """For each version in the part and the device that it is on, its buffer in the part."""
        self._made: dict[int, int] = {}
        """For each version that the part makes, the buffer that it makes it in."""
        self._last_use: dict[int, int] = {}
        """For each version, the last instruction of the part that uses it."""
        self._buffers: list[Buffer] = []
        self._devices: dict[int, int] = {}
        self._instructions: list[Instruction] = []
        self._imports: list[tuple[int, int]] = []
        self._exports: list[tuple[int, int]] = []
        self._renumbering = Renumbering()

    def part(self, draft: Draft) -> Part:
        """Return the part of a draft."""
        for at, index in enumerate(draft.steps):
            for _, version in self._versions.uses[index]:
                self._last_use[version] = at
        for at, index in enumerate(draft.steps):
            self._write(at, index)
        for _, buffer in self._exports:
            old = self._buffers[buffer]
            if old.role is Role.TEMPORARY:
                self._buffers[buffer] = Buffer(old.nbytes, old.device, Role.OUTPUT)
        worker, epoch, chunk = draft.at
        names, maker = self._versions.names, self._versions.maker
        program = Program(
            tuple([self._program.devices[device].rpartition("/")[2] for device in self._devices]),
            tuple(self._buffers),
            tuple(self._instructions),
            _POLICIES,
            (0,) * len(self._instructions),
        )
        needs = {self._home[maker[version]] for version, _ in self._imports if maker[version] >= 0}
        return Part(
            worker,
            epoch,
            chunk,
            program,
            tuple([names[version] for version, _ in self._imports]),
            tuple([buffer for _, buffer in self._imports]),
            tuple([names[version] for version, _ in self._exports]),
            tuple([buffer for _, buffer in self._exports]),
            tuple(sorted(needs)),
            draft.seconds,
        )

    def _write(self, at: int, index: int) -> None:
        """Write instruction number `at` of the part, after the copies of what it changes and must not write."""
        old, versions = self._program.instructions[index], self._versions
        node = versions.node_of[old.device]
        numbers: dict[int, int] = {}
        for buffer, version in versions.uses[index]:
            numbers[buffer] = self._find(buffer, version, old, node)
        for buffer, before, after in versions.makes[index]:
            device = self._program.buffers[buffer].device
            here = numbers.get(buffer, -1) if before >= 0 else -1
            kept = here >= 0 and (before in self._wanted or self._last_use[before] > at)
            shares = device == HOST and here >= 0  # it stands for the variables of a module, and has no bytes
            if not shares and (here < 0 or kept or self._buffers[here].role is Role.INPUT):
                role = Role.OUTPUT if device == HOST else Role.TEMPORARY
                there = self._new_buffer(buffer, device, role)
                if here >= 0:
                    self._copy(here, there, old)
                here = there
            numbers[buffer] = self._local[after, device] = self._made[after] = here
            if after in self._wanted:
                self._exports.append((after, here))
        self._instructions.append(self._renumbering.instruction(old, numbers, self._device(old.device)))

    def _find(self, buffer: int, version: int, why: Instruction, node: str) -> int:
        """Return the buffer of the part with a version that an instruction uses. A version of another worker is taken
        to the instruction's device."""
        home = self._program.buffers[buffer].device
        if home != HOST and self._versions.node_of[home] != node:
            home = why.device
        found = self._local.get((version, home))
        if found is None and version in self._made:  # it went to another worker and back, to another device
            found = self._local[version, home] = self._new_buffer(buffer, home, Role.TEMPORARY)
            self._copy(self._made[version], found, why)
        elif found is None:
            found = self._local[version, home] = self._new_buffer(buffer, home, Role.INPUT)
            self._imports.append((version, found))
        return found

    def _new_buffer(self, buffer: int, device: int, role: Role) -> int:
        number = HOST if device == HOST else self._device(device)
        self._buffers.append(Buffer(self._program.buffers[buffer].nbytes, number, role))
        return len(self._buffers) - 1

    def _device(self, device: int) -> int:
        """Return the number of a device in the part."""
        return self._devices.setdefault(device, len(self._devices))

    def _copy(self, source: int, into: int, why: Instruction) -> None:
        """Copy a version that outlives the part, or was taken, before it is changed."""
        buffer = self._buffers[into]
        whole = contiguous_layout((buffer.nbytes,), _BYTES)
        views = View(into, whole), View(source, whole)
        self._instructions.append(CopyDtoD(*views, (source,), (into,), buffer.device, why.origin))
