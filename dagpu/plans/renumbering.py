"""`Renumbering`: writes the instructions of a program with the numbers of another one."""

from collections.abc import Mapping
from functools import partial
from typing import final

from dagpu.plans.program import Cell, Instruction, Operand, Tiles, View, map_operands


@final
class Renumbering:
    """Writes instructions with other numbers of buffers and devices. A view that several share stays one object."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], View | Tiles] = {}
        """The operands made so far, by the identity of the old one and the new number of its buffer."""

    def instruction(self, old: Instruction, buffers: Mapping[int, int], device: int) -> Instruction:
        """Return the instruction on another device, with the new numbers of all its buffers and cells."""
        reads = tuple([buffers[b] for b in old.reads])
        writes = tuple([buffers[b] for b in old.writes])
        return map_operands(old, partial(self._operand, buffers), reads, writes, device)

    def _operand(self, buffers: Mapping[int, int], operand: Operand) -> Operand:
        """Return an operand with the new number of its buffer."""
        number = buffers[operand.buffer]
        if type(operand) is Cell:
            return Cell(number)
        found = self._made.get((id(operand), number))
        if found is None:
            if type(operand) is Tiles:
                view = self._operand(buffers, operand.view)
                assert type(view) is View
                found = Tiles(view, operand.tile, operand.grid)
            else:
                found = View(number, operand.layout)
            self._made[id(operand), number] = found
        return found
