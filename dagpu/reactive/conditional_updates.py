"""`ConditionalUpdate`: an update whose program decides cutoffs by itself.

The program makes the tensors of the cutoffs and compares them. Behind that come bodies of `If`s with what depends on
the cutoffs' bits, so one CUDA graph is the whole update. Each instruction has a *guard*: the bits of the cutoffs of
which one must differ for it to run, or `ALWAYS`. The instructions of one guard are one body.

An instruction that comes after a cutoff reads the tensor that the cutoff compares, in the place of the one that it lets
through: where the two differ it lets this one through, and where they are equal both have the same bits.

Not every update can be such a program; `conditional_update` says why not. The host then decides between two plans.
"""

from collections.abc import Iterator, Sequence
from typing import Final, final

from dagpu.plans.program import HOST, HostCall, If, Instruction, Role, View, label
from dagpu.reactive.claims import ALWAYS, Change, Comparison, ConditionalUpdate
from dagpu.reactive.staleness import Staleness, ValueNumbers
from dagpu.reactive.subprogram import CutoffComparisons, assemble

MOST_CUTOFFS: Final = 4
"""The most cutoffs that one program decides. It is proved for each outcome, and their number doubles with each
cutoff."""


NOTHING_AFTER: Final = "nothing runs after the cutoff"
"""The reason why an update needs no conditional program."""


# ---- instructions with their guards


@final
class _Step:
    """An instruction of a conditional update, while its place in the program is found."""

    __slots__ = ("guard", "index", "instruction", "level", "reads")

    def __init__(self, index: int, instruction: Instruction, guard: int, reads: list[int]) -> None:
        self.index = index
        self.instruction = instruction
        self.guard = guard
        self.reads = reads
        self.level = 0
        """The number of changes between guards on the longest path to it."""


def _read_writers(steps: Sequence[_Step]) -> Iterator[tuple[_Step, _Step]]:
    """Yield each step with each step that makes what it reads."""
    writer: dict[int, _Step] = {}
    for step in steps:
        yield from [(step, writer[buffer]) for buffer in step.reads if buffer in writer]
        writer.update(dict.fromkeys(step.instruction.writes, step))


def _predecessors(steps: Sequence[_Step]) -> list[set[int]]:
    """Return for each step the earlier ones that it must follow, by what both access."""
    found: list[set[int]] = []
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        writes = step.instruction.writes
        before = {writer[buffer] for buffer in (*step.reads, *writes) if buffer in writer}
        found.append(before.union(*[readers.get(buffer, ()) for buffer in writes]))
        for buffer in step.reads:
            readers.setdefault(buffer, []).append(number)
        for buffer in writes:
            writer[buffer], readers[buffer] = number, []
    return found


def _set_levels(steps: Sequence[_Step], before: Sequence[set[int]]) -> bool:
    """Set the level of each step, given those that it must follow. Return false if some must follow each other."""
    left = list(map(len, before))
    after: list[list[int]] = [[] for _ in steps]
    for number, each in enumerate(before):
        for other in each:
            after[other].append(number)
    ready = [number for number, count in enumerate(left) if not count]
    for number in ready:  # which grows
        step = steps[number]
        for other in after[number]:
            later = steps[other]
            later.level = max(later.level, step.level + (step.guard != later.guard))
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return len(ready) == len(steps)


# ---- the update


def conditional_update(
    staleness: Staleness, comparisons: CutoffComparisons, mask: int, wait: int
) -> ConditionalUpdate | str:
    """Return the update for a change of the bits `mask` that decides the cutoffs `wait`, of which nothing is lost. A
    text says why it cannot be one program."""
    return _Builder(staleness, comparisons, mask, wait).build()


@final
class _Builder:
    """Builds one conditional update."""

    def __init__(self, staleness: Staleness, comparisons: CutoffComparisons, mask: int, wait: int) -> None:
        self._staleness = staleness
        self._whole = comparisons.program
        self._mask = mask
        self._wait = wait
        self._comparisons = sorted(comparisons.of(wait), key=lambda each: each.bit)
        self._table = ValueNumbers()
        self._numbers = self._table.of_program(staleness.program, self._leaf)
        self._guard_of_comparison = {
            each.bit: self._guard(staleness.bits_of(each.buffer)) for each in self._comparisons
        }

    def build(self) -> ConditionalUpdate | str:
        comparisons = self._comparisons
        if len(comparisons) > MOST_CUTOFFS:
            return f"{len(comparisons)} cutoffs depend on the change, and one graph decides at most {MOST_CUTOFFS}"
        if len(set(map(self._number, comparisons))) < len(comparisons):
            return "two cutoffs compare one tensor"  # one may have let another tensor through last than the other
        guards = self._guards()
        if not any(guards.values()):
            return NOTHING_AFTER
        steps = self._steps(guards)
        return self._obstacle(steps) or self._place(steps) or self._assemble(steps)

    def _leaf(self, buffer: int) -> object:
        """Return what stands for the contents of a buffer before the program: nothing for memory that it allocates."""
        return buffer if self._whole.buffers[buffer].role is Role.INPUT else None

    def _number(self, comparison: Comparison) -> int:
        """Return the value number of what a cutoff compares."""
        buffer = self._in_place_of.get(comparison.buffer, comparison.buffer)
        number = self._numbers.get(buffer)
        return self._table.of_leaf(buffer) if number is None else number

    # ---- guards

    def _guard(self, bits: int) -> int:
        """Return the guard of what depends on these bits."""
        return ALWAYS if bits & self._mask else bits & self._wait

    def _guards(self) -> dict[int, int]:
        """Return the guard of each instruction that may run.

        The targets of each guard are made by a closed set of instructions, which finds all other targets as they were
        or as they should be. So the union of any of these sets is right too, in the order of the program. An
        instruction of several sets runs if one of the sets does.
        """
        staleness = self._staleness
        stale = staleness.stale_targets(Change(self._mask | self._wait))
        by_guard: dict[int, set[int]] = {}
        for buffer in stale:
            by_guard.setdefault(self._guard(staleness.bits_of(buffer)), set()).add(buffer)
        found = dict.fromkeys(staleness.instructions_for(by_guard.pop(ALWAYS, set())), ALWAYS)
        always = frozenset(found)
        for guard, targets in by_guard.items():
            rest = {buffer for buffer in targets if staleness.last[buffer] not in always}
            for index in staleness.instructions_for(rest) if rest else ():
                if index not in always:
                    found[index] = found.get(index, 0) | guard
        return found

    # ---- steps

    def _steps(self, guards: dict[int, int]) -> list[_Step]:
        """Return the instructions in the order of the program, each comparison behind what makes its tensor."""
        last, instructions = self._staleness.last, self._whole.instructions
        order = [((index, 0), index, guard) for index, guard in guards.items()]
        order += [
            ((last.get(each.buffer, -1), 1), each.chosen, self._guard_of_comparison[each.bit])
            for each in self._comparisons
        ]
        instead, accesses, steps = self._in_place_of, self._whole.accesses, list[_Step]()
        for _, index, guard in sorted(order):
            used = [accesses.buffer[value] for value in accesses.uses[index]]
            reads = [instead.get(buffer, buffer) for buffer in used]
            steps.append(_Step(index, instructions[index], guard, reads))
        return steps

    @property
    def _in_place_of(self) -> dict[int, int]:
        """The buffers of the tensors that the cutoffs let through, each with the buffer of the compared tensor."""
        return {each.passed: each.buffer for each in self._comparisons if each.passed is not None}

    def _obstacle(self, steps: Sequence[_Step]) -> str:
        """Return why no graph can hold these instructions; empty if one can."""
        for step in steps:
            if type(step.instruction) is HostCall:
                return f"{label(step.instruction)} is a function of the host"
        buffers = self._whole.buffers
        used = {buffers[b].device for step in steps for b in (*step.reads, *step.instruction.writes)}
        devices = {step.instruction.device for step in steps} | used - {HOST}
        return "the work is on several devices" if len(devices) > 1 else ""

    def _place(self, steps: Sequence[_Step]) -> str:
        """Set the levels, so that the instructions of one guard and level can be one body. Return why that is not
        possible; empty if it is."""
        before = _predecessors(steps)
        for step, made in [(step, made) for step, made in _read_writers(steps) if made.guard != ALWAYS]:
            if not self._implies(step.guard, made.guard):
                when = "runs in any case" if step.guard == ALWAYS else "waits for another cutoff"
                return (
                    f"{label(step.instruction)} {when}, and reads what {label(made.instruction)} makes after a cutoff"
                )
        number_of = {step.index: number for number, step in enumerate(steps)}
        for each in self._comparisons:
            for number, step in enumerate(steps):
                if step.guard & each.bit:
                    before[number].add(number_of[each.chosen])
        return "" if _set_levels(steps, before) else "what one cutoff lets through is made before the cutoff is decided"

    def _implies(self, guard: int, other: int) -> bool:
        """Return true if what has the guard `other` has run, or will run, wherever what has the first one runs."""
        if other == ALWAYS:
            return True
        return guard != ALWAYS and all(
            bit & other or self._implies(self._guard_of_comparison[bit], other)
            for bit in self._guard_of_comparison
            if bit & guard
        )

    # ---- the program

    def _assemble(self, steps: Sequence[_Step]) -> ConditionalUpdate:
        whole, targets = self._whole, self._staleness.targets
        groups: dict[tuple[int, int], list[_Step]] = {}
        for step in steps:
            groups.setdefault((step.level, step.guard), []).append(step)
        instructions: list[Instruction] = []
        policies: list[int] = []
        placed: list[_Step] = []
        for (_, guard), body in sorted(groups.items(), key=lambda group: group[0]):
            if guard != ALWAYS:
                instructions.append(self._if(guard, len(body)))
                policies.append(whole.policy_of[body[0].index])
            instructions += [each.instruction for each in body]
            policies += [whole.policy_of[each.index] for each in body]
            placed += body
        flags = {each.flags for each in self._comparisons}
        chosen = tuple([each.index for each in placed])
        subprogram = assemble(whole, instructions, policies, chosen, targets | flags, self._in_place_of)
        guard_of = {step.index: step.guard for step in steps}
        return ConditionalUpdate(
            self._mask,
            subprogram,
            tuple([each.guard for each in placed]),
            tuple([(b, here, guard_of[self._staleness.last[b]]) for b, here in subprogram.outputs if b not in flags]),
            tuple([(each.bit, each.buffer, self._guard_of_comparison[each.bit]) for each in self._comparisons]),
        )

    def _if(self, guard: int, body: int) -> If:
        """Return the instruction that decides about a body of this number of instructions."""
        deciding: list[Comparison] = [each for each in self._comparisons if each.bit & guard]
        flags = tuple([View(each.flags, each.flags_layout) for each in deciding])
        first = self._whole.instructions[deciding[0].chosen]
        return If(flags, body, tuple([each.flags for each in deciding]), (), first.device, first.origin)
