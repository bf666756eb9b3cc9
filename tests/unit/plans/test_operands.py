"""What an instruction names besides its accesses, and the same instruction with other memory."""

from dataclasses import fields
from typing import Any, Final, get_args, get_type_hints

import numpy as np
import pytest

from dagpu.plans.program import Items, Operand, Renumbering, constant_values, map_operands, operand_values, operands
from dagpu.testing import (
    HOST,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    If,
    Instruction,
    Launch,
    Tiles,
    Uniform,
    View,
    contiguous_layout,
)
from tests.programs.plain_programs import kernel

FLAT: Final = contiguous_layout((16,), np.dtype(np.float32))
CONSTANT: Final = (Cell(0), 1.0)
"""A tuple as a user's value: no cell in it is an operand."""

EXAMPLES: Final[dict[Instruction, list[int]]] = {
    Launch(
        kernel(),
        (Tiles(View(5, FLAT), (4,), (4,)), View(1, FLAT), 2.5, Cell(2)),
        (4,),
        (1, 3),
        (5, 4),
        0,
        None,
        View(3, FLAT),
        View(4, FLAT),
    ): [5, 1, 2, 3, 4],
    Launch(kernel(), (View(1, FLAT), View(1, FLAT)), (1,), (1,), (), 0, None): [1, 1],
    Fill(View(5, FLAT), Uniform(None), (), (5,), 0, None, Cell(2)): [5, 2],
    Fill(View(5, FLAT), Uniform(1), (), (5,), 0, None): [5],
    CopyHtoD(View(5, FLAT), Cell(2), (2,), (5,), 0, None): [5, 2],
    CopyDtoH(Cell(2), View(1, FLAT), (1,), (2,), 0, None): [2, 1],
    CopyDtoD(View(5, FLAT), View(1, FLAT), (1,), (5,), 0, None): [5, 1],
    HostCall(len, Items((Cell(2), 7, Items((Cell(3), CONSTANT)))), Cell(4), (2, 3), (4,), 0, None): [2, 3, 4],
    HostCall(len, CONSTANT, Cell(4), (), (4,), 0, None): [4],
    GraphLaunch("graph", (1,), (5,), 0, None): [],
    If((View(1, FLAT), View(2, FLAT)), 1, (1, 2), (), 0, None): [1, 2],
}
"""Instructions of all kinds, each with the buffers that its operands name."""


def test_there_is_an_example_of_each_kind() -> None:
    """And the fields whose types are operands are among the operands of each kind."""
    assert {type(each) for each in EXAMPLES} == set(get_args(Instruction))
    for each in EXAMPLES:
        found = list(operands(each))
        for field in fields(each):
            value: Any = getattr(each, field.name)
            if type(value) in get_args(Operand):
                assert value in found, f"{type(each).__name__}.{field.name}"
            hint = get_type_hints(type(each))[field.name]
            if any(kind in get_args(Operand) for kind in (hint, *get_args(hint))) and value is not None:
                assert all(one in found for one in (value if type(value) is tuple else (value,)))


@pytest.mark.parametrize("instruction", EXAMPLES, ids=lambda each: type(each).__name__)
def test_operands_are_what_an_instruction_names(instruction: Instruction) -> None:
    """Each is yielded as often as it is named. A user's tuple is a constant."""
    assert [each.buffer for each in operands(instruction)] == EXAMPLES[instruction]


@pytest.mark.parametrize("instruction", EXAMPLES, ids=lambda each: type(each).__name__)
def test_all_other_fields_are_constants(instruction: Instruction) -> None:
    """Whatever an instruction has is an operand, one of its accesses, a constant, or where it comes from."""
    accesses = instruction.reads, instruction.writes, instruction.device
    known = [*constant_values(instruction), *operand_values(instruction), *accesses, instruction.origin]
    for field in fields(instruction):
        value = getattr(instruction, field.name)
        within = value if field.name in ("args", "flags") else (value,)
        assert field.name == "name" or all(any(one is other for other in known) for one in within)


@pytest.mark.parametrize("instruction", EXAMPLES, ids=lambda each: type(each).__name__)
def test_an_instruction_with_the_same_operands_is_equal(instruction: Instruction) -> None:
    """Nothing is changed but what is given."""
    same = map_operands(instruction, lambda each: each, instruction.reads, instruction.writes, instruction.device)
    assert same == instruction
    other = map_operands(instruction, lambda each: each, (1, 2, 3), (4,), 7)
    assert (other.reads, other.writes, other.device) == ((1, 2, 3), (4,), 7)


@pytest.mark.parametrize("instruction", EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_renumbered_instruction_names_the_new_buffers(instruction: Instruction) -> None:
    """Back with the old numbers it is equal to what it was."""
    numbers = {old: old + 10 for old in range(6)}
    new = Renumbering().instruction(instruction, numbers, 3)
    assert [each.buffer for each in operands(new)] == [numbers[each] for each in EXAMPLES[instruction]]
    assert new.reads == tuple([numbers[each] for each in instruction.reads])
    assert new.writes == tuple([numbers[each] for each in instruction.writes])
    assert new.device == 3
    back = Renumbering().instruction(new, {new: old for old, new in numbers.items()}, instruction.device)
    assert back == instruction


def test_what_is_shared_stays_shared() -> None:
    """Backends find a view's arguments once for each object. A user's value stays the very object that it was."""
    view = View(1, FLAT)
    one, other = (CopyDtoD(View(out, FLAT), view, (1,), (out,), 0, None) for out in (2, 3))
    renumbering, numbers = Renumbering(), {1: 4, 2: 5, 3: 6, HOST: 0}
    new = [renumbering.instruction(each, numbers, 0) for each in (one, other)]
    assert type(new[0]) is type(new[1]) is CopyDtoD
    assert new[0].source is new[1].source
    called = HostCall(len, CONSTANT, Cell(1), (), (1,), 0, None)
    again = renumbering.instruction(called, numbers, 0)
    assert type(again) is HostCall
    assert again.argument is CONSTANT
