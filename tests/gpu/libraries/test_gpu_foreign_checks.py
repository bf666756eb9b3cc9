"""Audit, checked calls and copied operands of foreign ops, with PyTorch and CuPy on a real GPU."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dagpu import Device, ForeignError, In, Tensor, f32, foreign, from_host, full, pipeline, use_device
from dagpu.interop import current_lane, new

torch = pytest.importorskip("torch")
cupy = pytest.importorskip("cupy")

N = 1 << 16


@pytest.fixture(autouse=True, params=["torch", "cupy"], name="library")
def on_gpu(cuda: Device, request: pytest.FixtureRequest) -> Iterator[str]:
    """The GPU, and the name of a library."""
    if cuda.kind != "cuda":
        pytest.skip("these libraries know no device of this name")
    with use_device(cuda):
        yield request.param


def declared(library: Any, body: Any, **options: Any) -> Any:
    """The op `op(x)` with this body."""

    @foreign(**options)
    def op(x: In[f32]) -> Tensor[f32]:
        return new(x)

    op.on(library)(body)
    return op


def as_graph(op: Any, x: Any) -> Any:
    return op(x.clone()).graph()


def test_a_pointer_that_is_not_declared(library: str) -> None:
    """The audit finds it among the kernels' parameters, and nothing else in a body that is right."""
    x, hidden = full((N,), 1.0).sync().share(), full((N,), 2.0).sync().share()
    kept = torch.from_dlpack(hidden) if library == "torch" else cupy.from_dlpack(hidden)

    def wrong(x: Any, out: Any) -> None:
        out[...] = x + kept

    def right(x: Any, out: Any) -> None:
        out[...] = (x * 2 + 1) * x

    as_graph(declared(library, right), x)
    with pytest.raises(ForeignError, match=r"points at 0x.*memory of dagpu that is no operand"):
        as_graph(declared(library, wrong), x)
    as_graph(declared(library, wrong, verify="none"), x)


def test_work_on_another_stream(library: str) -> None:
    """The audit finds that nothing, or nothing at the output, is in the graph."""
    x = full((N,), 1.0).sync().share()
    side = torch.cuda.Stream() if library == "torch" else cupy.cuda.Stream(non_blocking=True)

    def body(x: Any, out: Any) -> None:
        with torch.cuda.stream(side) if library == "torch" else side:
            out[...] = x

    with pytest.raises(ForeignError, match="enqueued nothing on the lane's stream"):
        as_graph(declared(library, body), x)


def test_checked_calls(library: str) -> None:
    """An input that is written and an output that is not are found; a body that is right passes."""
    x = full((N,), 1.0).sync().share()

    def over_input(x: Any, out: Any) -> None:
        out[...] = x
        x[...] = 5.0

    def half(x: Any, out: Any) -> None:
        out[: N // 2] = x[: N // 2]

    def right(x: Any, out: Any) -> None:
        out[...] = x * 3

    with pytest.raises(ForeignError, match="wrote to input 'x'"):
        declared(library, over_input, checked=True)(full((N,), 1.0)).sync()
    with pytest.raises(ForeignError, match=f"left {N // 2} of {N} elements unwritten in new tensor 0"):
        declared(library, half, checked=True)(x.clone()).sync()
    found = declared(library, right, checked=True)(x.clone()).to_host().sync()
    assert_array_equal(found, np.full(N, 3, f32))


def test_operands_that_move_are_copied(library: str) -> None:
    """After the first move the body is not captured again, wherever inputs and results are."""
    calls: list[bool] = []

    def body(x: Any, out: Any) -> None:
        calls.append(current_lane().capturing)
        out[...] = x * 2 + 1

    op = declared(library, body)
    step = pipeline(graph_from=2)(lambda x: op(x))
    tensors = [from_host(np.full(N, number, f32)).sync().share() for number in range(4)]
    kept = []
    for repeat in range(5):
        for number, x in enumerate(tensors):
            kept.append((number, step(x).sync()))
        if repeat == 1:
            before = len(calls)
    assert len(calls) == before
    for number, tensor in kept:
        assert_array_equal(tensor.to_host().sync(), np.full(N, 2 * number + 1, f32))
