"""Foreign ops with PyTorch and CuPy on a real GPU: streams, temporaries, graphs, and their refusals."""

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dagpu import (
    CaptureError,
    Device,
    In,
    RoundRobin,
    Tensor,
    array,
    current_device,
    f32,
    foreign,
    from_host,
    full,
    pipeline,
    use_device,
    zip_ops,
)
from dagpu.interop import Lane, View, current_lane, extent, new, require, reserve
from tests.behaviour.interop.foreign_ops.foreign_programs import affine, halves, product, shifted

torch = pytest.importorskip("torch")
cupy = pytest.importorskip("cupy")

N = 1 << 20
LONG = 40_000_000
"""Clock ticks of a GPU: some 20 ms."""
A = np.arange(12, dtype=f32).reshape(3, 4)


@pytest.fixture(autouse=True, params=["torch", "cupy"], name="library")
def on_gpu(cuda: Device, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The GPU, with the bodies of one library."""
    if cuda.kind != "cuda":
        pytest.skip("these libraries know no device of this name")
    monkeypatch.setenv("DAGPU_FOREIGN", request.param)
    with use_device(cuda):
        yield request.param
    gc.collect()


def test_results() -> None:
    """New tensors and partitions, in streams; small whole numbers are exact."""
    assert_array_equal(affine(from_host(A), 2.0, 1.0).to_host().sync(), A * 2 + 1)
    y = shifted(array.transpose(from_host(A)).partition((2, 3)), from_host(A.T.copy()), 2.0).first().unpartition()
    assert_array_equal(y.to_host().sync(), A.T + 2)
    first, second = halves(from_host(A)).sync()
    assert_array_equal(first.to_host().sync(), A + 1)
    assert_array_equal(second.to_host().sync(), A * 2)


def test_order_and_temporaries_on_four_lanes() -> None:
    """What comes late on one lane is waited for by the others; temporaries are not shared between lanes."""

    @foreign
    def late(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @late.on("torch")
    def _(x: Any, out: Any) -> None:
        torch.cuda._sleep(LONG)  # noqa: SLF001  # the only kernel that takes a time
        out.copy_(x + 1)

    @late.on("cupy")
    def _(x: Any, out: Any) -> None:
        out[...] = x + f32(1)

    x = full((N,), 1.0).sync().share()
    for repeat in range(3):
        branches = [affine(late(x.clone()), float(number), 1.0).to_host() for number in range(6)]
        found = zip_ops(*branches).schedule(RoundRobin(4)).sync()
        for number, each in enumerate(found):
            assert_array_equal(each, np.full(N, 2 * number + 1, f32), f"{repeat}")


def test_a_graph_of_bodies_whose_inputs_move(library: str) -> None:
    """A pipeline becomes one graph; inputs and numbers change, and other work overwrites idle memory meanwhile."""
    calls: list[bool] = []

    @foreign
    def steps(x: In[f32], by: float) -> Tensor[f32]:
        return new(x)

    @steps.on("torch")
    def _(x: Any, by: float, out: Any) -> None:
        calls.append(current_lane().capturing)
        out.copy_(torch.relu(x * by) + 1)

    @steps.on("cupy")
    def _(x: Any, by: float, out: Any) -> None:
        calls.append(current_lane().capturing)
        out[...] = cupy.maximum(x * f32(by), f32(0)) + f32(1)

    step = pipeline(graph_from=2)(lambda x, by: steps(array.cumsum(steps(x, by), 0), 1.0))
    tensors = [full((64,), float(number)).sync().share() for number in range(3)]
    for number in (0, 0, 0, 1, 2, 1, 0, 2):
        for by in (1.0, 1.0, 2.0):
            expected = np.cumsum(np.full(64, number * by + 1, f32)) + 1
            assert_array_equal(step(tensors[number], by).to_host().sync(), expected)
            torch.full((1 << 20,), 1e30, device="cuda")
            cupy.full((1 << 20,), 1e30, cupy.float32)
    assert calls.count(False) == 2
    assert True in calls


def test_a_captured_graph() -> None:
    """`op.graph()` has the bodies' work; its temporaries live as long as it does."""
    graph = product(affine(from_host(A), 2.0, 1.0), from_host(A.T.copy())).graph() if _captures_products() else None
    if graph is None:
        pytest.skip("CuPy refuses cuBLAS in a capture")
    out = graph.take_output()
    for _ in range(3):
        torch.full((1 << 20,), 1e30, device="cuda")
        graph.launch().sync()
        assert_allclose(out.borrow().to_host().sync(), (A * 2 + 1) @ A.T, rtol=1e-5)


def _captures_products() -> bool:
    from dagpu.common.env_vars import FOREIGN

    return FOREIGN.get() == "torch"


def test_a_body_that_cannot_be_captured(library: str) -> None:
    """It synchronizes, or CuPy refuses cuBLAS: the plan goes through streams and says why; "required" raises."""

    def declare(capture: Any) -> Any:
        @foreign(capture=capture)
        def waits(a: In[f32], b: In[f32]) -> Tensor[f32]:
            require(extent(a, 1) == extent(b, 0), "the inner extents differ")
            return new((extent(a, 0), extent(b, 1)), f32)

        @waits.on("torch")
        def _(a: Any, b: Any, out: Any) -> None:
            out.copy_(a @ b)
            out.sum().item()

        @waits.on("cupy")
        def _(a: Any, b: Any, out: Any) -> None:
            out[...] = a @ b
            float(out.sum())

        return waits

    x, y = from_host(A).sync().share(), from_host(A.T.copy()).sync().share()
    waits = declare("auto")
    step = pipeline(graph_from=2)(lambda a, b: waits(a, b))
    for _ in range(4):
        assert_allclose(step(x, y).to_host().sync(), A @ A.T, rtol=1e-5)
    assert "No CUDA graph" in waits(x.clone(), y.clone()).explain()
    with pytest.raises(CaptureError, match="its body cannot be in a CUDA graph"):
        declare("required")(x.clone(), y.clone()).graph()
    assert_allclose(step(x, y).to_host().sync(), A @ A.T, rtol=1e-5)  # the device is as before
    assert_array_equal(affine(x.clone(), 2.0).to_host().sync(), A * 2)


def test_an_exception_leaves_the_device_as_it_was() -> None:
    """In a body, in streams: its results fail, and the next run works."""

    @foreign
    def breaks(x: In[f32]) -> Tensor[f32]:
        return new(x)

    def raising(x: Any, out: Any) -> None:
        out[...] = x * 2
        raise ZeroDivisionError("in a body")

    breaks.on("torch")(raising)
    breaks.on("cupy")(raising)
    with pytest.raises(ZeroDivisionError, match="in a body"):
        breaks(from_host(A)).sync()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert_array_equal(affine(from_host(A), 2.0).to_host().sync(), A * 2)


def test_a_raw_body_and_its_scratch() -> None:
    """Views are taken by both libraries without a copy, and without a wait."""

    @foreign
    def negated(x: In[f32]) -> Tensor[f32]:
        reserve(4 * extent(x, 0))
        return new(x)

    @negated.raw
    def _(lane: Lane, x: View[f32], out: View[f32], scratch: View[np.uint8]) -> None:
        source, room = torch.from_dlpack(x), torch.from_dlpack(scratch).view(torch.float32)
        assert source.data_ptr() == x.address
        with torch.cuda.stream(torch.cuda.ExternalStream(lane.handle)), torch.no_grad():
            torch.neg(source, out=room)
            torch.from_dlpack(out).copy_(room)

    assert_array_equal(negated(full((N,), 3.0)).to_host().sync(), np.full(N, -3, f32))


def test_memory_stays_level() -> None:
    """Runs through streams and in a graph give all memory back, ours and PyTorch's."""
    step = pipeline(graph_from=2)(lambda x, by: affine(affine(x, by, 1.0), 2.0, 1.0))
    x = full((N,), 1.0).sync().share()
    for number in range(10):
        step(x, float(number)).sync()
    ours, theirs = current_device().memory_used(), torch.cuda.memory_reserved()
    for number in range(100):
        step(x, float(number)).sync()
    gc.collect()
    assert current_device().memory_used() <= ours + (16 << 20)
    assert torch.cuda.memory_reserved() <= theirs + (64 << 20)
