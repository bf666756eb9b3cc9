"""Shared values and captured graphs: a launch never changes a value that is known to be constant.

What a `shared()` op had made before a capture is a constant of the graph. What the capture makes of it for the first
time, each launch makes anew; and the op remembers what it has made then.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dagpu import (
    CaptureError,
    CudaGraph,
    DeviceOp,
    MovedError,
    OwnershipError,
    current_device,
    dup,
    empty,
    fill,
    from_host,
    full,
    memcpy,
    ones,
    value,
    zip_ops,
)
from dagpu.ops.compose import Shared
from dagpu.testing import storage_of
from tests.behaviour.laws.marked_ops import PATIENCE, marked
from tests.programs.arithmetic import add, axpy
from tests.simulated.each_device import where as where
from tests.support.marks import MARKS

Op = DeviceOp[Any, Any, Any]
S = (2,)


@pytest.fixture(autouse=True)
def no_marks() -> None:
    MARKS.clear()


def tensor(number: float) -> Any:
    return full(S, number).sync()


def constant(number: float) -> Any:
    return full(S, number).share().sync()


def number_in(x: Any) -> float:
    """The first element of a handle, which stays alive, or of what an op gives."""
    lent = x.borrow() if hasattr(x, "borrow") and not isinstance(x, DeviceOp) else x
    return float(lent.to_host().sync()[0])


@pytest.mark.usefixtures("where")
def test_what_the_capture_makes_is_made_by_each_launch() -> None:
    """A node that had not run is part of the graph: new data of its input reach the output. It remembers what the
    capture made, whatever launches do; and it has run once."""
    x = tensor(1)
    node = marked(1, dup(x.borrow()), value(constant(0))).shared()
    graph = zip_ops(marked(2, node, node), dup(x.borrow())).first().graph()
    output = graph.take_output()
    assert (number_in(output), number_in(node)) == (6, 2)
    for k in (5, 7):
        graph.update(memcpy(x.borrow_mut(), constant(k)))
        graph.launch().sync()
        assert number_in(output) == 2 * (k + 1) + 2
        assert number_in(node) == 2
    assert MARKS.seen() == [1, 2] * 3


@pytest.mark.usefixtures("where")
def test_what_had_run_before_is_a_constant() -> None:
    """A launch reads it, and does not make it again."""
    x = tensor(1)
    node = marked(1, dup(x.borrow()), value(constant(0))).shared()
    assert number_in(node) == 2
    graph = marked(2, node, node).graph()
    output = graph.take_output()
    graph.update(memcpy(x.borrow_mut(), constant(5)))
    graph.launch().sync()
    assert (number_in(output), number_in(node)) == (6, 2)
    assert MARKS.seen() == [1, 2, 2]


def test_a_second_graph_of_a_node_has_a_constant() -> None:
    """Captured once, the node has run: to another graph it is what the first capture made."""
    x = tensor(1)
    node = marked(1, dup(x.borrow()), value(constant(0))).shared()
    first, second = marked(2, node, node).graph(), marked(3, node, node).graph()
    outputs = first.take_output(), second.take_output()
    first.update(memcpy(x.borrow_mut(), constant(5)))
    zip_ops(first.launch(), second.launch()).sync()
    assert (number_in(outputs[0]), number_in(outputs[1]), number_in(node)) == (14, 7, 2)
    assert MARKS.seen().count(1) == 2


def test_nodes_of_nodes() -> None:
    """A node made of another: of both the first value is remembered, each as what it was."""
    x = tensor(1)
    inner = marked(1, dup(x.borrow()), value(constant(0))).shared()
    outer = marked(2, inner, inner).shared()
    graph = marked(3, outer, inner).graph()
    graph.update(memcpy(x.borrow_mut(), constant(9)))
    graph.launch().sync()
    assert (number_in(inner), number_in(outer)) == (2, 6)
    assert number_in(graph.take_output()) == (10 + 22) + 3


def test_a_node_of_several_values() -> None:
    """Numbers, texts, handles of others and borrows are remembered with it; what launches write is copied."""
    mine, x = constant(4), tensor(1)
    made = dup(x.borrow()).then(lambda t: value((t.borrow(), "a", mine, 3)))
    node: Any = made.shared()
    graph = node.then(lambda found: marked(1, dup(found[0]), value(found[2]))).graph()
    lent, text, other, number = node.sync()
    graph.update(memcpy(x.borrow_mut(), constant(5)))
    graph.launch().sync()
    assert (number_in(lent), text, number_in(other), number) == (1, "a", 4, 3)
    assert storage_of(other) is storage_of(mine)
    assert number_in(graph.take_output()) == 10


def test_a_node_that_writes_in_place() -> None:
    """A tensor that moves into the graph is the graph's memory, and each launch adds to it. The node keeps a copy."""
    shape = (2, 2)
    mine = full(shape, 1).sync()
    node: Any = axpy(value(mine).partition(shape), 1.0, ones(shape)).first().unpartition().shared()
    graph = add(empty(shape).partition(shape), node, node).first().unpartition().graph()
    output = graph.take_output()
    for k in range(3):
        assert float(output.borrow().to_host().sync()[0, 0]) == 2 * (2 + k)
        assert float(node.to_host().sync()[0, 0]) == 2
        graph.launch().sync()
    assert storage_of(node.sync()).graph() is None


def test_components_that_a_capture_takes_are_taken() -> None:
    """The source of an `unzip` has run, in the capture: nobody gets a component again."""
    left, right = zip_ops(marked(1), marked(2)).unzip()
    graph = zip_ops(marked(3, left), marked(4, right)).graph()
    for part in (left, right):
        with pytest.raises(MovedError, match="taken before"):
            part.sync()
    graph.launch().sync()
    assert sorted(MARKS.seen()) == sorted([1, 2, 3, 4] * 2)


@pytest.mark.parametrize("why", ["it cannot be captured", "it fails"])
def test_a_capture_that_fails_is_not_remembered(why: str) -> None:
    """Refused or failed, it leaves the node as it was: the next run makes its value."""
    node = marked(1).shared()
    used = marked(2, node, node)
    if why == "it fails":
        with pytest.raises(ZeroDivisionError):
            used.map(lambda t: 1 // 0).graph()
    else:
        with pytest.raises(CaptureError, match="calls a function of the host"):
            used.to_host().host_map(np.sum).graph()
    assert MARKS.seen() == []
    assert number_in(node) == 1
    assert MARKS.seen() == [1]


def test_a_node_that_needs_the_host_runs_before() -> None:
    """A node that needs the host cannot be in a graph.

    The message says that the value of a node that has run is a constant, and a capture after that succeeds.
    """
    node = value(3.0).host_map(lambda n: np.full(S, n, np.float32)).then(from_host).shared()
    op = marked(1, node, node)
    with pytest.raises(CaptureError, match=r"host_map|shared\(\) op that has run before the capture is a constant"):
        op.graph()
    node.sync()
    graph = op.graph()
    graph.launch().sync()
    assert number_in(graph.take_output()) == 7


def test_a_node_that_another_thread_is_making() -> None:
    """The capture waits for it: what another run has made by then is a constant."""
    entered, release = threading.Event(), threading.Event()

    def held(number: float) -> Any:
        entered.set()
        assert release.wait(PATIENCE)
        return np.full(S, number, np.float32)

    node: Any = value(3.0).host_map(held).then(from_host).shared()
    assert isinstance(node, Shared)
    with ThreadPoolExecutor(2) as pool:
        run = pool.submit(node.sync)
        assert entered.wait(PATIENCE)
        capture = pool.submit(marked(1, node, node).graph)
        while not node.once._waiting and not capture.done():  # noqa: SLF001  # the order of the threads depends on it
            threading.Event().wait(0.001)
        release.set()
        run.result(PATIENCE)
        graph = capture.result(PATIENCE)
    assert number_in(graph.take_output()) == 7


def test_what_a_node_remembers_dies_with_it() -> None:
    """The copy is the node's; the graph's own memory is the graph's."""
    where = current_device()
    before = where.memory_used()
    node: Any = marked(1).shared()
    graph: Any = marked(2, node, node).graph()
    with_both = where.memory_used()
    del node
    alone = where.memory_used()
    assert before < alone < with_both
    graph.launch().sync()
    del graph
    assert where.memory_used() == before


# ---- the output, and what moved in


def test_an_output_that_is_shared_is_an_output_all_the_same() -> None:
    """Whoever captures an op that ends in `.share()`, or in a `shared()` op, has asked for shared handles to what
    launches write; what the node itself remembers is another matter."""
    x = tensor(1)
    node = dup(x.borrow()).shared()
    graph = zip_ops(dup(x.borrow()).share(), node).graph()
    plain, of_node = graph.take_output()
    graph.update(memcpy(x.borrow_mut(), constant(5)))
    graph.launch().sync()
    assert (number_in(plain), number_in(of_node), number_in(node)) == (5, 5, 1)


def test_what_only_the_trace_shares_is_no_matter() -> None:
    """A closure may share what it is given, and use it as often as it likes."""
    x = tensor(1)
    graph = dup(x.borrow()).share().then(lambda s: marked(1, value(s), value(s))).graph()
    output = graph.take_output()
    graph.update(memcpy(x.borrow_mut(), constant(5)))
    graph.launch().sync()
    assert number_in(output) == 11


def test_what_a_scope_writes_stays_unshared_when_it_was_lent_on() -> None:
    """A tensor moved into a scope, came back, and was lent to a later op of it: the graph writes it all the same."""
    mine, five = tensor(1), constant(5)
    with CudaGraph.scope(current_device().stream()) as scope:
        t = scope.record(fill(mine, 3))
        scope.record(memcpy(t.borrow_mut(), five))
    scope.graph.launch().sync()
    with pytest.raises(OwnershipError, match="every launch writes it again"):
        t.share()
    assert number_in(t) == 5


def test_what_moved_in_may_be_lent_within() -> None:
    """A closure lends a tensor that has moved into the op, and moves it on: launches need no lender, for the memory is
    the graph's."""
    op = value(tensor(1)).then(
        lambda t: dup(t.borrow()).share().then(lambda s: marked(1, value(s), value(s)).then(lambda u: fill(t, 3)))
    )
    graph = op.graph()
    output = graph.take_output()
    for _ in range(2):
        graph.launch().sync()
    assert number_in(output) == 3
    assert MARKS.seen() == [1] * 3
