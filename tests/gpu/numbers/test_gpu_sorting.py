"""Sorting on the GPU: the bits of the host, for every element type and several lengths of rows."""

from typing import Any

import numpy as np
import pytest

from dagpu import Device, array, bf16, bool_, f16, f32, f64, from_host, i8, i64, u16, u64, use_device

TYPES = (f16, bf16, f32, f64, i8, i64, u16, u64, bool_)


def rows(shape: tuple[int, int], dtype: Any) -> Any:
    """Rows with many equal elements, zeros and NaNs of both signs."""
    rng = np.random.default_rng(shape[1])
    found = rng.integers(-100, 100, shape).astype(f64)
    if np.dtype(dtype).kind in "iub":
        return np.abs(found).astype(dtype)
    found[rng.random(shape) < 0.1] = np.nan
    found[rng.random(shape) < 0.1] = -np.nan
    found[rng.random(shape) < 0.1] = -0.0
    return found.astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (300, 33), (7, 4096), (3, 4097), (2, 100_000), (1, 3_000_001)])
def test_sorts_have_the_bits_of_the_host(cuda: Device, dtype: Any, shape: tuple[int, int]) -> None:
    """Elements, places, and the largest few and many."""
    x = rows(shape, dtype)

    def results() -> list[bytes]:
        t = from_host(x).sync().share()
        few, many = min(5, shape[1]), shape[1] // 2
        found = [array.sort(t).sync(), array.argsort(t).sync(), *array.topk(t, few).sync(), *array.topk(t, many).sync()]
        return [each.to_host().sync().tobytes() for each in found]

    on_gpu = results()
    with use_device("host"):
        assert results() == on_gpu


def test_permutations_and_dropout_have_the_bits_of_the_host(cuda: Device) -> None:
    """By the same Philox numbers."""

    def results() -> list[bytes]:
        x = from_host(np.nan_to_num(rows((20, 999), f32))).sync().share()  # a division makes a NaN of its own bits
        found = [array.permutation(100_000, seed=3), array.dropout(x, 0.3, seed=4)]
        return [op.to_host().sync().tobytes() for op in found]

    on_gpu = results()
    with use_device("host"):
        assert results() == on_gpu
