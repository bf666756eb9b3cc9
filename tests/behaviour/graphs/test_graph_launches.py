"""Graphs that the user captures: a launch is the op once more on the same memory, and a run like any other."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    CudaGraph,
    Module,
    MovedError,
    current_device,
    device,
    dup,
    from_host,
    full,
    memcpy,
    ones,
    pipeline,
    plan_of,
    trace,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.testing import exploring
from tests.behaviour.graphs.captured_graphs import S, adds, number_in, out, scaled, shared, tensor, unlocked
from tests.programs.arithmetic import add, axpy
from tests.programs.expressions import Building, Call, Change, Evaluation, Expr, Lent, Make, Op, bits, build, evaluate
from tests.programs.strategies import shapes
from tests.support.reused_ops import pure

# ---- what a launch does


def test_a_launch_does_it_again() -> None:
    """On the memory that it was captured with: the output is written anew, and no other memory is taken."""
    x = tensor(1)
    graph = scaled(2.0, x.borrow()).graph()
    output = graph.take_output()
    assert number_in(output) == 2
    used = current_device().memory_used()
    for k in range(3):
        graph.update(memcpy(x.borrow_mut(), shared(k)))
        graph.launch().sync()
        assert number_in(output) == 2 * k
        assert current_device().memory_used() == used
    assert unlocked(x, output)


def test_the_output_is_taken_once() -> None:
    """Then it is the caller's: the error says where it was taken."""
    graph = zip_ops(zeros(S), ones(S).to_host()).graph()
    output, array = graph.take_output()
    assert (number_in(output), number_in(array)) == (0, 1)
    with pytest.raises(MovedError, match=f"was taken at {__file__}"):
        graph.take_output()


def test_arrays_are_written_anew() -> None:
    """`to_host` in a graph fills the array that the capture gave."""
    x = tensor(1)
    graph = x.borrow().to_host().graph()
    array = graph.take_output()
    array[:] = 7
    fill_ = full(S, 5).sync()
    graph.update(memcpy(x.borrow_mut(), fill_))
    graph.launch().sync()
    assert (array == 5).all()


def test_closures_are_not_called_again() -> None:
    """Everything was fixed when it was captured."""
    called: list[Any] = []
    graph = ones(S).inspect(lambda t: called.append(t.shape)).then(lambda t: scaled(2.0, t)).graph()
    graph.launch().sync()
    assert len(called) == 1


def test_branches_and_temporaries() -> None:
    """A graph is made of the plan: forks, joins, temporaries in its own memory."""
    x = tensor(1)

    def f() -> Op:
        y = ones(S).then(lambda t: axpy(t.partition(S), 1.0, x.borrow())).first().unpartition()
        return y.then(lambda t: value(t.share())).then(
            lambda s: add(out(), scaled(2.0, s), scaled(3.0, s)).first().unpartition()
        )

    graph = f().graph()
    output = graph.take_output()
    for k in (0, 2, 5):
        graph.update(memcpy(x.borrow_mut(), shared(k)))
        graph.launch().sync()
        assert number_in(output) == 5 * (1 + k)


def test_a_launch_on_a_stream_of_ones_own() -> None:
    """`graph_on(stream)` launches there."""
    stream = current_device().stream()
    graph = zeros(S).graph_on(stream)
    assert graph.stream is stream
    assert plan_of(graph.launch()).lanes[0].key is stream.lane
    other = zeros(S).graph()
    assert other.stream.lane is not stream.lane


def changed(e: Expr, by: int) -> Expr:
    """Return the same DAG over other contents of the borrowed tensors."""
    match e:
        case Call():
            return replace(e, x=changed(e.x, by), y=changed(e.y, by))
        case Change():
            return replace(e, x=changed(e.x, by))
        case Lent(make):
            return Lent(Make(make.shape, "from_host", make.number + by))
        case _:
            return e


def lent(e: Expr) -> list[Make]:
    """The borrowed tensors, in the order in which `build` reaches them."""
    match e:
        case Call():
            return [*lent(e.x), *(() if e.kernel == "scale" else lent(e.y))]
        case Change():
            return lent(e.x)
        case Lent(make):
            return [make]
        case _:
            return []


@settings(max_examples=60)
@given(shapes.flatmap(pure), st.lists(st.integers(0, 5), min_size=2, max_size=3), st.booleans())
def test_a_launch_is_the_op_again(e: Expr, steps: list[int], to_host: bool) -> None:
    """Any DAG: capture, then other contents and a launch, gives to the bit what running the op on those gives."""
    b = Building()
    graph = (build(e, b).to_host() if to_host else build(e, b)).graph()
    output = graph.take_output()
    for by in steps:
        other = changed(e, by)
        for lender, make in zip(b.lenders, lent(other), strict=True):
            graph.update(memcpy(lender.borrow_mut(), from_host(make.array()).sync()))
        graph.launch().sync()
        found: Any = output if isinstance(output, np.ndarray) else output.borrow().to_host().sync()
        assert bits(found) == bits(evaluate(other, Evaluation()))
    assert unlocked(*b.lenders)


# ---- composing


def test_launches_compose() -> None:
    """A launch is an op: after a copy, before a `to_host`, beside another launch, in a trio task."""
    x, y = tensor(1), tensor(0)
    first, second = scaled(2.0, x.borrow()).graph(), adds(y, 1.0, x.borrow()).graph()
    output = first.take_output()

    def op(k: int) -> Op:
        copied = memcpy(x.borrow_mut(), shared(k)).then(lambda _: zip_ops(first.launch(), second.launch()))
        return copied.then(lambda _: zip_ops(output.borrow().to_host(), y.borrow().to_host()))

    total = 1
    for k in range(4):
        found = op(k).sync() if k % 2 else trio.run(_await, op(k))
        total += k
        assert tuple(map(number_in, found)) == (2 * k, total)
    assert unlocked(x, y, output)


async def _await(op: Any) -> Any:
    return await op


def test_a_graph_twice_in_one_op() -> None:
    """One after the other, in the order of the op."""
    y = tensor(0)
    graph = adds(y, 1.0, shared(1)).graph()
    for _ in range(2):
        zip_ops(graph.launch(), graph.launch()).sync()
    assert number_in(y) == 5


def test_a_pipeline_may_launch() -> None:
    """A graph that it closes over."""
    y = tensor(0)
    graph = adds(y, 1.0, shared(1)).graph()
    p = pipeline(lambda x: graph.launch().then(lambda _: adds(y, 2.0, x)).map(lambda _: None))
    for _ in range(3):
        p(shared(1)).sync()
    assert number_in(y) == 10


def test_a_pipeline_may_be_captured() -> None:
    """Its function is traced for the graph; numbers are fixed with it."""
    x = tensor(1)
    p = pipeline(lambda t, a: scaled(a, t))
    p(x.borrow(), 1.0).sync()
    graph = p(x.borrow(), 3.0).graph()
    output = graph.take_output()
    copy: Any = p_copy(x.borrow_mut(), shared(2))  # a pipeline does not say in its type that it makes no memory
    graph.update(copy)
    graph.launch().sync()
    assert number_in(output) == 6


p_copy = pipeline(lambda m, x: memcpy(m, x))


class Doubler:
    """A model whose forward pass is a captured graph."""

    def __init__(self) -> None:
        self._x = tensor()
        self._graph = scaled(2.0, self._x.borrow()).graph()
        self._output = self._graph.take_output()

    def forward(self, input: Any, /) -> Any:  # noqa: A002  # the protocol's name
        copied = memcpy(self._x.borrow_mut(), input)
        return copied.then(lambda _: self._graph.launch()).then(lambda _: dup(self._output.borrow()))


def test_a_module() -> None:
    """Copy the input in, replay, yield the output: what was given is not overwritten by the next."""
    model: Module[Any, Any] = Doubler()
    results = [model.forward(shared(k)).sync() for k in range(3)]
    assert list(map(number_in, results)) == [0, 2, 4]


# ---- looking


def test_a_launch_explains_itself() -> None:
    """One instruction, which says where the graph was captured and where it is launched."""
    graph = ones(S).graph()
    op = graph.launch()
    here = __file__.rsplit("/", 1)[-1]
    for text in (op.explain(), str(plan_of(op))):
        assert f"GraphLaunch {here}:" in text
    assert "graph launch" in op.to_dot()
    assert "graph launch" in op.to_svg()
    op.sync()


def test_a_trace_shows_a_launch_as_one_span() -> None:
    """With the place where it was captured, and that of the launch: each its own."""
    graph = zip_ops(ones(S), zeros(S)).graph()
    with trace() as found:
        graph.launch().sync()
        graph.launch().sync()
        zip_ops(graph.launch(), ones(S)).sync()
    spans = [event for event in found.events() if event["ph"] == "X" and event["cat"] == "GraphLaunch"]
    assert len(spans) == 3
    assert len({span["name"] for span in spans}) == 1
    assert len({span["args"]["origin"] for span in spans}) == 3
    assert str(found).startswith("Trace: 3 runs, 4 instructions")


# ---- in every order


@pytest.mark.host_only("it runs on a device of its own")
@pytest.mark.parametrize("seed", range(6))
def test_graphs_in_every_order(seed: int) -> None:
    """On a device that poisons memory and picks its order at random: launches, updates and pipelines are right."""
    p = pipeline(lambda x, a: add(out(), scaled(a, x), scaled(2.0, x)).first().unpartition())
    with use_device(device("explore:0")), exploring(seed=seed):
        x, y = tensor(1), tensor(0)
        graph = zip_ops(scaled(2.0, x.borrow()), scaled(3.0, x.borrow()), x.borrow().to_host()).graph()
        twice, thrice, array = graph.take_output()
        with CudaGraph.scope(current_device().stream()) as scope:
            scope.record(adds(y, 1.0, x.borrow()))
            scope.record(adds(y, 2.0, x.borrow()))
        total = 0
        for k in (3, 4, 5):
            graph.update(memcpy(x.borrow_mut(), shared(k)))
            zip_ops(graph.launch(), scope.graph.launch()).sync()
            total += 3 * k
            assert (number_in(twice), number_in(thrice), number_in(array)) == (2 * k, 3 * k, k)
            assert number_in(y) == np.fmod(total, 64)
            assert number_in(p(x.borrow(), float(k)).sync()) == k * k + 2 * k
        assert unlocked(x, y, twice, thrice)
