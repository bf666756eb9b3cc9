"""Dirt that copies carry: the parts stay where they are if source and target are read alike, else all may differ."""

from typing import Any

import numpy as np
import pytest

from dagpu.common.layout import Layout, reshape_layout
from dagpu.reactive.carried_dirt import CarriedDirt
from dagpu.reactive.claims import EVERYTHING, Dirt
from dagpu.reactive.staleness import Staleness
from dagpu.testing import HOST, Buffer, Cell, CopyDtoD, CopyHtoD, Role, View, contiguous_layout
from tests.programs.plain_programs import program

FLAT = contiguous_layout((16,), np.dtype(np.float32))
SQUARE = reshape_layout(FLAT, (4, 4))
TURNED = Layout(SQUARE.dtype, (4, 4), (4, 16), 0)
BOX = ((0, 1), (2, 4))
GIVEN, MADE = range(2)


def copied(source: Layout | None, out: Layout) -> Any:
    """The dirt of a copy of `BOX` of a square; `source` is the layout that the copy reads, None for an array of the
    host."""
    target = View(MADE, out)
    copy = (
        CopyHtoD(target, Cell(GIVEN), (GIVEN,), (MADE,), 0, None)
        if source is None
        else CopyDtoD(target, View(GIVEN, source), (GIVEN,), (MADE,), 0, None)
    )
    buffers = [Buffer(64, HOST if source is None else 0, Role.INPUT), Buffer(64, 0, Role.OUTPUT)]
    program_of_copy = program([copy], buffers)
    carried = CarriedDirt(Staleness(program_of_copy, {GIVEN: 1}))
    return carried.of(1, {GIVEN: Dirt(SQUARE, (BOX,))})[program_of_copy.accesses.last[MADE]]


@pytest.mark.parametrize("source", [SQUARE, None])
@pytest.mark.parametrize("out", [SQUARE, TURNED])
def test_a_copy_of_the_same_shape_has_the_same_parts(source: Layout | None, out: Layout) -> None:
    """In the layout of the target, whatever its strides are."""
    dirt = copied(source, out)
    assert (dirt.layout, dirt.boxes) == (out, (BOX,))


@pytest.mark.parametrize(("source", "out"), [(TURNED, SQUARE), (SQUARE, FLAT), (FLAT, FLAT), (None, FLAT)])
def test_a_copy_that_takes_the_elements_otherwise_may_differ_anywhere(source: Layout | None, out: Layout) -> None:
    """The copy reads the buffer by other strides than the parts are named in, or has another shape."""
    assert copied(source, out) is EVERYTHING
