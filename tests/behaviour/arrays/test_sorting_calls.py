"""Sorting, permutations and dropout on every kind of device: values, bits, ownership, pipelines and seeds."""

from typing import Any

import numpy as np
import pytest

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
    ones,
    pipeline,
    value,
    zeros,
)
from dagpu.ops.initializers import DROPOUT_STREAM, PERMUTATION_STREAM
from dagpu.testing import Uniform
from tests.behaviour.arrays.array_places import cut, drawn
from tests.simulated.each_device import where as where
from tests.support.reused_ops import no_plans_yet as no_plans_yet
from tests.support.reused_ops import traces

x = np.random.default_rng(8).integers(-40, 40, (3, 5000)).astype(f32)
x[0, ::7] = np.nan
x[1, ::5] = -0.0


def test_sorts_of_several_passes(where: Any) -> None:
    """Rows of three tiles: the bits are NumPy's stable sort's, with NaNs last, and the first of equals first."""
    t = from_host(x).sync().share()
    assert array.sort(t).to_host().sync().tobytes() == np.sort(x, kind="stable").tobytes()
    np.testing.assert_array_equal(array.argsort(t).to_host().sync(), np.argsort(x, kind="stable"), strict=True)


@pytest.mark.parametrize("k", [0, 5, 2500])
def test_the_largest_of_each_row(where: Any, k: int) -> None:
    """The largest first, a NaN before any number, and the first of equals first."""
    values, places = array.topk(from_host(x), k).sync()
    found = places.to_host().sync()
    assert found.shape == (3, k)
    assert found.dtype == np.int64
    backwards = np.argsort(x[:, ::-1], kind="stable")[:, ::-1]
    np.testing.assert_array_equal(found, (4999 - backwards)[:, :k])
    np.testing.assert_array_equal(values.to_host().sync(), np.take_along_axis(x, found, 1), strict=True)


@pytest.mark.parametrize("seed", range(6))
def test_long_rows_of_halves(where: Any, seed: int) -> None:
    """Of few values of both signs, each often. NumPy's own quick sort and partition of them are wrong on some
    processors, and its stable sort is right."""
    halves = (np.random.default_rng(seed).integers(-8, 9, (2, 9000)) / 4).astype(f16)
    t = from_host(halves).sync().share()
    assert array.sort(t).to_host().sync().tobytes() == np.sort(halves, kind="stable").tobytes()
    np.testing.assert_array_equal(
        array.topk(t, 300).sync()[0].to_host().sync(), -np.sort(-halves, kind="stable")[:, :300]
    )


def test_sorts_along_other_axes(where: Any) -> None:
    """Of columns in several passes, and of all elements; k is in the place of the axis."""
    columns = from_host(np.ascontiguousarray(x.T)).sync()
    assert array.sort(columns.borrow(), 0).to_host().sync().tobytes() == np.sort(x.T, 0, kind="stable").tobytes()
    largest, at = array.topk(columns.slice(slice(900)), 2, axis=-2).sync()
    values, places = largest.to_host().sync(), at.to_host().sync()
    assert values.shape == places.shape == (2, 3)
    np.testing.assert_array_equal(values, np.take_along_axis(x.T, places, 0))
    every = array.argsort(columns.slice(slice(0, 9)), None).to_host().sync()
    np.testing.assert_array_equal(every, np.argsort(x.T[:9], None, kind="stable"), strict=True)
    assert array.sort(ones(()), None).to_host().sync().tolist() == [1]
    with pytest.raises(ShapeError, match=r"k is 9, but axis 0 of \(4, 2\) has 4 elements"):
        array.topk(ones((4, 2)), 9, 0)


def test_what_a_sort_takes(where: Any) -> None:
    """Rows with gaps and reversed ones, empty ones, ops whose shape only a run shows; a tensor moves, a borrow does
    not, and a refused call moves nothing."""
    part = cut(x, (slice(1, None), slice(None, None, -3)))
    np.testing.assert_array_equal(array.sort(part.lent()).to_host().sync(), np.sort(part.array))
    np.testing.assert_array_equal(array.sort(value(part.lent())).to_host().sync(), np.sort(part.array))
    assert array.sort(zeros((2, 0))).to_host().sync().shape == (2, 0)
    assert array.argsort(zeros((0, 3))).to_host().sync().shape == (0, 3)
    late = array.argsort(from_host(x).then(lambda t: value(t))).to_host().sync()
    np.testing.assert_array_equal(late, np.argsort(x, kind="stable"))
    t = ones((4,), i32).sync()
    with pytest.raises(ShapeError, match=r"topk at .*: k is 5, but a row of \(4,\) has 4 elements"):
        array.topk(t, 5)
    with pytest.raises(ShapeError, match="x has no axis"):
        array.sort(ones(()))
    assert array.argsort(t).to_host().sync().tolist() == [0, 1, 2, 3]


def test_sorts_in_plans_and_pipelines(where: Any) -> None:
    """Each structure has one plan, and each call of a pipeline its own memory."""

    @pipeline
    def five(t: Any) -> Any:
        return array.topk(array.maximum(t, -5.0), 5)

    t = from_host(x).sync().share()
    with traces() as count:
        for _ in range(4):  # a DAG of many nodes has no plan in the first run of its place
            array.sort(t).to_host().sync()
    assert count.now <= 2
    for seed in range(4):
        y = np.random.default_rng(seed).standard_normal((2, 3000)).astype(f32)
        values, places = [each.to_host().sync() for each in five(from_host(y).sync().share()).sync()]
        np.testing.assert_array_equal(values, -np.sort(-np.maximum(y, -5))[:, :5])
        np.testing.assert_array_equal(np.take_along_axis(np.maximum(y, -5), places, 1), values)


def test_a_permutation_without_a_seed_is_another_in_each_run(where: Any) -> None:
    """As for `rand`: each run, and each call of a pipeline, draws a seed."""
    op = array.permutation(1000).to_host()
    shuffled = pipeline(lambda: array.permutation(1000).to_host())
    found = [op.sync(), op.sync(), shuffled().sync(), shuffled().sync()]
    assert len({each.tobytes() for each in found}) == 4
    for each in found:
        np.testing.assert_array_equal(np.sort(each), np.arange(1000))


def test_permutations_follow_from_their_seeds(where: Any) -> None:
    """The same on every device; a pipeline varies the seed without another plan."""
    keys = drawn(Uniform(5, PERMUTATION_STREAM), (12,), f64)
    assert array.permutation(12, seed=5).to_host().sync().tolist() == np.argsort(keys).tolist()

    @pipeline
    def shuffled(seed: int) -> Any:
        return array.permutation(3000, seed=seed).to_host()

    found = [shuffled(seed).sync() for seed in (1, 2, 3, 1)]
    assert shuffled.cache_info()[:2] == (3, 1)
    assert found[0].tolist() == found[3].tolist() != found[1].tolist()
    for each in found:
        np.testing.assert_array_equal(np.sort(each), np.arange(3000))
    assert array.permutation(0, seed=1).to_host().sync().shape == (0,)


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_dropout_keeps_what_its_seed_keeps(where: Any, dtype: Any) -> None:
    """Element i is dropped if its number, of a stream of its own, is below p; the others are divided by 1 - p."""
    y: Any = np.random.default_rng(1).standard_normal((40, 50)).astype(dtype)
    chances = drawn(Uniform(9, DROPOUT_STREAM), y.shape, f32)
    wide = f64 if dtype is f64 else f32
    found = array.dropout(from_host(y), 0.3, seed=9).to_host().sync()
    p = wide(0.3)
    kept = np.where(chances.astype(wide) >= p, y.astype(wide) / (wide(1) - p), wide(0)).astype(dtype)
    assert found.tobytes() == kept.tobytes()
    assert array.dropout(from_host(y), 0, seed=9).to_host().sync().tobytes() == y.tobytes()
    assert not array.dropout(from_host(y), 1.0, seed=9).to_host().sync().astype(f32).any()


def test_dropout_in_a_pipeline(where: Any) -> None:
    """The seed and p are arguments; without a seed each call drops other elements."""

    @pipeline
    def noisy(t: Any, p: float, seed: int) -> Any:
        return array.dropout(t, p, seed=seed).to_host()

    @pipeline
    def anyhow(t: Any) -> Any:
        return array.dropout(t, 0.5).to_host()

    t = ones((4000,)).sync().share()
    for p in (0.25, 0.5):
        for seed in (1, 2):
            share = (noisy(t, p, seed).sync() == 0).mean()
            assert abs(share - p) < 0.05
    assert noisy.cache_info().misses == 1
    assert anyhow(t).sync().tolist() != anyhow(t).sync().tolist()
    with pytest.raises(KernelArgumentError, match=r"p is 1\.5"):
        array.dropout(t, 1.5)
