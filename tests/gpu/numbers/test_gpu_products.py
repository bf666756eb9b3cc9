"""`matmul` by cuBLASLt on the GPU: its error beside f64, the same bits in each run, lane and graph, and its memory.

The tolerance of an element is `eps * sqrt(k)` times the sum of the sizes of its terms, with eps of the type in which
products are added (f32, but f64 for f64, and 2**-11 for tf32), and one rounding of the result.
"""

from typing import Any

import numpy as np
import pytest

from dagpu import Device, array, bf16, f16, f32, f64, from_host, pipeline, zip_ops

pytest.importorskip("nvmath", reason="nvmath-python is not installed")

EPS = {f16: (2**-23, 2**-11), bf16: (2**-23, 2**-8), f32: (2**-23, 2**-24), f64: (2**-52, 2**-53)}


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def check(found: Any, a: Any, b: Any, *, tf32: bool = False) -> None:
    a, b, k = a.astype(f64), b.astype(f64), a.shape[-1]
    expected, size = np.matmul(a, b), np.matmul(abs(a), abs(b))
    added, rounded = EPS[found.dtype.type]
    bound = (2**-10 if tf32 else added * k**0.5) * size + rounded * abs(expected)
    assert (abs(found.astype(f64) - expected) <= bound).all()


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
def test_products_are_within_the_tolerance(cuda: Device, dtype: Any) -> None:
    """Of sizes that fill tiles and of odd ones, with each operand transposed."""
    for m, k, n in ((1, 1, 1), (17, 33, 9), (256, 256, 256), (1000, 777, 130), (3, 5000, 2)):
        a, b = normal((m, k), dtype), normal((k, n), dtype, 1)
        one, other = from_host(a).sync().share(), from_host(b).sync().share()
        check(array.matmul(one, other).to_host().sync(), a, b)
        turned = from_host(np.ascontiguousarray(b.T)).sync().share()
        check(array.matmul(one, turned, transpose="b").to_host().sync(), a, b)
        turned = from_host(np.ascontiguousarray(a.T)).sync().share()
        check(array.matmul(turned, other, transpose="a").to_host().sync(), a, b)


def test_batches_and_layouts(cuda: Device) -> None:
    """Strided, broadcast, folded into rows, and at addresses that are aligned to 4 bytes alone."""
    a, b = normal((6, 20, 30), f32), normal((6, 30, 40), f32, 1)
    one, other = from_host(a).sync().share(), from_host(b).sync().share()
    check(array.matmul(one, other).to_host().sync(), a, b)
    check(array.matmul(one, from_host(b[0])).to_host().sync(), a, b[0])
    check(array.matmul(from_host(a[:, None]), other).to_host().sync(), a[:, None], b)
    odd = from_host(a).sync()
    lent = odd.slice(slice(1, 5), slice(1, 19), slice(1, 30))
    check(array.matmul(lent, from_host(b[0, 1:])).to_host().sync(), a[1:5, 1:19, 1:], b[0, 1:])


def test_tf32_rounds_operands_to_10_bits(cuda: Device) -> None:
    """And "ieee" does not."""
    a, b = normal((512, 512), f32), normal((512, 512), f32, 1)
    found = array.matmul(from_host(a), from_host(b), precision="tf32").to_host().sync()
    check(found, a, b, tf32=True)
    exact = array.matmul(from_host(a), from_host(b)).to_host().sync()
    check(exact, a, b)
    assert abs(found - exact).max() > 0


def test_the_bits_are_the_same_in_each_lane_and_run(cuda: Device) -> None:
    """Eight equal products side by side, alone, and in a graph whose inputs move."""
    a, b = normal((640, 900), bf16), normal((900, 128), bf16, 1)
    one, other = from_host(a).sync().share(), from_host(b).sync().share()
    alone = array.matmul(one, other).to_host().sync().tobytes()
    for _ in range(5):
        for found in zip_ops(*[array.matmul(one, other).to_host() for _ in range(8)]).sync():
            assert found.tobytes() == alone

    @pipeline
    def multiplied(x: Any, y: Any) -> Any:
        return array.matmul(x, y).to_host()

    kept = []
    for _ in range(10):
        kept.append((from_host(a).sync().share(), from_host(b).sync().share()))
        assert multiplied(*kept[-1]).sync().tobytes() == alone


def test_a_chain_in_a_graph(cuda: Device) -> None:
    """Kernels before and after a product are ordered with it, and its scratch memory is its own."""
    a, b = normal((300, 300), f32) / 30, normal((300, 300), f32, 1) / 30

    @pipeline
    def chain(x: Any, y: Any) -> Any:
        for _ in range(20):
            x = array.minimum(array.maximum(array.matmul(x, y), -1.0), 1.0)
        return x

    expected = a.astype(f64)
    for _ in range(20):
        expected = np.clip(expected @ b.astype(f64), -1, 1)
    for _ in range(6):
        found = chain(from_host(a).sync().share(), from_host(b).sync().share()).to_host().sync()
        np.testing.assert_allclose(found, expected, atol=1e-4)
