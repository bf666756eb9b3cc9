"""Functions that move, gather and add elements along axes: the values of NumPy, and the bits of the CUDA text."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from dagpu import KernelBoundsError, array, bf16, bool_, expr, f16, f32, f64, from_host, i8, i32, ones, zeros
from dagpu.arrays import scattering
from dagpu.ops.compose import Launch
from dagpu.testing import KernelSpec, Mode, nodes_of, texts_run
from tests.conftest import sampled
from tests.support.bits import same_bits
from tests.support.text_runs import by_text, launch_text
from tests.unit.kernels.arrays.movement_cases import NORMALISING, Case, cases
from tests.unit.kernels.expressions.element_trees import samples


@settings(max_examples=40)
@given(cases())
def test_values_are_those_of_numpy_or_of_the_rule(case: Case) -> None:
    """Of any shape, element type, axis and layout, to the bit: NumPy's, and for sums those of the order of the rule."""
    found = case.op()[0].to_host().sync()
    assert same_bits(found, case.expected), (case.name, found, case.expected)


@settings(max_examples=36)
@given(cases(NORMALISING))
def test_softmax_is_the_formula(case: Case) -> None:
    """Within a few ulp of the element type, and its logarithms of the largest element."""
    assert_near(case.op()[0].to_host().sync(), case.expected)


def assert_near(found: Any, expected: Any) -> None:
    eps = {2: 2**-10 if found.dtype.name == "float16" else 2**-7, 4: 2**-21, 8: 2**-49}[found.dtype.itemsize]
    least = eps / 1000 if np.all(expected.astype(f64) >= 0) else eps * 8
    np.testing.assert_allclose(found.astype(f64), expected.astype(f64), rtol=eps, atol=least)


def numbers(dtype: Any, *shape: int) -> Any:
    return samples(dtype, int(np.prod(shape, dtype=int)), 3).reshape(shape)


SCORES = expr(f32, f32, f32)(lambda x, y, a: array.maximum(x * a, y) - x)
HALF_SCORES = expr(bf16, bf16)(lambda x, y: x - y)
BACKWARDS: Any = (slice(None, None, -1),)
CHOSEN: list[tuple[Callable[..., Any], list[Any], list[Any]]] = [
    (array.transpose, [numbers(f16, 3, 40, 33)], [()]),
    (lambda x: array.transpose(x, (1, 0, 2)), [numbers(i8, 3, 4, 5)], [BACKWARDS]),
    (array.transpose, [numbers(f64, 200, 2)], [()]),
    (lambda *xs: array.concatenate(xs, 1), [numbers(f32, 2, n, 3) for n in range(18)], [(), BACKWARDS] + [()] * 16),
    (lambda *xs: array.stack(xs, -1), [numbers(bf16, 5, 7)] * 2, [(), BACKWARDS]),
    (lambda x, i: array.take(x, i, 1), [numbers(bool_, 3, 5, 4), np.array([[-5, 4], [0, 2]])], [BACKWARDS, BACKWARDS]),
    (array.take, [numbers(f32, 50), np.arange(-50, 50, dtype=i32)], [(), ()]),
    (lambda i: array.one_hot(i, 4, f16), [np.arange(-2, 6)], [BACKWARDS]),
    (lambda x: array.flip(x, 1), [numbers(f16, 3, 5)], [BACKWARDS]),
    (lambda x: array.roll(x, (2, -9), (0, 1)), [numbers(bf16, 3, 5)], [BACKWARDS]),
    (lambda x: array.tile(x, (2, 1, 3)), [numbers(i8, 3, 5)], [BACKWARDS]),
    (lambda x: array.repeat(x, 3, -1), [numbers(bool_, 30, 50)], [()]),
    (lambda x: array.broadcast_to(x, (2, 3, 4, 5)), [numbers(f64, 3, 1, 5)], [()]),
    *[
        (lambda x, mode=mode: array.pad(x, ((9, 0), (2, 11)), mode), [numbers(f32, 3, 5)], [BACKWARDS])
        for mode in ("edge", "reflect", "symmetric", "wrap")
    ],
    (lambda x: array.pad(x, 2, constant_values=1.5), [numbers(f16, 3, 5)], [()]),
    (lambda x: array.pad(x, (0, 1)), [numbers(bool_, 3, 5)], [()]),
    (lambda x: array.tril(x, 1), [numbers(f32, 2, 3, 5)], [BACKWARDS]),
    (lambda x: array.triu(x, -1), [numbers(bf16, 3, 5)], [()]),
    (array.cumsum, [numbers(f32, 3, 5)], [()]),
    (lambda x: array.cumsum(x, 1), [numbers(f16, 3, 300)], [BACKWARDS]),
    (array.cumsum, [numbers(f32, 9000)], [()]),
    (lambda x: array.cumsum(x, 1), [numbers(i8, 2, 600, 3)], [()]),
    (lambda x: array.cumprod(x, 1), [numbers(bf16, 3, 300)], [()]),
    (array.cumprod, [numbers(i32, 9000)], [()]),
    (lambda x: array.cummax(x, 1), [numbers(f32, 3, 300)], [BACKWARDS]),
    (array.cummin, [numbers(f64, 9000)], [()]),
    (lambda x: array.cummin(x, 0), [numbers(i8, 300, 3)], [()]),
    (array.scatter_add, [numbers(f16, 9, 3), np.arange(3000) * 7 % 18 - 9, numbers(f16, 3000, 3)], [(), (), ()]),
    (array.scatter_add, [numbers(i32, 60), np.arange(700, dtype=i32) % 60, numbers(i32, 700)], [(), (), BACKWARDS]),
    (array.scatter_set, [numbers(f16, 9, 3), np.arange(3000) * 7 % 18 - 9, numbers(f16, 3000, 3)], [(), (), ()]),
    (array.scatter_set, [numbers(bool_, 60), np.arange(70, dtype=i32) % 60, numbers(bool_, 70)], [(), (), ()]),
    (array.scatter_max, [numbers(bf16, 9, 3), np.arange(300) * 7 % 18 - 9, numbers(bf16, 300, 3)], [(), (), ()]),
    (array.scatter_min, [numbers(f64, 60), np.arange(700, dtype=i32) % 60, numbers(f64, 700)], [(), (), BACKWARDS]),
    (lambda v, s: array.segment_sum(v, s, 7), [numbers(f32, 300, 3), np.arange(300) % 6], [BACKWARDS, ()]),
    (
        lambda x, i: array.take_along_axis(x, i, 1),
        [numbers(f16, 3, 5, 4), np.arange(24).reshape(3, 2, 4) % 10 - 5],
        [BACKWARDS, ()],
    ),
    (array.logsumexp, [numbers(f32, 3, 20)], [BACKWARDS]),
    (lambda x: array.log_softmax(x, 0), [numbers(f64, 600, 20)], [()]),
    (array.softmax, [numbers(f32, 3, 20)], [BACKWARDS]),
    (lambda x: array.softmax(x, 0), [numbers(f64, 600, 20)], [()]),
    (array.softmax, [numbers(bf16, 1, 17_000)], [()]),
    (lambda x, y: SCORES.softmax()(x, y, 0.5), [numbers(f32, 3, 20), numbers(f32, 3, 1)], [BACKWARDS, ()]),
    (lambda x, y: SCORES.softmax(1)(x, y, 0.5), [numbers(f32, 2, 600, 5), numbers(f32, 600, 1)], [(), ()]),
    (lambda x, y: HALF_SCORES.softmax()(x, y), [numbers(bf16, 2, 17_000), numbers(bf16, 17_000)], [(), ()]),
]
"""Calls of every function, whose kernels differ: short and long rows, layouts, and element types."""


def beyond() -> list[Any]:
    """Calls with indices beyond their axis, and their arrays."""
    x, wrong = numbers(f32, 3, 2), np.array([0, 3, -4, 2])
    return [
        array.take(from_host(x), from_host(wrong)),
        array.scatter_add(zeros((3, 2)), from_host(wrong), ones((4, 2))),
    ]


SOFTMAXES = [call for call, _, _ in CHOSEN[-8:]]
"""The calls whose results may differ by a few ulp."""


@pytest.mark.parametrize("number", sampled(range(len(CHOSEN))))
def test_the_cuda_text_gives_the_bits_of_the_host_body(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Every launch, in two orders of threads and blocks."""
    monkeypatch.setattr(scattering, "BLOCKS", 8)  # few blocks, so that a tile has several rows
    call, arrays, ranges = CHOSEN[number]
    case = Case("chosen", arrays, ranges, call, np.zeros(0))
    found, expected = by_text(lambda: case.op()[0]), case.op()[0].to_host().sync()
    if call in SOFTMAXES:
        assert_near(found, expected)
    else:
        assert same_bits(found, expected), (case, found, expected)


def test_the_cuda_text_leaves_out_an_index_beyond_the_axis() -> None:
    """It reads nothing and writes 0, or adds nothing; a checked kernel reports the index and its axis instead."""
    x, wrong = numbers(f32, 3, 2), np.array([0, 3, -4, 2])
    taken, added = map(spec_of, beyond())
    out, sums = np.ones((1, 4, 2), f32), np.zeros((3, 2), f32)

    def launch() -> Iterator[Any]:
        yield lambda: launch_text(taken, [out, x.reshape(1, 3, 2), wrong], [(1, 4, 2)])
        yield lambda: launch_text(added, [sums, wrong, np.ones((4, 2), f32)], [(1, 2)])

    for each in launch():
        with pytest.raises(KernelBoundsError, match=r"(-4|3)\b.* 3\b"):
            each()
    with texts_run(mode=Mode(checked=False)):
        for each in launch():
            each()
    assert out[0].tolist() == [x[0].tolist(), [0, 0], [0, 0], x[2].tolist()]
    assert sums.tolist() == [[1, 1], [0, 0], [1, 1]]


def spec_of(op: Any) -> KernelSpec:
    """The only kernel of an op."""
    (launch,) = [node for node in nodes_of(op) if isinstance(node, Launch)]
    return launch.kernel
