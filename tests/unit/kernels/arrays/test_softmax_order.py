"""The order in which `softmax` adds: that of the CUDA text is that of the host body, bit for bit.

Exponentials differ by 2 ulp between the two. So in both another function takes their place, which rounds as both do.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from dagpu import bf16, f32, f64
from dagpu.arrays import normalising
from dagpu.arrays.normalising import SoftmaxOrder, softmax_kernel, softmax_order
from dagpu.kernels.row_elements import GroupPattern
from dagpu.testing import KernelSpec
from tests.support.text_runs import launch_text

PLAIN: Final = GroupPattern((0, 1, 2), 3)
SHAPES: Final = ((5, 3, 1), (2, 16, 1), (3, 100, 1), (2, 513, 1), (9, 1024, 1), (2, 3000, 1), (1, 40, 3), (2, 700, 40))
LONG: Final = ((2, 20_000, 1), (1, 3000, 33))
"""Of rows with several spans, whose numbers are a step of their own."""
FUNCTION: Final = "template <class T> T falling(T x) { return T(1) / (T(1) + x * x); }\n"


def falling(x: Any, out: Any) -> Any:
    """Positive below the largest element, and 0 at negative infinity, as an exponential is."""
    return np.divide(x.dtype.type(1), x.dtype.type(1) + x * x, out=out)


def kernel_of(step: str, dtype: Any, order: SoftmaxOrder) -> KernelSpec:
    """The kernel of a step with `falling` in the place of the exponential."""
    made = softmax_kernel.__wrapped__(step, np.dtype(dtype), PLAIN, order)
    return replace(made, cuda=FUNCTION + made.cuda.replace("expf(", "falling(").replace("exp(", "falling("))


def launches(dtype: Any, shape: tuple[int, int, int]) -> list[tuple[KernelSpec, SoftmaxOrder, tuple[int, ...]]]:
    """The kernels of all steps, with the shapes of what they write."""
    before, length, after = shape
    order = softmax_order(length, after)
    spans = -(-length // order.span)
    if spans == 1:
        return [(kernel_of("whole", dtype, order), order, shape)]
    part = before, spans, after
    return [
        (kernel_of(step, dtype, order), order, written)
        for step, written in (("largest", part), ("total", part), ("quotient", shape))
    ]


@pytest.mark.parametrize("dtype", [f32, f64, bf16])
def test_the_cuda_text_adds_in_the_order_of_the_host_body(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """Of short and long rows, along memory and across it, with neighbours that one instruction reads and others."""
    monkeypatch.setattr(normalising, "numpy_function", lambda *_: falling)
    shapes = (*SHAPES, *(LONG if dtype is f32 else ()))
    made = [(shape, launches(dtype, shape)) for shape in shapes]
    for shape, steps in made:
        x = np.random.default_rng(shape[1]).standard_normal(shape).astype(dtype)
        known: list[Any] = []
        for spec, order, written in steps:
            found, expected = np.zeros((2, *written), spec.params[0].dtype)
            last = spec is steps[-1][0]
            tile = (order.outer, order.span if last else 1, order.inner)
            launch_text(spec, [found, x, *known], [tile])
            assert spec.host.function is not None
            spec.host.function(expected, x, *known)
            assert found.tobytes() == expected.tobytes(), (shape, order)
            known.append(found)


def test_neighbours_are_read_and_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows whose length is a multiple of four: there a kernel is right without another way to read or to write."""
    monkeypatch.setattr(normalising, "numpy_function", lambda *_: falling)
    made = []
    for length, at_once in ((1024, True), (1022, False)):
        spec = kernel_of("whole", f32, softmax_order(length, 1))
        for apart in ("kept[k] = x(before, at, after);", "out(before, at, after) = kept[k] * share;"):
            assert apart in spec.cuda
            made.append((replace(spec, cuda=spec.cuda.replace(apart, ";")), length, at_once))
    for spec, length, at_once in made:
        x = np.random.default_rng(2).standard_normal((3, length, 1)).astype(f32)
        found, expected = np.zeros((2, *x.shape), f32)
        order = softmax_order(length, 1)
        launch_text(spec, [found, x], [(order.outer, order.span, order.inner)])
        assert spec.host.function is not None
        spec.host.function(expected, x)
        assert (found.tobytes() == expected.tobytes()) is at_once
