"""Functions that move, gather and add elements, on large tensors: the bits of the host."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from dagpu import Device, array, bf16, f16, f32, f64, from_host, i8, i32, i64, use_device, zeros


def numbers(dtype: Any, *shape: int) -> Any:
    """An op of a tensor of random numbers."""
    found = np.random.default_rng(11).standard_normal(shape) * 10
    return from_host(found.astype(dtype))


def places(count: int, extent: int, dtype: Any = i64) -> Any:
    """An op of a tensor of random indices, negative ones among them."""
    return from_host(np.random.default_rng(12).integers(-extent, extent, count).astype(dtype))


CALLS: Final[dict[str, Callable[[], Any]]] = {
    "transpose": lambda: array.transpose(numbers(f32, 2049, 4097)),
    "transpose of bytes": lambda: array.transpose(numbers(i8, 3, 1000, 70), (1, 2, 0)),
    "transpose of narrow rows": lambda: array.transpose(numbers(f64, 500_000, 3)),
    "transpose of outer axes": lambda: array.transpose(numbers(f16, 300, 50, 64), (1, 0, 2)),
    "concatenate": lambda: array.concatenate([numbers(f32, 7, 1000 * n, 3) for n in range(20)], 1),
    "stack": lambda: array.stack([numbers(bf16, 700, 1000) for _ in range(3)], 2),
    "take": lambda: array.take(numbers(f32, 50_000, 65), places(200_000, 50_000)),
    "take along the last axis": lambda: array.take(numbers(f16, 3000, 77), places(500, 77, i32), 1),
    "one_hot": lambda: array.one_hot(places(100_000, 100), 100, f16),
    "scatter_add": lambda: array.scatter_add(zeros((50_000, 33)), places(200_000, 50_000), numbers(f32, 200_000, 33)),
    "scatter_add to a vector": lambda: array.scatter_add(zeros((1 << 20,)), places(9999, 1 << 20), numbers(f32, 9999)),
    "scatter_add to few": lambda: array.scatter_add(zeros((7,), bf16), places(100_000, 7, i32), numbers(bf16, 100_000)),
    "flip": lambda: array.flip(numbers(f32, 700, 1300), 1),
    "roll": lambda: array.roll(numbers(f16, 700, 1300), (5, -700), (0, 1)),
    "pad": lambda: array.pad(numbers(f32, 700, 1300), ((0, 9), (1500, 3)), "reflect"),
    "tile and repeat": lambda: array.tile(array.repeat(numbers(i8, 300, 70), 3, 1), (2, 1)),
    "tril": lambda: array.tril(numbers(f32, 3, 700, 1300), -5),
    "take_along_axis": lambda: array.take_along_axis(numbers(f32, 50_000), places(70_000, 50_000)),
    "scatter_max": lambda: array.scatter_max(zeros((70, 33)), places(20_000, 70), numbers(f32, 20_000, 33)),
    "scatter_set": lambda: array.scatter_set(zeros((70, 33)), places(20_000, 70), numbers(f32, 20_000, 33)),
    "cumprod": lambda: array.cumprod(numbers(f32, 300, 5000), 1),
    "cummax": lambda: array.cummax(numbers(f32, (1 << 20) + 5)),
    "searchsorted": lambda: array.searchsorted(array.sort(numbers(f32, 5000)), numbers(f32, 300, 700)),
    "bincount": lambda: array.bincount(places(3_000_000, 5000), 4999),
    "histogram": lambda: array.histogram(numbers(f32, 1_000_000), 100, (-20, 20)),
    "compress": lambda: array.compress(numbers(f32, 700, 1300) > 0, numbers(f32, 700, 1300)),
    "compress to a size": lambda: array.compress(numbers(f16, 700) > 0, numbers(f32, 700, 1300), 0, size=500),
    "nonzero": lambda: array.nonzero(numbers(f32, 70, 9000) > 1.5).map(lambda places: places[1]),
    "unique": lambda: array.unique(numbers(f32, 300_000)),
    "unique_counts": lambda: array.unique_counts(places(300_000, 5000), size=6000).last(),
    "quantile": lambda: array.quantile(numbers(f32, 300, 9000), (0.1, 0.5), 1),
    "nanmax": lambda: array.nanmax(numbers(f32, 300, 9000), 1),
    "randint": lambda: array.randint((1_000_000,), -5, 1000, seed=3),
    "choice": lambda: array.choice(numbers(f32, 1000, 7), 900, replace=False, seed=3),
    "stencil": lambda: array.stencil(f32, 2, border="reflect")(lambda n: n[-2, 1] - 4 * n[0, 0])(
        numbers(f32, 700, 1300)
    ),
    "cumsum": lambda: array.cumsum(numbers(f32, (1 << 24) + 5)),
    "cumsum of rows": lambda: array.cumsum(numbers(f16, 3000, 5000), 1),
    "cumsum of columns": lambda: array.cumsum(numbers(f64, 5000, 300), 0),
    "cumsum of whole numbers": lambda: array.cumsum(numbers(i32, 40, 70_000, 3), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_bits_are_the_hosts(gpu: Device, name: str) -> None:
    """In every run."""
    with use_device("host"):
        expected = CALLS[name]().to_host().sync()
    with use_device(gpu):
        op = CALLS[name]()
        for _ in range(3):
            found = op.to_host().sync()
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5000, 10), 1), ((300, 4096), 1), ((300, 16_384), 1), ((7, 128_256), 1), ((2_000_000,), 0), ((500, 700), 0)],
)
def test_softmax_is_the_hosts_within_a_few_ulp(gpu: Device, dtype: Any, shape: tuple[int, ...], axis: int) -> None:
    """8 ulp of f32 or f64, and one of f16 and bf16, whose results are rounded once."""
    results: list[Any] = []
    for place in (gpu, "host"):
        with use_device(place):
            results.append(array.softmax(numbers(dtype, *shape), axis).to_host().sync().astype(f64))
    tolerance = {f16: 2.0**-10, bf16: 2.0**-7, f32: 2.0**-20, f64: 2.0**-49}[dtype]
    least = {f16: 2.0**-24, bf16: 2.0**-133, f32: 2.0**-146, f64: 0.0}[dtype]  # a few of the least numbers of the type
    np.testing.assert_allclose(results[0], results[1], rtol=tolerance, atol=least)


def test_an_index_beyond_the_axis_does_nothing_in_unchecked_kernels(gpu: Device) -> None:
    """`take` gives 0 there, and `scatter_add` leaves the value out."""
    wrong = from_host(np.array([0, 3, -4, 2, 1 << 40]))
    with use_device(gpu):
        taken = array.take(from_host(np.ones((3, 2), f32)), wrong).to_host().sync()
        added = array.scatter_add(zeros((3,)), wrong, from_host(np.ones(5, f32))).to_host().sync()
    assert taken[:, 0].tolist() == [1, 0, 0, 1, 0]
    assert added.tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
@pytest.mark.parametrize("name", ["var", "std"])
def test_deviations_from_large_means_have_the_bits_of_the_host(cuda: Device, name: str, dtype: Any) -> None:
    """Along each axis and over all elements, of numbers that differ by little from their mean, and of equal ones."""
    noise = np.random.default_rng(3).standard_normal((300, 2000))
    for x in ((noise + 1e4).astype(dtype), np.full((300, 2000), 1e4).astype(dtype)):
        found = []
        for device in (cuda, "host"):
            with use_device(device):
                t = from_host(x).sync().share()
                ops = [getattr(array, name)(t, axis, ddof=1) for axis in (0, 1, None)]
                found.append([op.to_host().sync().tobytes() for op in ops])
        assert found[0] == found[1]
