"""The instructions of a conditional update with their guards, and which of them can be one body."""

from collections.abc import Iterator, Sequence
from typing import final

from dagpu.plans.program import Instruction


@final
class GuardedStep:
    """An instruction of a conditional update, while its place in the program is found."""

    __slots__ = ("guard", "index", "instruction", "level", "reads")

    def __init__(self, index: int, instruction: Instruction, guard: int, reads: list[int]) -> None:
        self.index = index
        self.instruction = instruction
        self.guard = guard
        self.reads = reads
        self.level = 0
        """The number of changes between guards on the longest path to it."""


def read_writers(steps: Sequence[GuardedStep]) -> Iterator[tuple[GuardedStep, GuardedStep]]:
    """Yield each step with each step that makes what it reads."""
    writer: dict[int, GuardedStep] = {}
    for step in steps:
        yield from [(step, writer[buffer]) for buffer in step.reads if buffer in writer]
        writer.update(dict.fromkeys(step.instruction.writes, step))


def predecessors(steps: Sequence[GuardedStep]) -> list[set[int]]:
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


def set_levels(steps: Sequence[GuardedStep], before: Sequence[set[int]]) -> bool:
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
