"""Value numbers: equal numbers mean contents that are equal by construction.

The number of what an instruction leaves in one of its outputs stands for the instruction, without the numbers of its
buffers, for the number of the output, and for the value numbers of all that it reads. So two programs that were traced
one after the other can be compared, and memory of the first one that is still right for the second one stays in use.
"""

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, final, get_args

from dagpu.ops.initializers import Recipe
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.plans.program import (
    Cell,
    GraphLaunch,
    If,
    Instruction,
    Items,
    Program,
    Tiles,
    Value,
    View,
    constant_values,
    operand_values,
    operands_in,
)
from dagpu.tracing.value_tokens import PLAIN, exact_token


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

    def of_program(
        self, program: Program, leaf: Callable[[int], Any], made: Mapping[Value, object] = MappingProxyType({})
    ) -> dict[int, int]:
        """Return the number of what a program leaves in each buffer that it uses. `leaf` returns the value that a
        buffer holds before the program starts, and `made` has the memory of values that other programs get as leaves;
        None where it is not there yet."""
        accesses, numbers = program.accesses, [-1] * len(program.buffers)
        for instruction, uses in zip(program.instructions, accesses.uses, strict=True):
            for value in uses:
                if numbers[value] < 0:
                    numbers[value] = self.of_leaf(leaf(value))
            values = operand_values(instruction)
            names: dict[int, int] = {}
            for buffer in (*[each.buffer for each in operands_in(values)], *instruction.reads, *instruction.writes):
                names.setdefault(buffer, len(names))
            does = self._operation(program, instruction), tuple([self._operand(each, names) for each in values])
            reads = tuple(sorted([(names[accesses.buffer[value]], numbers[value]) for value in uses]))
            for buffer in instruction.writes:
                held = made.get(len(numbers))
                numbers.append(self.number((does, names[buffer], reads)) if held is None else self.of_leaf(held))
        return {buffer: numbers[value] for buffer, value in enumerate(accesses.last) if numbers[value] >= 0}

    def _operation(self, program: Program, instruction: Instruction) -> Hashable:
        """Return what an instruction does, apart from its operands. A captured graph has memory of its own, and what an
        `If` decides depends on its body."""
        own = [instruction] if type(instruction) in (GraphLaunch, If) else constant_values(instruction)
        return type(instruction), program.devices[instruction.device], tuple(map(self._field, own))

    def _field(self, value: Any) -> Hashable:
        """Return what a field of an instruction says: equal for kernels and recipes that do the same."""
        if type(value) is KernelSpec:
            self._alive.append(value.host)
            return id(value.host), value.block, value.shared_bytes, value.checked
        if isinstance(value, get_args(Recipe)):
            return type(value), tuple([self._constant(getattr(value, name)) for name in type(value).__slots__])
        return self._constant(value)

    def _operand(self, operand: Any, names: dict[int, int]) -> Hashable:
        """Return an operand or a constant. `names` has what stands for the buffers, whose contents count apart."""
        kind = type(operand)
        if kind is View:
            return View, names[operand.buffer], operand.layout
        if kind is Tiles:
            return Tiles, names[operand.buffer], operand.view.layout, operand.tile, operand.grid
        if kind is Items:
            return Items, tuple([self._operand(item, names) for item in operand.items])
        return (Cell, names[operand.buffer]) if kind is Cell else self._constant(operand)

    def _constant(self, value: Any) -> Hashable:
        return tuple(map(self._constant, value)) if type(value) is tuple else self.of_leaf(value)
