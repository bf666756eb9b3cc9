"""`matmul` on every kind of device: shapes, layouts, element types, ownership, pipelines, graphs and feeds."""

from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    KernelArgumentError,
    ShapeError,
    array,
    bf16,
    f16,
    f32,
    f64,
    from_host,
    i32,
    observe,
    ones,
    pipeline,
    source,
    value,
    zip_ops,
)
from tests.behaviour.arrays.array_places import cut, steps
from tests.behaviour.arrays.library_places import libraries_on_each_device as libraries_on_each_device
from tests.behaviour.arrays.library_places import skip_without_libraries
from tests.behaviour.arrays.library_places import where as where
from tests.support.reused_ops import no_plans_yet as no_plans_yet
from tests.support.reused_ops import traces

TOLERANCE = {f16: 2e-3, bf16: 2e-2, f32: 2e-6, f64: 1e-14}
"""By element type: the error of a product beside the sum of its terms' sizes."""
FLAGS: Any = {"": (False, False), "a": (True, False), "b": (False, True), "ab": (True, True)}


def check(found: NDArray[Any], a: NDArray[Any], b: NDArray[Any], transpose: str = "") -> None:
    """Compare a product with that of f64."""
    left, right = [
        x.astype(f64).swapaxes(-1, -2) if flag else x.astype(f64)
        for x, flag in zip((a, b), FLAGS[transpose], strict=True)
    ]
    expected, size = np.matmul(left, right), np.matmul(abs(left), abs(right))
    assert found.shape == expected.shape
    assert found.dtype == a.dtype
    assert (abs(found.astype(f64) - expected) <= TOLERANCE[a.dtype.type] * (size + 1e-30)).all()


def normal(shape: tuple[int, ...], dtype: Any = f32, seed: int = 0) -> NDArray[Any]:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


SHAPES = [
    ((3, 4), (4, 5), ""), ((4,), (4, 5), ""), ((3, 4), (4,), ""), ((4,), (4,), ""), ((2, 3, 4), (4, 5), ""),
    ((4, 3), (4, 5), "a"), ((3, 4), (5, 4), "b"), ((2, 4, 3), (2, 5, 4), "ab"), ((2, 3, 4), (4,), ""),
    ((5, 1, 3, 4), (2, 4, 6), ""), ((1, 1), (1, 1), ""), ((7, 1), (1, 7), ""), ((4,), (5, 4), "b"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_products_are_numpys(with_libraries: Any, dtype: Any) -> None:
    """Of all shapes that NumPy multiplies, with operands that are transposed or not."""
    for left, right, transpose in SHAPES if dtype is f32 else SHAPES[4:9]:
        a, b = normal(left, dtype), normal(right, dtype, 1)
        flags: Any = transpose
        check(array.matmul(from_host(a), from_host(b), transpose=flags).to_host().sync(), a, b, transpose)


def test_nothing_adds_up_to_0(with_libraries: Any) -> None:
    """No library is called where there is nothing to multiply."""
    for left, right in (((0, 3), (3, 2)), ((2, 0), (0, 3)), ((0, 2, 3), (3, 4)), ((0,), (0,))):
        found = array.matmul(from_host(normal(left)), from_host(normal(right))).to_host().sync()
        np.testing.assert_array_equal(found, np.matmul(normal(left), normal(right)), strict=True)


@settings(max_examples=20)
@given(st.data())
def test_operands_of_any_layout(data: st.DataObject) -> None:
    """With gaps, backwards, broadcast batches of any form, transposed or not, of which none is changed."""
    skip_without_libraries()
    extent = st.integers(1, 4)
    m, k, n = data.draw(st.tuples(extent, extent, extent))
    batch = data.draw(st.lists(extent, max_size=3))
    operands, transpose = [], data.draw(st.sampled_from(tuple(FLAGS)))
    for shape, flag in zip(((m, k), (k, n)), FLAGS[transpose], strict=True):
        own = [data.draw(st.sampled_from((e, 1))) for e in batch][data.draw(st.integers(0, len(batch))) :]
        ranges = [data.draw(steps) for _ in (*own, *shape)]
        wanted = (*own, *(shape[::-1] if flag else shape))
        whole = [
            e * 2 - 1 if r.step == 2 else e + 1 if r.start == 1 else e for e, r in zip(wanted, ranges, strict=True)
        ]
        operands.append(cut(normal(tuple(whole), f64, data.draw(st.integers(0, 9))), tuple(ranges)))
    a, b = operands
    check(array.matmul(a.lent(), b.lent(), transpose=transpose).to_host().sync(), a.array, b.array, transpose)
    for operand in operands:
        whole_now = operand.tensor.to_host().sync()
        np.testing.assert_array_equal(whole_now[operand.ranges], operand.array)


def test_layouts_on_every_device(with_libraries: Any) -> None:
    """Columns, gaps, rows backwards, batches at several distances: copied only where the library needs it."""
    x = normal((4, 6, 8))
    for ranges in ((slice(None), slice(None, None, 2)), (slice(1, None, 2), slice(None, None, -1), slice(1, 7))):
        whole = cut(x, ranges)
        a = whole.array
        check(
            array.matmul(whole.lent(), from_host(np.ones((a.shape[-1], 3), f32))).to_host().sync(),
            a,
            np.ones((a.shape[-1], 3), f32),
        )
        other = cut(x, ranges)
        found = array.matmul(other.lent(), from_host(np.ones((1, a.shape[-2], 3), f32)), transpose="a").to_host().sync()
        check(found, a, np.ones((1, a.shape[-2], 3), f32), "a")


def test_what_a_product_takes(with_libraries: Any) -> None:
    """A tensor moves, a borrow does not; one tensor may be both operands; a refused call moves nothing."""
    gaps = cut(normal((6, 6)), (slice(None, None, 2), slice(None, None, 2)))  # behind an op
    check(array.matmul(value(gaps.lent()), ones((3, 2))).to_host().sync(), gaps.array, np.ones((3, 2), f32))
    t = ones((3, 3)).sync()
    with pytest.raises(ShapeError, match="the inner extents 3 and 2 differ"):
        array.matmul(t, ones((2, 2)))
    with pytest.raises(KernelArgumentError, match="operands of f32 and f64"):
        array.matmul(t, ones((3, 3), f64))  # type: ignore[type-var]  # reason: two element types are the mistake
    with pytest.raises(KernelArgumentError, match="elements of i32"):
        array.matmul(ones((3, 3), i32), ones((3, 3), i32))  # type: ignore[type-var]  # reason: the mistake
    shared = t.share()
    assert array.matmul(shared, shared).to_host().sync().tolist() == [[3] * 3] * 3
    assert array.matmul(shared, shared, precision="tf32").to_host().sync().tolist() == [[3] * 3] * 3


def test_a_pipeline_of_products(with_libraries: Any) -> None:
    """There is one plan for tensors that lie elsewhere in each call, and the results stay as they were."""

    @pipeline
    def layer(x: Any, w: Any) -> Any:
        return array.matmul(array.maximum(array.matmul(x, w), 0.0), w, transpose="b")

    kept = []
    for seed in range(8):
        x, w = normal((6, 8), f32, seed), normal((8, 4), f32, seed + 50)
        y = layer(from_host(x).sync().share(), from_host(w).sync().share()).sync()
        kept.append((y, np.maximum(x @ w, 0) @ w.T))
    for y, expected in kept:
        np.testing.assert_allclose(y.to_host().sync(), expected, rtol=1e-4, atol=1e-4)
    assert layer.cache_info()[:2] == (7, 1)


def test_plain_ops_and_graphs(with_libraries: Any) -> None:
    """Two branches run side by side; a captured graph reads what its inputs hold now."""
    a, b = normal((5, 5)), normal((5, 5), f32, 1)
    one, other = from_host(a).sync().share(), from_host(b).sync().share()
    with traces() as count:
        for _ in range(3):
            left, right = zip_ops(array.matmul(one, other), array.matmul(other, one)).sync()
            check(left.to_host().sync(), a, b)
            check(right.to_host().sync(), b, a)
    assert count.now <= 3
    graph = array.matmul(one, other).graph()
    for _ in range(3):
        graph.launch().sync()
    check(graph.take_output().to_host().sync(), a, b)


def test_a_feed_of_products(with_libraries: Any) -> None:
    """An update multiplies again, and only what depends on the change."""
    a, b = normal((4, 4)), normal((4, 4), f32, 1)
    x = source(a)
    w = from_host(b).sync().share()
    op = array.matmul(array.matmul(x.then(from_host), w), w).to_host()

    async def main() -> None:
        async with observe(op, check=True) as feed:
            for seed in range(5):
                now = a if not seed else normal((4, 4), f32, seed)
                if seed:
                    x.set(now)
                np.testing.assert_allclose(await feed.next(), now @ b @ b, rtol=1e-4, atol=1e-4)

    trio.run(main)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("dtype", "large"), [(f16, 6e4), (f32, 1e30), (f64, 1e300)])
def test_what_overflows_is_infinity(dtype: Any, large: float) -> None:
    """Without a warning, as on a GPU."""
    skip_without_libraries()
    x = from_host(np.full((4, 4), large, dtype)).share().sync()
    assert np.isinf(array.matmul(x, x).to_host().sync()).all()
