"""Writes of parts of arrays: each version stays as it is while something reads it, and memory is used again after."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from dagpu.ops.array_parts import LEAST, ArrayParts, Box, slices_of

Array = NDArray[Any]
SIDE = 128
"""Elements along each of two axes of 4 bytes: just enough to be used again."""


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """Return a part of an array of `SIDE` by `SIDE`."""
    ends = [sorted(draw(st.tuples(st.integers(0, SIDE), st.integers(0, SIDE)))) for _ in range(2)]
    (a, b), (c, d) = ends
    return ((a, b), (c, d))


def start() -> Array:
    """Return an array that takes part."""
    made = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    assert made.nbytes >= LEAST
    return made


def address(array: Array) -> int:
    """Return the address of an array's memory."""
    return int(array.__array_interface__["data"][0])


STEPS = st.lists(
    st.tuples(boxes(), st.sampled_from(("drop", "keep", "keep a view", "forget", "another"))), min_size=1, max_size=12
)


@given(STEPS)
def test_a_version_never_changes(steps: list[tuple[Box, str]]) -> None:
    """Each version has what was written up to it, whoever keeps it or a view of it, and wherever the next one is made
    of: of the newest, or of an older one that another thread has read."""
    parts, array = ArrayParts(), start()
    kept: list[tuple[Array, Array]] = []
    for number, (box, then) in enumerate(steps):
        data = np.full([end - begin for begin, end in box], -number, np.float32)
        wanted = array.copy()
        wanted[slices_of(box)] = data
        made = parts.with_part(array, box, data)
        assert np.array_equal(made, wanted)
        assert not made.flags.writeable
        if then == "keep":
            kept.append((made, wanted))
        if then == "keep a view":
            kept.append((made[1:, ::2], wanted[1:, ::2]))
        if then == "forget":
            kept.clear()
        if then != "another":
            array = made
        del made
        for version, before in kept:
            assert np.array_equal(version, before)


def test_memory_that_nothing_reads_is_used_again() -> None:
    """With a reader of the newest version alone, versions take turns in two pieces of memory."""
    parts, array, seen = ArrayParts(), start(), []
    for number in range(8):
        array = parts.with_part(array, ((number, number + 1), (0, SIDE)), np.zeros((1, SIDE), np.float32))
        seen.append(address(array))
    assert len(set(seen)) == 2
    assert seen[2:] == seen[:-2]


def test_a_reader_keeps_its_memory() -> None:
    """A version that is read for long is passed over, and no other waits for it."""
    parts, array, seen = ArrayParts(), start(), []
    held = array = parts.with_part(array, ((0, 1), (0, 1)), np.zeros((1, 1), np.float32))
    for _ in range(8):
        array = parts.with_part(array, ((0, 1), (0, 1)), np.ones((1, 1), np.float32))
        seen.append(address(array))
    assert address(held) not in seen
    assert held[0, 0] == 0
    assert len(set(seen)) == 2


@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.complex128, "datetime64[s]"])
def test_each_element_type_is_written(dtype: Any) -> None:
    """Also those that have no code in Python's buffers."""
    parts, array = ArrayParts(), np.zeros(LEAST, dtype)
    data = np.ones(3, np.int8).astype(dtype)
    made = parts.with_part(parts.with_part(array, ((0, 3),), data), ((7, 10),), data)
    assert made.dtype == array.dtype
    assert np.flatnonzero(made.astype(np.int64 if array.dtype.kind == "M" else array.dtype)).tolist() == [
        0,
        1,
        2,
        7,
        8,
        9,
    ]


def test_the_buffer_below_a_version_keeps_its_memory() -> None:
    """A reader that has found the buffer of which NumPy made the arrays reads what the version had."""
    parts, array = ArrayParts(), start()
    array = parts.with_part(array, ((0, 1), (0, 1)), np.full((1, 1), 1, np.float32))
    lowest: Any = array
    while isinstance(lowest, np.ndarray):
        lowest = lowest.base
    held = np.frombuffer(lowest, np.float32)
    for number in range(2, 8):
        array = parts.with_part(array, ((0, 1), (0, 1)), np.full((1, 1), number, np.float32))
    assert held[0] == 1


def test_nobody_can_write_a_version() -> None:
    """Its memory is lent for reading alone."""
    made = ArrayParts().with_part(start(), ((0, 1), (0, 1)), np.zeros((1, 1), np.float32))
    with pytest.raises(ValueError, match="WRITEABLE"):
        made.flags.writeable = True
