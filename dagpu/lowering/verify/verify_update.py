"""Proves that an update leaves in every target what a run from scratch would, by value numbers.

It runs beside the verifier of plans, which proves the order and the memory of the same instructions. It knows nothing
of how the instructions were chosen: it executes the whole program before and after the change, and the update between
them, on terms in place of contents. A term is an instruction with the terms of all that it reads.
"""

from collections.abc import Hashable, Mapping
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final, TypeAlias, final

from dagpu.common.errors import PlanError
from dagpu.lowering.program import Cell, Fill, Instruction, Launch, Program, Role, label
from dagpu.lowering.updates.comparing.cutoff_comparisons import CutoffComparisons
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.updates.subprogram import Subprogram
from dagpu.lowering.updates.value_numbers import ValueNumbers
from dagpu.lowering.verify.step_names import CURE

Memory: TypeAlias = dict[int, int | None]
"""The value number of what each buffer holds; None for a buffer that holds nothing."""

_Place: TypeAlias = int
"""Where contents are made: the index of an instruction, or `_outside(buffer)` for what a buffer holds at first."""

_UNWRITTEN: Final = -1
"""The value number of memory that nothing has written."""


@final
class UpdateVerifier:
    """The checker of the updates of one program.

    It executes the program before a change once. After a change it executes again what reads a term that differs, and
    so takes a time that does not depend on what is clean.
    """

    def __init__(self, staleness: Staleness, comparisons: CutoffComparisons | None = None) -> None:
        self._staleness = staleness
        self._comparisons = comparisons
        self._program = program = staleness.program if comparisons is None else comparisons.program
        self._table = ValueNumbers()
        self._outside = [number for number, buffer in enumerate(program.buffers) if buffer.role is Role.INPUT]
        self._last: dict[int, _Place] = {}
        """Where the contents that the program leaves in a buffer are made."""
        self._numbers: dict[_Place, int] = {_outside(b): self._leaf(self._table, b, 0, {}) for b in self._outside}
        """The value number of what is made at a place, before the change."""
        self._operations: list[Hashable] = []
        self._reads: list[list[_Place]] = []
        """For each instruction, where the contents are made that it reads."""
        self._readers: dict[_Place, list[int]] = {}
        """The instructions that read what is made at a place, in order."""
        for index, instruction in enumerate(program.instructions):
            reads = [self._last.get(buffer, _outside(buffer)) for buffer in _reads(instruction)]
            operation = self._table.operation(program, instruction)
            for place in reads:
                self._numbers.setdefault(place, _UNWRITTEN)
                self._readers.setdefault(place, []).append(index)
            self._operations.append(operation)
            self._reads.append(reads)
            self._numbers[index] = self._table.number((operation, *[self._numbers[place] for place in reads]))
            self._last.update(dict.fromkeys(instruction.writes, index))

    def verify(
        self,
        change: Change,
        update: Subprogram,
        unchanged: frozenset[int] = frozenset(),
        let_through: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Prove an update for a change of inputs. The instructions `unchanged` leave what they left before, although
        they depend on the change: `verify_tiles` has proved that. `let_through` has buffers that cutoffs compare, each
        with the one of what the cutoff lets through: in the outcome that is proved both have the same contents.

        Before it, each target holds what a run from scratch with the old inputs leaves in it, but for those in
        `change.lost`, which hold nothing; and where earlier parts of the update or other runs have made a target, what
        they left. After it, each target that waits for no cutoff must hold what a run from scratch with the new inputs
        leaves. The flags of each cutoff that the update decides must be those of the contents that a run from scratch
        leaves.

        Raises:
            PlanError: the update reads what holds nothing, or leaves a target stale, or decides a cutoff by other
                contents.
        """
        staleness, table, before = self._staleness, self._table.extended(), self._numbers
        same: dict[int, int] = {}
        differing = self._execute_again(change.mask, unchanged, table, same)

        def after(buffer: int) -> int:
            place = self._last.get(buffer, _outside(buffer))
            return differing.get(place, before[place])

        leaves = {buffer: self._leaf(table, passed, change.mask, same) for buffer, passed in let_through.items()}
        while more := {after(buffer): leaf for buffer, leaf in leaves.items() if after(buffer) != leaf}:
            same |= more  # which gives other numbers to all terms with these in them
            differing = self._execute_again(change.mask, unchanged, table, same)

        held: Memory = {}
        for buffer in staleness.targets:
            made = buffer in change.given or (change.only and not staleness.bits_of(buffer) & change.only)
            lost = buffer in change.lost
            held[buffer] = after(buffer) if made else None if lost else before[self._last[buffer]]
        own: Memory = {}
        for buffer, here in update.inputs:
            inside = buffer in staleness.last
            own[here] = held.get(buffer) if inside else self._leaf(table, buffer, change.mask, same)
        left = _execute(update.program, own, table, same)
        held.update({buffer: left[here] for buffer, here in update.outputs})
        for buffer in staleness.targets:
            if not staleness.bits_of(buffer) & change.wait and held[buffer] != after(buffer):
                made_by = label(self._program.instructions[staleness.last[buffer]])
                raise PlanError(f"an update leaves buffer {buffer}, which {made_by} writes, stale. {CURE}")
        for each in [] if self._comparisons is None else self._comparisons.of(change.compare):
            if held.get(each.flags) != after(each.flags):
                raise PlanError(f"an update decides a cutoff of buffer {each.buffer} by other contents. {CURE}")

    def _leaf(self, table: ValueNumbers, buffer: int, mask: int, same: Mapping[int, int]) -> int:
        """Return the number of what a buffer from outside holds after a change of inputs. `same` has numbers that mean
        the same contents as others."""
        number = table.number(("leaf", buffer, bool(self._staleness.bits.get(buffer, 0) & mask)))
        return same.get(number, number)

    def _execute_again(
        self, mask: int, unchanged: frozenset[int], table: ValueNumbers, same: dict[int, int]
    ) -> dict[_Place, int]:
        """Execute the program after a change of inputs, and return the numbers that differ from those before it.

        The results of the instructions `unchanged` are added to `same`, which has numbers that mean the same contents
        as others.
        """
        differing: dict[_Place, int] = {}
        todo: list[int] = []
        entered: set[int] = set()

        def differs(place: _Place, number: int) -> None:
            differing[place] = number
            for reader in self._readers.get(place, ()):
                if reader not in entered:
                    entered.add(reader)
                    heappush(todo, reader)

        for buffer in self._outside:
            number = self._leaf(table, buffer, mask, same)
            if number != self._numbers[_outside(buffer)]:
                differs(_outside(buffer), number)
        while todo:  # in the order of the program: each reader comes after what it reads
            index = heappop(todo)
            before = self._numbers
            terms = [differing.get(place, before[place]) for place in self._reads[index]]
            result = table.number((self._operations[index], *terms))
            if index in unchanged:
                same[result] = before[index]
            result = same.get(result, result)
            if result != before[index]:
                differs(index, result)
        return differing


def _execute(program: Program, memory: Memory, table: ValueNumbers, same: Mapping[int, int]) -> Memory:
    """Execute an update on terms, and return the memory that it leaves. `same` has numbers that mean the same contents
    as others."""
    memory = dict(memory)
    for index, instruction in enumerate(program.instructions):
        terms: list[Hashable] = [table.operation(program, instruction)]
        for buffer in _reads(instruction):
            term = memory.get(buffer, _UNWRITTEN)
            if term is None:
                raise PlanError(
                    f"instruction {index} of an update, {label(instruction)}, reads buffer {buffer}, which holds "
                    f"nothing. {CURE}"
                )
            terms.append(term)
        result = table.number(tuple(terms))
        memory.update(dict.fromkeys(instruction.writes, same.get(result, result)))
    return memory


def _outside(buffer: int) -> _Place:
    """Return the place of what a buffer holds before the program begins."""
    return -1 - buffer


def _reads(instruction: Instruction) -> list[int]:
    """Return what an instruction reads: a kernel also the cells of its numbers, and the memory that it writes."""
    if type(instruction) is Launch:
        numbers = [operand.buffer for operand in instruction.args if type(operand) is Cell]
        return [*instruction.reads, *instruction.writes, *numbers]
    seed = instruction.seed if type(instruction) is Fill else None
    return [*instruction.reads, *([] if seed is None else [seed.buffer])]
