"""Which instructions of a program run again for a set of changed inputs, and which buffers are kept between updates.

Each *version* of a buffer (the contents that one instruction leaves in it) has the bits of the sources and cutoffs that
it depends on. The *targets* are the buffers whose last version must be right after an update: the results, and the
versions that some reader with more bits needs again, which are *kept*. Of a chain on one source nothing is kept. An
update for the bits `mask` makes the targets whose bits meet `mask`, and for each of them what it needs and is not kept.
So the instructions of an update depend on `mask` alone, and with nothing dropped they are exactly those whose bits meet
`mask`, as far as a target needs them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias, final

from dagpu.lowering.program import Cell, Fill, Instruction, Launch, Program, Role

_MOST_MASKS: Final = 64
"""The most sets of bits whose instructions are remembered."""

IsKept: TypeAlias = Callable[[int, int], bool]
"""A function of a buffer and an instruction: true if the buffer holds what that instruction left in it."""


class Change(NamedTuple):
    """What an update is for: the key of its plan."""

    mask: int
    """The bits that have changed."""
    wait: int = 0
    """The bits of cutoffs that are not decided yet: what depends on them is left for a later part of the update."""
    only: int = 0
    """If not 0, the bits that earlier parts left out: what depends on none of them is made already."""
    lost: frozenset[int] = frozenset()
    """The targets that hold nothing, or not what they should."""
    given: frozenset[int] = frozenset()
    """The targets that another run has made for the new inputs."""
    compare: int = 0
    """The bits of the cutoffs that the update decides: it compares their tensors with those that they let through
    last."""


@final
class Staleness:
    """The dependences of one program, and what must be kept."""

    def __init__(
        self,
        program: Program,
        bits: dict[int, int],
        compared: Iterable[int] = (),
        dropped: Iterable[int] = (),
        also_kept: Iterable[int] = (),
    ) -> None:
        self.program = program
        self.bits = bits
        """The bits of each buffer from outside; a buffer that is missing never changes."""
        self.needs: list[list[tuple[int, int]]] = []
        """For each instruction, what it reads: a buffer, and the instruction that wrote it, -1 for none."""
        self.deps: list[int] = []
        """The bits of each instruction."""
        self.last: dict[int, int] = {}
        """The instruction that writes a buffer last."""
        self.writers: defaultdict[int, list[int]] = defaultdict(list)
        for index, instruction in enumerate(program.instructions):
            needs = [(buffer, self.last.get(buffer, -1)) for buffer in buffers_read(instruction)]
            mask = 0
            for buffer, writer in needs:
                mask |= bits.get(buffer, 0) if writer < 0 else self.deps[writer]
            self.needs.append(needs)
            self.deps.append(mask)
            for buffer in instruction.writes:
                self.last[buffer] = index
                self.writers[buffer].append(index)
        self.compared = frozenset(compared)
        """The buffers whose contents a cutoff compares."""
        self.results = {
            b for b in self.last if program.buffers[b].role is Role.OUTPUT
        } | self.compared & self.last.keys()
        """The buffers that others may hold: an update makes them in new memory while something else reads them."""
        self.also_kept = frozenset(also_kept)
        """Buffers that are kept so that launches may run in tiles."""
        self.kept = (self._versions_needed_again() | self.also_kept) - self.results - set(dropped)
        """The buffers that a later update may read, and that nothing outside can see."""
        self.targets = self.results | self.kept
        self.read = frozenset([buffer for each in program.instructions for buffer in each.reads])
        """The buffers that an instruction reads."""
        self._dependents: dict[int, tuple[int, ...]] = {}
        self.kept_bytes = sum([program.buffers[buffer].nbytes for buffer in self.targets])
        """The bytes of device memory that stay between updates."""

    def _versions_needed_again(self) -> set[int]:
        """Return the buffers whose last version some reader with more bits needs."""
        needed = self._closure({self.last[b] for b in self.results}, lambda buffer, writer: False)
        found = set()
        for index in needed:
            for buffer, writer in self.needs[index]:
                again = writer >= 0 and self.last[buffer] == writer and self.deps[index] & ~self.deps[writer]
                if again and buffer not in self.results:
                    found.add(buffer)
        return found

    def bits_of(self, buffer: int) -> int:
        """Return the bits of the last version of a buffer."""
        writer = self.last.get(buffer, -1)
        return self.bits.get(buffer, 0) if writer < 0 else self.deps[writer]

    def dependents(self, mask: int) -> tuple[int, ...]:
        """Return the instructions that depend on one of the bits, in the order of the program."""
        found = self._dependents.get(mask)
        if found is None:
            found = tuple([index for index, deps in enumerate(self.deps) if deps & mask])
            if len(self._dependents) >= _MOST_MASKS:
                self._dependents.clear()
            self._dependents[mask] = found
        return found

    def stale_targets(self, change: Change) -> set[int]:
        """Return the targets that an update makes."""
        mask, wait, only, lost, given, _ = change
        return {
            buffer
            for buffer in self.targets
            if not (bits := self.bits_of(buffer)) & wait
            and (not only or bits & only)
            and (bits & mask or buffer in lost)
            and buffer not in given
        }

    def instructions_for(self, targets: set[int]) -> tuple[int, ...]:
        """Return the instructions that make these targets, in the order of the program. The other targets hold their
        last versions."""
        valid = self.targets - targets

        def is_kept(buffer: int, writer: int) -> bool:
            return buffer in valid and self.last[buffer] == writer

        while True:
            chosen = self._closure({self.last[buffer] for buffer in targets}, is_kept)
            # A kept buffer of which an earlier version is made again loses its last one.
            written = {b for index in chosen for b in self.program.instructions[index].writes} & valid
            if not written:
                return tuple(sorted(chosen))
            targets = targets | written
            valid = valid - written

    def instructions_below(self, buffers: Iterable[int]) -> set[int]:
        """Return the instructions on which the last versions of these buffers depend, those that make them included."""
        return self._closure({self.last[buffer] for buffer in buffers}, lambda buffer, writer: False)

    def instructions_for_mask(self, mask: int) -> tuple[int, ...]:
        """Return the instructions that run again if these bits have changed, in the order of the program."""
        return self.instructions_for(self.stale_targets(Change(mask)))

    def _closure(self, roots: set[int], is_kept: IsKept) -> set[int]:
        """Return the instructions that make what `roots` need, these included."""
        chosen = set(roots)
        todo = list(roots)
        while todo:
            for buffer, writer in self.needs[todo.pop()]:
                if writer >= 0 and writer not in chosen and not is_kept(buffer, writer):
                    chosen.add(writer)
                    todo.append(writer)
        return chosen


def buffers_read(instruction: Instruction) -> list[int]:
    """Return the buffers and cells whose contents an instruction may use, in a fixed order.

    A kernel may read what it writes. A fill, a copy and a function of the host cover what they write, or have it in
    their `reads`.
    """
    reads = list(instruction.reads)
    if type(instruction) is Launch:
        reads += [buffer for buffer in instruction.writes if buffer not in instruction.reads]
        reads += [arg.buffer for arg in instruction.args if type(arg) is Cell]
    elif type(instruction) is Fill and instruction.seed is not None:
        reads.append(instruction.seed.buffer)
    return reads
