"""What the instructions of a program read, and what they do: derived for the proofs of updates, and for nothing else.

A *value* is what one instruction leaves in one of its outputs, or what a buffer holds before the program. Values are
numbered: first one for each buffer, in order, for what it holds before the program; then one for each of `writes` of
each instruction, in order. So value `first[i] + k` is output k of instruction i.

The planner of updates has its own analysis. Nothing of that is used here: a mistake in it is to be noticed.
"""

from collections.abc import Hashable, Mapping
from dataclasses import fields
from typing import Any, Final, Protocol, TypeAlias, final, get_args

from dagpu.lowering.updates.claims import Comparison
from dagpu.plans.program import (
    Buffer,
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
