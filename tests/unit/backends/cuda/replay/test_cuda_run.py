"""Runs on simulated GPUs: how they overlap, wait, are cancelled, fail and give back what they held. Nothing sleeps."""

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray
from trio.testing import wait_all_tasks_blocked

from dagpu import (
    DeviceError,
    Tensor,
    arange,
    device,
    dup,
    empty,
    f32,
    fill,
    from_host,
    full,
    ones,
    plan_of,
    zeros,
    zip_ops,
)
from dagpu.backends.cuda import executable
from dagpu.backends.cuda.commands import buffers, transfers
from dagpu.backends.cuda.executable import Executable
from dagpu.backends.cuda.instruction_selection import Selection, select
from dagpu.backends.cuda.resources import streams
from dagpu.testing import Function, backend
from tests.programs.arithmetic import add, axpy, scale
from tests.simulated.cuda import driver
from tests.simulated.machine import Machine
from tests.simulated.runs import awaited, chain, descriptors, fresh_machine, sleepy_tasks  # noqa: F401  # fixtures


# ---- waiting --------------------------------------------------------------------------------------------------------
def test_other_tasks_go_on_while_one_sleeps(machine: Machine, sleepy: None) -> None:
    """A task that waits for the GPU holds up nobody; when the GPU is done, it goes on."""
    seen: list[str] = []

    async def compute() -> None:
        array = await arange(6).to_host()
        seen.append(f"computed {array.sum()}")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with machine.hold():
                nursery.start_soon(compute)
                await wait_all_tasks_blocked()
                seen.append("another task")

    trio.run(main)
    assert seen == ["another task", "computed 15.0"]


def test_a_hundred_sleeping_awaits_leave_no_descriptor(machine: Machine, sleepy: None) -> None:
    """Each wait has a pipe of its own, and both of its ends are closed."""

    async def main() -> None:
        op = full((3,), 2).to_host()
        await op
        before = descriptors()
        for _ in range(100):
            assert (await op).sum() == 6
        gc.collect()
        assert descriptors() <= before + 1  # the last one may be closed by the driver a little later

    trio.run(main)


def test_runs_from_many_threads(machine: Machine) -> None:
    """Each thread gets its own result, and leaves no context on its stack."""
    x = from_host(np.arange(16, dtype=f32).reshape(4, 4)).share().sync()
    op = add(empty((4, 4)).partition((2, 2)), x, ones((4, 4))).first().unpartition().to_host()
    wanted, found = op.sync().tobytes(), list[bytes]()

    def work() -> None:
        found.extend(op.sync().tobytes() for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 40


def test_a_plan_that_two_threads_compile_is_encoded_whole(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread compiles and encodes all of a plan while this one waits for its first kernel: this one goes on
    through the other kernels, and then finds the plan encoded."""
    others: list[Callable[[], None]] = []

    def select_and_wait(*args: Any) -> Selection:
        found = select(*args)
        for key, make in [*found.wanted.items()]:
            found.wanted[key] = partial(make_after_others, make)
        return found

    def make_after_others(make: Callable[[], Function]) -> Function:
        while others:
            others.pop()()
        return make()

    monkeypatch.setattr(executable, "select", select_and_wait)
    op = add(empty((4, 4)).partition((2, 2)), arange(16).reshape((4, 4)), ones((4, 4)))
    prepared = backend("cuda").prepare(plan_of(op))
    assert isinstance(prepared, Executable)
    slow = prepared.before_first
    assert slow is not None
    others.append(slow)
    slow()
    assert prepared.before_first is None
    assert len(prepared.command_lists.encoded.launches) == 2  # `arange` and `add`


def test_runs_that_are_submitted_at_once_have_a_script_each(machine: Machine) -> None:
    """With addresses and events of its own; one that is new aims at nothing that it does not write itself."""
    prepared = backend("cuda").prepare(plan_of(chain(3)))
    assert isinstance(prepared, Executable)
    numbers = [1.0] * len(prepared.compiled.plan.buffers)
    first = prepared.command_lists.borrow()
    first.parameters.relocate([1 << 20] * prepared.compiled.bases, numbers)
    second = prepared.command_lists.borrow()
    second.parameters.relocate([1 << 20] * prepared.compiled.bases, numbers)
    launches = list(zip(first.parameters.texts, second.parameters.texts, strict=True))
    assert len(launches) == 3
    assert all(a == b and a is not b for a, b in launches)
    second.parameters.relocate([1 << 21] * prepared.compiled.bases, numbers)
    assert all(int.from_bytes(b[:8], "little") - int.from_bytes(a[:8], "little") == 1 << 20 for a, b in launches)
    assert not set(map(id, first.events)) & set(map(id, second.events))
    assert first.events
    prepared.command_lists.give_back(first)
    assert prepared.command_lists.borrow() is first


def test_runs_overlap(machine: Machine, sleepy: None) -> None:
    """Runs that are under way at once are in different streams."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with machine.hold():
                for number in range(4):
                    nursery.start_soon(awaited, chain(3, number).to_host())
                await wait_all_tasks_blocked()
                assert sum(stream.pending > 0 for stream in machine.streams) >= 4

    trio.run(main)


def test_cancelling_drains(machine: Machine, sleepy: None) -> None:
    """`Cancelled` comes when the GPU is done with what was submitted, and not before."""
    seen: list[str] = []

    async def compute(scope: trio.CancelScope) -> None:
        with scope:
            await chain(5).to_host()
        seen.append("cancelled" if scope.cancelled_caught else "done")

    async def main() -> None:
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            with machine.hold():
                nursery.start_soon(compute, scope)
                await wait_all_tasks_blocked()
                scope.cancel()
                await wait_all_tasks_blocked()
                seen.append("still draining")
                assert driver().memory.used > 0

    trio.run(main)
    assert seen == ["still draining", "cancelled"]


# ---- full queues ----------------------------------------------------------------------------------------------------
def test_more_launches_than_the_queue_takes(machine: Machine, sleepy: None) -> None:
    """A run that fills its stream is submitted to its end by another thread: the loop goes on."""
    seen: list[str] = []

    async def compute() -> None:
        array = await chain(3000).to_host()
        seen.append(f"computed {array[0, 0]}")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with machine.hold():
                nursery.start_soon(compute)
                await wait_all_tasks_blocked()
                seen.append("another task")

    trio.run(main)
    assert seen == ["another task", f"computed {float(3000 % 64)}"]


def test_many_small_runs_fill_no_queue(machine: Machine, sleepy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small runs do not fill a queue either."""
    monkeypatch.setattr(streams, "SPREAD", 1)
    seen: list[float] = []

    async def compute(start: int) -> None:
        array = await chain(100, start).to_host()
        seen.append(float(array[0, 0]))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with machine.hold():
                for start in range(25):
                    nursery.start_soon(compute, start % 32)
                await wait_all_tasks_blocked()

    trio.run(main)
    assert sorted(seen) == sorted(float((start % 32 + 100) % 64) for start in range(25))


# ---- functions of the host, large arrays ----------------------------------------------------------------------------
def test_host_map_runs_when_its_value_is_there(machine: Machine) -> None:
    """In the middle of a pipeline, on a thread of its own, several at once."""
    threads: set[int] = set()

    def double(array: NDArray[f32]) -> NDArray[f32]:
        threads.add(threading.get_ident())
        return array * 2

    def branch(number: int) -> Any:
        return chain(4, number).to_host().host_map(double).then(from_host).to_host()

    arrays = zip_ops(branch(1), branch(2), branch(3)).sync()
    assert [array[0, 0] for array in arrays] == [10, 12, 14]
    assert threading.get_ident() not in threads


def test_a_failing_host_map_leaves_the_other_branch(machine: Machine) -> None:
    """The error is the function's own; what does not depend on it is done."""
    written = zeros((2, 2)).sync()

    def fail(array: NDArray[f32]) -> NDArray[f32]:
        raise ZeroDivisionError("mine")

    effect = axpy(written.borrow_mut().partition((2, 2)), 1.0, ones((2, 2)))
    with pytest.raises(ZeroDivisionError, match="mine"):
        zip_ops(chain(2).to_host().host_map(fail), effect).sync()
    assert (written.to_host().sync() == 1).all()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the size from which copies count as large."""
    for module, name, nbytes in (
        (transfers, "CHUNK", 1000),
        (transfers, "SMALL", 8),
        (transfers, "PROMPT_IN", 64),
        (buffers, "PROMPT_IN", 64),
        (transfers, "PROMPT_OUT", 512),
    ):
        monkeypatch.setattr(module, name, nbytes)


@pytest.mark.parametrize("size", [10, 200, 250, 251, 500, 1501, 4000])
def test_large_arrays_go_through_the_ring(machine: Machine, small_chunks: None, size: int) -> None:
    """Whatever their size, pinned or not, in one piece or not."""
    array = np.arange(2 * size, dtype=f32)
    back = from_host(array).to_host().sync()
    assert back.tobytes() == array.tobytes()
    strided, again = zip_ops(from_host(array[::2]).to_host(), from_host(back).to_host()).sync()
    assert strided.tobytes() == array[::2].tobytes()
    assert again.tobytes() == array.tobytes()


def test_results_beyond_the_pinned_room_come_all_the_same(machine: Machine) -> None:
    """If no more memory can be locked, the driver copies to pageable memory."""
    driver().pinned_room = 1024
    held = [full((200,), n).to_host().sync() for n in range(5)]
    assert [array[7] for array in held] == list(range(5))
    assert driver().pinned.held <= 1024


# ---- several devices, streams of one's own --------------------------------------------------------------------------
def test_copies_between_devices(machine: Machine) -> None:
    """From one to the other and back, in one run; a strided one where the hardware allows it."""
    array = np.arange(12, dtype=f32).reshape(3, 4)
    there = from_host(array).sync()
    op = dup(there.borrow()).on("cuda:1").then(lambda t: scale(empty((3, 4)).partition((1, 2)), 2.0, t)).on("cuda:1")
    back = op.first().unpartition().then(lambda t: dup(t).on("cuda:0")).to_host().sync()
    assert back.tobytes() == (array * 2).tobytes()
    strided = dup(there.slice(slice(0, 3, 2), slice(1, 4))).on("cuda:1").to_host().sync()
    assert strided.tobytes() == array[0:3:2, 1:4].tobytes()


def test_a_strided_copy_needs_peers(machine: Machine) -> None:
    """If the hardware does not support a strided copy between devices, the error names an alternative."""
    machine.peers = False
    there = from_host(np.arange(12, dtype=f32).reshape(3, 4)).sync()
    with pytest.raises(DeviceError, match=r"cuda:1 cannot read memory of cuda:0.*dup\(t\).on\(\"cuda:0\"\)"):
        dup(there.slice(slice(0, 3, 2), slice(1, 4))).on("cuda:1").sync()


def test_a_stream_of_ones_own(machine: Machine) -> None:
    """The whole op is in that stream, and the stream has the driver's handle."""
    stream = device("cuda:0").stream()
    count = machine.gpus[0].calls["cuStreamWaitEvent"]
    result = zip_ops(chain(2), chain(3)).then(lambda p: add(p[0].partition((2, 2)), p[1], ones((2, 2))))
    result.sync_on(stream)
    assert machine.gpus[0].calls["cuStreamWaitEvent"] == count
    assert stream.handle in {each.handle for each in machine.streams}
    with pytest.raises(Exception, match="cuda:1"):
        chain(2).on("cuda:1").sync_on(stream)


def test_a_stream_that_nobody_holds_is_used_again(machine: Machine) -> None:
    """Streams are never destroyed, so they are kept for the next who asks."""
    handle = device("cuda:0").stream().handle
    gc.collect()
    assert device("cuda:0").stream().handle == handle


def test_nothing_is_kept_of_a_run(machine: Machine) -> None:
    """A result lives as long as its array; what was lent is free for others at once."""
    lent = ones((8, 8)).sync()
    array = scale(empty((8, 8)).partition((4, 4)), 2.0, lent.borrow()).first().unpartition().to_host().sync()
    assert driver().memory.used == lent.nbytes
    assert driver().pinned.used == array.nbytes
    assert isinstance(fill(lent, 3).sync(), Tensor)
