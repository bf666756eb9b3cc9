"""Runs that fail: the error that is raised, its notes, and the state of the handles."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    DeviceError,
    DeviceOp,
    Out,
    RoundRobin,
    SingleStream,
    StreamInterpreter,
    Tile,
    current_device,
    f32,
    kernel,
    ones,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends.host.worker_threads import process
from tests.support.gates import boom, run
from tests.support.handle_cases import line


def test_one_failure_is_raised_as_itself_with_a_note() -> None:
    """A kernel's body, a `host_map`, a closure: the user's exception, unchanged, and where its op was built."""
    for build in (
        lambda: value(1).host_map(boom),
        lambda: value(1).map(boom),
        lambda: value(1).then(boom),
        lambda: value(1).inspect(boom),
        lambda: zeros((2,)).to_host().map(boom),
        lambda: zip_ops(zeros((2,)), value(1).host_map(boom)),
    ):
        op = build()
        built = f"{__file__}:{build.__code__.co_firstlineno}"

        async def body(op: Any = op, built: str = built) -> None:
            with pytest.raises(KeyError) as caught:
                await op
            assert any(built in note for note in caught.value.__notes__)
            assert len(caught.value.__notes__) == 1

        run(body)
        with pytest.raises(KeyError) as caught:
            op.sync()
        assert any(built in note for note in caught.value.__notes__)


@pytest.mark.host_only("the threads of its streams")
def test_a_run_whose_thread_cannot_be_started_says_which_run_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has too many threads, or too little memory for one more: an error of dagpu's, with the place of the
    run. The next run works, and so does the same op."""
    x = ones((4,)).share().sync()

    def refuses(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    op = zip_ops(*[value(x.clone()).to_host().host_map(np.sum) for _ in range(4)])
    said = rf"the run at {__file__}:\d+ needs the thread .* could not be started: can't start"
    with use_interpreter(StreamInterpreter(policy=RoundRobin(4))):
        with monkeypatch.context() as patch:
            patch.setattr(process, "generation", process.generation + 1)  # the threads of earlier runs do not count
            patch.setattr(threading.Thread, "start", refuses)
            with pytest.raises(DeviceError, match=said):
                op.sync()
            with pytest.raises(DeviceError, match=said):
                trio.run(awaited_op, op)
        assert op.sync() == (4.0,) * 4


async def awaited_op(op: DeviceOp[Any]) -> None:
    await op


@pytest.mark.host_only("kernels' host bodies")
def test_a_failing_kernel_body_names_its_launch() -> None:
    """The note says which kernel, and where it was called."""

    @kernel(cuda="__global__ void bad(Tile<float, 1> y) {}")
    def bad(y: Out[f32]) -> None: ...

    @bad.host
    def _(y: Tile[f32]) -> None:
        raise ArithmeticError("in a tile")

    op = bad(zeros((4,)).partition((2,)))
    built = line(1)
    with pytest.raises(ArithmeticError, match="in a tile") as caught:
        op.sync()
    assert caught.value.__notes__ == [f"dagpu: in the host body of kernel bad, launched at {built}"]


@pytest.mark.parametrize("policy", [SingleStream(), RoundRobin(3)], ids=repr)
def test_several_failures_are_one_group(policy: Any) -> None:
    """Every branch that fails is in it, in the order of the plan, on every policy; the others ran to their end."""
    for _ in range(5):
        ran: list[int] = []
        parts = [value(i).host_map(boom if i % 2 else ran.append) for i in range(6)]
        with pytest.raises(ExceptionGroup, match="3 ops of one run failed") as caught:
            zip_ops(*parts).schedule(policy).sync()
        assert [error.args[0] for error in caught.value.exceptions] == [1, 3, 5]
        assert sorted(ran) == [0, 2, 4]


def test_what_depends_on_a_failure_is_skipped() -> None:
    """An instruction that depends on a failed one is skipped, and adds no error to the group."""
    ran: list[object] = []
    op = zip_ops(value(1).host_map(boom).host_map(ran.append), value(2).host_map(boom))
    with pytest.raises(ExceptionGroup) as caught:
        op.sync()
    assert sorted(error.args[0] for error in caught.value.exceptions) == [1, 2]
    assert ran == []


def test_a_failure_leaves_nothing_behind() -> None:
    """The memory of a failed run is free once its exception is, and the next run is right."""
    where = current_device()
    gc.collect()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    for _ in range(3):
        with pytest.raises(KeyError):
            zip_ops(zeros((1024,)), ones((8,)).host_map(boom)).sync()
    gc.collect()
    assert where.memory_used() == before
    assert ones((2,)).to_host().sync().tolist() == [1.0, 1.0]
