"""The kernel by which cutoffs compare tensors: its CUDA text and its host body."""

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu.common.layout import Layout
from dagpu.reactive.bit_comparison import FLAG, bits_of, differ_kernel, flag_count
from dagpu.testing import contiguous_layout
from tests.support.text_runs import launch_text

DENSE = differ_kernel(1, 1, True)
STRIDED = [differ_kernel(itemsize, rank, False) for itemsize, rank in ((1, 2), (2, 1), (4, 3), (8, 2))]


def flags_of(kernel: Any, x: NDArray[Any], y: NDArray[Any], blocks: int, *, text: bool = False) -> bool:
    """True if a flag is set, by the host body or by the CUDA text. Before it, the memory of the flags holds others."""
    out = np.full(blocks, 7, FLAG)
    if text:
        launch_text(kernel, [out, x, y], [(1,)])
    else:
        kernel.host.function(out, x, y)
    assert set(out.tolist()) <= {0, 1}
    return bool(out.any())


def bytes_at(data: bytes, offset: int) -> NDArray[np.uint8]:
    """These bytes in memory that begins `offset` bytes after an address that 16 divides."""
    room = np.zeros(len(data) + 48, np.uint8)
    start = -room.ctypes.data % 16 + offset
    part = room[start : start + len(data)]
    part[:] = np.frombuffer(data, np.uint8)
    return part


@settings(max_examples=12)
@given(
    length=st.integers(1, 9000),
    offsets=st.tuples(st.sampled_from((0, 4, 8, 3)), st.sampled_from((0, 4, 16, 1))),
    blocks=st.integers(1, 3),
    at=st.lists(st.floats(0, 1, exclude_max=True), max_size=2),
)
def test_one_bit_of_any_byte_counts(length: int, offsets: tuple[int, int], blocks: int, at: list[float]) -> None:
    """In words of 16, 4 or 1 bytes, by the addresses of the two tensors, and in the bytes behind the last word."""
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8)
    other = data.copy()
    for place in at:
        other[int(place * length)] ^= 1 << length % 8
    other[-1] ^= length % 5 == 0
    x, y = bytes_at(data.tobytes(), offsets[0]), bytes_at(other.tobytes(), offsets[1])
    wanted = data.tobytes() != other.tobytes()
    assert flags_of(DENSE, x, y, blocks, text=True) == flags_of(DENSE, x, y, blocks) == wanted


@pytest.mark.parametrize("kernel", STRIDED, ids=lambda kernel: f"{kernel.params[1].dtype}-{kernel.params[1].rank}")
def test_elements_with_gaps_between_them(kernel: Any) -> None:
    """Each element counts, and what lies between elements does not."""
    param = kernel.params[1]
    shape = (7, 12, 5)[: param.rank]
    whole = np.random.default_rng(3).integers(0, 200, tuple(2 * extent for extent in shape)).astype(param.dtype)
    parts = (slice(None, None, 2),) * param.rank
    between = whole.copy()
    between[(slice(1, None, 2),) * param.rank] += 1
    x = whole[parts]
    for place in (None, 0, prod(shape) - 1):
        other = between.copy()
        if place is not None:
            other[parts][np.unravel_index(place, shape)] ^= 1
        for text in (False, True):
            assert flags_of(kernel, x, other[parts], 2, text=text) == (place is not None)


def test_the_layout_of_bits() -> None:
    """Dense elements are bytes, and others are unsigned numbers. A NaN is equal to itself, and 0 is not -0."""
    dense = contiguous_layout((3, 5), np.dtype(np.float32))
    assert bits_of(dense) == contiguous_layout((60,), np.dtype(np.uint8))
    gaps = Layout(np.dtype(np.float64), (3, 5), (80, 16), 8)
    assert bits_of(gaps) == Layout(np.dtype(np.uint64), (3, 5), (80, 16), 8)
    bits = [np.array([value], np.float32).view(np.uint8) for value in (np.nan, 0.0, -0.0)]
    assert [flags_of(DENSE, bits[0], bits[0], 1), flags_of(DENSE, bits[1], bits[2], 1)] == [False, True]
    assert [flag_count(contiguous_layout((n,), np.dtype(np.uint8))) for n in (1, 1 << 14, 1 << 15, 1 << 30)] == [
        1, 1, 2, 1024,
    ]  # fmt: skip
