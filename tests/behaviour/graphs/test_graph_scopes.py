"""`CudaGraph.scope`: ops recorded in a `with` block become one graph."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    BorrowError,
    CaptureError,
    CudaGraph,
    MovedError,
    NestedRunError,
    convert,
    current_device,
    device,
    dup,
    empty,
    f32,
    fill,
    from_host,
    i32,
    memcpy,
    ones,
    spawn,
    value,
    zeros,
    zip_ops,
)
from tests.behaviour.graphs.captured_graphs import (
    CURES,
    PATIENCE,
    S,
    adds,
    number_in,
    out,
    scaled,
    shared,
    tensor,
    unlocked,
)
from tests.programs.arithmetic import scale
from tests.support.places import place


def test_a_scope_records() -> None:
    """Nothing runs within it; a launch does all of it, in order, and each op sees what those before have written."""
    x, y, z = tensor(1), tensor(10), tensor(0)
    with CudaGraph.scope(current_device().stream()) as scope:
        for _ in range(2):
            assert scope.record(adds(y, 2.0, x.borrow()).map(lambda _: "done")) == "done"
        scope.record(memcpy(z.borrow_mut(), y.borrow()))
        scope.record(adds(z, 1.0, x.borrow()))
    assert (number_in(y), number_in(z)) == (10, 0)
    for k in range(1, 4):
        scope.graph.launch().sync()
        assert (number_in(y), number_in(z)) == (10 + 4 * k, 11 + 4 * k)
    with pytest.raises(MovedError):
        scope.graph.take_output(), scope.graph.take_output()
    assert unlocked(x, y, z)


def test_a_scope_takes_owned_tensors() -> None:
    """Owned tensors that a scope records are given back, on the graph's memory."""
    mine, x = tensor(1), shared(2)
    with CudaGraph.scope(current_device().stream()) as scope:
        t = scope.record(fill(mine, 3))
        scope.record(adds(t, 1.0, x))
    scope.graph.launch().sync()
    assert number_in(t) == 5


@pytest.mark.parametrize(
    ("op", "what"),
    [
        (lambda x: ones(S), "makes memory of its own: a new tensor"),
        (lambda x: empty(S), "makes memory of its own: a new tensor"),
        (lambda x: dup(x.borrow()), "makes memory of its own: a copy"),
        (lambda x: convert(x.borrow(), i32), "makes memory of its own: a copy"),
        (lambda x: from_host(np.ones(S, f32)), "makes memory of its own: from_host"),
        (lambda x: x.borrow().to_host(), "waits for data of the host: to_host"),
        (lambda x: scale(out(), 1.0, x.borrow()).first().unpartition(), "makes memory of its own: scale"),
        (lambda x: value(2).host_map(float), "waits for data of the host: host_map"),
        (lambda x: GRAPHS[0].launch(), "launches another graph: graph launch"),
    ],
)
def test_what_a_scope_refuses(op: Callable[[Any], Any], what: str) -> None:
    """A refused op is named with the lines that built and recorded it, and with the cure; the rest of the scope is
    not touched."""
    x, one = tensor(1), shared(1)
    GRAPHS[:] = [ones(S).graph()]
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(adds(x, 1.0, one))
        with pytest.raises(CaptureError, match=what) as caught:
            scope.record(op(x))
        assert str(caught.value).count(__file__) >= 2
        assert CURES["host" if "of the host" in what else "memory"] in str(caught.value)
        scope.record(adds(x, 2.0, one))
    scope.graph.launch().sync()
    assert number_in(x) == 4
    GRAPHS.clear()


GRAPHS: list[Any] = []


def test_nothing_runs_inside_a_scope() -> None:
    """`sync`, `await`, `spawn`, `graph` and `update` are refused, with the scope's place; afterwards all is well."""
    x = tensor(1)
    graph = ones(S).graph()
    refusals: list[str] = []

    def refused(run: Callable[[], Any]) -> None:
        with pytest.raises(NestedRunError, match=r"scope\.record\(op\)") as caught:
            run()
        refusals.append(str(caught.value))

    async def body() -> None:
        with CudaGraph.scope(current_device().stream()) as scope:
            scope.record(adds(x, 1.0, shared_before))
            with pytest.raises(NestedRunError, match=r"scope\.record\(op\)"):
                await zeros(S)
            with pytest.raises(ExceptionGroup) as caught:
                async with trio.open_nursery() as nursery:
                    spawn(nursery, zeros(S))
            assert caught.value.subgroup(NestedRunError) is not None
        await scope.graph.launch()

    shared_before = shared(1)
    with CudaGraph.scope(current_device().stream()) as scope:
        refused(lambda: zeros(S).sync())
        refused(lambda: zeros(S).sync_on(current_device().stream()))
        refused(lambda: zeros(S).graph())
        refused(lambda: graph.update(memcpy(x.borrow_mut(), shared_before)))
        refused(lambda: graph.launch().sync())
        scope.record(adds(x, 1.0, shared_before))
    assert all(said.count(__file__) >= 2 for said in refusals)
    scope.graph.launch().sync()
    trio.run(body)
    assert number_in(x) == 3


def test_nothing_runs_inside_a_closure() -> None:
    """Inside a closure, an update or a capture is refused, as is `sync`."""
    x, new = tensor(1), shared(2)
    graph = ones(S).graph()

    def nested(run: Callable[[], Any]) -> Any:
        return zeros(S).map(lambda _: run())

    for op in (nested(lambda: graph.update(memcpy(x.borrow_mut(), new))), nested(lambda: zeros(S).graph())):
        with pytest.raises(NestedRunError, match=r"Return the op from \.then"):
            op.sync()
    assert unlocked(x)
    assert number_in(x) == 1


def test_capturing_in_a_trio_task_warns() -> None:
    """It blocks every other task, as `sync` does; updates, scopes and launches do not."""
    x, new = tensor(1), shared(2)

    async def body() -> CudaGraph[Any]:
        with pytest.warns(RuntimeWarning, match=r"graph\(\) at .* blocks every other task"):
            graph = scaled(2.0, x.borrow()).graph()
        graph.update(memcpy(x.borrow_mut(), new))
        with CudaGraph.scope(graph.stream) as scope:
            scope.record(adds(x, 1.0, new))
        await graph.launch()
        await scope.graph.launch()
        return graph

    assert number_in(trio.run(body).take_output()) == 4
    assert number_in(x) == 4


def test_other_threads_and_tasks_go_on() -> None:
    """A scope is its own task's, or thread's: others run ops meanwhile."""
    with CudaGraph.scope(current_device().stream()) as scope, ThreadPoolExecutor(1) as pool:
        x = pool.submit(lambda: tensor(1)).result(PATIENCE)
        scope.record(adds(x, 1.0, pool.submit(lambda: shared(1)).result(PATIENCE)))
    scope.graph.launch().sync()
    assert number_in(x) == 2


def test_an_exception_inside_a_scope() -> None:
    """Comes out; what was recorded has its handles back, nothing is locked, and stream and device are usable."""
    x = tensor(1)
    stream = current_device().stream()
    filled, added = fill(tensor(2), 3), adds(x, 1.0, shared(1))

    def record(scope: Any) -> None:
        scope.record(filled)
        scope.record(added)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), CudaGraph.scope(stream) as scope:
        record(scope)
    late: Callable[[], Any]
    for late, why in ((lambda: scope.graph, "because it failed"), (lambda: scope.record(added), "after the end")):
        with pytest.raises(CaptureError, match=why):
            late()
    assert number_in(filled.sync()) == 3
    added.sync_on(stream)
    assert number_in(x) == 2
    assert unlocked(x)
    one = shared(1)
    with CudaGraph.scope(stream) as again:
        again.record(adds(x, 1.0, one))
    again.graph.launch().sync()
    assert number_in(x) == 3


def test_a_scope_that_cannot_be_captured_gives_its_handles_back() -> None:
    """With nothing recorded, or on another device than its stream: an error at its end."""
    stream = current_device().stream()
    with pytest.raises(CaptureError, match=f"the scope at {__file__}.*has recorded nothing"), CudaGraph.scope(stream):
        pass
    there = device(place(1))
    if there is current_device():
        return
    op = fill(tensor(1), 2)
    with pytest.raises(CaptureError, match="Give a stream of"), CudaGraph.scope(there.stream()) as scope:
        scope.record(op)
    assert number_in(op.sync()) == 2


def test_a_scope_has_no_graph_before_its_end() -> None:
    """Take it after the `with` block."""
    x, one = tensor(1), shared(1)
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(adds(x, 1.0, one))
        with pytest.raises(CaptureError, match="Take it after its with block"):
            scope.graph
    assert "graph captured at" in repr(scope.graph)


def test_one_op_conflicts_with_itself_alone() -> None:
    """Two ops of a scope may write one tensor; one op may not read what it writes."""
    x, one = tensor(1), shared(1)
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(adds(x, 1.0, one))
        with pytest.raises(BorrowError):
            scope.record(zip_ops(adds(x, 1.0, one), memcpy(x.borrow_mut(), one)))
        scope.record(adds(x, 2.0, one))
    scope.graph.launch().sync()
    assert number_in(x) == 4
