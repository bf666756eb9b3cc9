"""A cancelled run on the host stops between two parts of a long body that dagpu has made."""

from typing import Any

import numpy as np
import pytest

from dagpu import array, expr, f32, ones
from dagpu.arrays import normalising
from dagpu.backends.host.arrays import Account, HostMemory, writable_array
from dagpu.backends.host.failures import Outcome
from dagpu.backends.host.numpy_execution import execute
from dagpu.kernels import numpy_twin, reduction_kernels
from dagpu.kernels.numpy_twin import until_cancelled
from dagpu.ops.compose import Launch as DagLaunch
from dagpu.testing import Launch, Tiles, View, contiguous_layout, nodes_of

T = ones((40, 10))
CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], float]] = {
    "expression": (expr(f32)(lambda x: x + 1)(T), (400,), (400,), 2.0),
    "sum": (array.sum(T, 1), (40, 10), (40, 1), 10.0),
    "amax": (array.amax(T, 1), (40, 10), (40, 1), 1.0),
    "softmax": (array.softmax(T), (40, 10, 1), (40, 10, 1), 0.1),
}
"""For each op the shapes of the input and of the output as its kernel sees them, and the elements of the result."""


@pytest.mark.parametrize("name", list(CASES))
def test_a_cancelled_run_stops_between_two_parts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The part at work, a quarter of the whole, is finished, and no other one is begun."""
    monkeypatch.setattr(numpy_twin, "PART_NBYTES", 400)
    monkeypatch.setattr(normalising, "PART", 100)
    monkeypatch.setattr(reduction_kernels, "SMALL", 0)
    monkeypatch.setattr(reduction_kernels, "NBYTES", 400)
    outcome = Outcome()

    def cancelled_in_the_first(parts: Any) -> Any:
        for part in until_cancelled(parts):
            outcome.cancel()
            yield part

    monkeypatch.setattr(reduction_kernels, "LARGE", 100)
    for module in (numpy_twin, normalising, reduction_kernels):
        monkeypatch.setattr(module, "until_cancelled", cancelled_in_the_first)
    op, given, made, element = CASES[name]
    (kernel,) = [node.kernel for node in nodes_of(op) if isinstance(node, DagLaunch)]
    x, out = (contiguous_layout(shape, np.dtype(f32)) for shape in (given, made))
    memory: list[object] = [HostMemory(Account(), 1600), HostMemory(Account(), 1600)]
    writable_array(memory[0], x)[...] = 1
    writable_array(memory[1], out)[...] = -1
    execute(Launch(kernel, (Tiles(View(1, out), made, (1,)), View(0, x)), (1,), (0,), (1,), 0, None), memory, outcome)
    found = writable_array(memory[1], out).reshape(40, -1)
    np.testing.assert_allclose(found[:10], element, rtol=1e-6)
    assert (found[10:] == -1).all()
