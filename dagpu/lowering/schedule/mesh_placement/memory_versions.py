"""The versions of a program's device memory.

What crosses from device to device is a *version*: the contents of a buffer between two writes. A *replica* is a copy of
a version on another device, and is never written.
"""

from collections.abc import Sequence
from typing import final

from dagpu.common.errors import PlanError
from dagpu.common.origin import describe
from dagpu.handles.device_handles import is_automatic
from dagpu.lowering.program import (
    HOST,
    CopyDtoD,
    CopyHtoD,
    Fill,
    GraphLaunch,
    Instruction,
    Launch,
    Program,
    Role,
    label,
    reads_peers,
)
from dagpu.lowering.schedule.mesh import Mesh


@final
class Versions:
    """The versions of a program's device memory, and the places that may run its instructions.

    A *place* is the number of a device: those of the mesh come first, in its order, then the program's other devices.
    """

    def __init__(self, program: Program, mesh: Mesh) -> None:
        names = [device.name for device in mesh.devices]
        self.free = len(names)
        """The number of places that an instruction without a device may run on: 0 to `free - 1`."""
        self.places: list[str] = list(dict.fromkeys([*names, *[n for n in program.devices if not is_automatic(n)]]))
        """The name of the device of each place."""
        number = {name: place for place, name in enumerate(self.places)}
        self.place_of = [number.get(name, -1) for name in program.devices]
        """For each device of the program, its place; -1 for an automatic device."""
        self.home = [-1 if buffer.device == HOST else self.place_of[buffer.device] for buffer in program.buffers]
        """For each buffer, the place of its device; -1 for a cell, and for memory without a device."""
        self.buffer: list[int] = []
        """For each version, its buffer."""
        self.nbytes: list[int] = []
        self.start: list[int] = []
        """For each version, the place that has it before the program starts; -1 if an instruction makes it."""
        self.maker: list[int] = []
        """For each version, the instruction that makes it; -1 if it exists before."""
        self.uses: list[list[int]] = []
        """For each instruction, the versions that it reads, and those that it changes."""
        self.makes: list[list[int]] = []
        """For each instruction, the versions that it makes."""
        self.fixed: list[int] = []
        """For each instruction, the place where it has to run; -1 if any place of the mesh will do."""
        self.in_place: set[int] = set()
        """The launches of captured graphs, which use their memory where it is."""
        self.numbers_of: dict[int, list[int]] = {}
        """For an instruction that reads numbers of the host, the instructions that make them."""
        self.anywhere: list[bool] = []
        """For each instruction, whether it reads what it uses on other devices too, as copies do."""
        self._program = program
        self._scan()
        self._find_numbers()

    def _scan(self) -> None:
        """Fill in the versions and the tables of instructions."""
        program, home, place_of = self._program, self.home, self.place_of
        on_device = [buffer.device != HOST for buffer in program.buffers]
        newest = [-1] * len(home)
        for number, buffer in enumerate(program.buffers):
            if buffer.role is Role.INPUT and on_device[number]:
                newest[number] = self._new(number, home[number], -1)
        for index, instruction in enumerate(program.instructions):
            uses: list[int] = []
            for read in instruction.reads:
                version = newest[read]
                if version >= 0 and version not in uses:
                    uses.append(version)
            makes: list[int] = []
            fixed, changes, stays = place_of[instruction.device], False, True
            is_graph = type(instruction) is GraphLaunch
            if is_graph:
                self.in_place.add(index)
            for written in instruction.writes:
                if not on_device[written]:
                    continue
                version, at = newest[written], home[written]
                if version >= 0 and not _covers(instruction, program):
                    changes = True
                    if version not in uses:
                        uses.append(version)
                if at < 0:
                    stays = False
                elif fixed != at and not is_graph:
                    if fixed >= 0:
                        raise _two_homes(instruction, self.places[fixed], self.places[at])
                    fixed = at
                newest[written] = version = self._new(written, -1, index)
                makes.append(version)
            self.uses.append(uses)
            self.makes.append(makes)
            self.fixed.append(fixed)
            # What is changed in part has to be there before: in memory that has its place, it is.
            self.anywhere.append((stays or not changes) and reads_peers(instruction))

    def _find_numbers(self) -> None:
        """Fill in `numbers_of`."""
        cells = {number for number, buffer in enumerate(self._program.buffers) if buffer.device == HOST}
        made: dict[int, int] = {}
        for index, instruction in enumerate(self._program.instructions if cells else ()):
            found = [made[read] for read in instruction.reads if read in made]
            if found:
                self.numbers_of[index] = found
            made.update(dict.fromkeys(cells.intersection(instruction.writes), index))

    def _new(self, buffer: int, start: int, maker: int) -> int:
        self.buffer.append(buffer)
        self.nbytes.append(self._program.buffers[buffer].nbytes)
        self.start.append(start)
        self.maker.append(maker)
        return len(self.buffer) - 1

    def by_path(self, times: Sequence[float]) -> tuple[list[int], float]:
        """Return the instructions by descending longest path from their start (upward rank), then in program order, and
        the longest path in seconds.

        Each instruction comes after all that make what it uses, numbers of the host included, and after all that use
        what it writes over: so the order is one in which the program may run.
        """
        before = self._program.accesses.predecessors
        rest = list(times)
        for index in range(len(rest) - 1, -1, -1):
            length = rest[index]
            for earlier in before[index]:
                if rest[earlier] < times[earlier] + length:
                    rest[earlier] = times[earlier] + length
        order = sorted(range(len(rest)), key=rest.__getitem__, reverse=True)  # the sort is stable
        return order, max(rest, default=0.0)

    def start_place(self) -> int:
        """Return the place of the mesh that has most of the inputs' bytes."""
        held = [0] * self.free
        for version, place in enumerate(self.start):
            if 0 <= place < self.free:
                held[place] += self.nbytes[version]
        return max(range(self.free), key=held.__getitem__)


def _covers(instruction: Instruction, program: Program) -> bool:
    """Return whether an instruction writes every byte of its output, and so uses nothing of what was there."""
    if type(instruction) is Launch:  # most instructions are launches
        return False
    if isinstance(instruction, (Fill, CopyHtoD, CopyDtoD)):
        return instruction.out.layout.nbytes == program.buffers[instruction.out.buffer].nbytes
    return False


def _two_homes(instruction: Instruction, one: str, other: str) -> PlanError:
    return PlanError(
        f"{label(instruction)}, built at {describe(instruction.origin)}, writes memory of {one} and of {other}: a "
        f'kernel runs on one device. Copy one of the tensors to the other device first: dup(t).on("{one}").'
    )
