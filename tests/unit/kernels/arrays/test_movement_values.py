"""Functions that move, gather and add elements along axes: the values of NumPy, and the bits of the CUDA text."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from dagpu import array, bf16, bool_, expr, f16, f32, f64, from_host, i8, i32, ones, zeros
from dagpu.arrays import scattering
from dagpu.backends.cuda.commands.buffers import LAYOUT
from dagpu.ops.compose import Launch
from dagpu.testing import KernelSpec, nodes_of
from tests.emulation import shared_folder
from tests.emulation.emulated_kernels import EmulatedKernels, same_bits
from tests.emulation.emulated_ops import EmulatedOps
from tests.unit.kernels.arrays.movement_cases import Case, cases
from tests.unit.kernels.expressions.element_trees import samples


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory)


@settings(max_examples=40)
@given(cases())
def test_values_are_those_of_numpy_or_of_the_rule(case: Case) -> None:
    """Of any shape, element type, axis and layout, to the bit: NumPy's, and for sums those of the order of the rule."""
    found = case.op()[0].to_host().sync()
    assert same_bits(found, case.expected), (case.name, found, case.expected)


@settings(max_examples=12)
@given(cases(("softmax",)))
def test_softmax_is_the_formula(case: Case) -> None:
    """Within a few ulp of the element type."""
    assert_near(case.op()[0].to_host().sync(), case.expected)


def assert_near(found: Any, expected: Any) -> None:
    eps = {2: 2**-10 if found.dtype.name == "float16" else 2**-7, 4: 2**-21, 8: 2**-49}[found.dtype.itemsize]
    np.testing.assert_allclose(found.astype(f64), expected.astype(f64), rtol=eps, atol=eps / 1000)


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
    (array.cumsum, [numbers(f32, 3, 5)], [()]),
    (lambda x: array.cumsum(x, 1), [numbers(f16, 3, 300)], [BACKWARDS]),
    (array.cumsum, [numbers(f32, 9000)], [()]),
    (lambda x: array.cumsum(x, 1), [numbers(i8, 2, 600, 3)], [()]),
    (array.scatter_add, [numbers(f16, 9, 3), np.arange(3000) * 7 % 18 - 9, numbers(f16, 3000, 3)], [(), (), ()]),
    (array.scatter_add, [numbers(i32, 60), np.arange(700, dtype=i32) % 60, numbers(i32, 700)], [(), (), BACKWARDS]),
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


@pytest.fixture(scope="module")
def chosen(folder: Path) -> Iterator[tuple[list[Any], EmulatedOps, list[KernelSpec]]]:
    """The chosen calls with their ops, the emulated kernels of all, and those of calls with wrong indices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scattering, "BLOCKS", 8)  # few blocks, so that a tile has several rows
        cases = [Case("chosen", arrays, ranges, call, np.zeros(0)) for call, arrays, ranges in CHOSEN]
        made = [(case, *case.op()) for case in cases]
        wrong = beyond()
        yield made, EmulatedOps([*[op for _, op, _ in made], *wrong], folder), list(map(spec_of, wrong))


def test_the_cuda_text_gives_the_bits_of_the_host_body(chosen: Any) -> None:
    """Every launch, with the threads of a block in two orders."""
    made, device, _ = chosen
    for case, op, arrays in made:
        found = device.result(op, arrays)
        expected = case.op()[0].to_host().sync()
        if case.call in SOFTMAXES:
            assert_near(found, expected)
        else:
            assert same_bits(found, expected), (case, found, expected)


SOFTMAXES = [call for call, _, _ in CHOSEN[-6:]]
"""The calls whose results may differ by a few ulp."""


@pytest.mark.parametrize("checked", [False, True])
def test_the_cuda_text_leaves_out_an_index_beyond_the_axis(folder: Path, chosen: Any, checked: bool) -> None:
    """It reads nothing and writes 0, or adds nothing; a checked kernel reports the index and its axis instead."""
    x, wrong = numbers(f32, 3, 2), np.array([0, 3, -4, 2])
    taken, added = chosen[2]
    device = chosen[1].device
    if checked:
        device = EmulatedKernels([taken, added], folder, blocks=True, variant="checked_wide")
    out, sums, reports = np.ones((1, 4, 2), f32), np.zeros((3, 2), f32), []
    device.launch(taken, [out, x.reshape(1, 3, 2), wrong], [(1, 4, 2)])
    assert checked or out[0].tolist() == [x[0].tolist(), [0, 0], [0, 0], x[2].tolist()]
    reports.append(device.report.view(LAYOUT)[0].copy())
    device.report[:] = 0
    device.launch(added, [sums, wrong, np.ones((4, 2), f32)], [(1, 2)])
    assert sums.tolist() == [[1, 1], [0, 0], [1, 1]]
    reports.append(device.report.view(LAYOUT)[0])
    found = [(r["state"], r["argument"], r["index"][r["rank"] - 2], r["extent"][r["rank"] - 2]) for r in reports]
    assert found == ([(2, 1, -4, 3), (2, 0, 3, 3)] if checked else [(0, 0, 0, 0)] * 2)


def spec_of(op: Any) -> KernelSpec:
    """The only kernel of an op."""
    (launch,) = [node for node in nodes_of(op) if isinstance(node, Launch)]
    return launch.kernel
