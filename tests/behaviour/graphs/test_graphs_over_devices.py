"""Captured graphs whose work is on several devices of a mesh: one launch does all of it, and gives what a run gives."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    CaptureError,
    CudaGraph,
    Mesh,
    Spread,
    StreamInterpreter,
    all_reduce,
    as_partials,
    broadcast,
    device,
    dup,
    each,
    f32,
    fill,
    from_host,
    memcpy,
    ones,
    shard_host,
    use_interpreter,
    use_mesh,
    value,
    zeros,
    zip_ops,
)
from dagpu.testing import Execute, parts_of, plan_of
from tests.programs.arithmetic import add, axpy, scale
from tests.programs.expressions import bits
from tests.programs.meshes import EAGER, Scatter, mesh
from tests.programs.trials import random_dag
from tests.simulated.cuda import installed

KINDS = ("host", "explore", "cuda")

pytestmark = pytest.mark.host_only("devices of its own")


@pytest.fixture(params=KINDS)
def three(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """Three devices of each kind."""
    with installed(3, 3) if request.param == "cuda" else nullcontext():
        yield mesh(3, request.param)


def test_summands_are_read_where_they_are(three: Mesh) -> None:
    """Each device adds the summands in one kernel: it copies none of them, its own one neither."""
    replicas = broadcast(from_host(np.ones(64, f32)).on(three.devices[0]), three).sync()
    summands = as_partials(each(lambda part, _: dup(part), replicas)).sync()
    reduced = all_reduce(summands)
    steps = [step.instruction for step in plan_of(reduced).steps if isinstance(step, Execute)]
    assert [type(each_step).__name__ for each_step in steps] == ["Launch"] * 3
    assert reduced.sync().to_host().sync().tolist() == [3.0] * 64


def read(t: Any) -> list[float]:
    found: list[float] = t.borrow().to_host().sync().ravel().tolist()
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**16))
def test_a_launch_gives_what_a_run_gives(kind: str, seed: int) -> None:
    """A random DAG, placed by chance and by cost on three devices, is captured and launched again; so is a pipeline of
    it, whose memory moves."""
    wanted = list(map(bits, random_dag(seed).on("host").sync()))
    with installed(seed, 3) if kind == "cuda" else nullcontext():
        places = mesh(3, kind)
        for policy in (Scatter(places, seed), Spread(places, costs=EAGER)):
            with use_interpreter(StreamInterpreter(policy=policy, graph_from=2)):
                assert all(list(map(bits, random_dag(seed).sync())) == wanted for _ in range(3))
                graph = random_dag(seed).graph()
                result = graph.take_output()
                for _ in range(3):
                    graph.launch().sync()
                    assert list(map(bits, result)) == wanted


def test_work_on_several_devices_is_one_graph(three: Mesh) -> None:
    """Tensors that are lent are read where they are, and written where they are; each launch sees what they hold."""
    first, second, third = three.devices
    x, y = from_host(np.arange(4, dtype=f32).reshape(2, 2)).on(first).sync(), zeros((2, 2)).on(third).sync()
    doubled = scale(zeros((2, 2)).partition((2, 2)), 2.0, dup(x.borrow()).on(second)).first().unpartition().on(second)
    op = doubled.then(lambda t: memcpy(y.borrow_mut(), t)).on(third)
    graph = op.graph_on(first.stream())
    assert set(graph.plan.devices) == {each.name for each in three.devices}
    assert read(y) == [0.0, 2.0, 4.0, 6.0]
    graph.update(fill(x.borrow_mut(), 5.0))
    graph.launch().sync()
    assert read(y) == [10.0] * 4


def test_a_launch_composes_with_work_that_is_placed_by_cost(three: Mesh) -> None:
    """What the graph writes on one device is read by others after it, and what it reads is written before it."""
    first, second, _ = three.devices
    x, y = ones((2, 2)).on(first).sync(), zeros((2, 2)).on(second).sync()
    added = axpy(y.borrow_mut().partition((2, 2)), 1.0, dup(x.borrow()).on(second)).on(second).graph()
    grown = axpy(x.borrow_mut().partition((2, 2)), 1.0, ones((2, 2)).on(first)).graph()

    def total(_: Any) -> Any:
        return add(zeros((2, 2)).partition((2, 2)), y.borrow(), x.borrow()).first().unpartition()

    held, summed = 2.0, 1.0
    policies: list[Any] = [Spread(three, costs=EAGER), *[Scatter(three, seed) for seed in range(4)]]
    for policy in policies:
        with use_interpreter(StreamInterpreter(policy=policy)):
            found = (
                grown.launch().then(lambda _: added.launch()).then(total).then(lambda t: zip_ops(value(t), total(t)))
            )
            first_sum, second_sum = found.sync()
        held, summed = held + 1, summed + held + 1
        assert read(first_sum) == read(second_sum) == [held + summed] * 4


def test_collectives_are_captured(three: Mesh) -> None:
    """The parts of a sum lie where they lay; launching it again gives the sum of what they hold."""
    array = np.arange(12, dtype=f32).reshape(6, 2)
    parts = shard_host(array, three).sync()
    graph = all_reduce(as_partials(each(lambda part, rank: dup(part), parts.borrow()))).graph()
    total = graph.take_output()
    for _ in range(2):
        graph.launch().sync()
        assert all((t.to_host().sync() == array.reshape(3, 2, 2).sum(0)).all() for t in parts_of(total))


def test_a_mesh_in_use_is_used_by_a_capture(three: Mesh) -> None:
    """The work of a capture is spread as that of a run is."""
    with use_mesh(three):
        graph = zip_ops(*[full_of(n) for n in range(9)]).schedule(Spread(three, costs=EAGER)).graph()
    assert len(graph.plan.devices) == 3
    graph.launch().sync()
    assert [read(t)[0] for t in graph.take_output()] == [2.0 * n for n in range(9)]


def full_of(number: int) -> Any:
    x = from_host(np.full((64, 64), number, f32))
    return scale(zeros((64, 64)).partition((64, 64)), 2.0, x).first().unpartition()


def test_a_stream_of_any_of_its_devices_launches_it(three: Mesh) -> None:
    """A stream of another one is refused, by the scope as by the capture."""
    first, second, third = three.devices
    x, y = ones((2, 2)).on(first).sync(), zeros((2, 2)).on(second).sync()
    one = ones((2, 2)).on(first).share().sync()

    def copied() -> Any:
        return memcpy(y.borrow_mut(), x.borrow()).on(second)

    for place in (first, second):
        with CudaGraph.scope(place.stream()) as scope:
            scope.record(copied())
            scope.record(axpy(x.borrow_mut().partition((2, 2)), 1.0, one).on(first))
        scope.graph.launch().sync()
    assert (read(x), read(y)) == ([3.0] * 4, [2.0] * 4)
    with pytest.raises(CaptureError, match=rf"is launched on {third.name}, and works on .*Give a stream of"):
        copied().graph_on(third.stream())
    with pytest.raises(CaptureError, match=rf"is launched on {third.name}"), CudaGraph.scope(third.stream()) as scope:
        scope.record(copied())
    assert device(first.name) is first
