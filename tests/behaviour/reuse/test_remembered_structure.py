"""Ops with `shared()` and `unzip()` nodes: a node that has run is a leaf of their structure, one that has not is a part
of it. So one plan serves all ops of one structure, and each node is computed once, as in a traced run.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from typing import Any, TypeAlias, final
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    DagpuError,
    TensorRef,
    dup,
    f32,
    from_host,
    full,
    ones,
    pipeline,
    use_device,
    value,
    zeros,
    zip_ops,
)  # fmt: skip
from dagpu.runtime import plan_lookup
from dagpu.testing import handles_in, plans, storage_of
from tests.behaviour.laws.marked_ops import Op, marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
from tests.programs.arithmetic import axpy
from tests.programs.expressions import bits
from tests.simulated.cuda import installed
from tests.support.marks import MARKS
from tests.support.reused_ops import contents, lender, scaled, shared_input, traces
from tests.support.reused_ops import let_go as let_go
from tests.support.reused_ops import no_plans_yet as no_plans_yet

KINDS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "host": nullcontext,
    "explore": lambda: use_device("explore:0"),
    "simulated GPU": lambda: installed(0, 1),
}
S = (2, 3)
ROUNDS = 4
"""Number of ops of one structure that a test builds and runs. The later ones run as a graph where there are graphs."""


def filled(number: float) -> Op:
    """Return an op for a tensor of a number, which ops of one structure may choose."""
    return from_host(np.full(S, number, f32))


def branches(x: Op) -> Op:
    """Return the op of four branches that start from one tensor."""
    return zip_ops(*[scaled(scaled(x, by), 2.0).to_host() for by in (1.0, 2.0, 3.0, 4.0)])


def memory_of(result: Any) -> list[int]:
    """Return a number for each handle in a result; the numbers are equal for handles that share memory."""
    found = [id(storage_of(handle)) for handle in handles_in(result)]
    return [found.index(each) for each in found]


def shown(part: Any) -> Any:
    """Return the type and the contents of one part of a result. A handle that it owns is used up."""
    return ("TensorRef", bits(dup(part).to_host().sync())) if type(part) is TensorRef else contents(part)


# ---- a plan for each structure


@pytest.mark.host_only("on a GPU the simulated one is not needed")
@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_join_in_a_loop_is_traced_once(kind: str) -> None:
    """Four branches over a `shared()` node that each iteration builds: one trace, and a hit for each later run."""
    with KINDS[kind](), traces() as count:
        hits = plans.info().hits
        for number in range(ROUNDS):
            assert [array[0, 0] for array in branches(filled(number).shared()).sync()] == [
                2.0 * number * by for by in (1, 2, 3, 4)
            ]
        assert count.now == 1
        assert plans.info().hits == hits + ROUNDS - 1


@pytest.mark.host_only("on a GPU the simulated one is not needed")
@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_around_a_node_that_has_run_is_traced_once(kind: str) -> None:
    """The value is a leaf, so another node with another value of the same shape has the same plan."""
    with KINDS[kind]():
        nodes: list[Op] = [filled(number).then(dup).shared() for number in range(ROUNDS)]
        for node in nodes:
            node.sync()
        with traces() as count:
            found = [float(branches(node).sync()[0][0, 0]) for node in (*nodes, *nodes)]
        assert found == [2.0 * number for number in range(ROUNDS)] * 2
        assert count.now == 1


def halves(number: float) -> tuple[Op, Op, Op]:
    first, second, third = zip_ops(
        filled(number), scaled(ones(S), number), from_host(np.full((2,), number, f32)).to_host()
    ).unzip()
    return first, second, third


def test_the_components_of_an_unzip_are_planned_once() -> None:
    """In the run that makes them, and in later runs that take what is left."""
    found = []
    with traces() as count:
        for number in range(ROUNDS):
            first, second, third = halves(number)
            found.append((scaled(first).to_host().sync()[0, 0], scaled(second, 3.0).to_host().sync()[0, 0]))
            assert third.sync().tolist() == [number, number]
        assert count.now == 2 + ROUNDS  # a run without device work keeps no plan
    assert found == [(2.0 * number, 3.0 * number) for number in range(ROUNDS)]


def test_a_launch_that_is_unzipped_is_planned_once() -> None:
    """The tile, the number and the input that a kernel gives back come from the run's own inputs."""
    kept = ones(S).sync()
    given = []
    with traces() as count:
        for number in (2.0, 3.0, 4.0):
            parts: Any = axpy(zeros(S).partition(S), number, kept.borrow()).unzip()
            y, a, x = parts
            array = y.unpartition().to_host().sync()
            assert (array[0, 0], count.now) == (number, 1)
            given.append((type(a.once.value[1]), a.once.value[1], type(x.once.value[2])))
    assert given == [(float, number, TensorRef) for number in (2.0, 3.0, 4.0)]
    assert x.sync().to_host().sync()[0, 0] == 1.0


def node_in_node() -> Op:
    inner: Op = scaled(ones(S)).shared()
    return zip_ops(scaled(inner).shared(), inner).unzip()[0]


def node_twice() -> Op:
    node: Op = ones(S).shared()
    return zip_ops(node, scaled(node), node)


def tuple_of_nodes() -> Op:
    node: Op = ones(S).shared()
    return zip_ops(zip_ops(node, node).shared(), ones(S))


SAME: dict[str, Callable[[], Op]] = {
    "the node itself": lambda: zip_ops(ones(S).shared(), zeros(S)),
    "a node that borrows": lambda: zip_ops(value(shared_input()).shared(), value(lender().borrow()).shared(), ones(S)),
    "a node in a node": node_in_node,
    "a node twice": node_twice,
    "a node of nothing": lambda: zip_ops(value((1, "a")).shared(), ones(S)),
    "a tuple of nodes": tuple_of_nodes,
}


@pytest.mark.parametrize("name", SAME)
def test_the_result_is_that_of_a_trace(name: str) -> None:
    """Values, types of handles, and which parts share memory are the same with a plan as with a trace."""
    found = []
    _ = SAME[name]()  # makes the tensors that are borrowed
    with traces() as count:
        for _ in range(3):
            result = SAME[name]().sync()
            found.append((memory_of(result), repr(result)))
    assert count.now == 1
    assert found == [found[0]] * 3


def test_a_component_that_no_op_can_take_is_another_structure() -> None:
    """Its memory is temporary. Where an op may still take it, the run remembers it."""
    with traces() as count:
        for keep in (False, True) * 2:
            parts: tuple[Op, ...] = zip_ops(scaled(ones(S)), scaled(full(S, 2))).unzip()
            left, right = parts[0], parts[1] if keep else None
            del parts
            assert left.to_host().sync()[0, 0] == 2.0
            if right is not None:
                assert right.to_host().sync()[0, 0] == 4.0
    assert count.now == 3


def test_an_array_that_exists_is_a_leaf() -> None:
    """A run returns the array itself, in a plan too. A run that reads an item of it is traced."""
    nodes: list[Any] = [from_host(np.full((2,), number, f32)).to_host().shared() for number in (1, 2, 3)]
    arrays = [node.sync() for node in nodes]
    with traces() as count:
        for node, array in zip(nodes, arrays, strict=True):
            assert zip_ops(node, ones(S)).sync()[0] is array
        assert count.now == 1
    with traces() as count:
        found = [zip_ops(node.first(), ones(S)).sync()[0] for node in nodes]
    assert found == [1.0, 2.0, 3.0]
    assert count.now == 3


# ---- pipelines around the same nodes


def test_a_pipeline_that_closes_over_a_node_of_the_op() -> None:
    """The plan of such an op is not used for an op with another node in that place."""
    x = ones(S).share().sync()
    for _ in range(2):
        nodes: list[Op] = [filled(number).shared() for number in (5, 7, 9)]
        p = pipeline(lambda x, inner=nodes[0]: zip_ops(scaled(inner), dup(x)).first())
        for node, number in zip(nodes, (5.0, 7.0, 9.0), strict=True):
            for _ in range(2):
                both = zip_ops(p(x).to_host(), scaled(node, 3.0).to_host()).sync()
                assert [array[0, 0] for array in both] == [10.0, 3 * number]


def test_a_pipeline_beside_a_node() -> None:
    """The op has a plan in the pipeline's cache: the node's source, or its value, is an input beside the arguments."""
    p = pipeline(lambda x, a: scaled(x, a))
    kept = []
    for number in (1.0, 2.0, 3.0):
        node: Op = scaled(filled(number)).shared()
        x = full(S, number).share().sync()
        for _ in range(2):
            left, right, again = zip_ops(p(x, number), scaled(node), node).sync()
            kept.append(again)
            assert contents(left)[1] == contents(scaled(full(S, number), number).sync())[1]
            assert contents(right)[1] == contents(full(S, 4 * number).sync())[1]
        assert storage_of(kept[-1]) is storage_of(kept[-2])
    assert p.cache_info().misses == 2

    assert [each.to_host().sync()[0, 0] for each in kept] == [2.0, 2.0, 4.0, 4.0, 6.0, 6.0]


# ---- the same as a trace, whatever the DAG


def first_of(pair: Op) -> Op:
    return pair.first()


@final
class Built:
    """The nodes of one random DAG, built from a description. All are built by the same lines of code."""

    def __init__(self, nodes: "tuple[Node, ...]") -> None:
        self.ops: list[Op] = []
        """The ops that others may use any number of times."""
        self.parts: list[Op] = []
        """The components, each for one use."""
        self.lenders: list[Any] = []
        for number, (kind, above) in enumerate(nodes):
            self._add(kind, number, [self.ops[i % len(self.ops)] for i in above if self.ops])

    def _add(self, kind: str, number: int, above: list[Op]) -> None:
        op = marked(number, *above)
        match kind:
            case "shared":
                self.ops.append(op.shared())
            case "shared component":
                self.ops.append(zip_ops(op, marked(100 + number)).unzip()[0].shared())
            case "components":
                left, right = zip_ops(op, marked(100 + number)).unzip()
                self.parts += left, right
            case "shared pair":
                self.ops.append(first_of(zip_ops(op.share(), value(number)).shared()).shared())
            case "host array":
                self.ops.append(op.to_host().shared())
            case "lent":
                self.lenders.append(full((2,), number).sync())
                self.ops.append(value(self.lenders[-1].borrow()).shared())
            case _:
                self.ops.append(from_host(np.full((2,), number, f32)).share().shared())

    def op(self, uses: "Uses") -> Op:
        """Return one op for some of the nodes."""
        branches: list[Op] = []
        for how, index in uses:
            ops = self.parts if how == "part" and self.parts else self.ops
            if not ops:
                continue
            used = ops[index % len(ops)]
            branches.append(used if how == "itself" else used.to_host() if how == "host" else marked(50, used))
        return zip_ops(*branches, zeros((1,)))

    def remembered(self) -> list[bool]:
        """Return for each node whether its value is remembered."""
        onces = [getattr(op, "once", None) for op in (*self.ops, *self.parts)]
        return [once is not None and once.remembers() for once in onces]


Node: TypeAlias = tuple[str, tuple[int, ...]]
Uses: TypeAlias = tuple[tuple[str, int], ...]
nodes_of_a_dag: st.SearchStrategy[tuple[Node, ...]] = st.lists(
    st.tuples(
        st.sampled_from(["shared", "shared component", "components", "shared pair", "host array", "lent", "array"]),
        st.lists(st.integers(0, 9), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=5,
).map(tuple)
uses_of_nodes: st.SearchStrategy[Uses] = st.lists(
    st.tuples(st.sampled_from(["part", "itself", "host", "kernel"]), st.integers(0, 9)), min_size=1, max_size=4
).map(tuple)


def told_of(nodes: tuple[Node, ...], runs: list[Uses]) -> list[Any]:
    """Build a DAG and run ops on it. Return all that can be told: results, errors, marks, and what is remembered."""
    MARKS.clear()
    built = Built(nodes)
    found: list[Any] = []
    for uses in runs:
        try:
            result = built.op(uses).sync()
            found.append((memory_of(result), [shown(part) for part in result]))
        except DagpuError as error:
            found.append((type(error), str(error)))
        found.append((sorted(MARKS.seen()), built.remembered()))
    return found


@contextmanager
def no_keys() -> Iterator[None]:
    """Trace every run."""
    with patch.object(plan_lookup, "flatten_op", lambda *_: None):
        yield


@settings(max_examples=150)
@given(nodes_of_a_dag, st.lists(uses_of_nodes, min_size=1, max_size=3))
def test_a_random_dag_in_a_loop_is_what_a_fresh_trace_is(nodes: tuple[Node, ...], runs: list[Uses]) -> None:
    """Results and their memory, errors, which nodes have run and how often: the same with a plan as with a trace."""
    plans.clear()
    with no_keys():
        wanted = told_of(nodes, runs)
    for _ in range(3):
        assert told_of(nodes, runs) == wanted


def test_the_kinds_of_nodes_of_random_dags_are_planned() -> None:
    """The property compares plans: an op with each kind of node finds one in its second round."""
    for kind, how in product(["shared", "shared component", "components", "shared pair", "lent", "array"], ["kernel"]):
        nodes, uses = ((kind, ()),), (("part" if kind == "components" else how, 0),)
        told_of(nodes, [uses])
        with traces() as count:
            told_of(nodes, [uses])
        assert count.now == 0 if kind != "lent" else count.now <= 1, kind
