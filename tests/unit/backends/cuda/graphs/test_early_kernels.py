"""Kernels that start before the one before them is over: which nodes of a graph may, and what they give."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu import DeviceOp, In, Out, SharedTensor, Tile, f32, from_host, kernel, use_device, zeros
from dagpu.testing import Gpu, GraphNode, KernelLaunch, RawGraph
from tests.programs.graph_trials import contents, prepared, program_of, run
from tests.simulated.cuda import installed
from tests.simulated.gpu import SimulatedGpu
from tests.simulated.machine import Machine
from tests.simulated.runs import fresh_machine  # noqa: F401  # a fixture

ADD = """
__global__ void NAME(Tile<float, 1> y, View<const float, 1> x) {
    launch_dependents();
    wait_for_inputs();
    for (auto i : y) y[i] += x[i];
}
"""


@kernel(cuda=ADD.replace("NAME", "add_early"), early_reads=("x",))
def add_early(y: Out[f32], x: In[f32]) -> None: ...


@kernel(cuda=ADD.replace("NAME", "add_after"), early_reads=())
def add_after(y: Out[f32], x: In[f32]) -> None: ...


@kernel(cuda=ADD.replace("NAME", "add_late"))
def add_late(y: Out[f32], x: In[f32]) -> None: ...


def body(y: Tile[f32], x: Any) -> None:
    y += x[y.at]


for each in (add_early, add_after, add_late):
    each.host(body)


Nodes = list[Sequence[tuple[GraphNode, Sequence[int]]]]


def recorded(patched: pytest.MonkeyPatch) -> Nodes:
    """Return a list that gets the nodes of every graph that is made from now on."""
    found: Nodes = []
    make = SimulatedGpu.make_graph

    def recording(
        self: SimulatedGpu,
        nodes: Sequence[tuple[GraphNode, Sequence[int]]],
        gpus: Sequence[Gpu] = (),
        bodies: Sequence[int] = (),
    ) -> RawGraph:
        found.append(nodes)
        return make(self, nodes, gpus, bodies)

    patched.setattr(SimulatedGpu, "make_graph", recording)
    return found


@pytest.fixture(name="nodes")
def recorded_nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """The nodes of every graph that is made."""
    return recorded(monkeypatch)


def starts(nodes: Nodes) -> list[bool]:
    """For each kernel of the only graph True if it may start early."""
    ((graph),) = nodes
    return [node.early for node, _ in graph if isinstance(node, KernelLaunch)]


def given_array() -> SharedTensor[f32]:
    """An array that exists before the run."""
    with use_device("cuda:0"):
        return from_host(np.arange(8, dtype=f32)).sync().share()


def added(kind: Any, y: DeviceOp[Any, Any], x: Any) -> DeviceOp[Any, Any]:
    """The op of y + x."""
    total: DeviceOp[Any, Any] = kind(y.partition((4,)), x).first().unpartition()
    return total


def of_op(op: DeviceOp[Any, Any], machine: Machine) -> list[float]:
    """Run an op as a graph, and return the elements of its result."""
    program, inputs = program_of(op)
    (result,) = run(prepared(program), inputs)
    return list(np.frombuffer(contents(result, machine), f32)[:8])


@pytest.mark.parametrize(("kind", "early"), [(add_early, True), (add_after, True), (add_late, False)])
def test_a_kernel_that_waits_itself_may_start_early(machine: Machine, nodes: Nodes, kind: Any, early: bool) -> None:
    """It depends on the kernel before it all the same; one that is not declared so starts when that one is over."""
    x = given_array()
    assert of_op(added(kind, added(kind, zeros((8,)), x), x), machine) == [2.0 * n for n in range(8)]
    assert starts(nodes) == [early, early]
    ((graph),) = nodes
    assert [needs for _, needs in graph] == [(), (0,), (1,)]


def test_what_the_plan_writes_is_not_read_early(machine: Machine, nodes: Nodes) -> None:
    """An input that an earlier kernel of the plan writes is complete only when that kernel is over."""
    x = given_array()
    inner = added(add_early, zeros((8,)), x)
    assert of_op(added(add_early, zeros((8,)), inner), machine) == [float(n) for n in range(8)]
    assert starts(nodes) == [True, False]


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_exactly_inputs_of_the_run_are_read_early(computed: list[bool]) -> None:
    """In a chain of sums each kernel may start early unless the plan computes what it reads early."""
    with pytest.MonkeyPatch.context() as patched, installed(0) as machine:
        found, x = recorded(patched), given_array()
        y: DeviceOp[Any, Any] = zeros((8,))
        for each in computed:
            y = added(add_early, y, added(add_late, zeros((8,)), x) if each else x)
        assert of_op(y, machine) == [float(n * len(computed)) for n in range(8)]
    ((graph),) = found
    kernels = [(node, needs) for node, needs in graph if isinstance(node, KernelLaunch)]
    early = [node.early for node, _ in kernels]
    assert sum(early) == computed.count(False)
    assert all(needs for node, needs in kernels if node.early)


def test_an_architecture_without_it_starts_no_kernel_early(
    machine: Machine, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the call that waits does nothing, so the driver must wait."""
    monkeypatch.setattr(machine.gpus[0], "arch", "sm_89")
    x = given_array()
    assert of_op(added(add_early, zeros((8,)), x), machine) == [float(n) for n in range(8)]
    assert starts(nodes) == [False]
