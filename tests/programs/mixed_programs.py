"""Programs of all kinds of instructions that updates have: launches, fills, copies of all and of parts, functions."""

from random import Random
from typing import Final

import numpy as np
from hypothesis import strategies as st

from dagpu.common.layout import Layout
from dagpu.plans.policies import RoundRobin
from dagpu.plans.program import Items
from dagpu.testing import (
    HOST,
    Buffer,
    Cell,
    Constant,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostCall,
    Instruction,
    Launch,
    Program,
    Role,
    Tiles,
    Uniform,
    View,
    contiguous_layout,
    slice_layout,
)
from tests.programs.plain_programs import kernel, program

FLAT: Final = contiguous_layout((16,), np.dtype(np.float32))
HALVES: Final = slice_layout(FLAT, (slice(0, 8),)), slice_layout(FLAT, (slice(8, 16),))
_KERNELS: Final = kernel("one"), kernel("other")

TENSORS: Final = 0, 1, 2
ARRAYS: Final = 3, 4
NUMBER: Final = 5
SEED: Final = 6
"""The buffers from outside."""
SOURCES: Final = {0: 1, 1: 2, 3: 4, NUMBER: 8, SEED: 16}
"""Bits of those of them that may change between the runs of a feed."""


class _Writer:
    """A program under construction."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.buffers = [*[Buffer(64, 0, Role.INPUT) for _ in TENSORS], *[Buffer(0, HOST, Role.INPUT) for _ in range(4)]]
        self.instructions: list[Instruction] = []
        self.tensors = list(TENSORS)
        """The buffers with contents."""
        self.cells = list(ARRAYS)

    def target(self, new: float = 0.7) -> int:
        """Return a buffer to write: with this chance a new one."""
        again = [buffer for buffer in self.tensors if buffer > SEED]
        if again and self.chance.random() > new:
            return self.chance.choice(again)
        self.buffers.append(Buffer(64, 0, self.chance.choice((Role.TEMPORARY, Role.OUTPUT))))
        return len(self.buffers) - 1

    def cell(self) -> int:
        self.buffers.append(Buffer(0, HOST, Role.OUTPUT))
        self.cells.append(len(self.buffers) - 1)
        return self.cells[-1]

    def put(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)
        self.tensors += [
            buffer
            for buffer in instruction.writes
            if self.buffers[buffer].device != HOST and buffer not in self.tensors
        ]

    def launch(self) -> None:
        chance = self.chance
        reads = sorted({chance.choice(self.tensors) for _ in range(chance.randint(0, 3))})
        writes = list(dict.fromkeys([self.target() for _ in range(chance.choice((1, 1, 2)))]))
        changed = [buffer for buffer in writes if chance.random() < 0.3]
        reads = [buffer for buffer in reads if buffer in changed or buffer not in writes]
        outputs = [Tiles(View(buffer, FLAT), (4,), (4,)) for buffer in writes]
        number = Cell(NUMBER) if chance.random() < 0.4 else 2.0
        arguments = (*outputs, *[View(buffer, FLAT) for buffer in reads if buffer not in writes], number)
        self.put(Launch(chance.choice(_KERNELS), arguments, (4,), tuple(reads), tuple(writes), 0, None))

    def fill(self) -> None:
        out, random = self.target(), self.chance.random() < 0.5
        recipe, seed = (Uniform(None), Cell(SEED)) if random else (Constant(1.0), None)
        self.put(Fill(View(out, FLAT), recipe, (), (out,), 0, None, seed))

    def upload(self) -> None:
        out, cell = self.target(), self.chance.choice(ARRAYS)
        self.put(CopyHtoD(View(out, FLAT), Cell(cell), (cell,), (out,), 0, None))

    def download(self) -> None:
        source, cell = self.chance.choice(self.tensors), self.cell()
        self.put(CopyDtoH(Cell(cell), View(source, FLAT), (source,), (cell,), 0, None))

    def copy(self) -> None:
        source, out = self.chance.choice(self.tensors), self.target(0.3)
        if source == out:
            return
        layout: Layout = FLAT
        reads: tuple[int, ...] = (source,)
        if out in self.tensors and self.chance.random() < 0.6:
            layout, reads = self.chance.choice(HALVES), (source, out)
        self.put(CopyDtoD(View(out, layout), View(source, layout), reads, (out,), 0, None))

    def call(self) -> None:
        used = self.chance.sample(self.cells, self.chance.randint(1, min(3, len(self.cells))))
        argument, cell = Items(tuple([Cell(each) for each in used])), self.cell()
        self.put(HostCall(len, argument, Cell(cell), tuple(sorted(used)), (cell,), 0, None))


def mixed(chance: Random, most: int = 12, *, host: bool = True) -> Program:
    """Return a program with up to this number of instructions; with `host` some are functions of the host."""
    writer = _Writer(chance)
    kinds = [writer.launch, writer.launch, writer.launch, writer.fill, writer.upload, writer.copy]
    kinds += [writer.download, writer.call] if host else []
    for _ in range(chance.randint(2, most)):
        chance.choice(kinds)()
    return program(writer.instructions, writer.buffers, RoundRobin(2))


mixed_programs: Final = st.integers(0, 2**32 - 1).map(lambda seed: mixed(Random(seed)))
