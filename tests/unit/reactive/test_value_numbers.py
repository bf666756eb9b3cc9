"""Value numbers: two contents have one number only if nothing that makes them tells them apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dagpu.common.layout import Layout, reshape_layout
from dagpu.plans.program import Items, operands_in
from dagpu.reactive.staleness import ValueNumbers
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
    Role,
    Tiles,
    Uniform,
    View,
    contiguous_layout,
    slice_layout,
)
from tests.programs.plain_programs import kernel, launch, program

FLAT = contiguous_layout((16,), np.dtype(np.float32))
SQUARE = reshape_layout(FLAT, (4, 4))
TURNED = Layout(SQUARE.dtype, (4, 4), (4, 16), 0)
KERNEL = kernel()
RANDOM = Uniform(None)

GIVEN, OTHER, SEED, NUMBER, MADE, SECOND, FAR = range(7)
BUFFERS = (
    Buffer(64, 0, Role.INPUT),
    Buffer(64, 0, Role.INPUT),
    Buffer(0, HOST, Role.INPUT),
    Buffer(0, HOST, Role.INPUT),
    Buffer(64, 0, Role.OUTPUT),
    Buffer(64, 0, Role.OUTPUT),
    Buffer(64, 1, Role.INPUT),
)
LEAVES = {GIVEN: object(), OTHER: object(), SEED: 1, NUMBER: 2.0, FAR: object()}


def numbers(table: ValueNumbers, *instructions: Instruction, leaves: dict[int, Any] | None = None) -> dict[int, int]:
    """The number of what these instructions leave in each buffer."""
    held = {**LEAVES, **(leaves or {})}
    return table.of_program(program(instructions, BUFFERS), lambda buffer: held.get(buffer))


def reading(*reads: int) -> Launch:
    """A launch that writes `MADE`, and reads these buffers, in order."""
    arguments = (Tiles(View(MADE, FLAT), (4,), (4,)), *[View(buffer, FLAT) for buffer in reads])
    return Launch(KERNEL, arguments, (4,), tuple(dict.fromkeys(reads)), (MADE,), 0, None)


def filled(recipe: Any = RANDOM, out: Layout = FLAT, seed: int | None = SEED) -> Fill:
    """A fill of the buffer `MADE`."""
    return Fill(View(MADE, out), recipe, (), (MADE,), 0, None, None if seed is None else Cell(seed))


def tiled(view: Layout = FLAT, tile: int = 4, grid: int = 4, read: Layout = FLAT, given: Any = 1.0) -> Launch:
    """A launch that writes `MADE` in tiles, and reads a buffer and a number."""
    out = Tiles(View(MADE, view), (tile,), (grid,))
    return Launch(KERNEL, (out, View(GIVEN, read), given), (grid,), (GIVEN,), (MADE,), 0, None)


def copied(out: Layout = FLAT, source: Layout = FLAT, of: int = GIVEN) -> CopyDtoD:
    """A copy to `MADE`."""
    return CopyDtoD(View(MADE, out), View(of, source), (of,), (MADE,), 0, None)


def uploaded(out: Layout = FLAT) -> CopyHtoD:
    return CopyHtoD(View(MADE, out), Cell(NUMBER), (NUMBER,), (MADE,), 0, None)


def downloaded(source: Layout = FLAT) -> CopyDtoH:
    return CopyDtoH(Cell(MADE), View(GIVEN, source), (GIVEN,), (MADE,), 0, None)


def called(argument: Any, function: Callable[[Any], object] = len) -> HostCall:
    reads = tuple([each.buffer for each in operands_in((argument,))])
    return HostCall(function, argument, Cell(MADE), reads, (MADE,), 0, None)


PARTS = slice_layout(FLAT, (slice(0, 8),)), slice_layout(FLAT, (slice(8, 16),))
PAIR, TURNED_PAIR = Items((Cell(SEED), Cell(NUMBER))), Items((Cell(NUMBER), Cell(SEED)))

DIFFERENT: dict[str, tuple[Instruction, Instruction]] = {
    "the target of a copy": (copied(SQUARE, SQUARE), copied(TURNED, SQUARE)),
    "the source of a copy": (copied(SQUARE, SQUARE), copied(SQUARE, TURNED)),
    "the part that a copy takes": (copied(PARTS[0], PARTS[0]), copied(PARTS[0], PARTS[1])),
    "what a copy reads": (copied(), copied(of=OTHER)),
    "the target of an upload": (uploaded(SQUARE), uploaded(TURNED)),
    "what is downloaded": (downloaded(SQUARE), downloaded(TURNED)),
    "the view of tiles": (tiled(SQUARE), tiled(TURNED)),
    "the extent of tiles": (tiled(tile=4), tiled(tile=8)),
    "the grid of tiles": (tiled(), tiled(grid=2)),
    "the view that a launch reads": (tiled(read=SQUARE), tiled(read=TURNED)),
    "which buffer a launch reads twice": (reading(GIVEN, OTHER, GIVEN), reading(GIVEN, OTHER, OTHER)),
    "a number": (tiled(given=1.0), tiled(given=2.0)),
    "the sign of zero": (tiled(given=0.0), tiled(given=-0.0)),
    "the kernel": (tiled(), replace(tiled(), kernel=kernel())),
    "the recipe of a fill": (filled(Constant(1.0), seed=None), filled(Constant(2.0), seed=None)),
    "the seed in a recipe": (filled(Uniform(1), seed=None), filled(Uniform(2), seed=None)),
    "the layout of a fill": (filled(out=SQUARE), filled(out=TURNED)),
    "the order of what a function is given": (called(PAIR), called(TURNED_PAIR)),
    "the function": (called(PAIR), called(PAIR, repr)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_contents_that_differ_have_two_numbers(what: str) -> None:
    """Each field that decides about contents is a part of the number, and the number is the same a second time."""
    table = ValueNumbers()
    one, other = (numbers(table, each)[MADE] for each in DIFFERENT[what])
    assert one != other
    assert numbers(table, DIFFERENT[what][0])[MADE] == one


def test_a_fill_of_random_numbers_has_the_number_of_its_seed() -> None:
    """The seed is a cell, which the `reads` of the fill leave out."""
    table = ValueNumbers()
    first, again, other = (numbers(table, filled(), leaves={SEED: seed})[MADE] for seed in (1, 1, 2))
    assert first == again != other


def test_a_number_that_a_launch_finds_in_a_cell_counts() -> None:
    """The cell is not in the `reads` of the launch either."""
    table = ValueNumbers()
    first, again, other = (
        numbers(table, tiled(given=Cell(NUMBER)), leaves={NUMBER: number})[MADE] for number in (1.0, 1.0, 2.0)
    )
    assert first == again != other


def test_the_outputs_of_one_launch_have_numbers_of_their_own() -> None:
    """And so has all that is made of them. The other way round the same two numbers are found."""
    table = ValueNumbers()
    found = numbers(table, launch((GIVEN,), (MADE, SECOND)))
    assert found[MADE] != found[SECOND]
    turned = numbers(table, launch((GIVEN,), (SECOND, MADE)))
    assert (turned[SECOND], turned[MADE]) == (found[MADE], found[SECOND])


def test_a_launch_may_read_what_it_writes() -> None:
    """A second launch into the same memory leaves something else than the first one."""
    table = ValueNumbers()
    once, twice = launch((GIVEN,), (MADE,)), launch((GIVEN,), (MADE,))
    assert numbers(table, once)[MADE] != numbers(table, once, twice)[MADE]


@pytest.mark.parametrize("layout", [FLAT, TURNED])
def test_a_copy_of_a_whole_buffer_has_the_number_of_what_it_copies(layout: Layout) -> None:
    """So what a kernel makes of the copy has the number of what it makes of the buffer."""
    table = ValueNumbers()
    assert numbers(table, copied(layout, layout))[MADE] == table.of_leaf(LEAVES[GIVEN])
    direct = numbers(table, launch((GIVEN,), (SECOND,)))[SECOND]
    assert numbers(table, copied(layout, layout), launch((MADE,), (SECOND,)))[SECOND] == direct


@pytest.mark.parametrize("copy", [copied(*PARTS), copied(PARTS[0], PARTS[0]), copied(TURNED, SQUARE), copied(of=FAR)])
def test_any_other_copy_has_a_number_of_its_own(copy: CopyDtoD) -> None:
    """A copy of a part, into another layout, or from another device."""
    table = ValueNumbers()
    assert numbers(table, copy)[MADE] not in map(table.of_leaf, (LEAVES[GIVEN], LEAVES[FAR]))


def test_a_function_gets_a_value_by_its_cell_or_as_it_is() -> None:
    """Of a later stage what the device has made is a value. The number of the call is the same, also within a tuple."""
    table, held = ValueNumbers(), {SEED: object(), NUMBER: object()}
    as_cells, with_value, as_values = (
        numbers(table, called(argument), leaves=held)[MADE]
        for argument in (PAIR, Items((held[SEED], Cell(NUMBER))), (held[SEED], held[NUMBER]))
    )
    assert as_cells == with_value == as_values
    nested = Items((Cell(SEED), Items((Cell(NUMBER),))))
    assert numbers(table, called(nested), leaves=held)[MADE] != as_cells


def test_two_objects_that_hold_one_content_are_equal() -> None:
    """Objects with a number each are compared by it; others are equal to themselves alone."""
    table, one, other, third, unknown = ValueNumbers(), object(), object(), object(), object()
    for held, number in ((one, 1), (other, 1), (third, 2)):
        table.name(held, number)
    assert table.are_equal(one, other)
    assert table.are_equal(unknown, unknown)
    for different in (third, unknown):
        assert not table.are_equal(one, different)
        assert not table.are_equal(different, one)
    assert not table.are_equal(unknown, object())
