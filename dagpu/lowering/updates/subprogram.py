"""The program that some instructions of another program make. What they find is input, what they leave is output."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

from dagpu.common.frozen import plain
from dagpu.lowering.program import (
    Buffer,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    If,
    Instruction,
    Items,
    Launch,
    Program,
    Role,
    Tiles,
    View,
)
from dagpu.lowering.updates.staleness import buffers_read

_NUMBERS: Final = (int, float)
"""Types of most operands that name no buffer."""


@final
@plain
class Subprogram:
    """Some instructions of a program as a program, whose buffers are numbered anew."""

    program: Program
    chosen: tuple[int, ...]
    """The indices of the instructions in the whole program."""
    inputs: tuple[tuple[int, int], ...]
    """For each buffer that the subprogram only reads: its number in the whole program, and here."""
    outputs: tuple[tuple[int, int], ...]
    """For each target that the subprogram makes: its number in the whole program, and here."""


def extract(whole: Program, chosen: tuple[int, ...], targets: set[int]) -> Subprogram:
    """Return the subprogram of these instructions. It leaves the targets that it makes in memory that stays."""
    policies = [whole.policy_of[index] for index in chosen]
    return assemble(whole, [whole.instructions[index] for index in chosen], policies, chosen, targets, {})


def assemble(
    whole: Program,
    instructions: Sequence[Instruction],
    policies: Sequence[int],
    chosen: tuple[int, ...],
    targets: set[int],
    in_place_of: Mapping[int, int],
) -> Subprogram:
    """Return the subprogram of instructions that have the buffer numbers of the whole program, each with the number of
    its policy. Among them are those with the indices `chosen`. `in_place_of` has buffers, each with the one that they
    use in its place."""
    written = {buffer for instruction in instructions for buffer in instruction.writes}
    used = written.union(*map(buffers_read, instructions))
    touched = sorted({in_place_of.get(buffer, buffer) for buffer in used})
    number = {buffer: index for index, buffer in enumerate(touched)}
    number |= {buffer: number[other] for buffer, other in in_place_of.items() if buffer in used}
    devices = sorted({whole.buffers[b].device for b in touched} | {i.device for i in instructions})
    device_number = {device: index for index, device in enumerate(device for device in devices if device >= 0)}
    device_number[-1] = -1

    def role_of(buffer: int) -> Role:
        if buffer not in written:
            return Role.INPUT
        return Role.OUTPUT if buffer in targets or whole.buffers[buffer].device < 0 else Role.TEMPORARY

    buffers = [Buffer(whole.buffers[b].nbytes, device_number[whole.buffers[b].device], role_of(b)) for b in touched]
    renumber = Renumbering()
    program = Program(
        tuple(whole.devices[device] for device in devices if device >= 0),
        tuple(buffers),
        tuple([renumber.instruction(each, number, device_number[each.device]) for each in instructions]),
        whole.policies,
        tuple(policies),
    )
    return Subprogram(
        program,
        chosen,
        tuple((b, number[b]) for b in touched if b not in written),
        tuple((b, number[b]) for b in touched if b in written and b in targets),
    )


@final
class Renumbering:
    """Writes instructions with other numbers of buffers and devices. A view that several share stays one object."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], Any] = {}

    def instruction(self, old: Instruction, buffers: Mapping[int, int], device: int) -> Instruction:
        """Return the instruction on another device, with the new numbers of all its buffers and cells."""
        reads = tuple([buffers[b] for b in old.reads])
        writes = tuple([buffers[b] for b in old.writes])
        if type(old) is Launch:  # most instructions are launches
            operand = self._operand
            args = tuple([each if type(each) in _NUMBERS else operand(buffers, each) for each in old.args])
            scratch, tiles = old.scratch, old.tile_list
            if scratch is not None:
                scratch = operand(buffers, scratch)
            if tiles is not None:
                tiles = operand(buffers, tiles)
            return Launch(old.kernel, args, old.grid, reads, writes, device, old.origin, tiles, scratch)
        new = partial(self._operand, buffers)
        match old:
            case Fill():
                return Fill(new(old.out), old.recipe, reads, writes, device, old.origin, new(old.seed))
            case CopyHtoD():
                return CopyHtoD(new(old.out), buffers[old.source], reads, writes, device, old.origin)
            case CopyDtoH():
                return CopyDtoH(buffers[old.out], new(old.source), reads, writes, device, old.origin)
            case CopyDtoD():
                return CopyDtoD(new(old.out), new(old.source), reads, writes, device, old.origin)
            case HostCall():
                argument = new(old.argument)
                return HostCall(old.function, argument, buffers[old.out], reads, writes, device, old.origin)
            case GraphLaunch():
                return replace(old, reads=reads, writes=writes, device=device)
            case If():
                return replace(old, flags=tuple(map(new, old.flags)), reads=reads, device=device)

    def _operand(self, buffers: Mapping[int, int], operand: Any) -> Any:
        """Return an operand with the new numbers; a plain value itself."""
        kind = type(operand)
        if kind is View:
            number = buffers[operand.buffer]
            found = self._made.get((id(operand), number))
            if found is None:
                found = self._made[id(operand), number] = View(number, operand.layout)
            return found
        if kind is Tiles:
            number = buffers[operand.view.buffer]
            found = self._made.get((id(operand), number))
            if found is None:
                tiles = Tiles(self._operand(buffers, operand.view), operand.tile, operand.grid)
                found = self._made[id(operand), number] = tiles
            return found
        if kind is Cell:
            return Cell(buffers[operand.buffer])
        return Items(tuple(map(partial(self._operand, buffers), operand.items))) if kind is Items else operand
