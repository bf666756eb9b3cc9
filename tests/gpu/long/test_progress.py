"""Runs under way on the GPU: long queues, many at a time, cancelled ones, and those that go by way of the host."""

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dagpu import (
    Device,
    RoundRobin,
    Tensor,
    current_device,
    device,
    dup,
    f32,
    from_host,
    full,
    i32,
    ones,
    spawn,
    zeros,
    zip_ops,
)
from tests.gpu.support.gpu_kernels import add, spin
from tests.gpu.support.gpu_support import NAME, child

PATIENCE = 120.0
MS = 1_000_000


def summed(t: Any, n: int = 1024) -> Any:
    """An op: t + 1."""
    return add(t.partition((256,)), ones((n,))).first().unpartition()


def spun(nanoseconds: int) -> Any:
    return spin(zeros((8,), i32).partition((8,)), nanoseconds).first().unpartition()


def run(body: Any) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE):
            await body()

    trio.run(main)


# ---- longer than any queue


@pytest.mark.parametrize("streams", [1, 4])
def test_twenty_thousand_launches(gpu: Device, streams: int) -> None:
    """More than a driver's queue takes, behind work that holds it up: the loop goes on, and all of it runs."""
    one = from_host(np.ones(8, f32)).shared()

    def chain(length: int) -> Any:
        op: Any = zeros((8,)).partition((8,))
        for _ in range(length):
            op = add(op, one).first()
        return op.unpartition().to_host()

    passed = 0
    done = False

    async def other() -> None:
        nonlocal passed
        while not done:
            await trio.lowlevel.checkpoint()
            passed += 1

    async def body() -> None:
        nonlocal done
        chains = zip_ops(*[chain(20_000 // streams) for _ in range(streams)])
        op = zip_ops(spun(100 * MS), chains).schedule(RoundRobin(streams))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await trio.lowlevel.checkpoint()
            before = passed
            _, results = await op
            done = True
            assert passed - before > 100
        for result in results:
            assert result.tolist() == [20_000 / streams] * 8

    run(body)


def test_many_runs_behind_one_that_is_long(gpu: Device) -> None:
    """Two thousand runs are submitted while the stream they share is busy: all are right."""
    stream = gpu.stream()
    threads = [
        threading.Thread(target=lambda: [summed(zeros((1024,))).sync_on(stream) for _ in range(50)]) for _ in range(4)
    ]
    spun(50 * MS).sync_on(stream)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, spun(20 * MS)) for _ in range(16)]
            others = [spawn(nursery, summed(full((1024,), n)).to_host()) for n in range(2000)]
            for n, one in enumerate(others):
                assert (await one == n + 1).all()
            for each in pending:
                await each

    run(body)


# ---- while kernels are loaded


def test_nobody_waits_for_ever_while_kernels_are_loaded(gpu: Device, tmp_path: Path) -> None:
    """First runs of kernels in tasks and threads, beside tasks that sleep and host functions that take the GIL: all go
    on, and all are right. DAGPU_TEST_STRESS_S says for how many seconds; 5 if it does not."""
    seconds = float(os.environ.get("DAGPU_TEST_STRESS_S", "5"))
    script = f"from tests.gpu.long.stress import main\nmain({seconds})"
    done = child(script, tmp_path, seconds, DAGPU_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert "first runs in tasks" in done.stdout


# ---- cancellation


def test_cancelling_drains_a_kernel(gpu: Device) -> None:
    """`Cancelled` comes after the kernel that was under way has ended: what it wrote is there, its memory is back."""
    t = zeros((8,), i32).sync()
    gc.collect()
    before = gpu.memory_used()
    cancelled = False

    async def child() -> None:
        nonlocal cancelled
        try:
            await zip_ops(spin(t.borrow_mut().partition((8,)), 50 * MS), ones((1000,)))
        except trio.Cancelled:
            cancelled = True
            raise

    async def body() -> None:
        await spun(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        # The kernel had begun, and was not called back; the lock on what it writes is free.
        assert (await t.borrow().to_host()).tolist() == [1] * 8
        await spin(t.borrow_mut().partition((8,)), 0)

    run(body)
    assert cancelled
    gc.collect()
    assert gpu.memory_used() == before
    assert t.to_host().sync().tolist() == [2] * 8


def test_cancelling_many_at_once(gpu: Device) -> None:
    """Half of them are cancelled wherever they are: the others are right, and nothing is left behind."""
    gc.collect()
    before = gpu.memory_used()
    right = 0

    async def one(number: int, scope: trio.CancelScope) -> None:
        nonlocal right
        with scope:
            t = await full((1024,), number)
            array = await summed(t).to_host().host_map(lambda a: a * 2).then(from_host).to_host()
            assert (array == 2 * number + 2).all()
            right += 1

    async def body() -> None:
        scopes = [trio.CancelScope() for _ in range(200)]
        async with trio.open_nursery() as nursery:
            for number, scope in enumerate(scopes):
                nursery.start_soon(one, number, scope)
                if number % 2:
                    await trio.lowlevel.checkpoint()
                    scope.cancel()

    run(body)
    assert right >= 100
    gc.collect()
    assert gpu.memory_used() == before


# ---- by way of the host


def test_host_maps_in_a_pipeline(gpu: Device) -> None:
    """Kernel, host, kernel, host: branches of them, each right, on one stream and on several."""

    def branch(number: int) -> Any:
        op = summed(full((1024,), number)).to_host().host_map(lambda a: a * 3).then(from_host)
        return op.then(summed).to_host().host_map(lambda a: a.sum())

    for op in (
        zip_ops(*map(branch, range(8))),
        zip_ops(*map(branch, range(8))).schedule(RoundRobin(1)),
        zip_ops(*map(branch, range(8))).schedule(RoundRobin(8)),
    ):
        assert op.sync() == tuple(1024 * (3 * (n + 1) + 1) for n in range(8))


def test_a_host_map_on_a_handle(gpu: Device) -> None:
    """The argument of the `host_map` function is complete. Other branches overlap with it."""
    met = threading.Barrier(2, timeout=PATIENCE)

    def meet(x: Any) -> Any:
        met.wait()
        return x

    a, b = zip_ops(full((1024,), 3).host_map(meet), summed(full((1024,), 4)).host_map(meet)).sync()
    assert isinstance(a, Tensor)
    assert (a.to_host().sync() == 3).all()
    assert (b.to_host().sync() == 5).all()


def test_a_host_map_that_fails(gpu: Device) -> None:
    """It is raised as itself; what depends on it is skipped, all else runs; the next run is right."""
    t = zeros((1024,)).sync()
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            zip_ops(
                summed(ones((1024,))).to_host().host_map(lambda a: 1 / 0).then(lambda n: full((4,), n)),
                add(t.borrow_mut().partition((256,)), ones((1024,))),
            ).sync()
    # A stage of its own comes after the failure; what was in the first stage has run each time.
    assert (t.to_host().sync() == 5).all()


# ---- many at a time


def test_threads_and_tasks_together(gpu: Device) -> None:
    """Plain threads, loops in threads, and streams of one's own: each gets its own results."""

    def plain(number: int) -> bool:
        return all((summed(full((1024,), number)).to_host().sync() == number + 1).all() for _ in range(50))

    def own_stream(number: int) -> bool:
        stream = gpu.stream()
        return all((summed(full((1024,), number)).to_host().sync_on(stream) == number + 1).all() for _ in range(50))

    def loop(number: int) -> bool:
        right: list[bool] = []

        async def one(add_to: int) -> None:
            result = await zip_ops(summed(full((1024,), add_to)), spun(10_000)).first().to_host()
            right.append(bool((result == add_to + 1).all()))

        async def body() -> None:
            async with trio.open_nursery() as nursery:
                for n in range(50):
                    nursery.start_soon(one, number + n)

        trio.run(body)
        return right == [True] * 50

    works = [plain, own_stream, loop] * 4
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work, number) for number, work in enumerate(works)]
        assert [future.result(PATIENCE) for future in futures] == [True] * len(works)


def test_a_shared_value_across_threads(gpu: Device) -> None:
    """Made once, on one thread's stream, and read by kernels on all others."""
    for _ in range(20):
        source = summed(full((1 << 20,), 1), 1 << 20).shared()
        barrier = threading.Barrier(8)

        def read(number: int, source: Any = source, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait(PATIENCE)
            op = add(full((1 << 20,), number).partition((1024,)), source).first().unpartition().to_host()
            return bool((op.sync() == number + 2).all())

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(read, range(8))) == [True] * 8


def test_streams_of_ones_own(gpu: Device) -> None:
    """Each has a CUstream, distinct while it lives; ops run on it whole, one after the other."""
    streams = [gpu.stream() for _ in range(20)]
    assert {stream.device for stream in streams} == {gpu}
    if gpu.kind == "cuda":
        assert len({stream.handle for stream in streams}) == 20
    t = zeros((1024,)).sync()
    for stream in streams * 3:
        add(t.borrow_mut().partition((256,)), ones((1024,))).sync_on(stream)
    assert (t.to_host().sync_on(streams[0]) == 60).all()


def test_results_are_complete_whoever_reads_them(gpu: Device) -> None:
    """A handle goes from a run on one stream to one on another, and to another thread, with no wait in between."""
    first, second = gpu.stream(), gpu.stream()
    t = full((1 << 20,), 0).sync_on(first)
    for number in range(50):
        t = summed(t, 1 << 20).sync_on(second if number % 2 else first)
    with ThreadPoolExecutor(1) as pool:
        assert (pool.submit(t.to_host().sync_on, first).result(PATIENCE) == 50).all()


def test_the_same_op_again_and_again(gpu: Device) -> None:
    """An op made of constructors may be run any number of times, from several threads at once."""
    op = summed(full((1024,), 2))

    def many(_: int) -> bool:
        return all((op.sync().to_host().sync() == 3).all() for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(4)))
    kept = [op.sync() for _ in range(20)]
    dup(kept[0]).sync()
    assert all((t.to_host().sync() == 3).all() for t in kept[1:])


def test_the_default_is_the_gpu(gpu: Device) -> None:
    """DAGPU_DEVICE names it, in this thread and in others."""
    with ThreadPoolExecutor(1) as pool:
        assert current_device() is device(NAME) is gpu is pool.submit(current_device).result(PATIENCE)
