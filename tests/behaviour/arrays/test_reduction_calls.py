"""Reductions on every kind of device: layouts, shapes, ownership, pipelines and graphs."""

from typing import Any

import numpy as np
import pytest

from dagpu import ShapeError, array, expr, f16, f32, from_host, ones, pipeline, value, zeros
from tests.simulated.each_device import where as where
from tests.support.reused_ops import no_plans_yet as no_plans_yet
from tests.support.reused_ops import traces

divide = expr(f32, f32)(lambda a, b: a / b)
x = np.random.default_rng(3).standard_normal((6, 5000)).astype(f32)


def test_a_result_is_the_same_on_every_device(where: Any) -> None:
    """The bits are those of the host, also of a row with several spans, and with axes that are kept."""
    assert array.sum(from_host(x)).to_host().sync().tobytes() == bytes.fromhex("3e923343")
    for axis in (None, 0, 1, (0, 1), ()):
        found = array.sum(from_host(x), axis, keepdims=True).to_host().sync()
        np.testing.assert_allclose(found, x.sum(axis, keepdims=True), rtol=1e-4, atol=1e-2)


def test_nothing_is_reduced_to_its_number(where: Any) -> None:
    """0 for sums, 1 for products, NaN for a mean; there is no largest one."""
    empty = zeros((2, 0)).sync().share()
    assert array.sum(empty, 1).to_host().sync().tolist() == [0, 0]
    assert array.prod(empty).to_host().sync() == 1
    assert np.isnan(array.mean(empty, 1).to_host().sync()).all()
    assert array.norm(empty).to_host().sync() == 0
    assert array.all(empty).to_host().sync()
    assert not array.any(empty).to_host().sync()
    assert array.amax(empty, 0).to_host().sync().shape == (0,)
    with pytest.raises(ShapeError, match="no elements along the axis"):
        array.amax(empty, 1)


def test_halves_are_added_in_f32(where: Any) -> None:
    """In f16 the sum would stop at 2048."""
    assert array.sum(ones((5000,), f16)).to_host().sync() == 5000
    assert array.mean(ones((70_000,), f16)).to_host().sync() == 1


def test_what_a_reduction_takes(where: Any) -> None:
    """A tensor moves, a borrow does not, and a refused call moves nothing."""
    t = ones((4, 4)).sync()
    with pytest.raises(ShapeError, match="x has 2 axes"):
        array.sum(t, 2)
    assert array.sum(t.borrow(), 0).to_host().sync().tolist() == [4] * 4
    assert array.amax(t.slice(slice(1, 3), slice(None, None, -2)), -1).to_host().sync().tolist() == [1, 1]
    assert array.sum(t).to_host().sync() == 16


def test_a_pipeline_of_reductions(where: Any) -> None:
    """Columns are normalised; the tensors of each call lie elsewhere, and there is one plan."""

    @pipeline
    def normalised(t: Any) -> Any:
        return divide(t, array.norm(t, 0)).to_host()

    for seed in range(4):
        t = np.random.default_rng(seed).standard_normal((300, 7)).astype(f32)
        found = normalised(from_host(t).sync().share()).sync()
        np.testing.assert_allclose(np.linalg.norm(found, axis=0), 1, rtol=1e-5)
    assert normalised.cache_info()[:2] == (3, 1)


def test_plain_ops_have_one_plan(where: Any) -> None:
    """Also behind an op whose shape only a run shows."""
    t = from_host(x).sync().share()
    with traces() as count:
        for _ in range(3):
            array.sum(array.maximum(t, 0.0), 1).to_host().sync()
    assert count.now == 1
    late = array.sum(from_host(x).then(lambda t: value(t)), 1).to_host().sync()
    assert late.tobytes() == array.sum(from_host(x), 1).to_host().sync().tobytes()


def test_deviations_on_every_device(where: Any) -> None:
    """A tensor moves into both reductions at once; an op is computed once; a pipeline has one plan for all inputs."""
    made: list[None] = []

    def passed(t: Any) -> Any:
        made.append(None)
        return value(t)

    t = from_host(x).then(passed)
    found = array.std(t, 1, ddof=1).to_host().sync()
    np.testing.assert_allclose(found, x.std(1, ddof=1), rtol=1e-5)
    assert made == [None]
    assert array.std(from_host(x).sync(), 1, ddof=1).to_host().sync().tobytes() == found.tobytes()

    scale = expr(f32, f32, f32)(lambda x, mean, std: (x - mean) / std)

    @pipeline
    def standard(t: Any) -> Any:
        return scale(t, array.mean(t, 0), array.std(t, 0)).to_host()

    for seed in range(4):
        y = np.random.default_rng(seed).standard_normal((300, 7)).astype(f32)
        np.testing.assert_allclose(standard(from_host(y).sync().share()).sync().std(0), 1, rtol=1e-4)
    assert standard.cache_info()[:2] == (3, 1)


def test_places_on_every_device(where: Any) -> None:
    """In one pass and in several, which is one plan too."""
    t = from_host(x).sync().share()
    with traces() as count:
        for _ in range(3):
            assert array.argmax(t).to_host().sync() == x.argmax()
    assert count.now == 1
    np.testing.assert_array_equal(array.argmin(t, 1).to_host().sync(), x.argmin(1), strict=True)
    np.testing.assert_array_equal(array.argmax(from_host(x), 0).to_host().sync(), x.argmax(0), strict=True)
    with pytest.raises(ShapeError, match="no elements along the axis"):
        array.argmax(zeros((2, 0)), 1)
