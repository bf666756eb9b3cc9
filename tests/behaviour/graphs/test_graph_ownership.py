"""Graphs and ownership: which handles a graph holds or lends, and which captures are refused."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dagpu import (
    BorrowError,
    CaptureError,
    CudaGraph,
    MovedError,
    current_device,
    dup,
    fill,
    from_host,
    memcpy,
    ones,
    value,
    zeros,
    zip_ops,
)
from tests.behaviour.graphs.captured_graphs import (
    BUSY,
    GO,
    PATIENCE,
    S,
    adds,
    failing,
    held,
    may_fail,
    number_in,
    out,
    scaled,
    shared,
    tensor,
    unlocked,
    waits_for_it,
)
from tests.programs.arithmetic import add

# ---- who may use what, and when


@pytest.mark.host_only("a kernel's host body waits until it is told to go on")
def test_a_launch_is_a_borrower() -> None:
    """A launch borrows what was lent to its graph, its output, and the graph itself: while one runs, others are
    refused."""
    y, x = tensor(1), tensor(1)
    graph = zip_ops(waits_for_it(y.borrow_mut().partition(S)), scaled(2.0, x.borrow())).last()
    GO.set()
    captured: Any = graph.graph()
    output = captured.take_output()
    GO.clear()
    BUSY.clear()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(captured.launch().sync)
        try:
            assert BUSY.wait(PATIENCE)
            for op in (
                captured.launch(),
                dup(y.borrow()),
                memcpy(x.borrow_mut(), shared(1)),
                dup(output.borrow()),
            ):
                with pytest.raises(BorrowError, match=f"by the run started at {__file__}|concurrent"):
                    op.sync()
            with pytest.raises(BorrowError):
                captured.update(memcpy(x.borrow_mut(), shared(1)))
            assert number_in(x) == 1  # reading what it reads
        finally:
            GO.set()
        under_way.result(PATIENCE)
    assert unlocked(x, y, output)
    captured.launch().sync()


@pytest.mark.host_only("a kernel's host body waits until it is told to go on")
def test_a_launch_has_the_graph_to_itself() -> None:
    """A graph that writes nothing but temporaries, and was lent nothing, runs once at a time all the same: two launches
    would share its temporaries."""
    GO.set()
    captured: Any = waits_for_it(zeros(S).partition(S)).map(lambda _: None).graph()
    assert set(captured._captured.storages.values()) == set()  # noqa: SLF001  # no public call shows it
    GO.clear()
    BUSY.clear()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(captured.launch().sync)
        try:
            assert BUSY.wait(PATIENCE)
            with pytest.raises(BorrowError, match=f"by the run started at {__file__}|concurrent"):
                captured.launch().sync()
        finally:
            GO.set()
        under_way.result(PATIENCE)
    captured.launch().sync()


MOVES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shared": (lambda t: t.share(), "share()"),
    "used up": (lambda t: t.to_host().sync(), "to_host()"),
    "unwrapped": (lambda t: t.try_unwrap(), "try_unwrap()"),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("before", [0, 2])
def test_a_tensor_that_has_moved_away(name: str, before: int) -> None:
    """A launch says which one, where it went, and the cure; whatever it was lent for."""
    move, how = MOVES[name]
    x = shared(1) if name == "unwrapped" else tensor(1)
    graph = scaled(2.0, x if name == "unwrapped" else x.borrow()).graph()
    for _ in range(before):
        graph.launch().sync()
    moved = move(x)
    for op in (graph.launch(), zip_ops(graph.launch(), zeros(S)), value(0).then(lambda _: graph.launch())):
        with pytest.raises(MovedError, match="capture the graph again") as caught:
            op.sync()
        assert how in str(caught.value)
        assert f"graph captured at {__file__}" in str(caught.value)
    del moved


@pytest.mark.host_only("it counts bytes, which a GPU rounds up")
def test_a_graph_keeps_what_it_points_at() -> None:
    """Tensors that were lent to it, and its outputs, though nobody else has them; and nothing once it is gone."""
    here = current_device()
    gc.collect()
    gc.disable()
    try:
        before = here.memory_used()

        def capture() -> Any:
            x = tensor(3, (100,))
            graph = fill(tensor(0, (100,)), 2).then(lambda t: zip_ops(value(t), dup(x.borrow()))).graph()
            graph.take_output()
            return graph

        graph = capture()
        for _ in range(3):
            graph.launch().sync()
            graph.launch().then(lambda _: zeros(S)).sync()
        assert here.memory_used() == before + 1200
        op = graph.launch()
        del graph
        op.sync()
        assert here.memory_used() == before + 1200
        del op
        assert here.memory_used() == before
    finally:
        gc.enable()


def test_an_output_outlives_its_graph() -> None:
    """It keeps the memory that it lies in."""
    graph = ones(S).graph()
    output = graph.take_output()
    del graph
    assert number_in(output) == 1


def test_plans_of_launches_are_kept_by_the_graph() -> None:
    """Each place where it is launched has a plan, with its own origin."""
    graph = ones(S).graph()
    for _ in range(3):
        graph.launch().sync()
    graph.launch().sync()
    assert graph._captured.plans.info()[:2] == (2, 2)  # noqa: SLF001  # no public call shows it


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a function of the host": (lambda: zeros(S).to_host().host_map(lambda a: a), "calls a function of the host"),
    "nothing to do": (lambda: value(1), "nothing to launch again"),
    "data of the host": (lambda: ones(S).to_host().then(from_host), "goes on only when data has come to the host"),
    "another graph": (lambda: ones(S).graph().launch(), "launches another graph"),
}


# ---- what is captured


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured(name: str) -> None:
    """Is refused before anything runs: what, where, and the cure. The op runs as before."""
    make, what = REFUSED[name]
    op = make()
    for _ in range(2):
        with pytest.raises(CaptureError, match=what) as caught:
            op.graph()
        assert f"captured at {__file__}" in str(caught.value)
    op.sync()


def test_a_refused_capture_keeps_its_arguments() -> None:
    """A refused capture leaves the op its handles; a component that no run has taken can still be taken."""
    op = value(tensor(1)).then(lambda t: zip_ops(t.to_host(), value(None)).first().host_map(lambda a: a))
    with pytest.raises(CaptureError):
        op.graph()
    assert number_in(op.sync()) == 1
    left, right = zip_ops(zeros(S), ones(S)).unzip()
    with pytest.raises(CaptureError, match=r"Delete that op \(del\)"):
        left.graph()
    assert (number_in(left.sync()), number_in(right.sync())) == (0, 1)


@pytest.mark.host_only("a kernel's host body waits until it is told to go on")
def test_a_capture_in_the_way_of_a_run() -> None:
    """Is a `BorrowError`, and the op may be captured later."""
    x = tensor(1)
    op = scaled(2.0, x.borrow())
    with held(x), pytest.raises(BorrowError):
        op.graph()
    assert number_in(op.graph().take_output()) == 2
    assert unlocked(x)


@pytest.mark.host_only("the kernel's host body fails")
def test_a_capture_that_fails() -> None:
    """Raises what failed, and nothing stays locked."""
    x = tensor(1)
    with failing(), pytest.raises(ArithmeticError, match="as told"):
        may_fail(out(), x.borrow()).graph()
    assert unlocked(x)


def test_what_is_shared_is_evaluated_once() -> None:
    """Before the capture: a launch reads it."""
    made: list[Any] = []
    constant = ones(S).inspect(lambda t: made.append(t.shape)).shared()
    graph = add(out(), constant, shared(1)).first().unpartition().graph()
    graph.launch().sync()
    assert number_in(constant.sync()) == 1
    assert number_in(graph.take_output()) == 2
    assert len(made) == 1


def test_two_threads_capture_at_once() -> None:
    """Each gets its own graph."""
    start = threading.Barrier(2)

    def some(number: int) -> list[float]:
        found = []
        start.wait(PATIENCE)
        for k in range(5):
            x, y = tensor(number), shared(k)
            graph = scaled(2.0, x.borrow()).graph()
            with CudaGraph.scope(current_device().stream()) as scope:
                scope.record(adds(x, 1.0, y))
            scope.graph.launch().sync()
            graph.launch().sync()
            found.append(number_in(graph.take_output()))
        return found

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(some, (1, 10))
    assert first == [2 + 2 * k for k in range(5)]
    assert second == [20 + 2 * k for k in range(5)]
