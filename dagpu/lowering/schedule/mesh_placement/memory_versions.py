"""The versions of a program's device memory.

What crosses from device to device is a *version*: the contents of a buffer between two writes. A *replica* is a copy of
a version on another device, and is never written.
"""

from collections.abc import Sequence
from typing import final

from dagpu.common.errors import PlanError
from dagpu.common.origin import describe
from dagpu.handles.device_handles import is_automatic
from dagpu.lowering.program import HOST, GraphLaunch, Instruction, Program, covers, label, reads_peers
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
        accesses = program.accesses
        self.buffer = accesses.buffer
        """For each version, its buffer. A version is a value of the program's accesses, in memory of a device."""
        self.maker = accesses.maker
        """For each version, the instruction that makes it; -1 if it exists before."""
        self.nbytes = [program.buffers[buffer].nbytes for buffer in self.buffer]
        self.start = [-1] * len(self.buffer)
        """For each version, the place that has it before the program starts; -1 if an instruction makes it."""
        self.start[: len(self.home)] = [
            -1 if accesses.is_blank(buffer) else place for buffer, place in enumerate(self.home)
        ]
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
        """Fill in the tables of instructions."""
        program, accesses, home, place_of = self._program, self._program.accesses, self.home, self.place_of
        on_device = [program.buffers[buffer].device != HOST for buffer in self.buffer]
        for index, instruction in enumerate(program.instructions):
            makes = [version for version in accesses.makes(index) if on_device[version]]
            fixed, stays = place_of[instruction.device], True
            is_graph = type(instruction) is GraphLaunch
            if is_graph:
                self.in_place.add(index)
            for version in makes:
                at = home[self.buffer[version]]
                if at < 0:
                    stays = False
                elif fixed != at and not is_graph:
                    if fixed >= 0:
                        raise _two_homes(instruction, self.places[fixed], self.places[at])
                    fixed = at
            self.uses.append([version for version in accesses.uses[index] if on_device[version]])
            self.makes.append(makes)
            self.fixed.append(fixed)
            # What is changed in part has to be there before: in memory that has its place, it is.
            self.anywhere.append(reads_peers(instruction) and (stays or not self._changes(instruction, makes)))

    def _changes(self, instruction: Instruction, makes: Sequence[int]) -> bool:
        """Return whether an instruction leaves some of what was in the memory that it writes."""
        accesses = self._program.accesses
        return not covers(instruction, self._program.buffers) and not all(
            accesses.is_blank(accesses.before[version]) for version in makes
        )

    def _find_numbers(self) -> None:
        """Fill in `numbers_of`."""
        in_cell = [self._program.buffers[buffer].device == HOST for buffer in self.buffer]
        for index, reads in enumerate(self._program.accesses.reads if any(in_cell) else ()):
            found = [made for value in reads if in_cell[value] and (made := self.maker[value]) >= 0]
            if found:
                self.numbers_of[index] = found

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


def _two_homes(instruction: Instruction, one: str, other: str) -> PlanError:
    return PlanError(
        f"{label(instruction)}, built at {describe(instruction.origin)}, writes memory of {one} and of {other}: a "
        f'kernel runs on one device. Copy one of the tensors to the other device first: dup(t).on("{one}").'
    )
