"""One context for everybody: CuPy and PyTorch beside us, on any thread, on one stream; and no thread keeps it."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import Device, Tensor, device, empty, f32, from_host, full, ones, use_device, zeros, zip_ops
from tests.gpu.support.gpu_kernels import add, give, take
from tests.gpu.support.gpu_support import NAME, context, theirs

N, TILE = 1 << 16, (1 << 12,)
PATIENCE = 60.0


def taken(address: int) -> Any:
    """An op: what lies at the address, `N` floats."""
    return take(empty((N,)).partition(TILE), address).first().unpartition()


def on_a_thread(work: Callable[[], Any]) -> Any:
    """The result of `work` on a thread that ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(PATIENCE)


def with_cupy(number: int) -> None:
    """Their memory in our kernels, and our results in theirs."""
    cupy = theirs("cupy")
    array = cupy.arange(N, dtype=f32) * 2 + number
    cupy.cuda.get_current_stream().synchronize()
    ours = taken(array.data.ptr).to_host().sync()
    np.testing.assert_array_equal(ours, np.arange(N, dtype=f32) * 2 + number)
    done = give(zeros((N,)).partition(TILE), full((N,), number), array.data.ptr).first().unpartition().to_host().sync()
    assert (done == 1).all()
    np.testing.assert_array_equal(cupy.asnumpy(array + 1), np.full(N, number + 1, f32))


def with_torch(number: int) -> None:
    """Do the same with PyTorch."""
    torch = theirs("torch")
    tensor = torch.arange(N, dtype=torch.float32, device="cuda") * 2 + number
    torch.cuda.current_stream().synchronize()
    ours = taken(tensor.data_ptr()).to_host().sync()
    np.testing.assert_array_equal(ours, np.arange(N, dtype=f32) * 2 + number)
    give(zeros((N,)).partition(TILE), full((N,), number), tensor.data_ptr()).sync()
    np.testing.assert_array_equal((tensor + 1).cpu().numpy(), np.full(N, number + 1, f32))


@pytest.mark.parametrize("library", [with_cupy, with_torch], ids=["cupy", "torch"])
def test_memory_is_shared_with_other_libraries(cuda: Device, library: Callable[[int], None]) -> None:
    """Interleaved on this thread, an address of theirs is good in our kernels, both for reading and for writing."""
    for number in range(5):
        library(number)


@pytest.mark.parametrize("library", [with_cupy, with_torch], ids=["cupy", "torch"])
def test_other_libraries_on_several_threads(cuda: Device, library: Callable[[int], None]) -> None:
    """Other libraries work on four threads at once, each of which takes its turn."""
    library(0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(library, range(16), timeout=PATIENCE))


def test_all_three_interleaved_under_trio(cuda: Device) -> None:
    """Tasks that await ops, and worker threads that use CuPy and PyTorch, at the same time."""

    async def ours(number: int) -> None:
        for _ in range(10):
            result = await add(full((N,), number).partition(TILE), ones((N,))).first().unpartition().to_host()
            assert (result == number + 1).all()

    async def main() -> None:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(ours, number)
                    nursery.start_soon(trio.to_thread.run_sync, with_cupy, number)
                    nursery.start_soon(trio.to_thread.run_sync, with_torch, number)

    trio.run(main)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_stream_of_ours_in_cupy(cuda: Device) -> None:
    """CuPy's work on `stream.handle`, then ours by `sync_on`, then CuPy's again: in order, with no wait in between."""
    cupy = theirs("cupy")
    stream = cuda.stream()
    assert stream.handle
    big = cupy.zeros(1 << 24, dtype=f32)
    array = cupy.zeros(N, dtype=f32)
    cupy.cuda.get_current_stream().synchronize()
    with cupy.cuda.ExternalStream(stream.handle):
        for _ in range(20):
            big += 1
        array += big[:N] * 2
    assert (taken(array.data.ptr).to_host().sync_on(stream) == 40).all()
    give(zeros((N,)).partition(TILE), full((N,), 7), array.data.ptr).sync_on(stream)
    with cupy.cuda.ExternalStream(stream.handle):
        array *= 2
        assert (cupy.asnumpy(array) == 14).all()


def test_a_stream_of_ours_in_torch(cuda: Device) -> None:
    """PyTorch can use a stream of dagpu."""
    torch = theirs("torch")
    stream = cuda.stream()
    big = torch.zeros(1 << 24, device="cuda")
    tensor = torch.zeros(N, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        for _ in range(20):
            big += 1
        tensor += big[:N] * 2
    assert (taken(tensor.data_ptr()).to_host().sync_on(stream) == 40).all()


def every_way() -> Any:
    """Uses the device in all ways that push a context; what it gives keeps memory alive."""
    where = device(NAME)
    stream = where.stream()
    t = from_host(np.arange(N, dtype=f32)).sync()
    summed = add(t.partition(TILE), ones((N,))).first().unpartition().sync_on(stream)
    assert float(summed.borrow().to_host().sync()[-1]) == N
    assert where.memory_info()[0] > 0
    with pytest.raises(RuntimeError, match="as planned"):
        zip_ops(zeros((4,)), ones((4,)).host_map(fail)).sync()
    return summed


def fail(_: object) -> None:
    raise RuntimeError("as planned")


def test_no_thread_ends_with_a_context(cuda: Device) -> None:
    """After runs that succeed and that fail, this thread's stack of contexts is as it was before: empty."""

    def work() -> tuple[int, Tensor[Any], int]:
        return context(), every_way(), context()

    def read(t: Tensor[Any]) -> tuple[float, int]:
        return float(t.to_host().sync()[0]), context()

    for _ in range(8):
        before, kept, after = on_a_thread(work)
        assert (before, after) == (0, 0)
        assert on_a_thread(partial(read, kept)) == (1.0, 0)


def test_a_context_that_was_current_is_so_again(cuda: Device) -> None:
    """Whoever had a context current on a thread finds it after each of our runs."""
    theirs("cupy").zeros(4)
    before = context()
    assert before
    every_way()
    assert context() == before


def test_trios_threads_keep_the_context_they_had(cuda: Device) -> None:
    """Worker threads of trio, and loops in threads of their own. Trio keeps its workers for a while: one that another
    test has used, with PyTorch or CuPy, has the context that these have left current there."""

    def worker() -> tuple[int, int]:
        before = context()
        every_way()
        return before, context()

    async def body() -> list[tuple[int, int]]:
        await ones((N,)).to_host()
        return [await trio.to_thread.run_sync(worker) for _ in range(4)]

    def loop() -> tuple[int, int, list[tuple[int, int]]]:
        before = context()
        workers = trio.run(body)
        return before, context(), workers

    seen = trio.run(body)
    for _ in range(3):
        before, after, workers = on_a_thread(loop)
        assert (before, after) == (0, 0)
        seen += workers
    assert all(before == after for before, after in seen)


def test_handles_are_freed_on_any_thread(cuda: Device) -> None:
    """Dropped on threads that never used the GPU, and by the collector there, they give all their bytes back."""
    gc.collect()
    before = cuda.memory_used()
    held: list[list[Any]] = [[zeros((1 << 18,)).sync() for _ in range(8)] for _ in range(8)]
    assert cuda.memory_used() == before + 64 * (1 << 20)
    threads = [threading.Thread(target=held.pop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert cuda.memory_used() == before

    class Ring:
        def __init__(self) -> None:
            self.me = self
            shared = zeros((1 << 18,)).shared()
            self.held = [zeros((1 << 18,)).sync(), device(NAME).stream(), shared, shared.sync()]

    gc.disable()
    try:
        for _ in range(8):
            Ring()
        assert cuda.memory_used() == before + 16 * (1 << 20)
        on_a_thread(gc.collect)
        assert cuda.memory_used() == before
    finally:
        gc.enable()
    assert on_a_thread(context) == 0


def test_threads_have_devices_of_their_own(gpu: Device) -> None:
    """`use_device` in one thread changes nothing in another; the host and the GPU run at the same time."""
    barrier = threading.Barrier(4)

    def work(number: int) -> set[str]:
        found = set()
        with use_device(NAME if number % 2 else "host"):
            barrier.wait(PATIENCE)
            for _ in range(20):
                found.add(ones((16,)).sync().device.name)
        return found

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [{"host:0"}, {NAME}] * 2
