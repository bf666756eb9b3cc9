"""Elements that host bodies read a block at a time: the values of the whole, the bits of every function, and the memory
that a body takes."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import array, bf16, expr, f16, f32, f64, from_host, i32, zeros
from dagpu.arrays import arg_reductions
from dagpu.kernels import numpy_twin, reduction_kernels, row_elements
from dagpu.kernels.numpy_twin import ElementBlocks, GroupedBlocks, boxes_of

shapes = st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple)


@given(shapes, st.data())
def test_boxes_make_up_a_range(shape: tuple[int, ...], data: st.DataObject) -> None:
    """One after the other they have the elements of the range, in C order, and they are few."""
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    stop = data.draw(st.integers(1, numbers.size))
    start = data.draw(st.integers(0, stop - 1))
    boxes = boxes_of(shape, start, stop)
    assert [n for box in boxes for n in numbers[box].reshape(-1)] == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


@settings(max_examples=60)
@given(shapes, st.integers(1, 3), st.data())
def test_a_block_is_that_of_the_joined_axes(shape: tuple[int, ...], count: int, data: st.DataObject) -> None:
    """For axes of a group anywhere among the others, and any range along each group."""
    x = np.random.default_rng(1).standard_normal(shape)
    groups = [data.draw(st.integers(0, count - 1)) for _ in shape]
    axes = [axis for group in range(count) for axis, own in enumerate(groups) if own == group]
    extents = [np.prod([shape[axis] for axis in axes if groups[axis] == group], dtype=int) for group in range(count)]
    joined = x.transpose(axes).reshape(extents)
    blocks = GroupedBlocks(ElementBlocks(x.shape, x.dtype, x.__getitem__), groups, count)
    assert blocks.shape == joined.shape
    cuts = []
    for extent in extents:
        stop = data.draw(st.integers(1, int(extent)))
        cuts.append(slice(data.draw(st.integers(0, stop - 1)), stop))
    np.testing.assert_array_equal(blocks[tuple(cuts)], joined[tuple(cuts)], strict=True)


FUNCTIONS = ("sum", "prod", "mean", "norm", "amin", "amax", "any", "all", "softmax")
product = expr(f32, f32)(lambda x, y: x * y)


@pytest.fixture
def in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies read blocks of some hundred elements, of arrays of any size."""
    monkeypatch.setattr(numpy_twin, "WHOLE", 0)
    monkeypatch.setattr(row_elements, "WHOLE", 0)
    for module in (reduction_kernels, arg_reductions):
        monkeypatch.setattr(module, "NBYTES", 1024)


SHAPES = [
    ((40, 1), (1, 900), 0),
    ((40, 1), (1, 900), 1),
    ((3, 1, 50), (1, 30, 50), 1),
    ((7, 1, 3), (1, 400, 1), (0, 2)),
    ((30, 1), (1, 900), None),
    ((5, 1, 6, 1), (1, 70, 1, 8), (1, 3)),
    ((20_000, 1), (1, 3), 0),
    ((2, 1), (1, 70_000), 1),
]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("left", "right", "axis"), SHAPES)
def test_an_expression_in_blocks_has_the_bits_of_its_result(
    in_small_blocks: None, name: str, left: Any, right: Any, axis: Any
) -> None:
    """Those of the function of the elements in memory."""
    del in_small_blocks
    random = np.random.default_rng(2)
    x, y = random.standard_normal(left).astype(f32), random.standard_normal(right).astype(f32)
    if name == "softmax":
        axis = axis if isinstance(axis, int) else -1
    found = getattr(product, name)(axis)(from_host(x), from_host(y)).to_host().sync()
    wanted = getattr(array, name)(from_host(x * y), axis).to_host().sync()
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", [f16, f32, i32, np.bool_])
@pytest.mark.parametrize("name", ["sum", "amax", "any", "argmax", "argmin", "softmax", "var"])
def test_strided_arrays_in_blocks_have_the_bits_of_a_copy(in_small_blocks: None, name: str, dtype: Any) -> None:
    """Of a part of a tensor whose axes NumPy cannot join."""
    del in_small_blocks
    if (np.dtype(dtype).kind in "ib" and name in ("softmax", "var")) or (dtype is np.bool_ and name != "any"):
        return
    x = (np.random.default_rng(3).standard_normal((12, 40, 30)) * 9).astype(dtype)
    axis = {"argmax": 1, "argmin": 1, "softmax": 1}.get(name, (0, 2))
    for part in ((slice(1, 11), slice(None), slice(2, 30, 3)), (slice(None, None, -1), slice(0, 7), slice(None))):
        found = getattr(array, name)(from_host(x).sync().slice(*part), axis).to_host().sync()
        wanted = getattr(array, name)(from_host(x[part].copy()), axis).to_host().sync()
        assert found.tobytes() == wanted.tobytes()


def grown(run: Callable[[], object]) -> int:
    """Return the bytes that a run takes at its peak, beyond those before it."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


MOST = 5 << 20
"""The bytes that a body may take for itself: blocks of half a MiB, some at once."""


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_body_of_a_fused_reduction_takes_little_memory(name: str, axis: int | None) -> None:
    """Of 4 million elements, 15 MiB. A softmax takes its result beside."""
    if name == "softmax":
        axis = axis or 0
    n = 2000
    x, y = np.ones((n, 1), f32), np.ones((1, n), f32)
    op = getattr(product, name)(axis)(from_host(x), from_host(y))
    op.sync()
    result = n * n * 4 if name == "softmax" else 0
    assert grown(op.sync) < MOST + result


REDUCTIONS = ("sum", "prod", "mean", "norm", "amin", "amax", "any", "all", "var", "std", "argmax", "argmin")


@pytest.mark.parametrize("dtype", [f16, f32])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_the_body_of_a_reduction_takes_little_memory(name: str, dtype: Any) -> None:
    """Along any axes, of contiguous tensors and of parts, of 2 million elements."""
    t = zeros((200, 100, 100), dtype).sync()
    for lent in (t.borrow(), t.borrow().slice(slice(None), slice(0, 90), slice(0, 95))):
        for axis in (0, 1, 2) if name[:3] == "arg" else (None, 0, 1, 2, (0, 2), (0, 1), (1, 2)):
            op = getattr(array, name)(lent, axis)
            assert grown(op.sync) < MOST, (axis, lent.shape)


@pytest.mark.parametrize("width", [1, 40])
def test_the_body_of_scatter_add_takes_little_memory(width: int) -> None:
    """Beside its result, of 2 million values."""
    count = 2_000_000 // width
    places, values = from_host(np.arange(count) % 100 - 50), zeros((count, width), f32)
    t, v = places.sync().share(), values.sync().share()
    assert grown(array.scatter_add(zeros((100, width)), t, v).sync) < MOST


@pytest.mark.parametrize("dtype", [f16, f32])
def test_the_body_of_softmax_takes_little_memory(dtype: Any) -> None:
    """Beside its result, along each axis."""
    t = zeros((200, 100, 100), dtype).sync()
    for axis in (0, 1, 2):
        assert grown(array.softmax(t.borrow(), axis).sync) < MOST + t.nbytes


@pytest.mark.parametrize("dtype", [f32, f64, bf16])
def test_the_body_of_take_takes_little_memory(dtype: Any) -> None:
    """Beside its result, along each axis, with indices that count from either end."""
    t, places = zeros((200, 100, 100), dtype).sync(), from_host(np.arange(100) - 50).sync()
    for axis in (0, 1, 2):
        op = array.take(t.borrow(), places.borrow(), axis)
        assert grown(op.sync) < MOST + t.nbytes // (2 if axis == 0 else 1)


@pytest.mark.parametrize("dtype", [f32, f64])
def test_the_body_of_a_product_takes_little_memory(dtype: Any) -> None:
    """Beside its result: operands in rows or in columns, and batches of them."""
    a, b = zeros((3000, 4), dtype).sync(), zeros((4, 1000), dtype).sync()
    result = 3000 * 1000 * np.dtype(dtype).itemsize
    assert grown(array.matmul(a.borrow(), b.borrow()).sync) < MOST + result
    assert grown(array.matmul(b.borrow(), a.borrow(), transpose="ab").sync) < MOST + result
    batch = zeros((300, 100, 4), dtype).sync()
    assert grown(array.matmul(batch.borrow(), batch.borrow(), transpose="b").sync) < MOST + result
