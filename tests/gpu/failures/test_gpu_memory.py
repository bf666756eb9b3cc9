"""Memory of the GPU: what is too much, what comes back, and that nothing grows."""

import gc
import os
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    Device,
    OutOfMemoryError,
    dup,
    empty,
    f32,
    from_host,
    full,
    i32,
    memcpy,
    ones,
    u8,
    value,
    zeros,
    zip_ops,
)  # fmt: skip
from tests.gpu.support.gpu_kernels import add, spin
from tests.gpu.support.gpu_support import digits_of
from tests.support.handle_cases import line

MIB, GIB = 1 << 20, 1 << 30


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # the folder that a Path opens counts too


# ---- too much


def test_more_than_there_is(cuda: Device) -> None:
    """OutOfMemoryError with what was asked for, what is free, what there is, and where; the next op works."""
    total = cuda.memory_info()[1]
    asked, before = 2 * total, cuda.memory_used()
    for _ in range(3):
        with pytest.raises(OutOfMemoryError) as caught:
            zeros((asked,), u8).sync()
        here = line(1)
        said = digits_of(str(caught.value))
        for part in (cuda.name, str(asked), str(total), "free", here):
            assert part in said
        assert caught.value.code == 2
        assert isinstance(caught.value, MemoryError)
        assert cuda.memory_used() == before
        assert zeros((4,)).to_host().sync().tolist() == [0.0] * 4


def test_too_much_in_one_branch(cuda: Device) -> None:
    """An op of which one part asks for too much keeps its handles: memory is had before anything is submitted."""
    asked = 2 * cuda.memory_info()[1]
    t = ones((4,)).sync()
    op = zip_ops(add(t.partition((4,)), ones((4,))).first(), zeros((asked,), u8))
    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            op.sync()
    used = cuda.memory_used()
    del op, t
    gc.collect()
    assert cuda.memory_used() == used - 16


def test_too_much_beside_others(gpu: Device) -> None:
    """A task whose run is refused disturbs no other."""
    asked = 2 * gpu.memory_info()[1]
    right = 0

    async def fine(number: int) -> None:
        nonlocal right
        for _ in range(20):
            result = await add(full((1024,), number).partition((256,)), ones((1024,))).first().unpartition().to_host()
            right += bool((result == number + 1).all())

    async def greedy() -> None:
        for _ in range(10):
            with pytest.raises(OutOfMemoryError):
                await zeros((asked,), u8)

    async def main() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(fine, number)
                nursery.start_soon(greedy)

    trio.run(main)
    assert right == 80


@pytest.mark.exclusive
def test_a_full_gpu(cuda: Device) -> None:
    """Filled with blocks until there is no room; half of them go, and one large block has room again."""
    gc.collect()
    before = cuda.memory_used()
    held: list[Any] = []
    with pytest.raises(OutOfMemoryError):
        held.extend(zeros((GIB,), u8).sync() for _ in range(10_000))
    filled = len(held)
    assert cuda.memory_used() == before + filled * GIB
    assert ones((4,)).to_host().sync().tolist() == [1.0] * 4
    del held[::2]
    assert cuda.memory_used() == before + len(held) * GIB
    # No block that was given back is so large: the pool has to be trimmed, and its pieces put together.
    large = full(((filled - len(held) - 1) * GIB,), 3, u8).sync()
    assert large.slice(slice(-5, None)).to_host().sync().tolist() == [3] * 5
    assert held[-1].slice(slice(0, 3)).to_host().sync().tolist() == [0] * 3
    del large, held
    assert cuda.memory_used() == before


@pytest.mark.exclusive
def test_blocks_of_many_sizes(cuda: Device) -> None:
    """Random sizes, held and dropped in a random order, of more than the GPU has altogether: none is refused."""
    random = np.random.default_rng(0)
    gc.collect()
    before, room = cuda.memory_used(), cuda.memory_info()[1] // 3
    held: dict[int, Any] = {}
    made, largest = 0, room // 8
    for number in range(600):
        while sum(t.nbytes for t in held.values()) > room - largest:
            del held[int(random.choice(list(held)))]
        size = int(random.integers(1, largest)) >> int(random.integers(0, 16))
        held[number] = empty((size + 1,), u8).sync()
        made += size + 1
        assert cuda.memory_used() == before + sum(t.nbytes for t in held.values())
    assert made > cuda.memory_info()[1]
    held.clear()
    assert cuda.memory_used() == before


def test_small_blocks_do_not_overlap(gpu: Device) -> None:
    """A thousand tensors of a few bytes each, written in turn and read afterwards; half of them made twice."""
    tensors = {number: full((number % 7 + 1,), number, i32).sync() for number in range(1000)}
    for number in range(0, 1000, 2):
        del tensors[number]
        tensors[number] = full((number % 5 + 1,), -number, i32).sync()
    for number, t in tensors.items():
        assert set(t.to_host().sync().tolist()) == {number if number % 2 else -number}


def test_memory_goes_back_while_the_gpu_works(gpu: Device) -> None:
    """Memory that is dropped while another run is in progress is not reused too early: all contents are right."""

    async def main() -> None:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(churn, number)

    async def churn(number: int) -> None:
        for turn in range(40):
            fresh = await full((10_000 + 100 * number,), number + turn)
            busy = spin(zeros((8,), i32).partition((8,)), 50_000).first().unpartition().to_host()
            copied, spun = await zip_ops(dup(fresh).to_host(), busy)
            assert (copied == number + turn).all()
            assert (spun == 1).all()

    trio.run(main)


# ---- nothing grows


async def await_ten_thousand() -> None:
    op = add(zeros((64,)).partition((64,)), ones((64,))).first().unpartition()
    for number in range(2500):
        result = await op
        again = await dup(result)
        array = await again.to_host()
        assert array[0] == 1
        t = await from_host(array)
        if number % 500 == 0:
            await memcpy(t.borrow_mut(), await ones((64,)))
            await value(number).host_map(abs)


def test_ten_thousand_awaits(gpu: Device) -> None:
    """Ten thousand awaits increase neither the memory in use nor the number of file descriptors."""
    trio.run(await_ten_thousand)
    gc.collect()
    memory, files = gpu.memory_used(), open_files()
    trio.run(await_ten_thousand)
    gc.collect()
    assert gpu.memory_used() == memory
    assert open_files() <= files


@pytest.mark.exclusive
def test_ten_thousand_awaits_leave_the_gpu_as_it_was(cuda: Device) -> None:
    """Ten thousand awaits do not reduce the free memory of the whole GPU."""
    trio.run(await_ten_thousand)
    gc.collect()
    free = cuda.memory_info()[0]
    for _ in range(3):
        trio.run(await_ten_thousand)
    gc.collect()
    assert cuda.memory_info()[0] >= free


def test_waits_that_sleep_leave_no_files_open(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no spinning at all: each wait sleeps until a descriptor is readable, and those are given back."""
    monkeypatch.setenv("DAGPU_SPIN_US", "0")

    async def main() -> None:
        async def one() -> None:
            for _ in range(50):
                result = await spin(zeros((8,), i32).partition((8,)), 20_000).first().unpartition().to_host()
                assert (result == 1).all()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(one)

    trio.run(main)
    gc.collect()
    files = open_files()
    for _ in range(3):
        trio.run(main)
    gc.collect()
    assert open_files() <= files


# ---- large copies


@pytest.mark.parametrize("order", ["C", "F", "cut"])
def test_a_hundred_megabytes_and_back(gpu: Device, order: str) -> None:
    """Larger than any staging buffer, of any memory order: to the bit."""
    array = np.random.default_rng(1).integers(0, 1 << 30, (5000, 5000), np.int32)
    source = {"C": array, "F": np.asfortranarray(array), "cut": np.repeat(array, 2, axis=1)[:, ::2]}[order]
    t = from_host(source).sync()
    np.testing.assert_array_equal(t.borrow().to_host().sync(), array)
    cut = t.slice(slice(1, None, 3), slice(None, None, -2)).to_host().sync()
    np.testing.assert_array_equal(cut, array[1::3, ::-2])


def test_large_copies_at_the_same_time(gpu: Device) -> None:
    """Both ways, from four tasks: each gets its own."""

    async def one(number: int) -> None:
        array = np.full((1 << 23,), number, f32)
        for _ in range(5):
            op = add(from_host(array).partition((1 << 16,)), from_host(array)).first().unpartition().to_host()
            result = await op
            assert (result == 2 * number).all()

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(one, number)

    trio.run(main)


def test_an_array_may_be_changed_once_its_copy_is_done(gpu: Device) -> None:
    """The tensor that a run gives is complete: what happens to the array afterwards does not reach it."""
    array = np.zeros(1 << 22, f32)
    for number in range(20):
        array[:] = number
        t = from_host(array).sync()
        array[:] = -1
        assert (t.to_host().sync() == number).all()


def test_results_are_the_users_own(gpu: Device) -> None:
    """Arrays that `to_host` gave stay as they are, whatever is read back later."""
    held = [full((1 << 12,), number).to_host().sync() for number in range(200)]
    assert all((array == number).all() for number, array in enumerate(held))
