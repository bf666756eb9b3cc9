"""Proves that an update leaves in every target what a run from scratch would.

First what the instructions of a program read, and what they do, derived for these proofs and for nothing else: the
planner of updates has its own analysis, and a mistake in it is to be noticed. A *value* is what one instruction leaves
in one of its outputs, or what a buffer holds before the program. Values are numbered: first one for each buffer, in
order, for what it holds before the program; then one for each of `writes` of each instruction, in order. So value
`first[i] + k` is output k of instruction i. Then the proof of an update, by the numbers of terms, and that of one which
decides cutoffs by itself.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, replace
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, final, get_args

from dagpu.common.errors import PlanError
from dagpu.plans.program import (
    Buffer,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostCall,
    If,
    Instruction,
    Items,
    Launch,
    Program,
    Role,
    Tiles,
    View,
    bodies_of,
    label,
)
from dagpu.plans.verifier import CURE
from dagpu.reactive.claims import Change, Comparison, ConditionalUpdate, Subprogram, runs
from dagpu.tracing.value_tokens import PLAIN, exact_token

Value: TypeAlias = int
"""The number of a value; see the module."""


class Analysed(Protocol):
    """What is claimed about the updates of a program, and proved of each of them."""

    program: Program
    bits: dict[int, int]
    """The bits of each buffer from outside whose contents may change."""
    targets: set[int]
    """The buffers whose last contents must be right after each update."""


class Compared(Protocol):
    """The comparisons of a program, as they are claimed."""

    program: Program
    """The program, with the comparisons behind its own buffers and instructions."""
    by_bit: dict[int, Comparison]


def comparisons_of(compared: Compared, bits: int) -> list[Comparison]:
    """Return the comparisons of the cutoffs with these bits."""
    return [each for bit, each in compared.by_bit.items() if bit & bits]


@final
class DataFlow:
    """The values of one program, each with its buffer and its maker, and those that each instruction reads."""

    __slots__ = ("_bits", "_deps", "_latest", "buffer", "first", "last", "maker", "program", "reads", "writers")

    def __init__(self, program: Program, bits: Mapping[int, int]) -> None:
        self.program = program
        self._bits = bits
        count = len(program.buffers)
        self.buffer = list(range(count))
        """The buffer of each value."""
        self.maker = [-1] * count
        """The instruction that makes each value; -1 for none."""
        self.first: list[Value] = []
        """The first value of each instruction."""
        self.reads: list[list[Value]] = []
        """The values that each instruction reads."""
        self.last: list[Value] = list(range(count))
        """For each buffer, the value that the program leaves in it."""
        self.writers = [0] * count
        """The number of instructions that write each buffer."""
        for index, instruction in enumerate(program.instructions):
            self.reads.append([self.last[buffer] for buffer in buffers_used(instruction, program.buffers)])
            self.first.append(len(self.buffer))
            for buffer in instruction.writes:
                self.last[buffer] = len(self.buffer)
                self.buffer.append(buffer)
                self.maker.append(index)
                self.writers[buffer] += 1
        self._deps: list[int] | None = None
        self._latest: tuple[int, list[int]] = 0, []
        """The dependents that were asked for last, with their bits."""

    def makes(self, index: int) -> range:
        """Return the values that an instruction makes, in the order of its `writes`."""
        return range(self.first[index], self.first[index] + len(self.program.instructions[index].writes))

    @property
    def deps(self) -> list[int]:
        """The bits of what each instruction depends on."""
        if self._deps is None:
            self._deps = []
            for reads in self.reads:
                bits = 0
                for value in reads:
                    bits |= self.bits_of(value)
                self._deps.append(bits)
        return self._deps

    def bits_of(self, value: Value) -> int:
        """Return the bits of what a value depends on."""
        maker = self.maker[value]
        return self._bits.get(self.buffer[value], 0) if maker < 0 else self.deps[maker]

    def dependents(self, mask: int) -> list[int]:
        """Return the instructions that depend on one of the bits, in the order of the program."""
        if self._latest[0] != mask:  # the parts that change are often of the same sources
            self._latest = mask, [index for index, bits in enumerate(self.deps) if bits & mask]
        return self._latest[1]


def buffers_used(instruction: Instruction, buffers: tuple[Buffer, ...]) -> list[int]:
    """Return the buffers and cells on whose contents the result of an instruction may depend: all that it reads, the
    cells of its numbers, and its outputs where it may leave a part of them as it was."""
    found = dict.fromkeys(instruction.reads)
    match instruction:
        case Fill(out=out) | CopyHtoD(out=out) | CopyDtoD(out=out):
            if out.layout.nbytes < buffers[out.buffer].nbytes:
                found[out.buffer] = None
            if type(instruction) is Fill and instruction.seed is not None:
                found[instruction.seed.buffer] = None
        case CopyDtoH() | HostCall():
            pass  # the host gets a new value
        case _:
            found.update(dict.fromkeys(instruction.writes))
            if type(instruction) is Launch:
                found.update(dict.fromkeys([each.buffer for each in instruction.args if type(each) is Cell]))
    return list(found)


_SAYS_NOTHING: Final = frozenset(("reads", "writes", "device", "origin", "name"))
"""Fields that stand in the description in another form, or that no result depends on."""

_DESCRIBED: Final[Mapping[type, tuple[str, ...]]] = {
    kind: tuple([each.name for each in fields(kind) if each.name not in _SAYS_NOTHING])
    for kind in get_args(Instruction)
}
"""For each kind of instruction, all other fields: also those that a later version of it gets."""


def operation(program: Program, instruction: Instruction) -> Hashable:
    """Return what an instruction does: equal for two instructions that leave the same if what `buffers_used` names
    holds the same.

    It is every field of the instruction, with buffers named by the order in which the instruction names them. Objects
    are equal only to themselves, and must live as long as the description.
    """
    names: dict[int, int] = {}
    used = [names.setdefault(buffer, len(names)) for buffer in (*instruction.reads, *instruction.writes)]
    kind = type(instruction)
    described = [_describe(getattr(instruction, name), names) for name in _DESCRIBED[kind]]
    return kind, program.devices[instruction.device], len(instruction.writes), tuple(used), tuple(described)


def _describe(value: Any, names: dict[int, int]) -> Hashable:
    kind = type(value)
    if kind is View:
        return View, names.setdefault(value.buffer, len(names)), value.layout
    if kind is Tiles:
        return Tiles, _describe(value.view, names), value.tile, value.grid
    if kind is Cell:
        return Cell, names.setdefault(value.buffer, len(names))
    if kind is Items:
        return Items, tuple([_describe(item, names) for item in value.items])
    if kind is tuple:
        return tuple([_describe(item, names) for item in value])
    return exact_token(value) if kind in PLAIN else ("object", id(value))


# ---- verify update
#
# Proves that an update leaves in every target what a run from scratch would, by the numbers of terms.
#
# It runs beside the verifier of plans, which proves the order and the memory of the same instructions. It knows
# nothing of how the instructions were chosen: it executes the whole program before and after the change, and the
# update between them, on terms in place of contents. A term is an instruction with the terms of all that it reads, and
# the number of one of its outputs.

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
        leaves; those in `change.left` may hold nothing. The flags of each cutoff that the update decides must be those
        of the contents that a run from scratch leaves.

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
            may_be = (after(buffer), None) if buffer in change.left else (after(buffer),)
            if not bits & change.wait and held[buffer] not in may_be:
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


# ---- verify conditional
#
# Proves an update that decides cutoffs by itself: in each outcome it leaves what a run from scratch would.
#
# The program of such an update is executed as its `If`s say, for every set of cutoffs whose tensors may differ.


def verify_conditional(verifier: UpdateVerifier, comparisons: Compared, update: ConditionalUpdate) -> None:
    """Prove a conditional update. `verifier` is that of the updates of the program.

    In each outcome, the targets must hold what a run from scratch leaves, where the changed sources have changed and
    those cutoffs let another tensor through whose tensors differ. The comparisons must be those of the cutoffs that the
    update is said to decide, and the targets that it makes those that it is said to make.

    Raises:
        PlanError: in some outcome that does not hold.
    """
    compared = comparisons_of(comparisons, update.cutoffs)
    flags = {each.flags for each in compared}
    for differing in update.outcomes():
        part = _executed(update.subprogram, {each.flags for each in compared if each.bit & differing})
        written = {buffer for buffer, _ in part.outputs}
        decided = sum([each.bit for each in compared if each.flags in written])
        made = {buffer for buffer, _, guard in update.made if runs(guard, differing)}
        if decided != update.compared(differing) or written - flags != made:
            raise PlanError(f"an update decides about other cutoffs or targets than it is said to. {CURE}")
        let_through = {each.buffer: each.passed for each in compared if each.passed is not None and each.bit & decided}
        change = Change(update.mask | differing, compare=decided)
        verifier.verify(change, part, let_through=let_through)


def _executed(update: Subprogram, flags: set[int]) -> Subprogram:
    """Return what of an update is executed if these flags are set, by their numbers in the whole program."""
    program = update.program
    here = {number for buffer, number in update.outputs if buffer in flags}
    chosen = [
        index
        for index, body in enumerate(bodies_of(program.instructions))
        if type(program.instructions[index]) is not If
        and (body < 0 or not here.isdisjoint(program.instructions[body].reads))
    ]
    instructions = tuple([program.instructions[index] for index in chosen])
    written = {buffer for instruction in instructions for buffer in instruction.writes}
    policies = tuple([program.policy_of[index] for index in chosen])
    executed = replace(program, instructions=instructions, policy_of=policies)
    outputs = tuple([(buffer, number) for buffer, number in update.outputs if number in written])
    return Subprogram(executed, update.chosen, update.inputs, outputs)
