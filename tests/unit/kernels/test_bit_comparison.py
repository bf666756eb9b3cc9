"""The kernel by which cutoffs compare tensors: its CUDA text, emulated, and its host body."""

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu.common.layout import Layout
from dagpu.kernels.bit_comparison import FLAG, bits_of, differ_kernel, flag_count
from dagpu.testing import contiguous_layout
from tests.emulation.emulated_kernels import EmulatedKernels

DENSE = differ_kernel(1, 1, True)
STRIDED = [differ_kernel(itemsize, rank, False) for itemsize, rank in ((1, 2), (2, 1), (4, 3), (8, 2))]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedKernels:
    """The kernels, with the threads of a block in two orders."""
    return EmulatedKernels([DENSE, *STRIDED], tmp_path_factory.mktemp("differ"), blocks=True)


def flags_of(kernel: Any, device: EmulatedKernels | None, x: NDArray[Any], y: NDArray[Any], blocks: int) -> bool:
    """True if a flag is set, by the CUDA text or by the host body. Before it, the memory of the flags holds others."""
    out = np.full(blocks, 7, FLAG)
    if device is None:
        kernel.host.function(out, x, y)
    else:
        device.launch(kernel, [out, x, y], [(1,)])
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
def test_one_bit_of_any_byte_counts(
    emulated: EmulatedKernels, length: int, offsets: tuple[int, int], blocks: int, at: list[float]
) -> None:
    """In words of 16, 4 or 1 bytes, by the addresses of the two tensors, and in the bytes behind the last word."""
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8)
    other = data.copy()
    for place in at:
        other[int(place * length)] ^= 1 << length % 8
    other[-1] ^= length % 5 == 0
    x, y = bytes_at(data.tobytes(), offsets[0]), bytes_at(other.tobytes(), offsets[1])
    wanted = data.tobytes() != other.tobytes()
    assert flags_of(DENSE, emulated, x, y, blocks) == flags_of(DENSE, None, x, y, blocks) == wanted


@pytest.mark.parametrize("kernel", STRIDED, ids=lambda kernel: f"{kernel.params[1].dtype}-{kernel.params[1].rank}")
def test_elements_with_gaps_between_them(emulated: EmulatedKernels, kernel: Any) -> None:
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
        for device in (emulated, None):
            assert flags_of(kernel, device, x, other[parts], 2) == (place is not None)


def test_the_layout_of_bits() -> None:
    """Dense elements are bytes, and others are unsigned numbers. A NaN is equal to itself, and 0 is not -0."""
    dense = contiguous_layout((3, 5), np.dtype(np.float32))
    assert bits_of(dense) == contiguous_layout((60,), np.dtype(np.uint8))
    gaps = Layout(np.dtype(np.float64), (3, 5), (80, 16), 8)
    assert bits_of(gaps) == Layout(np.dtype(np.uint64), (3, 5), (80, 16), 8)
    bits = [np.array([value], np.float32).view(np.uint8) for value in (np.nan, 0.0, -0.0)]
    assert [flags_of(DENSE, None, bits[0], bits[0], 1), flags_of(DENSE, None, bits[1], bits[2], 1)] == [False, True]
    assert [flag_count(contiguous_layout((n,), np.dtype(np.uint8))) for n in (1, 1 << 14, 1 << 15, 1 << 30)] == [
        1, 1, 2, 1024,
    ]  # fmt: skip
