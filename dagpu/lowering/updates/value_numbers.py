"""Value numbers: equal numbers mean contents that are equal by construction.

The number of what an instruction leaves in a buffer stands for the instruction, without the numbers of its buffers, and
for the value numbers of all that it reads. So two programs that were traced one after the other can be compared, and
memory of the first one that is still right for the second one stays in use.
"""

from collections.abc import Callable, Hashable
from typing import Any, final

from dagpu.lowering.arguments.exact_tokens import PLAIN, exact_token
from dagpu.lowering.program import (
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostCall,
    Instruction,
    Items,
    Launch,
    Program,
    Tiles,
    View,
)
from dagpu.lowering.updates.staleness import Staleness


@final
class ValueNumbers:
    """A table of value numbers, for several programs. It keeps alive the objects whose ids are in it."""

    def __init__(self, given: dict[Hashable, int] | None = None) -> None:
        self._given = {} if given is None else given
        self._numbers: dict[Hashable, int] = {}
        self._alive: list[object] = []

    def extended(self) -> "ValueNumbers":
        """Return a table that has these numbers too. This one must live as long, and get no new numbers any more."""
        return ValueNumbers(self._numbers)

    def number(self, term: Hashable) -> int:
        """Return the number of a term: the same for equal terms."""
        found = self._given.get(term)
        return self._numbers.setdefault(term, len(self._given) + len(self._numbers)) if found is None else found

    def of_leaf(self, value: Any) -> int:
        """Return the number of a value from outside: memory, an array, a number."""
        if type(value) in PLAIN:
            return self.number(("plain", exact_token(value)))
        self._alive.append(value)
        return self.number(("object", id(value)))

    def of_program(self, staleness: Staleness, leaf: Callable[[int], Any]) -> list[int]:
        """Return the number of what each instruction leaves in the buffers that it writes. `leaf` returns the value
        that a buffer holds before the program starts."""
        program, numbers = staleness.program, list[int]()
        for index, instruction in enumerate(program.instructions):
            reads = [
                numbers[writer] if writer >= 0 else self.of_leaf(leaf(buffer))
                for buffer, writer in staleness.needs[index]
            ]
            numbers.append(self.number((self.operation(program, instruction), *reads)))
        return numbers

    def operation(self, program: Program, instruction: Instruction) -> Hashable:
        """Return what an instruction does, apart from the contents of what it reads."""
        where = program.devices[instruction.device]
        match instruction:
            case Launch(kernel=kernel, args=args, grid=grid):
                self._alive.append(kernel.host)
                what = (id(kernel.host), kernel.block, kernel.shared_bytes, kernel.checked, grid)
                return Launch, where, what, tuple(map(self._operand, args))
            case Fill(out=out, recipe=recipe):
                fields = tuple([self._constant(getattr(recipe, name)) for name in type(recipe).__slots__])
                return Fill, where, out.layout, type(recipe), fields
            case CopyHtoD(out=out):
                return CopyHtoD, where, out.layout
            case CopyDtoH(source=source):
                return CopyDtoH, where, source.layout
            case CopyDtoD(out=out, source=source):
                return CopyDtoD, where, out.layout, source.layout
            case HostCall(function=function, argument=argument):
                self._alive.append(function)
                return HostCall, where, id(function), self._operand(argument)
            case _:
                return self._constant(instruction)

    def _operand(self, operand: Any) -> Hashable:
        kind = type(operand)
        if kind is View:
            return View, operand.layout
        if kind is Tiles:
            return Tiles, operand.view.layout, operand.tile, operand.grid
        if kind is Items:
            return Items, tuple(map(self._operand, operand.items))
        return Cell if kind is Cell else self._constant(operand)

    def _constant(self, value: Any) -> Hashable:
        if type(value) in PLAIN:
            return exact_token(value)
        if type(value) is tuple:
            return tuple(map(self._constant, value))
        self._alive.append(value)
        return "object", id(value)
