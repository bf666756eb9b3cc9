"""Proves that an update leaves in every target what a run from scratch would, by value numbers and in linear time.

It runs beside the verifier of plans, which proves the order and the memory of the same instructions. It knows nothing
of how the instructions were chosen: it executes the whole program before and after the change, and the update between
them, on terms in place of contents. A term is an instruction with the terms of all that it reads.
"""

from collections.abc import Hashable, Mapping
from typing import Final, TypeAlias

from dagpu.common.errors import PlanError
from dagpu.lowering.program import Cell, Fill, Instruction, Launch, Program, Role, label
from dagpu.lowering.updates.comparing.cutoff_comparisons import CutoffComparisons
from dagpu.lowering.updates.staleness import Change, Staleness
from dagpu.lowering.updates.subprogram import Subprogram
from dagpu.lowering.updates.value_numbers import ValueNumbers
from dagpu.lowering.verify.step_names import CURE

Memory: TypeAlias = dict[int, int | None]
"""The value number of what each buffer holds; None for a buffer that holds nothing."""

_UNWRITTEN: Final = -1
"""The value number of memory that nothing has written."""


def verify_update(
    staleness: Staleness,
    change: Change,
    update: Subprogram,
    unchanged: frozenset[int] = frozenset(),
    comparisons: CutoffComparisons | None = None,
) -> None:
    """Prove an update for a change of inputs. The instructions `unchanged` leave what they left before, although they
    depend on the change: `verify_tiles` has proved that.

    Before it, each target holds what a run from scratch with the old inputs leaves in it, but for those in
    `change.lost`, which hold nothing; and where earlier parts of the update or other runs have made a target, what they
    left. After it, each target that waits for no cutoff must hold what a run from scratch with the new inputs leaves.
    The flags of each cutoff that the update decides must be those of the contents that a run from scratch leaves.

    Raises:
        PlanError: the update reads what holds nothing, or leaves a target stale, or decides a cutoff by other contents.
    """
    whole, table = staleness.program if comparisons is None else comparisons.program, ValueNumbers()

    def leaf(buffer: int, mask: int) -> int:
        return table.number(("leaf", buffer, bool(staleness.bits.get(buffer, 0) & mask)))

    outside = [number for number, buffer in enumerate(whole.buffers) if buffer.role is Role.INPUT]
    left_before: list[int] = []
    before = _execute(whole, {b: leaf(b, 0) for b in outside}, table, made=left_before)
    same: dict[int, int] = {}
    kept = {index: left_before[index] for index in unchanged}
    after = _execute(whole, {b: leaf(b, change.mask) for b in outside}, table, same, kept)
    held: Memory = {}
    for buffer in staleness.targets:
        made = buffer in change.given or (change.only and not staleness.bits_of(buffer) & change.only)
        held[buffer] = after[buffer] if made else None if buffer in change.lost else before[buffer]
    own: Memory = {}
    for buffer, here in update.inputs:
        own[here] = held.get(buffer) if buffer in staleness.last else leaf(buffer, change.mask)
    left = _execute(update.program, own, table, same)
    held.update({buffer: left[here] for buffer, here in update.outputs})
    for buffer in staleness.targets:
        if not staleness.bits_of(buffer) & change.wait and held[buffer] != after[buffer]:
            made_by = label(whole.instructions[staleness.last[buffer]])
            raise PlanError(f"an update leaves buffer {buffer}, which {made_by} writes, stale. {CURE}")
    for each in [] if comparisons is None else comparisons.of(change.compare):
        if held.get(each.cell) != after[each.cell]:
            raise PlanError(f"an update decides a cutoff of buffer {each.buffer} by other contents. {CURE}")


def _execute(
    program: Program,
    memory: Memory,
    table: ValueNumbers,
    same: dict[int, int] | None = None,
    kept: Mapping[int, int] | None = None,
    made: list[int] | None = None,
) -> Memory:
    """Execute a program on terms, and return the memory that it leaves.

    `same` has numbers that mean the same contents as others; the results of the instructions in `kept` are added to it.
    `made` gets the number that each instruction leaves.
    """
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
        if same is not None:
            if kept is not None and index in kept:
                same[result] = kept[index]
            result = same.get(result, result)
        if made is not None:
            made.append(result)
        for buffer in instruction.writes:
            memory[buffer] = result
    return memory


def _reads(instruction: Instruction) -> list[int]:
    """Return what an instruction reads: a kernel also the cells of its numbers, and the memory that it writes."""
    if type(instruction) is Launch:
        numbers = [operand.buffer for operand in instruction.args if type(operand) is Cell]
        return [*instruction.reads, *instruction.writes, *numbers]
    seed = instruction.seed if type(instruction) is Fill else None
    return [*instruction.reads, *([] if seed is None else [seed.buffer])]
