"""The program that some instructions of another program make. What they find is input, what they leave is output."""

from dataclasses import replace
from typing import Any, final

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
    Instruction,
    Items,
    Launch,
    Program,
    Role,
    Tiles,
    View,
)
from dagpu.lowering.updates.staleness import buffers_read


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
    instructions = [whole.instructions[index] for index in chosen]
    written = {buffer for instruction in instructions for buffer in instruction.writes}
    touched = sorted(written.union(*map(buffers_read, instructions)))
    number = {buffer: index for index, buffer in enumerate(touched)}
    devices = sorted({whole.buffers[b].device for b in touched} | {i.device for i in instructions})
    device_number = {device: index for index, device in enumerate(device for device in devices if device >= 0)}
    device_number[-1] = -1

    def role_of(buffer: int) -> Role:
        if buffer not in written:
            return Role.INPUT
        return Role.OUTPUT if buffer in targets or whole.buffers[buffer].device < 0 else Role.TEMPORARY

    buffers = [Buffer(whole.buffers[b].nbytes, device_number[whole.buffers[b].device], role_of(b)) for b in touched]
    renumber = _Renumbering(number, device_number)
    program = Program(
        tuple(whole.devices[device] for device in devices if device >= 0),
        tuple(buffers),
        tuple(map(renumber.instruction, instructions)),
        whole.policies,
        tuple(whole.policy_of[index] for index in chosen),
    )
    return Subprogram(
        program,
        chosen,
        tuple((b, number[b]) for b in touched if b not in written),
        tuple((b, number[b]) for b in touched if b in written and b in targets),
    )


@final
class _Renumbering:
    """Writes instructions with other numbers of buffers and devices. A view that several share stays one object."""

    def __init__(self, buffers: dict[int, int], devices: dict[int, int]) -> None:
        self._buffers = buffers
        self._devices = devices
        self._made: dict[int, Any] = {}

    def instruction(self, old: Instruction) -> Instruction:
        """Return the instruction with the new numbers."""
        new: dict[str, Any] = {
            "reads": tuple([self._buffers[b] for b in old.reads]),
            "writes": tuple([self._buffers[b] for b in old.writes]),
            "device": self._devices[old.device],
        }
        match old:
            case Launch():
                return replace(old, args=tuple(map(self._operand, old.args)), scratch=self._operand(old.scratch), **new)
            case Fill():
                return replace(old, out=self._operand(old.out), seed=self._operand(old.seed), **new)
            case CopyHtoD():
                return replace(old, out=self._operand(old.out), source=self._buffers[old.source], **new)
            case CopyDtoH():
                return replace(old, out=self._buffers[old.out], source=self._operand(old.source), **new)
            case CopyDtoD():
                return replace(old, out=self._operand(old.out), source=self._operand(old.source), **new)
            case HostCall():
                return replace(old, out=self._buffers[old.out], argument=self._operand(old.argument), **new)
            case GraphLaunch():
                return replace(old, **new)

    def _operand(self, operand: Any) -> Any:
        """Return an operand with the new numbers; a plain value itself."""
        kind = type(operand)
        if kind is View or kind is Tiles:
            found = self._made.get(id(operand))
            if found is None:
                found = self._made[id(operand)] = self._rewritten(operand)
            return found
        if kind is Cell:
            return Cell(self._buffers[operand.buffer])
        return Items(tuple(map(self._operand, operand.items))) if kind is Items else operand

    def _rewritten(self, operand: "View | Tiles") -> "View | Tiles":
        if type(operand) is Tiles:
            return Tiles(self._operand(operand.view), operand.tile, operand.grid)
        assert type(operand) is View
        return View(self._buffers[operand.buffer], operand.layout)
