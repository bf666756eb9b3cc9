"""Reductions of expressions over more elements than 32 bits count, on a GPU. The arguments have some hundred KiB each,
and the elements are in no memory."""

from typing import Any

import numpy as np
import pytest

from dagpu import Device, expr, f32, from_host, i64
from tests.gpu.support.gpu_support import NAME

pytestmark = pytest.mark.skipif(not NAME.startswith("cuda"), reason="the host computes the elements in its memory")

product = expr(f32, f32)(lambda x, y: x * y)
differs = expr(f32, f32)(lambda x, y: x != y)
below = expr(f32, f32)(lambda x, y: (x < y).to(i64))
EXTENTS = (46_340, 46_341, 65_536, 65_537)
"""Their squares lie on both sides of 2^31 and of 2^32."""


def column(n: int, by: float = 1.0) -> Any:
    return from_host(np.full((n, 1), by, f32))


def row(n: int, by: float = 1.0) -> Any:
    return from_host(np.full((1, n), by, f32))


def number(op: Any) -> float:
    return float(op.to_host().sync())


@pytest.mark.parametrize("n", EXTENTS)
def test_sums_of_broadcast_elements(cuda: Device, n: int) -> None:
    """All elements are 1, so each number is known."""
    assert number(product.sum()(column(n), row(n))) == pytest.approx(n * n, rel=1e-3)
    assert number(product.mean()(column(n), row(n))) == pytest.approx(1, rel=1e-3)
    assert number(product.norm()(column(n), row(n))) == pytest.approx(n, rel=1e-3)
    assert number(product.prod()(column(n), row(n))) == 1


@pytest.mark.parametrize("n", EXTENTS)
def test_the_last_element_counts(cuda: Device, n: int) -> None:
    """The largest element, the only one that differs and one of a count are those of the last row and column."""
    x, y = np.ones((n, 1), f32), np.ones((1, n), f32)
    x[-1], y[0, -1] = 3, 5
    assert number(product.amax()(from_host(x), from_host(y))) == 15
    assert number(product.amin()(from_host(-x), from_host(y))) == -15
    y[0, -1], x[-1] = 1, 0
    assert number(differs.any()(from_host(x), row(n)))
    assert not number(differs.any()(column(n), row(n)))
    assert not number(differs.all()(column(n, 2), from_host(np.where(np.arange(n) == n - 1, f32(2), f32(1))[None])))


@pytest.mark.parametrize("n", EXTENTS)
def test_a_count_in_64_bits_is_exact(cuda: Device, n: int) -> None:
    """Each element counts once."""
    assert number(below.sum()(column(n, 0), row(n))) == n * n


@pytest.mark.parametrize("n", EXTENTS)
def test_batched_sums(cuda: Device, n: int) -> None:
    """Each batch has an argument of its own, along rows and across them."""
    x, y = np.ones((3, n, 1), f32), np.arange(1, 4, dtype=f32).reshape(3, 1, 1) * np.ones((3, 1, n), f32)
    found = product.sum((1, 2))(from_host(x), from_host(y)).to_host().sync()
    np.testing.assert_allclose(found, np.arange(1, 4) * float(n) * n, rtol=1e-3)
    means = product.mean((0, 1))(from_host(np.ones((n, 1, 2), f32)), from_host(np.ones((1, n, 2), f32)))
    np.testing.assert_allclose(means.to_host().sync(), np.ones(2), rtol=1e-3)
