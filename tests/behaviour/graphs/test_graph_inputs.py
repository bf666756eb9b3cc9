"""`CudaGraph.update`: the inputs of a graph replaced between launches, and updates that fail."""

import os
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import trio

from dagpu import BorrowError, CaptureError, CudaGraph, MovedError, dup, fill, memcpy, ones, value, zeros
from dagpu.runtime import graph_capture
from tests.behaviour.graphs.captured_graphs import (
    CURES,
    PATIENCE,
    S,
    copied,
    failing,
    held,
    may_fail,
    number_in,
    out,
    scaled,
    shared,
    tensor,
    unlocked,
)
from tests.programs.arithmetic import add, scale


def settle(graph: CudaGraph[Any]) -> None:
    """Until what `update` has put into the graph's stream is done, and its locks are back."""
    zeros((1,)).sync_on(graph.stream)
    deadline = time.monotonic() + PATIENCE
    while graph._captured.updates._locks is not None:  # a thread of the device's gives them back  # noqa: SLF001  # no public call shows it
        assert time.monotonic() < deadline
        os.sched_yield()


def test_an_update_with_no_launch() -> None:
    """It is done, its locks come back, and the next launch sees it."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    for k in range(5):
        assert graph.update(memcpy(x.borrow_mut(), shared(k))) is None
        settle(graph)
        assert unlocked(x)
        assert number_in(x) == k
    graph.launch().sync()
    assert number_in(graph.take_output()) == 4


def test_an_update_gives_what_its_op_gives() -> None:
    """Handles that it was given, as they are by the next launch."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    for k in range(3):
        filled = graph.update(fill(tensor(), k))
        graph.launch().sync()
        assert number_in(filled) == k


def test_updates_leave_nothing_behind() -> None:
    """However many there are before a launch."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    for k in range(50):
        graph.update(memcpy(x.borrow_mut(), shared(k % 7)))
        settle(graph)
    assert len(graph._captured.updates._enqueued.runs) <= 1  # noqa: SLF001  # no public call shows it


def test_an_update_of_a_known_structure_needs_no_trace() -> None:
    """The first one is traced and planned. Others that differ in their handles alone take its plan, and write what they
    were given."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    output = graph.take_output()
    traced: list[object] = []
    tracer: Any = vars(graph_capture)["Tracer"]

    def counting(*args: Any) -> Any:
        traced.append(args)
        return tracer(*args)

    with patch.object(graph_capture, "Tracer", counting):
        for k in range(4):
            graph.update(memcpy(x.borrow_mut(), shared(k)))
            graph.launch().sync()
            assert number_in(output) == k
    assert len(traced) == 1


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (lambda x: ones(S), "makes memory of its own: a new tensor"),
        (lambda x: dup(x.borrow()), "makes memory of its own: a copy"),
        (lambda x: x.borrow().to_host(), "waits for data of the host: to_host"),
        (lambda x: value(1).host_map(float), "waits for data of the host: host_map"),
        (lambda x: scale(out(), 1.0, x.borrow()).first().unpartition(), "makes memory of its own: scale"),
    ],
)
def test_what_is_no_update(op: Callable[[Any], Any], why: str) -> None:
    """An op that makes memory, or waits for the host: the error names it and its place, and the cure."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    asked = op(x)
    for refused in (asked, graph.launch()):
        with pytest.raises(CaptureError) as caught:
            graph.update(refused)
        assert str(caught.value).count(__file__) == 2
        assert (why if refused is asked else "launches another graph: graph launch") in str(caught.value)
        assert CURES["host" if "host" in why and refused is asked else "memory"] in str(caught.value)
    assert unlocked(x)
    graph.launch().sync()


@pytest.mark.host_only("a kernel's host body waits until it is told to go on")
def test_an_update_that_is_refused_keeps_its_arguments() -> None:
    """A lock in the way is a `BorrowError`; the same op may be given again."""
    x = tensor(1)
    graph = scaled(1.0, x.borrow()).graph()
    ops = [memcpy(x.borrow_mut(), tensor(k)) for k in (2, 3)]
    for op in ops:  # the second by the plan of the first
        with held(x), pytest.raises(BorrowError):
            graph.update(op)
        graph.update(op)
        graph.launch().sync()
        with pytest.raises(MovedError):
            graph.update(op)
    assert number_in(graph.take_output()) == 3


@pytest.mark.host_only("the kernel's host body fails")
@pytest.mark.parametrize("before", [0, 2])
def test_an_update_that_fails_surfaces_at_the_next_launch(before: int) -> None:
    """Once: the launch itself is done, nothing stays locked, and the one after is well."""
    x = tensor(1)
    graph = scaled(2.0, x.borrow()).graph()
    output = graph.take_output()
    for k in range(before):
        graph.update(copied(x, shared(k)))
        graph.launch().sync()
    with failing():
        graph.update(copied(x, shared(5)))
        settle(graph)
    assert unlocked(x)
    fill_ = shared(3)
    graph.update(copied(x, fill_))
    with pytest.raises(ArithmeticError, match="as told"):
        graph.launch().sync()
    assert number_in(output) == 6
    graph.launch().sync()
    assert unlocked(x, output)


@pytest.mark.host_only("the kernel's host body fails")
def test_several_updates_that_fail() -> None:
    """Come as one group."""
    x, y = tensor(1), tensor(1)
    graph = add(out(), x.borrow(), y.borrow()).first().unpartition().graph()
    with failing():
        graph.update(copied(x, shared(5)))
        graph.update(copied(y, shared(5)))
        settle(graph)
    with pytest.raises(ExceptionGroup) as caught:
        graph.launch().sync()
    assert [str(error) for error in caught.value.exceptions] == ["as told", "as told"]


@pytest.mark.host_only("the kernel's host body fails")
def test_a_launch_that_fails() -> None:
    """Raises what failed, keeps no lock, and may be launched again."""
    x = tensor(1)
    graph = may_fail(out(), x.borrow()).first().unpartition().graph()
    output = graph.take_output()
    for k in range(3):
        graph.update(memcpy(x.borrow_mut(), shared(k)))
        with failing(), pytest.raises(ArithmeticError, match="as told"):
            graph.launch().sync()
        assert unlocked(x, output)
        graph.launch().sync()
        assert number_in(output) == k


@pytest.mark.parametrize("before", [0, 2])
def test_a_launch_that_is_cancelled(before: int) -> None:
    """Before anything was submitted: nothing is launched, updates are done all the same, and nothing stays locked."""
    x = tensor(1)
    graph = scaled(2.0, x.borrow()).graph()
    output = graph.take_output()
    for _ in range(before):
        graph.launch().sync()

    new = shared(4)

    async def body() -> None:
        graph.update(memcpy(x.borrow_mut(), new))
        with trio.CancelScope() as scope:
            scope.cancel()
            await graph.launch()
        assert scope.cancelled_caught

    trio.run(body)
    assert (number_in(x), number_in(output)) == (4, 2)
    assert unlocked(x, output)
    graph.launch().sync()
    assert number_in(output) == 8
