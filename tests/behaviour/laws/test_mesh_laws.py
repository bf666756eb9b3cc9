"""Placement changes no result: on any mesh, on any devices, an op gives the bits that it gives on one device."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    BorrowError,
    CostModel,
    KernelArgumentError,
    Links,
    ListSchedule,
    Mesh,
    MovedError,
    PlanError,
    Spread,
    StreamInterpreter,
    arange,
    device,
    dup,
    empty,
    expr,
    f32,
    from_host,
    full,
    i32,
    observe,
    ones,
    pipeline,
    plan_of,
    source,
    trace,
    use_interpreter,
    use_mesh,
    value,
    zeros,
    zip_ops,
)
from dagpu.plans.cost_model import peer_of
from dagpu.plans.plan import peak_bytes_on
from dagpu.testing import Execute, Launch, Plan, Program, exploring
from tests.behaviour.laws.laws import (  # noqa: F401  # a law of several stages, for the policy of this module
    equal,
    test_then_is_associative_over_host_data,
)
from tests.programs.arithmetic import add
from tests.programs.dag_results import expected, run
from tests.programs.expressions import Expr, bits
from tests.programs.meshes import EAGER, Scatter, mesh
from tests.programs.named_kernels import gather, step, twist
from tests.programs.strategies import descriptions
from tests.programs.trials import numbered_dag, random_dag

pytestmark = pytest.mark.host_only("it names the devices of its meshes")


@pytest.fixture(params=[Scatter(mesh(3), 1)], ids=["by chance"], scope="module")
def policy(request: pytest.FixtureRequest) -> Any:
    """The policy of the laws that this module imports."""
    return request.param


@settings(max_examples=30)
@given(descriptions, st.integers(1, 4), st.integers(0, 3))
def test_any_placement_gives_what_numpy_gives(e: Expr, count: int, seed: int) -> None:
    """By chance, or by costs: the result and all that is written outside are NumPy's, to the bit. Parts of the op
    name devices of their own, on the mesh and beside it."""
    policy = Scatter(mesh(count), seed) if seed else Spread(mesh(count), costs=EAGER)
    assert run(e, policy) == expected(e)


@settings(max_examples=25)
@given(st.integers(0, 999), st.integers(2, 4), st.integers(0, 3))
def test_any_order_on_any_devices_gives_the_same_bits(dag: int, count: int, seed: int) -> None:
    """On explored devices, of which one is slow from time to time, in an order that is made to find what is missing."""
    wanted = random_dag(dag).sync()
    found = mesh(count, "explore")
    policy = Scatter(found, seed) if seed else Spread(found, costs=EAGER)
    with use_interpreter(StreamInterpreter(policy=policy)), exploring(seed=dag):
        got = random_dag(dag).sync()
    assert [*map(bits, got)] == [*map(bits, wanted)]


@settings(max_examples=8)
@given(st.integers(0, 999), st.integers(2, 6), st.integers(0, 1), st.sampled_from((40, 400)))
def test_numbers_of_the_host_keep_their_place_in_large_programs(dag: int, count: int, seed: int, steps: int) -> None:
    """Functions of the host and the kernels that get their numbers stay in order, however many instructions are put in
    the order of the longest paths; and kernels write tensors of several devices. The placement is proved, and every
    array and number is that of one device."""
    wanted = numbered_dag(dag, steps).sync()
    policy = Scatter(mesh(count), seed) if seed else Spread(mesh(count), costs=EAGER)
    with use_interpreter(StreamInterpreter(policy=policy)):
        got = numbered_dag(dag, steps, devices=4).sync()
    assert [*map(bits, map(np.asarray, got))] == [*map(bits, map(np.asarray, wanted))]


def _sum(x: Any, y: Any, size: int = 4) -> Any:
    return add(zeros((size, size)).partition((2, 2)), x, y).first().unpartition()


def test_runs_within_use_mesh_are_spread_and_planned_once() -> None:
    """A call of a pipeline finds the plan of an earlier one on the same mesh, under trio too. Another mesh has another
    plan, and outside of the block no tensor is copied to where a kernel is."""

    @pipeline
    def step(x: Any, y: Any) -> Any:
        return zip_ops(_sum(x, y).to_host(), _sum(y, y).on("host:3").to_host())

    array = np.ones((4, 4), np.float32)

    x, y = from_host(array).sync().share(), from_host(array).sync().share()

    def call() -> Any:
        return step(x, y)

    async def awaited() -> Any:
        return await call()

    with use_mesh(mesh(2)):
        results = [call().sync(), call().sync(), trio.run(awaited)]
        assert step.cache_info().currsize == 1
    with use_mesh(mesh(3)):
        results.append(call().sync())
    with pytest.raises(KernelArgumentError, match="on several devices"):
        call().sync()
    assert all((each == 2).all() for result in results for each in result)


def test_results_lie_where_they_were_made() -> None:
    """A result's device is one of the mesh once its run is done; what an op places with `on` stays there."""
    with use_interpreter(StreamInterpreter(policy=Scatter(mesh(2), 3))):
        made, placed = zip_ops(zeros((4, 4)), ones((4, 4)).on("host:5")).sync()
        again, _ = zip_ops(zeros((4, 4)), ones((4, 4)).on("host:5")).sync()
    assert made.device.name in ("host:0", "host:1")
    assert again.device == made.device
    assert placed.device.name == "host:5"


def test_kernels_take_tensors_of_several_devices() -> None:
    """Inputs are copied to where the kernel runs: a device that is chosen, or that of its output. A tensor that is lent
    for writing is written where it is."""
    x, y = ones((4, 4)).on("host:1").sync(), ones((4, 4)).on("host:2").sync()
    written = zeros((4, 4)).on("host:6").sync()
    with use_mesh(mesh(2)):
        there = add(zeros((4, 4)).on("host:4").partition((2, 2)), x.borrow(), y.borrow()).first().unpartition()
        assert moves(plan_of(there)) == 2
        assert there.sync().device.name == "host:4"
        add(written.borrow_mut().partition((2, 2)), x.borrow(), y.borrow()).sync()
        assert (_sum(x, y).to_host().sync() == 2).all()
    assert written.device.name == "host:6"
    assert (written.to_host().sync() == 2).all()


def test_kernels_write_tensors_of_several_devices() -> None:
    """A placement may leave tensors on any devices. A later kernel that writes two of them runs on one device, and each
    stays where it was: owned, or lent. So it is for an op that is in one place while a mesh is in use: in a feed, or on
    a stream."""
    wanted = list(map(bits, _twisted("host:0", "host:0")))
    assert list(map(bits, _twisted("host:0", "host:5"))) == wanted
    x, y = (arange(8, i32).on(f"host:{number}").sync() for number in (3, 5))
    with use_mesh(mesh(2)):
        twist(x.borrow_mut().partition((8,)), y.borrow_mut().partition((8,)), 3).sync()
        one, other = (empty((8,), i32).on(f"host:{number}").partition((8,)) for number in (1, 2))
        blank, _, _ = twist(one, other, 3).sync()
    assert [x.device.name, y.device.name, blank.unpartition().device.name] == ["host:3", "host:5", "host:1"]
    with pytest.raises(KernelArgumentError, match=r"on several devices: x on host:3, y on host:5. Copy them to one"):
        twist(x.borrow_mut().partition((8,)), y.borrow_mut().partition((8,)), 3).sync()
    assert [bits(each.to_host().sync()) for each in (x, y)] == wanted
    far, near = (arange(8, i32).on(f"host:{number}").sync().share() for number in (4, 6))
    added = expr(i32, i32)(lambda a, b: a + b)
    scale = source(np.full(8, 2, np.int32))
    with use_mesh(mesh(2)):
        assert added(far, near).sync_on(device("host:1").stream()).to_host().sync().tolist() == [*range(0, 16, 2)]
        shown = observe(scale.then(from_host).then(partial(added, far)).then(partial(added, near)).to_host())
        assert trio.run(_first_of, shown).tolist() == [*range(2, 18, 2)]


def _twisted(first: str, second: str) -> list[Any]:
    x, y = arange(8, i32).on(first).sync(), arange(8, i32).on(second).sync()
    with use_mesh(mesh(2)):
        one, other, _ = twist(x.partition((8,)), y.partition((8,)), 3).sync()
    tensors = one.unpartition(), other.unpartition()
    assert [each.device.name for each in tensors] == [first, second]
    return [each.to_host().sync() for each in tensors]


async def _first_of(shown: Any) -> Any:
    async with shown as feed:
        return await feed.next()


def moves(plan: Plan) -> int:
    """The number of copies between two devices."""
    executed = [step.instruction for step in plan.steps if isinstance(step, Execute)]
    return sum(peer_of(instruction, plan.buffers) >= 0 for instruction in executed)


def test_ownership_is_that_of_one_device() -> None:
    """A tensor moves once, an op borrows it once to write it, and a graph is of all devices."""
    t = ones((4, 4)).sync()
    with use_mesh(mesh(2)):
        moved = dup(t).sync()
        with pytest.raises(MovedError):
            dup(t)
        lent = moved.borrow_mut()
        with pytest.raises(BorrowError):
            zip_ops(add(lent.partition((2, 2)), ones((4, 4)), ones((4, 4))), dup(moved.borrow())).sync()
        x, y = arange(16).reshape((4, 4)), ones((4, 4))
        graph = ones((4, 4)).schedule(Scatter(mesh(2), 0)).graph()
        graph.launch().sync()
        captured = zip_ops(x.on("host:1"), y.on("host:2")).graph()
        assert [t.device.name for t in captured.take_output()] == ["host:1", "host:2"]


def test_a_feed_is_on_one_device() -> None:
    """Each value of a feed is that of a run at the same source values, also where only a part runs again; `use_mesh`
    and `Spread` leave it on its device."""
    a, b = source(np.ones((4, 4), np.float32)), source(np.ones((4, 4), np.float32))

    async def follow() -> None:
        both = _sum(from_source(b), from_source(b)).schedule(Spread(mesh(2))).to_host()
        op = zip_ops(_sum(from_source(a), from_source(b)).to_host(), both)
        async with observe(op) as feed:
            values = [await anext(feed)]
            a.set(np.full((4, 4), 3, np.float32))
            values.append(await anext(feed))
        assert [[each[0, 0] for each in value] for value in values] == [[2, 2], [4, 2]]

    def from_source(found: Any) -> Any:
        return found.then(from_host)

    with use_interpreter(StreamInterpreter(policy=Scatter(mesh(3), 2))):
        trio.run(follow)


def test_a_memory_limit_is_kept_on_its_device_alone() -> None:
    """Work that needs more bytes on one device gives up its overlap there, and not on the other."""

    def work(limit: Any) -> Any:
        there = [_chain(number).on("host:1") for number in range(6)]
        return zip_ops(*there, *[_chain(number).on("host:0") for number in range(6)]).schedule(
            Spread(mesh(2), memory_limit=limit)
        )

    free = plan_of(work(None))
    limits = {"host:1": 5 << 10}
    tight = plan_of(work(limits))
    assert peak_bytes_on(tight)["host:1"] <= limits["host:1"]
    assert _lanes(tight)["host:1"] < _lanes(free)["host:1"]
    assert _lanes(tight)["host:0"] == _lanes(free)["host:0"]
    with pytest.raises(PlanError, match=r"bytes on host:[01], and the policy's memory_limit is 64"):
        plan_of(work(64))
    assert Spread(mesh(2), memory_limit=limits) == Spread(mesh(2), memory_limit=dict(limits))


def _lanes(plan: Plan) -> dict[str, int]:
    """The number of streams on each device."""
    return {name: sum(lane.device == at for lane in plan.lanes) for at, name in enumerate(plan.devices)}


def _chain(number: int) -> Any:
    return _sum(_sum(full((16, 16), number), ones((16, 16)), 16), ones((16, 16)), 16).to_host()


def _draws(count: int) -> Any:
    """Kernels that have no inputs, and the sum of what they make."""
    made = [step(empty((8,), i32).partition((8,)), 2, number).first().unpartition() for number in range(count)]
    op: Any = zip_ops(*made).then(lambda parts: reduce(_then_added, parts[1:], value(parts[0])))
    return op


def _then_added(op: Any, part: Any) -> Any:
    return op.then(lambda sum_so_far: gather(sum_so_far.partition((8,)), part).first().unpartition())


@pytest.mark.parametrize("costs", [CostModel(), CostModel().declare({"step": 50e-3})], ids=["unknown", "declared"])
def test_kernels_without_inputs_are_spread(costs: CostModel) -> None:
    """Each device gets about as many, though one device wants all of their results in the end: only what is made sooner
    than it is copied is made where it is used."""
    plan = plan_of(_draws(16).schedule(Spread(mesh(4), costs=costs)))
    drawn = [s.instruction for s in plan.steps if isinstance(s, Execute) and not s.instruction.reads]
    found = Counter(each.device for each in drawn if isinstance(each, Launch))
    assert len(found) == 4
    assert max(found.values()) <= 5  # the device that adds them up may have fewer
    quick = plan_of(_draws(16).schedule(Spread(mesh(4), costs=CostModel().declare({"step": 1e-6, "gather": 1e-6}))))
    assert len(quick.devices) == 1


def test_a_report_compares_a_placement_with_the_whole_mesh() -> None:
    """Kernels that all lie on one of four devices take four times the lower bound."""
    costs = CostModel().declare({"step": 50e-3, "gather": 1e-6})
    report = _draws(16).schedule(OnFirst(mesh(4), costs)).explain()
    assert re.search(r"Makespan, predicted: 20\d.\d\d ms, (4.00|3.9\d)x the lower bound 5\d.\d\d ms", report)
    assert "1.00x the lower bound" in _draws(16).schedule(Spread(mesh(4), costs=costs)).explain()


@dataclass(frozen=True)
class OnFirst:
    """Places everything on the first device."""

    mesh: Mesh
    costs: CostModel
    streams: int = 4

    def assign(self, program: Program, mesh: Mesh, /) -> list[int]:
        return [0] * len(program.instructions)

    def place(self, program: Program) -> Any:
        return ListSchedule(self.streams, self.costs).place(program)


def test_small_work_stays_on_one_device() -> None:
    """Copies take time too: what they would delay is not spread. So it is for kernels that are known to be quick: those
    of an expression, and others once their time is declared or learnt. What nothing is known of is spread."""
    plus = expr(f32, f32)(lambda x, y: x + y)

    def tree(add: Any) -> Any:
        one, other = (zip_ops(ones((4, 4)), ones((4, 4))).then(lambda pair: add(*pair)) for _ in range(2))
        return zip_ops(one, other).then(lambda pair: add(*pair))

    def devices_of(op: Any, costs: CostModel) -> int:
        return len(plan_of(op.schedule(Spread(mesh(4), costs=costs))).devices)

    assert devices_of(tree(plus), CostModel(launch=2e-6)) == 1
    assert devices_of(tree(_sum), CostModel()) > 1
    assert devices_of(tree(_sum), CostModel(launch=2e-6).declare({"add": 1e-6})) == 1
    assert devices_of(tree(_sum), CostModel(launch=2e-6).learn([("add", 192, 1e-6)])) == 1


def test_explain_and_the_timeline_show_devices_and_links() -> None:
    """The work and bytes of each device, the copies of each link, and for each copy the device that it comes from."""
    x = ones((4, 4)).on("host:1").sync()
    op = add(zeros((4, 4)).on("host:0").partition((2, 2)), x.borrow(), x.borrow()).first().unpartition()
    text = op.schedule(Spread(mesh(2))).explain()
    assert re.search(r"\nBy device:\ndevice +instructions +time +bytes beyond the inputs\n", text), text
    assert re.search(r"\nhost:1 -> host:0 +1 +64 +7\.7 us", text), text
    with trace() as timeline, use_mesh(mesh(2)):
        op.sync()
    assert "CopyDtoD from host:1" in [piece.label for piece in timeline.runs[0].predicted.pieces]
    assert "By device" not in ones((4, 4)).explain()


def test_links_are_measured() -> None:
    """An op measures the links of a mesh; one device has none, and so the defaults."""
    found = Links.measured(mesh(2)).sync()
    assert found.host == Links().host
    assert found.peer.bandwidth > 0 <= found.peer.latency
    assert Links.measured(mesh(1)).sync() == Links()
    one, other = mesh(2).devices
    assert found.between(one, other) == found.peer
    assert CostModel(links=found) == CostModel(links=found)
