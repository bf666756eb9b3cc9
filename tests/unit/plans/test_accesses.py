"""A program in single-assignment form: its values, and what each instruction reads, uses and follows."""

from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu.plans.program import Accesses
from dagpu.testing import (
    Buffer,
    Cell,
    CopyDtoD,
    CopyHtoD,
    Fill,
    GraphLaunch,
    Instruction,
    Launch,
    Program,
    Role,
    Uniform,
    View,
    contiguous_layout,
)
from tests.programs.mixed_programs import FLAT, HALVES, NUMBER, SEED, mixed_programs
from tests.programs.plain_programs import conflicts, kernel, launch, output, program, programs, temporary

WHICH: Final = st.one_of(programs(), mixed_programs)


def test_a_read_is_of_the_last_value_that_was_written() -> None:
    """Values are numbered: first one of each buffer, then one of each output."""
    given = Buffer(64, 0, Role.INPUT)
    source = program([launch((0,), (1, 2)), launch((2,), (1,)), launch((1, 2), (2,))], [given, temporary(), output()])
    accesses = source.accesses
    assert accesses.buffer == [0, 1, 2, 1, 2, 1, 2]
    assert accesses.maker == [-1, -1, -1, 0, 0, 1, 2]
    assert accesses.before == [-1, -1, -1, 1, 2, 3, 4]
    assert accesses.first == [3, 5, 6, 7]
    assert accesses.reads == [[0], [4], [5, 4]]
    assert accesses.uses == [[0], [4, 3], [5, 4]]
    assert accesses.last == [0, 5, 6]
    assert accesses.writer == [-1, 1, 2]
    assert accesses.readers == [[0], [2], []]
    assert accesses.predecessors == [[], [0, 0], [1, 0, 1]]


@settings(max_examples=100)
@given(WHICH)
def test_values_are_what_a_walk_over_the_program_finds(source: Program) -> None:
    """Each value is in its buffer from the instruction that makes it up to the next that writes that buffer."""
    accesses, held = source.accesses, list(range(len(source.buffers)))
    for index, instruction in enumerate(source.instructions):
        assert accesses.reads[index] == [held[buffer] for buffer in instruction.reads]
        makes = accesses.makes(index)
        assert [accesses.buffer[value] for value in makes] == list(instruction.writes)
        assert [accesses.before[value] for value in makes] == [held[buffer] for buffer in instruction.writes]
        assert all(accesses.maker[value] == index for value in makes)
        for buffer, value in zip(instruction.writes, makes, strict=True):
            held[buffer] = value
    assert accesses.last == held
    assert accesses.writer == [accesses.maker[value] for value in held]
    for buffer, value in enumerate(held):
        readers = [index for index, reads in enumerate(accesses.reads) if value in reads]
        assert sorted(set(accesses.readers[buffer])) == readers
    assert len(accesses.maker) == len(accesses.buffer) == len(accesses.before) == accesses.first[-1]


@settings(max_examples=100)
@given(WHICH)
def test_predecessors_order_what_conflicts_and_nothing_else(source: Program) -> None:
    """By way of others or directly, each instruction follows all that it must, and nothing that it need not."""
    wanted = conflicts(source.instructions)
    after: list[set[int]] = []
    for index, before in enumerate(source.accesses.predecessors):
        assert all((id(source.instructions[one]), id(source.instructions[index])) in wanted for one in before)
        after.append(set(before).union(*[after[one] for one in before]))
    for index, instruction in enumerate(source.instructions):
        for earlier in range(index):
            if (id(source.instructions[earlier]), id(instruction)) in wanted:
                assert earlier in after[index]


def _uses(instruction: Instruction, *before: Instruction, role: Role = Role.OUTPUT) -> list[int]:
    """The buffers of the values that an instruction uses, after others."""
    given = Buffer(64, 0, Role.INPUT)
    cells = [Buffer(0, -1, Role.INPUT)] * 4
    source = program([*before, instruction], [given, given, given, *cells, Buffer(64, 0, role)])
    return [source.accesses.buffer[value] for value in source.accesses.uses[-1]]


OUT: Final = 7
FIRST: Final = launch((), (OUT,))
SMALL: Final = contiguous_layout((4,), np.dtype(np.float32))


@pytest.mark.parametrize(
    ("instruction", "blank", "written"),
    {
        "a kernel may read what it writes": (launch((0,), (OUT,)), [0], [0, OUT]),
        "its numbers": (Launch(kernel(), (Cell(NUMBER), 1.0), (1,), (0,), (), 0, None), [0, NUMBER], [0, NUMBER]),
        "what it reads and writes, once": (launch((OUT, OUT), (OUT,)), [OUT], [OUT]),
        "a seed": (Fill(View(OUT, FLAT), Uniform(None), (), (OUT,), 0, None, Cell(SEED)), [SEED], [SEED]),
        "a fill of a part": (Fill(View(OUT, SMALL), Uniform(1), (), (OUT,), 0, None), [], [OUT]),
        "an upload covers": (CopyHtoD(View(OUT, FLAT), Cell(3), (3,), (OUT,), 0, None), [3], [3]),
        "a copy covers": (CopyDtoD(View(OUT, FLAT), View(1, FLAT), (1,), (OUT,), 0, None), [1], [1]),
        "a copy to a part": (CopyDtoD(View(OUT, HALVES[1]), View(1, SMALL), (1,), (OUT,), 0, None), [1], [1, OUT]),
        "a captured graph": (GraphLaunch("graph", (0,), (OUT,), 0, None), [0], [0, OUT]),
    }.values(),
)
def test_what_an_instruction_uses(instruction: Instruction, blank: list[int], written: list[int]) -> None:
    """What was in its memory counts unless it writes all of it, or nothing has written it."""
    assert _uses(instruction) == blank
    assert _uses(instruction, FIRST) == written
    assert _uses(instruction, role=Role.INPUT) == written


def test_another_program_has_its_own_accesses() -> None:
    """They are computed once for each program, and are no part of what it is."""
    one = program([launch((), (0,)), launch((0,), (1,))], [temporary(), output()])
    assert one.accesses is one.accesses
    other = replace(one, instructions=one.instructions[:1], policy_of=(0,))
    assert other.accesses.last == [2, 1]
    assert replace(one) == one
    assert "accesses" not in repr(one)
    assert Accesses(one.buffers, one.instructions).predecessors == one.accesses.predecessors
