"""One use in one run: a second use is refused, and a trace that fails gives everything back."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import (
    BorrowError,
    In,
    KernelArgumentError,
    MovedError,
    Out,
    PartitionError,
    SharedTensor,
    TensorRef,
    Tile,
    device,
    dup,
    empty,
    f32,
    fill,
    from_host,
    full,
    kernel,
    ones,
    plan_of,
    value,
    zeros,
    zip_ops,
)  # fmt: skip
from tests.unit.tracing.traced_ops import Op, bump, bumped, line, stop


@kernel(cuda="__global__ void copy(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = x[i]; }")
def copy(y: Out[f32], x: In[f32]) -> None:
    """y = x."""


@copy.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = x[y.at]


# ---- one use in one run


def test_one_use_in_one_run() -> None:
    """Reaching a node twice is a `MovedError` that says `.shared()`, and names the node."""
    op, here = ones((2,)), line()
    for twice in (zip_ops(op, op), zip_ops(op.to_host(), op.then(dup)), zip_ops(op, value(1).then(lambda _: op))):
        with pytest.raises(MovedError, match=r"\.shared\(\)") as caught:
            twice.sync()
        assert f"{__file__}:{here}" in str(caught.value)
    assert op.to_host().sync().tolist() == [1.0, 1.0]


def test_one_use_within_a_row() -> None:
    """In a row of launches and maps each op may be used once, and the one that was used twice is named."""
    launched = bump(zeros((2,)).partition((2,)), 1.0)
    picked, here = launched.first(), line()
    whole = picked.unpartition()
    for twice in (
        zip_ops(whole, picked),
        zip_ops(picked, whole),
        zip_ops(whole, picked.unpartition()),
        zip_ops(bumped(whole), picked.map(lambda p: p)),
        zip_ops(picked.map(lambda p: p), bumped(whole)),
    ):
        with pytest.raises(MovedError, match=r"\.shared\(\)") as caught:
            twice.sync()
        assert f"{__file__}:{here}" in str(caught.value)
    assert whole.to_host().sync().tolist() == [1.0, 1.0]


def test_row_that_fails_names_the_op() -> None:
    """An error in the middle of a row gets one note, with the line of the op whose error it is."""
    whole = bumped(zeros((4,)))
    wrong, here = whole.partition((3,)), line()
    with pytest.raises(PartitionError) as caught:
        bump(wrong, 1.0).first().unpartition().sync()
    assert caught.value.__notes__ == [f"dagpu: in <partition((3,)) at {__file__}:{here}>"]


def test_row_behind_host_data() -> None:
    """A row whose input comes in a later stage goes on then, in its order."""
    number = full((2,), 2.0).to_host().map(lambda array: (float(array[0]), array)).first()
    assert bumped(bumped(zeros((2,)), number), 3.0).to_host().sync().tolist() == [5.0, 5.0]
    pair: Op = full((2,), 2.0).to_host().then(lambda array: zip_ops(from_host(array), value(array)))
    assert bumped(bumped(pair.first()), 3.0).to_host().sync().tolist() == [6.0, 6.0]


def test_one_use_of_every_kind_of_node() -> None:
    """Whatever the node is: it is the op that may be used once, not only its tensor."""
    tensor = ones((2,)).sync()
    for build in (
        lambda: value(1).map(lambda x: x),
        lambda: value(1).then(value),
        lambda: value(1).host_map(lambda x: x),
        lambda: ones((2,)).to_host(),
        lambda: zip_ops(value(1)),
        lambda: ones((2,)).on("host:0"),
        lambda: bump(zeros((2,)).partition((2,)), 1.0),
        lambda: from_host(np.ones(2, f32)),
        lambda: dup(tensor.borrow()),
        lambda: value(ones((2,)).sync()),
    ):
        op: Op = build()
        with pytest.raises(MovedError, match=r"\.shared\(\)"):
            zip_ops(op, op).sync()


def test_a_value_that_does_not_move_may_be_reached_often() -> None:
    """A number, a `SharedTensor`, a `TensorRef`: any number of times in one run, and in any number of runs."""
    tensor = ones((2,)).sync()
    for held in (3, "text", None, ones((2,)).share().sync(), tensor.borrow()):
        op: Op = value(held)
        for _ in range(2):
            first, second = zip_ops(op, op).sync()
            assert first is second or type(first) in (SharedTensor, TensorRef)


def test_an_op_of_constructors_runs_again_and_again() -> None:
    """An op is a recipe: each run makes fresh memory."""
    op = bumped(zeros((2,)))
    results = [op.sync() for _ in range(3)]
    assert [t.to_host().sync().tolist() for t in results] == [[1.0, 1.0]] * 3


def test_an_op_that_owns_handles_is_used_up() -> None:
    """Its second run is a `MovedError` that names where they were made and that a run took them."""
    tensor, here = zeros((2,)).sync(), line()
    op = bump(tensor.partition((2,)), 1.0)
    op.sync()
    with pytest.raises(MovedError, match=f"{__file__}:|run of the op"):
        op.sync()
    with pytest.raises(MovedError, match=f"{__file__}:{here}"):
        tensor.shape


class Once:
    """Raises when called for the first time."""

    def __init__(self) -> None:
        self.called = False

    def __call__(self, x: Any) -> Any:
        if not self.called:
            self.called = True
            raise ValueError("the first time")
        return x


def owning_ops() -> dict[str, Callable[[], Op]]:
    """Ops that own handles in every way there is, each giving a tensor [2, 2]."""

    def component() -> Op:
        first, second = zip_ops(full((2,), 2.0), ones((2,))).unzip()
        second.sync()
        return first

    return {
        "value": lambda: value(full((2,), 2.0).sync()),
        "values in a dict": lambda: value({"a": [full((2,), 2.0).sync()]}).map(lambda x: x["a"][0]),
        "partition": lambda: bump(ones((2,)).sync().partition((2,)), 1.0).first().unpartition(),
        "partition in a value": lambda: value(full((2,), 2.0).sync().partition((1,))).unpartition(),
        "input": lambda: copy(empty((2,)).partition((1,)), full((2,), 2.0).sync()).first().unpartition(),
        "dup": lambda: dup(full((2,), 2.0).sync()),
        "fill": lambda: fill(zeros((2,)).sync(), 2.0),
        "to_host": lambda: full((2,), 2.0).sync().to_host().then(from_host),
        "component": component,
        "shared": lambda: value(full((2,), 2.0).sync()).shared().then(dup),
        "unzip": lambda: zip_ops(value(full((2,), 2.0).sync()), value(ones((2,)).sync())).unzip()[0],
    }


FAILING: dict[str, Callable[[Op, Callable[[Any], Any]], Op]] = {
    "beside it": lambda op, f: zip_ops(op, value(0).map(f)).first(),
    "map": lambda op, f: op.map(f),
    "then": lambda op, f: op.then(value).then(lambda t: value(f(t))),
}


# ---- a run that fails before it submits anything gives everything back


@pytest.mark.parametrize("where", FAILING)
@pytest.mark.parametrize("kind", owning_ops())
def test_a_closure_that_raises_leaves_the_op_its_handles(kind: str, where: str) -> None:
    """After a failure in a trace the op is as it was, and runs once the cause has gone."""
    if kind == "to_host" and where != "beside it":
        return  # a closure after host data is called when something has been submitted
    op = FAILING[where](owning_ops()[kind](), Once())
    with pytest.raises(ValueError, match="the first time"):
        op.sync()
    assert op.to_host().sync().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", owning_ops())
def test_a_borrow_conflict_leaves_the_op_its_handles(kind: str) -> None:
    """A run that is refused because of a lock is refused before it takes anything for good."""
    lender = ones((2,)).sync()
    op = zip_ops(owning_ops()[kind](), value(lender.borrow()).to_host(), value(0)).first().to_host()
    blocked = Blocked()
    writer = zip_ops(bump(lender.borrow_mut().partition((2,)), 1.0), value(0).host_map(blocked))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_await, writer)
            await trio.testing.wait_all_tasks_blocked()
            try:
                with pytest.raises(BorrowError, match="is being written"):
                    await op
            finally:
                blocked.release()

    trio.run(main)
    assert op.sync().tolist() == [2.0, 2.0]


class Blocked:
    """A function for `host_map` that waits until it is released."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.release = self._event.set

    def __call__(self, x: Any) -> Any:
        self._event.wait()
        return x


async def _await(op: Op) -> Any:
    return await op


@pytest.mark.parametrize("kind", owning_ops())
def test_planning_leaves_an_op_runnable(kind: str) -> None:
    """`plan_of` and `explain` take nothing, however often."""
    op = owning_ops()[kind]().to_host()
    plan_of(op)
    assert "Plan" in op.explain()
    assert op.sync().tolist() == [2.0, 2.0]


def test_errors_of_the_trace_leave_the_op_its_handles() -> None:
    """An error of the tracer itself (tiles, kernel arguments, results that are no op) leaves the op its handles."""
    tile = [(3,)]
    op = value(ones((2,)).sync()).map(lambda t: t.partition(tile[0])).unpartition().to_host()
    with pytest.raises(PartitionError):
        op.sync()
    tile[0] = (2,)
    assert op.sync().tolist() == [1.0, 1.0]

    numbers: list[Any] = ["no number"]
    op = bumped(value(ones((2,)).sync()), value(0).map(lambda _: numbers[0])).to_host()
    with pytest.raises(KernelArgumentError):
        op.sync()
    numbers[0] = 1.0
    assert op.sync().tolist() == [2.0, 2.0]

    results: list[Any] = [7]
    op = zip_ops(value(ones((2,)).sync()), value(0).then(lambda _: results[0])).first().to_host()
    with pytest.raises(TypeError, match=r"not an op.*value\(x\)"):
        op.sync()
    results[0] = value(0)
    assert op.sync().tolist() == [1.0, 1.0]


def test_after_submission_the_handles_are_gone() -> None:
    """A run that fails once something has been submitted drops what it took: memory too."""
    host = device("host:0")
    gc.collect()  # what earlier tests left in cycles
    before = host.memory_used()
    op = zip_ops(value(ones((1000,)).sync()), ones((2,)).to_host().map(stop))
    with pytest.raises(ValueError, match="stop"):
        op.sync()
    with pytest.raises(MovedError):
        op.sync()
    del op
    gc.collect()
    assert host.memory_used() == before


def test_a_failed_run_gives_its_borrows_back() -> None:
    """After a failure, before or after submission, the lender can be written again."""
    lender = ones((2,)).sync()
    for op in (
        zip_ops(value(lender.borrow()).to_host(), value(0).map(stop)),
        zip_ops(value(lender.borrow()).to_host(), value(0).host_map(stop)),
        value(lender.borrow()).to_host().map(stop),
    ):
        with pytest.raises(ValueError, match="stop"):
            op.sync()
        bump(lender.borrow_mut().partition((2,)), 1.0).sync()
    assert lender.to_host().sync().tolist() == [4.0, 4.0]
