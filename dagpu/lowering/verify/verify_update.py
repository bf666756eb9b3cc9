"""Proves that an update leaves in every target what a run from scratch would, by the numbers of terms.

It runs beside the verifier of plans, which proves the order and the memory of the same instructions. It knows nothing
of how the instructions were chosen: it executes the whole program before and after the change, and the update between
them, on terms in place of contents. A term is an instruction with the terms of all that it reads, and the number of one
of its outputs.
"""

from collections.abc import Hashable, Mapping, Sequence
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final, TypeAlias, final

from dagpu.common.errors import PlanError
from dagpu.lowering.updates.claims import Change, Subprogram
from dagpu.lowering.verify.data_flow import Analysed, Compared, DataFlow, Value, buffers_used, comparisons_of, operation
from dagpu.plans.program import Program, Role, label
from dagpu.plans.verifier import CURE

_Number: TypeAlias = int
"""The number of a term. Equal numbers mean contents that are equal by construction."""

Memory: TypeAlias = dict[int, _Number | None]
"""The number of what each buffer holds; None for a buffer that holds nothing."""

_UNWRITTEN: Final = -1
"""The number of memory that nothing has written."""


@final
class _Terms:
    """A table of terms. Its numbers hold also for those of another table that it extends."""

    __slots__ = ("_given", "_numbers")

    def __init__(self, given: Mapping[Hashable, _Number] | None = None) -> None:
        self._given: Mapping[Hashable, _Number] = {} if given is None else given
        self._numbers: dict[Hashable, _Number] = {}

    def extended(self) -> "_Terms":
        """Return a table with these terms too. This one must get no new terms any more."""
        return _Terms(self._numbers)

    def number(self, term: Hashable) -> _Number:
        """Return the number of a term."""
        found = self._given.get(term)
        return self._numbers.setdefault(term, len(self._given) + len(self._numbers)) if found is None else found

    def of_outputs(self, does: Hashable, reads: Sequence[_Number], count: int) -> list[_Number]:
        """Return the numbers of what an instruction leaves in each of its outputs."""
        made = self.number((does, *reads))
        return [made] if count == 1 else [self.number((made, output)) for output in range(count)]


@final
class UpdateVerifier:
    """The checker of the updates of one program.

    It executes the program before a change once. After a change it executes again what reads a term that differs, and
    so takes a time that does not depend on what is clean.
    """

    def __init__(self, analysed: Analysed, comparisons: Compared | None = None) -> None:
        self._targets = analysed.targets
        self._bits = analysed.bits
        self._comparisons = comparisons
        self._program = program = analysed.program if comparisons is None else comparisons.program
        self._flow = flow = DataFlow(program, analysed.bits)
        self._table = _Terms()
        self._outside = [number for number, buffer in enumerate(program.buffers) if buffer.role is Role.INPUT]
        self._numbers = [_UNWRITTEN] * len(program.buffers)
        """The number of each value before the change."""
        self._operations: list[Hashable] = []
        self._readers: list[list[int]] = [[] for _ in flow.buffer]
        """The instructions that read each value, in order."""
        self._check_targets(analysed.program)
        for buffer in self._outside:
            self._numbers[buffer] = self._leaf(self._table, buffer, 0, {})
        for index, instruction in enumerate(program.instructions):
            does = operation(program, instruction)
            self._operations.append(does)
            for value in flow.reads[index]:
                self._readers[value].append(index)
            terms = [self._numbers[value] for value in flow.reads[index]]
            self._numbers += self._table.of_outputs(does, terms, len(instruction.writes))

    def _check_targets(self, program: Program) -> None:
        """Raise a `PlanError` unless each result is a target, and so is each tensor that a cutoff compares."""
        results = {number for number, buffer in enumerate(program.buffers) if buffer.role is Role.OUTPUT}
        if self._comparisons is not None:
            results.update([each.buffer for each in self._comparisons.by_bit.values()])
        missing = {buffer for buffer in results if self._flow.writers[buffer]} - self._targets
        if missing:
            raise PlanError(f"updates would leave the results in buffers {sorted(missing)} as they are. {CURE}")

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
        flow, table, before = self._flow, self._table.extended(), self._numbers
        same: dict[_Number, _Number] = {}
        differing = self._execute_again(change.mask, unchanged, table, same)

        def after(buffer: int) -> _Number:
            value = flow.last[buffer]
            return differing.get(value, before[value])

        leaves = {buffer: self._leaf(table, passed, change.mask, same) for buffer, passed in let_through.items()}
        while more := {after(buffer): leaf for buffer, leaf in leaves.items() if after(buffer) != leaf}:
            same |= more  # which gives other numbers to all terms with these in them
            differing = self._execute_again(change.mask, unchanged, table, same)

        bits_of = {buffer: flow.bits_of(flow.last[buffer]) for buffer in self._targets}
        held: Memory = {}
        for buffer, bits in bits_of.items():
            made = buffer in change.given or (change.only and not bits & change.only)
            lost = buffer in change.lost
            held[buffer] = after(buffer) if made else None if lost else before[flow.last[buffer]]
        own: Memory = {}
        for buffer, here in update.inputs:
            inside = flow.writers[buffer] > 0
            own[here] = held.get(buffer) if inside else self._leaf(table, buffer, change.mask, same)
        left = _execute(update.program, own, table, same)
        held.update({buffer: left[here] for buffer, here in update.outputs})
        for buffer, bits in bits_of.items():
            if not bits & change.wait and held[buffer] != after(buffer):
                made_by = label(self._program.instructions[flow.maker[flow.last[buffer]]])
                raise PlanError(f"an update leaves buffer {buffer}, which {made_by} writes, stale. {CURE}")
        for each in [] if self._comparisons is None else comparisons_of(self._comparisons, change.compare):
            if held.get(each.flags) != after(each.flags):
                raise PlanError(f"an update decides a cutoff of buffer {each.buffer} by other contents. {CURE}")

    def _leaf(self, table: _Terms, buffer: int, mask: int, same: Mapping[_Number, _Number]) -> _Number:
        """Return the number of what a buffer from outside holds after a change of inputs. `same` has numbers that mean
        the same contents as others."""
        number = table.number(("leaf", buffer, bool(self._bits.get(buffer, 0) & mask)))
        return same.get(number, number)

    def _execute_again(
        self, mask: int, unchanged: frozenset[int], table: _Terms, same: dict[_Number, _Number]
    ) -> dict[Value, _Number]:
        """Execute the program after a change of inputs, and return the numbers that differ from those before it.

        The results of the instructions `unchanged` are added to `same`, which has numbers that mean the same contents
        as others.
        """
        flow, before = self._flow, self._numbers
        differing: dict[Value, _Number] = {}
        todo: list[int] = []
        entered: set[int] = set()

        def differs(value: Value, number: _Number) -> None:
            differing[value] = number
            for reader in self._readers[value]:
                if reader not in entered:
                    entered.add(reader)
                    heappush(todo, reader)

        for buffer in self._outside:
            number = self._leaf(table, buffer, mask, same)
            if number != before[buffer]:
                differs(buffer, number)
        while todo:  # in the order of the program: each reader comes after what it reads
            index = heappop(todo)
            terms = [differing.get(value, before[value]) for value in flow.reads[index]]
            makes = flow.makes(index)
            for value, number in zip(makes, table.of_outputs(self._operations[index], terms, len(makes)), strict=True):
                if index in unchanged:
                    same[number] = before[value]
                result = same.get(number, number)
                if result != before[value]:
                    differs(value, result)
        return differing


def _execute(program: Program, memory: Memory, table: _Terms, same: Mapping[_Number, _Number]) -> Memory:
    """Execute an update on terms, and return the memory that it leaves. `same` has numbers that mean the same contents
    as others."""
    memory = dict(memory)
    for index, instruction in enumerate(program.instructions):
        terms: list[_Number] = []
        for buffer in buffers_used(instruction, program.buffers):
            term = memory.get(buffer, _UNWRITTEN)
            if term is None:
                raise PlanError(
                    f"instruction {index} of an update, {label(instruction)}, reads buffer {buffer}, which holds "
                    f"nothing. {CURE}"
                )
            terms.append(term)
        made = table.of_outputs(operation(program, instruction), terms, len(instruction.writes))
        memory.update({b: same.get(number, number) for b, number in zip(instruction.writes, made, strict=True)})
    return memory
