"""Conditional nodes through the classes of the driver layer, on a simulated GPU."""

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu.testing import GraphNode
from tests.gpu.support.conditional_graphs import ConditionalGraph
from tests.simulated.cuda import driver, installed
from tests.simulated.graphs import Body, GraphRun
from tests.simulated.machine import Machine, Record


@pytest.fixture(name="machine")
def simulated() -> Iterator[Machine]:
    with installed(3, gpus=1) as machine:
        yield machine


@settings(max_examples=15)
@given(flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_a_body_runs_if_a_flag_is_set(flags: list[tuple[bool, bool]], seed: int) -> None:
    """In each launch anew: what one launch has decided is forgotten in the next one."""
    with installed(seed, gpus=1) as machine:
        graph = ConditionalGraph(driver())
        for first, second in flags:
            assert graph.run(first=first, second=second) == (first, first or second)
        assert machine.decisions == [each for first, second in flags for each in (first, first or second)]
        graph.destroy()


def test_nodes_of_a_body_are_updated(machine: Machine) -> None:
    """A fill in a body gets another address, and writes there from then on."""
    graph = ConditionalGraph(driver())
    assert graph.run(first=True, second=False) == (True, True)
    graph.move()
    assert graph.run(first=True, second=False) == (True, True)
    assert graph.run(first=False, second=True) == (False, True)
    graph.destroy()
    assert machine.gpus[0].calls["cuGraphExecMemsetNodeSetParams"] == 1


def test_a_node_of_a_body_depends_on_no_other_graph(machine: Machine) -> None:
    """The simulator refuses edges between a body and what is around it, as the driver does."""
    gpu = machine.gpus[0]
    nodes: Sequence[tuple[GraphNode, Sequence[int]]] = ConditionalGraph(driver()).nodes
    crossing = [(node, (0,) if number == 2 else needs) for number, (node, needs) in enumerate(nodes)]
    with gpu.current(), pytest.raises(AssertionError, match="not in the same graph"):
        gpu.make_graph(crossing, (), ConditionalGraph.bodies)
    machine.problems.clear()


@given(seed=st.integers(0, 999), runs=st.booleans())
def test_a_simulated_body_runs_between_what_is_before_and_after(seed: int, runs: bool) -> None:
    """In every order of its nodes, all of them or none."""
    with installed(gpus=1) as machine:
        done: list[int] = []
        acts = [lambda number=number: done.append(number) for number in range(6)]
        needs = [(), (0,), (), (2,), (), (1,)]  # 1 is conditional, 2 to 4 are its body
        condition = machine.new_condition()
        run = GraphRun(machine.gpus, acts, needs, Record(), {1: Body(condition, [2, 3, 4])})
        machine.conditions[condition] = int(runs)
        choose = random.Random(seed)
        while not run.end.done:
            run.step(choose)
        assert done[0] == 0
        assert done[-1] == 5
        assert sorted(done) == ([0, 2, 3, 4, 5] if runs else [0, 5])
        assert not runs or done.index(2) < done.index(3)
        assert np.array_equal(machine.decisions, [runs])
