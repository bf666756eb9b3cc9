"""PyTorch's and CuPy's arrays on a real GPU: late producers, late consumers, streams, and no copies."""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dagpu import (
    BorrowError,
    Device,
    InteropError,
    adopt,
    current_device,
    expr,
    f32,
    fill,
    from_array,
    full,
    lend,
    lend_mut,
    lent_out,
    pipeline,
    share_array,
    stream_of,
    use_device,
)
from tests.gpu.support.gpu_support import NAME, context

torch = pytest.importorskip("torch")
cupy = pytest.importorskip("cupy")

N = 1 << 20
LONG = 40_000_000
"""Clock ticks of a GPU: some 20 ms."""


@expr(f32)
def plus_one(x: Any) -> Any:
    return x + 1.0


@pytest.fixture(autouse=True)
def on_gpu(cuda: Device) -> Iterator[None]:
    if cuda.kind != "cuda":
        pytest.skip("these libraries know no device of this name")
    with use_device(cuda):
        plus_one(full((N,), 0.0)).sync()  # compiled
        yield
    gc.collect()


def late(number: float) -> Any:
    """A tensor of PyTorch that is written long after this returns."""
    x = torch.empty(N, device="cuda")
    torch.cuda._sleep(LONG)  # noqa: SLF001  # the only kernel that takes a time
    x.fill_(number)
    return x


@pytest.mark.parametrize("verb", [adopt, share_array])
def test_a_late_producer(verb: Any) -> None:
    """A run waits on the device for PyTorch's stream, also for one beside the default stream."""
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            x = late(3.0)
            used = current_device().memory_used()
            handle = verb(x, f32)
            assert current_device().memory_used() == used
            assert_array_equal(plus_one(handle).to_host().sync(), np.full(N, 4, f32))


def test_a_late_producer_on_a_thread_without_a_context() -> None:
    """An import makes the context current where the thread has none, and leaves the thread as it was."""
    share_array(late(2.0), f32)  # from now on arrays of its form are read by attributes
    x = late(3.0)

    def taken() -> tuple[int, Any, int]:
        with use_device(NAME):
            return context(), share_array(x, f32), context()

    with ThreadPoolExecutor(1) as pool:
        before, shared, after = pool.submit(taken).result(60)
    assert (before, after) == (0, 0)
    assert_array_equal(plus_one(shared).to_host().sync(), np.full(N, 4, f32))


def test_an_array_of_a_stream_that_is_being_captured() -> None:
    """The run that uses it is refused, and the capture goes on. After the graph has run, the array is taken over."""
    x = torch.full((N,), 2.0, device="cuda")
    share_array(x, f32)  # from now on arrays of its form are read by attributes
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1.0
        captured = share_array(y, f32)
    for _ in range(2):
        with pytest.raises(InteropError, match="was being captured"):
            plus_one(captured).sync()
        assert_array_equal(plus_one(share_array(x, f32)).to_host().sync(), np.full(N, 3, f32))
    graph.replay()
    assert_array_equal(plus_one(share_array(y, f32)).to_host().sync(), np.full(N, 4, f32))


def test_a_late_producer_of_cupy() -> None:
    """CuPy's arrays come in by DLPack and by the CUDA array interface."""
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.arange(N, dtype=np.float32)
        with lend(x, f32) as lent:
            assert_array_equal(plus_one(lent).to_host().sync(), np.arange(N, dtype=f32) + 1)

        class Interface:
            __cuda_array_interface__ = x.__cuda_array_interface__

        assert_array_equal(from_array(Interface(), f32).to_host().sync(), np.arange(N, dtype=f32))


def test_a_pipeline_and_a_graph_over_late_tensors() -> None:
    """A pipeline that is one CUDA graph waits as any run does."""
    step = pipeline(graph_from=2)(lambda x: plus_one(x))
    for number in range(6):
        x = late(float(number))
        assert_array_equal(step(share_array(x, f32)).to_host().sync(), np.full(N, number + 1, f32))


def test_memory_of_a_late_consumer() -> None:
    """PyTorch drops a tensor of ours while its stream still reads it; runs that follow do not overwrite it."""
    for _ in range(10):
        tensor = full((N,), 7.0).sync()
        x = torch.from_dlpack(tensor)
        assert x.data_ptr() % 256 == 0
        torch.cuda._sleep(LONG)  # noqa: SLF001  # the only kernel that takes a time
        y = x + 1
        del x
        for number in range(4):
            full((N,), float(number)).sync()
        assert bool((y == 8).all())


def test_a_shared_tensor_goes_to_both() -> None:
    """PyTorch and CuPy read one `SharedTensor` in place."""
    shared = full((N,), 2.0).sync().share()
    x, y = torch.from_dlpack(shared), cupy.from_dlpack(shared)
    assert x.data_ptr() == y.data.ptr == shared.__cuda_array_interface__["data"][0]
    assert float(x.sum()) == float(y.sum()) == 2.0 * N


def test_a_loan() -> None:
    """What PyTorch enqueued in the block comes before our next run; what it keeps is locked."""
    tensor = full((N,), 1.0).sync()
    with lent_out(tensor.borrow_mut()) as out:
        x = torch.from_dlpack(out)
        torch.cuda._sleep(LONG)  # noqa: SLF001  # the only kernel that takes a time
        x.add_(4)
        del x
    assert_array_equal(plus_one(tensor.borrow()).to_host().sync(), np.full(N, 6, f32))
    with lent_out(tensor.borrow()) as out:
        y = cupy.from_dlpack(out)
    with pytest.raises(BorrowError, match="lent out"):
        fill(tensor.borrow_mut(), 1.0).sync()
    del y
    gc.collect()
    fill(tensor.borrow_mut(), 1.0).sync()


def test_an_array_of_theirs_is_written_in_place() -> None:
    """`lend_mut` writes PyTorch's own memory; it sees the result at the end of the block."""
    x = late(1.0)
    with lend_mut(x, f32) as lent:
        fill(lent, 9.0).sync()
    assert bool((x == 9).all())


def test_a_run_on_their_stream() -> None:
    """`sync_on(stream_of(s))` runs in PyTorch's and CuPy's streams."""
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        x = late(2.0)
    on_it = stream_of(s.cuda_stream)
    assert on_it.handle == s.cuda_stream
    assert_array_equal(plus_one(share_array(x, f32)).to_host().sync_on(on_it), np.full(N, 3, f32))
    ours = current_device().stream()
    theirs = cupy.cuda.Stream.from_external(ours) if hasattr(cupy.cuda.Stream, "from_external") else None
    if theirs is not None:
        with theirs:
            assert float(cupy.arange(10).sum()) == 45


def test_memory_comes_back_to_pytorch() -> None:
    """Adopted memory goes back to PyTorch's allocator, and exports to ours, many times over."""
    before = torch.cuda.memory_allocated()
    for _ in range(300):
        adopt(torch.ones(1 << 22, device="cuda"), f32)
        torch.from_dlpack(full((1 << 22,), 1.0).sync()).add_(1)
    adopt(torch.ones(1, device="cuda"), f32)  # a later call releases what was dropped
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + (1 << 25)
