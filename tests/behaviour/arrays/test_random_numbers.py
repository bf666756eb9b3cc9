"""Random numbers of other distributions: each is made of the uniform ones of its stream, the same on every device."""

from typing import Any

import numpy as np
import pytest

from dagpu import array, bf16, f16, f32, f64, from_host, i8, i64, pipeline, u8
from dagpu.ops.initializers import DRAWN_STREAMS, Uniform
from tests.behaviour.arrays.array_places import drawn
from tests.simulated.each_device import where as where
from tests.support.bits import same_bits


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_uniform_numbers_lie_between_their_bounds(where: Any, dtype: Any) -> None:
    """They are low + (high - low) * u, in f32 for halves."""
    wide = f64 if dtype is f64 else f32
    u = drawn(Uniform(4, DRAWN_STREAMS["uniform"]), (30, 50), wide)
    found = array.uniform((30, 50), -2, 3, dtype, seed=4).to_host().sync()
    assert same_bits(found, (wide(-2) + wide(5) * u).astype(dtype))
    times = array.exponential((30, 50), 2, dtype, seed=4).to_host().sync()
    of = drawn(Uniform(4, DRAWN_STREAMS["exponential"]), (30, 50), wide)
    wanted = -np.log1p(-of.astype(f64)) * 2
    np.testing.assert_allclose(times.astype(f64), wanted, rtol=2e-2 if wide is not dtype else 1e-6)


@pytest.mark.parametrize(("dtype", "low", "high"), [(i8, -128, 128), (u8, 0, 256), (i64, -(2**31), 2**31), (i64, 5, 6)])
def test_whole_numbers_are_below_the_last_one(where: Any, dtype: Any, low: int, high: int) -> None:
    """They are low + floor((high - low) * u), of u with 53 bits."""
    u = drawn(Uniform(4, DRAWN_STREAMS["randint"]), (3000,), f64)
    found = array.randint((3000,), low, high, dtype, seed=4).to_host().sync()
    assert same_bits(found, (np.floor(u * (high - low)).astype(i64) + low).astype(dtype))


def test_bools_are_true_with_their_probability(where: Any) -> None:
    """Never for 0, and always for 1; a pipeline varies it and the seed without another plan."""
    assert not array.bernoulli((1000,), 0, seed=1).to_host().sync().any()
    assert array.bernoulli((1000,), 1, seed=1).to_host().sync().all()

    @pipeline
    def flags(p: float, seed: int) -> Any:
        return array.bernoulli((4000,), p, seed=seed).to_host()

    for n, p in enumerate((0.1, 0.5, 0.8)):
        assert abs(flags(p, n).sync().mean() - p) < 0.05
    assert flags.cache_info()[:2] == (2, 1)


def test_rows_are_chosen(where: Any) -> None:
    """Again or each once; without a seed others in each run."""
    x = np.arange(60).reshape(20, 3)
    t = from_host(x).sync().share()
    again = array.choice(t, 500, seed=1).to_host().sync()
    assert set(again[:, 0].tolist()) == set(x[:, 0].tolist())
    np.testing.assert_array_equal(again - again[:, :1], np.tile([0, 1, 2], (500, 1)))
    once = array.choice(t, 20, replace=False, seed=1).to_host().sync()
    assert sorted(once[:, 0].tolist()) == x[:, 0].tolist() != once[:, 0].tolist()
    op = array.choice(t, 20)
    assert (op.to_host().sync() != array.choice(t, 20).to_host().sync()).any()
    assert array.choice(t, 0).to_host().sync().shape == (0, 3)
