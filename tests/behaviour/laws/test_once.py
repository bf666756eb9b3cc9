"""`Shared` and the source of an `unzip` run exactly once: in whatever order and in however many runs they are
consumed, and however many tasks and threads ask at the same time. Only what succeeded is remembered.

Runs are counted by the kernels themselves, which leave a mark in `MARKS`, and by the functions of `host_map`.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    DeviceOp,
    MovedError,
    OwnershipError,
    RoundRobin,
    SchedulingPolicy,
    SingleStream,
    StreamInterpreter,
    dup,
    from_host,
    ones,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)  # fmt: skip
from tests.behaviour.laws.marked_ops import Failing, Op, awaiting, gather, mark, marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
from tests.support.marks import MARKS

POLICIES: list[SchedulingPolicy] = [SingleStream(), RoundRobin(4)]
ORDERS = tuple(permutations(range(3)))


def run_all(ops: list[Op], *, together: bool) -> list[Any]:
    """Run ops one after the other, or all in one run."""
    return list(zip_ops(*ops).sync()) if together else [op.sync() for op in ops]


# ---- once, in every order


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_shared_runs_once_in_every_order(order: tuple[int, ...], together: bool) -> None:
    """Three consumers, in any order, in one run or three: the source runs once, and each gets its value."""
    source: Op = marked(7).shared()
    consumers = [source.to_host(), source.then(dup).to_host(), marked(1, source, source).to_host()]
    results = run_all([consumers[i] for i in order], together=together)
    assert [float(array[0]) for array in results] == [[7.0, 7.0, 15.0][i] for i in order]
    assert sorted(MARKS.seen()) == [1, 7]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_unzip_runs_its_source_once_in_every_order(order: tuple[int, ...], together: bool) -> None:
    """Three components of one source, in any order, in one run or three: it runs once."""
    parts: Any = zip_ops(marked(1), marked(2), marked(3).to_host()).unzip()
    consumers = [parts[0].to_host(), parts[1].to_host(), parts[2]]
    results = run_all([consumers[i] for i in order], together=together)
    assert [float(array[0]) for array in results] == [i + 1.0 for i in order]
    assert sorted(MARKS.seen()) == [1, 2, 3]


@pytest.mark.parametrize("order", ORDERS)
def test_unzip_of_a_launch_runs_it_once(order: tuple[int, ...]) -> None:
    """The arguments that a launch gives back are taken one by one, across runs."""
    out, number, x, *_ = mark(zeros((2,)).partition((2,)), 5, ones((2,)), ones((2,)), MARKS.address).unzip()
    consumers: list[DeviceOp[Any]] = [out.unpartition().to_host(), x.to_host(), number]
    results = [consumers[i].sync() for i in order]
    assert [float(np.ravel(result)[0]) for result in results] == [[7.0, 1.0, 5.0][i] for i in order]
    assert MARKS.seen() == [5]


def test_only_one_component_is_ever_taken() -> None:
    """A component that nobody takes changes nothing: the source has run once when the node dies."""
    first, _ = zip_ops(marked(1), marked(2)).unzip()
    assert float(first.to_host().sync()[0]) == 1.0
    assert sorted(MARKS.seen()) == [1, 2]


def test_shared_in_shared() -> None:
    """Each of several nested `shared()` ops runs once, whichever is run first."""
    inner: Op = marked(1).shared()
    outer: Op = marked(2, inner, inner).shared()
    assert float(outer.to_host().sync()[0]) == 4.0
    assert float(inner.to_host().sync()[0]) == 1.0
    assert float(marked(3, outer, inner).to_host().sync()[0]) == 8.0
    assert MARKS.seen() == [1, 2, 3]


@pytest.mark.parametrize("order", ORDERS)
def test_a_diamond_in_an_unzip_in_a_diamond(order: tuple[int, ...]) -> None:
    """A diamond whose bottom is unzipped, both parts of which are shared into another: each runs once."""
    top: Op = marked(1).shared()
    left, right = zip_ops(marked(2, top), marked(3, top)).unzip()
    left, right = left.shared(), right.shared()
    low, high = zip_ops(marked(4, left, right), marked(5, right, left)).unzip()
    ends = [low.to_host(), high.to_host(), marked(6, left, top).to_host()]
    results = [ends[i].sync() for i in order]
    assert [float(array[0]) for array in results] == [[11.0, 12.0, 10.0][i] for i in order]
    assert sorted(MARKS.seen()) == [1, 2, 3, 4, 5, 6]


@st.composite
def shared_nodes(draw: st.DrawFn) -> tuple[list[Op], list[set[int]]]:
    """Ops made of earlier ones, shared whole, as a component, or by way of the host; and what each is made of."""
    nodes: list[Op] = []
    parents: list[set[int]] = []
    for number in range(draw(st.integers(1, 8))):
        above = draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        op = marked(number, *[nodes[i] for i in above])
        match draw(st.integers(0, 3)):
            case 0:
                op = zip_ops(op, value(number)).unzip()[0].shared()
            case 1:
                op = op.to_host().then(from_host).shared()
            case 2:
                op = op.shared().then(dup).shared()
            case _:
                op = op.shared()
        nodes.append(op)
        parents.append(set(above))
    return nodes, parents


@settings(max_examples=60)
@given(shared_nodes(), st.data())
def test_every_node_of_a_random_dag_runs_once(drawn: tuple[list[Op], list[set[int]]], data: st.DataObject) -> None:
    """Consumed in any order and grouping, what is reached has run once, all else never."""
    MARKS.clear()
    nodes, parents = drawn
    wanted = data.draw(st.lists(st.sampled_from(range(len(nodes))), min_size=1, max_size=6))
    with use_interpreter(StreamInterpreter(policy=data.draw(st.sampled_from(POLICIES)))):
        while wanted:
            cut = data.draw(st.integers(1, len(wanted)))
            run_all([nodes[i].to_host() for i in wanted[:cut]], together=data.draw(st.booleans()))
            reached = _closure(set(wanted[:cut]), parents) | set(MARKS.seen())
            wanted = wanted[cut:]
            assert Counter(MARKS.seen()) == Counter(reached)


@settings(max_examples=40)
@given(shared_nodes(), st.data())
def test_every_node_runs_once_whoever_asks_at_the_same_time(
    drawn: tuple[list[Op], list[set[int]]], data: st.DataObject
) -> None:
    """Consumers of one DAG in concurrent tasks, or in threads, or in both: still once, and with no deadlock."""
    MARKS.clear()
    nodes, parents = drawn
    wanted = data.draw(st.lists(st.sampled_from(range(len(nodes))), min_size=1, max_size=8))
    half = data.draw(st.integers(0, len(wanted)))
    ops = [nodes[i].to_host() for i in wanted]
    with ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(op.sync) for op in ops[:half]]
        results = trio.run(gather, [awaiting(op) for op in ops[half:]], lambda: None)
        results = [thread.result() for thread in threads] + results
    assert Counter(MARKS.seen()) == Counter(_closure(set(wanted), parents))
    again = run_all([nodes[i].to_host() for i in wanted], together=True)
    assert [array.tolist() for array in results] == [array.tolist() for array in again]


def _closure(found: set[int], parents: list[set[int]]) -> set[int]:
    todo = list(found)
    while todo:
        for parent in parents[todo.pop()] - found:
            found.add(parent)
            todo.append(parent)
    return found


def test_planning_remembers_nothing() -> None:
    """`explain` claims what it traces and lets go of it: the run afterwards is the first."""
    shared: Op = marked(1).shared()
    part, _ = zip_ops(marked(2, shared), value(0)).unzip()
    assert "mark" in part.explain()
    assert MARKS.seen() == []
    part.sync()
    assert MARKS.seen() == [1, 2]
    assert "mark" not in shared.then(dup).explain()


# ---- taken once


def test_a_component_is_taken_once() -> None:
    """Taking a component again, in the same run or a later one, is a `MovedError` that says `.shared()`."""
    first, second = zip_ops(marked(1), marked(2)).unzip()
    first.sync()
    with pytest.raises(MovedError, match=r"taken before.*\.shared\(\)"):
        first.sync()
    with pytest.raises(MovedError, match=r"\.shared\(\)"):
        zip_ops(second, second.to_host()).sync()
    assert float(second.to_host().sync()[0]) == 2.0
    assert sorted(MARKS.seen()) == [1, 2]


def test_sharing_owned_handles_in_a_tuple_is_refused() -> None:
    """Only one bare `Tensor` can be shared whole; the cure is `unzip` first, and it works."""
    pair: Op = zip_ops(ones((2,)), zeros((2,)))
    with pytest.raises(OwnershipError, match=r"unzip\(\) first"):
        pair.shared().sync()
    first, _ = [op.shared() for op in pair.unzip()]
    assert zip_ops(first.to_host(), first.to_host()).sync()[1][0] == 1.0


# ---- failures


@pytest.mark.parametrize("how", ["shared", "unzip"])
def test_a_failure_is_not_remembered(how: str) -> None:
    """The next run evaluates again, and its success is remembered."""
    f = Failing(2)
    source: Op = value(1).host_map(f)
    op: Op = source.shared() if how == "shared" else source.map(lambda x: (x, 2)).unzip(2)[0]
    for call in (1, 2):
        with pytest.raises(ValueError, match=f"call {call}"):
            op.sync()
    assert op.sync() == 1
    assert f.calls == 3


@pytest.mark.parametrize("where", ["map", "then"])
def test_a_closure_that_fails_is_called_again(where: str) -> None:
    """A closure that raises while tracing is called again by the next run: nothing has run, nothing is remembered."""
    f = Failing(1)
    source: Op = marked(1)
    shared: Op = (source.map(f) if where == "map" else source.then(lambda t: value(f(t)))).shared()
    with pytest.raises(ValueError, match="call 1"):
        shared.sync()
    assert MARKS.seen() == []
    assert float(shared.to_host().sync()[0]) == 1.0
    assert MARKS.seen() == [1]


def test_a_failure_in_another_branch_is_no_failure_of_the_shared() -> None:
    """After a failed run, what a later run remembers is complete: never a value of the run that failed."""
    shared: Op = marked(1).shared()
    with pytest.raises(ValueError, match="call 1"):
        zip_ops(shared.to_host(), value(0).host_map(Failing(9))).sync()
    assert float(shared.to_host().sync()[0]) == 1.0


def test_handles_that_a_failed_run_owned_are_gone() -> None:
    """Whoever evaluates a source again whose handles went down with a run gets a `MovedError`."""
    tensor = ones((2,)).sync()
    shared: Op = zip_ops(value(tensor), value(0).host_map(Failing(1))).first().shared()
    with pytest.raises(ValueError, match="call 1"):
        shared.sync()
    with pytest.raises(MovedError):
        shared.sync()
