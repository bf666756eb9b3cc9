"""Kernels of rows, of sorts and of Fourier transforms: their CUDA text on the CPU."""

from typing import Any

import numpy as np
import pytest

from dagpu import array, bf16, c64, c128, f16, f32, f64, from_host, i8, zeros
from dagpu.arrays.products.matrix_products import resize_kernel, scale_kernel
from dagpu.ops.compose import Launch
from dagpu.testing import KernelSpec, nodes_of
from tests.conftest import sampled
from tests.support.text_runs import all_by_text, launch_text
from tests.unit.kernels.arrays.sorts import expected, ran
from tests.unit.kernels.expressions.element_trees import samples


def same(spec: KernelSpec, made: int, inputs: list[Any]) -> bool:
    """Launch a kernel on rows, call its host body, and compare what they write to rows of `made` elements."""
    found, expected = np.full((3, made), 9, c64), np.full((3, made), 9, c64)
    launch_text(spec, [found, *inputs], [(2, 4)])
    assert spec.host.function is not None
    spec.host.function(expected, *inputs)
    return found.tobytes() == expected.tobytes()


CASES: Any = [
    ("sort", f32, (8500,), 0),
    ("sort", i8, (2, 8200), 0),
    ("argsort", bf16, (2, 40), 0),
    ("argsort", f16, (8500,), 0),
    ("topk", f32, (5000,), 7),
    ("topk", f64, (4100,), 3000),
]
"""Of one tile and of several, of one digit and of eight, with and without places."""


@pytest.mark.parametrize("number", sampled(range(len(CASES)), 3))
def test_sorts_in_cuda_have_the_bits_of_the_host(number: int) -> None:
    """The launches of a radix sort, in two orders of threads and blocks."""
    name, dtype, shape, k = CASES[number]
    x = samples(dtype, int(np.prod(shape)), number).reshape(shape)
    x.view(f"u{x.itemsize}")[..., ::7] ^= 1 << 8 * x.itemsize - 1  # so some NaNs have a sign
    for made, right in zip(all_by_text(ran(name, from_host(x), k)), expected(name, x, k), strict=True):
        assert made.tobytes() == right.tobytes(), (name, x.dtype, x.shape)


def test_matrices_in_cuda_have_the_bits_of_the_host() -> None:
    """Complex elements that are cut, lengthened by zeros, and multiplied: each part of an element rounds once. Of their
    transposition, too."""
    resize, scale = resize_kernel(np.dtype(c64)), scale_kernel(np.dtype(c64))
    op = array.irfft(zeros((3, 10, 2), c128), 6, 1)
    turn = next(n for n in list(nodes_of(op))[::-1] if isinstance(n, Launch) and n.kernel.name == "transpose")
    rows = (np.random.default_rng(4).standard_normal((3, 10, 2)) @ [1, 1j]).astype(c64)
    for length in (1, 7, 10, 25):
        assert same(resize, length, [rows])
        assert same(resize, length, [np.ascontiguousarray(rows.T)])
    assert same(scale, 10, [rows, 1 / 7])
    target: Any = turn.args[0]
    x, y = rows.astype(c128).reshape(3, 5, 2), np.zeros((3, 2, 5), c128)
    launch_text(turn.kernel, [y, x], [target.f.tile])
    assert y.tolist() == x.transpose(0, 2, 1).tolist()
