"""Value numbers: equal numbers mean contents that are equal by construction.

The number of what an instruction leaves in one of its outputs stands for the instruction, without the numbers of its
buffers, for the number of the output, and for the value numbers of all that it reads. So two programs that were traced
one after the other can be compared, and memory of the first one that is still right for the second one stays in use.
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

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._named: dict[int, int] = {}
        """The numbers of contents, by the ids of the objects that hold them."""
        self._alive: list[object] = []

    def number(self, term: Hashable) -> int:
        """Return the number of a term: the same for equal terms."""
        return self._numbers.setdefault(term, len(self._numbers))

    def of_leaf(self, value: Any) -> int:
        """Return the number of a value from outside: memory, an array, a number."""
        if type(value) in PLAIN:
            return self.number(("plain", exact_token(value)))
        if id(value) in self._named:
            return self._named[id(value)]
        self._alive.append(value)
        return self.number(("object", id(value)))

    def name(self, held: object, number: int) -> None:
        """Note that this object, memory or a value of the host, holds the contents of this number: what a later stage
        makes of it is what one stage alone would make. An object that has a number already keeps that: a stage may have
        read it as what a cutoff lets through."""
        if type(held) not in PLAIN and ("object", id(held)) not in self._numbers:
            self._alive.append(held)
            self._named[id(held)] = number

    def are_equal(self, one: object, other: object) -> bool:
        """Return true for one object, and for two that hold contents of one number."""
        return one is other or self._named.get(id(one), self) == self._named.get(id(other))

    def of_program(self, staleness: Staleness, leaf: Callable[[int], Any]) -> dict[int, int]:
        """Return the number of what a program leaves in each buffer that it uses. `leaf` returns the value that a
        buffer holds before the program starts."""
        program, held = staleness.program, dict[int, int]()
        for instruction, needs in zip(program.instructions, staleness.needs, strict=True):
            reads: list[int] = []
            for buffer, _ in needs:
                if buffer not in held:
                    held[buffer] = self.of_leaf(leaf(buffer))
                reads.append(held[buffer])
            does = self._operation(program, instruction)
            for output, buffer in enumerate(instruction.writes):
                held[buffer] = self.number((does, output, *reads))
        return held

    def _operation(self, program: Program, instruction: Instruction) -> Hashable:
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
            case HostCall(function=function, argument=argument, reads=reads):
                self._alive.append(function)
                return HostCall, where, id(function), self._template(argument, reads)
            case _:
                return self._constant(instruction)

    def _operand(self, operand: Any) -> Hashable:
        kind = type(operand)
        if kind is View:
            return View, operand.layout
        if kind is Tiles:
            return Tiles, operand.view.layout, operand.tile, operand.grid
        return Cell if kind is Cell else self._constant(operand)

    def _template(self, argument: Any, reads: tuple[int, ...]) -> Hashable:
        """Return the argument of a host function. A cell in it is named by its place among `reads`, which are sorted:
        the argument may have them in any order."""
        if type(argument) is Items:
            return Items, tuple([self._template(item, reads) for item in argument.items])
        return (Cell, reads.index(argument.buffer)) if type(argument) is Cell else self._constant(argument)

    def _constant(self, value: Any) -> Hashable:
        if type(value) in PLAIN:
            return exact_token(value)
        if type(value) is tuple:
            return tuple(map(self._constant, value))
        self._alive.append(value)
        return "object", id(value)
