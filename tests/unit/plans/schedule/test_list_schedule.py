"""`ListSchedule`: what it keeps over random programs, and what it chooses in programs made by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.support.makespan_bound import lower_bound
from benchmarks.support.plan_times import simulate
from dagpu import CostModel, ListSchedule, RoundRobin, SingleStream, plan_of, zeros, zip_ops
from dagpu.backends.cuda.commands.transfers import PROMPT_IN
from dagpu.common.errors import PlanError
from dagpu.plans.cost_model import COMPUTE, DOWNLOAD, UPLOAD, engine_of
from dagpu.plans.list_schedule import PROMPT, UPLOAD_STREAMS, Dependences, ListSimulation
from dagpu.plans.policies import OnStream, Placement, SchedulingPolicy, place_program, reordered
from dagpu.testing import (
    HOST,
    Buffer,
    Cell,
    Constant,
    CopyDtoH,
    CopyHtoD,
    Execute,
    Fill,
    Instruction,
    Plan,
    Program,
    Role,
    View,
    Wait,
    contiguous_layout,
    schedule,
    verify,
)
from tests.programs.dag_results import expected, run
from tests.programs.expressions import Expr
from tests.programs.plain_programs import (
    chain,
    conflicts,
    fork_join,
    host_call,
    launch,
    layers,
    output,
    program,
    programs,
    scattered,
    temporary,
)
from tests.programs.strategies import descriptions

COSTS = CostModel(launch=1.0, bandwidth=100.0, host_bandwidth=10.0, host_call=3.0)
"""Seconds that are easy to add: a launch is 1, and 1 for each 100 bytes."""

streams = st.integers(1, 5)


def by(source: Program, policy: SchedulingPolicy) -> Program:
    """The whole program under one policy."""
    return replace(source, policies=(policy,), policy_of=(0,) * len(source.instructions))


def planned(source: Program) -> Plan:
    return schedule(source)


def ordered(source: Program) -> Program:
    """The program in the order that its policies choose."""
    order = place_program(source).order
    return source if order is None else reordered(source, order)


# ---- any program


@given(programs(), streams)
def test_every_program_gets_a_plan_with_no_race_and_no_wait_too_many(source: Program, count: int) -> None:
    """Whatever the program: the plan is proved, which includes that every wait in it is needed. It has no more streams
    than asked for, as a program of `programs` has no copies."""
    plan = planned(by(source, ListSchedule(count, COSTS)))
    verify(plan)
    assert {lane.key for lane in plan.lanes} <= set(range(count))


@given(programs(), streams)
def test_what_depends_on_each_other_keeps_its_order(source: Program, count: int) -> None:
    """Arranging moves each instruction at most past what it has nothing to do with, loses none, and does the same
    every time."""
    given = by(source, ListSchedule(count, COSTS))
    after = ordered(given)
    assert place_program(given) == place_program(given)
    assert sorted(map(id, source.instructions)) == sorted(map(id, after.instructions))
    assert conflicts(source.instructions) == conflicts(after.instructions)


@given(programs(), streams, st.integers(0, 1))
def test_beside_another_policy_each_places_its_own(source: Program, count: int, number: int) -> None:
    """In a program of two policies, one of which asks for an order, the plan is proved too."""
    policies = [RoundRobin(2), RoundRobin(3)]
    policies[number : number + 1] = [ListSchedule(count, COSTS)]  # type: ignore[list-item]  # any policy will do
    policy_of = tuple([at % 2 for at in range(len(source.instructions))])
    verify(planned(replace(source, policies=tuple(policies), policy_of=policy_of)))


@given(programs(), streams)
def test_the_makespan_keeps_grahams_bound(source: Program, count: int) -> None:
    """On one device without copies: at most 2 - 1/m times max(critical path, work / m). Over several devices, the sum
    of their shares takes the place of the one."""
    costs = COSTS
    plan = planned(by(source, ListSchedule(count, costs)))
    bound = lower_bound(source, costs, count)
    times = dict.fromkeys(range(len(source.devices)), 0.0)
    for instruction, seconds in zip(source.instructions, costs.times(source), strict=True):
        times[instruction.device] += seconds / count
    most = sum(times.values()) + bound.critical_path * (1 - 1 / count)
    makespan = simulate(plan, costs).makespan
    assert bound.seconds * (1 - 1e-9) <= makespan <= most * (1 + 1e-9)
    if len(source.devices) == 1:
        assert makespan <= (2 - 1 / count) * max(bound.critical_path, bound.work) * (1 + 1e-9)


@settings(max_examples=40)
@given(descriptions, streams)
def test_a_run_gives_what_numpy_gives(e: Expr, count: int) -> None:
    """Whatever the op and the number of streams: the same bits."""
    assert run(e, ListSchedule(count)) == expected(e)


# ---- chains and branches


def test_a_chain_stays_on_one_stream_in_its_order() -> None:
    """A chain, with the copies at its ends, needs no event, and is not reordered, on whichever device it is."""
    there = piped(1)
    second = program(
        [replace(instruction, device=1) for instruction in there.instructions],
        [buffer if buffer.device == HOST else replace(buffer, device=1) for buffer in there.buffers],
    )
    for source in (by(chain(100), ListSchedule()), by(there, ListSchedule()), by(second, ListSchedule())):
        after = ordered(source)
        assert source.instructions == after.instructions
        plan = schedule(source)
        assert len(plan.lanes) == 1
        assert plan.events == 0


def test_a_program_of_nothing_is_placed() -> None:
    """There is nothing to place."""
    assert ListSchedule().place(program([], [])) == Placement(())


def test_a_policy_of_ones_own_may_ask_another_one() -> None:
    """A placement is a sequence of lane keys, and its policy places all of a program that has other policies."""
    source = fork_join(3, SingleStream(), depth=2)
    found = ListSchedule(3, COSTS).place(source)
    assert len(found) == len(source.instructions)
    assert found.keys == list(found)
    assert found.keys[:4] == found[:4]
    assert len(set(found)) == 3


def test_work_goes_on_where_the_latest_of_its_producers_ran() -> None:
    """An instruction takes the free stream of one of its producers, so that it waits for the other producers alone."""
    source = program(
        [*[launch((), (n,)) for n in range(3)], launch((0, 1), (3,))], [output()] * 4, ListSchedule(3, COSTS)
    )
    plan = planned(source)
    lane_of = {step.instruction.writes[0]: step.lane for step in plan.steps if isinstance(step, Execute)}
    assert len({lane_of[n] for n in range(3)}) == 3
    assert lane_of[3] == lane_of[1]
    assert sum(isinstance(step, Wait) for step in plan.steps) == 1


def loop_of_large_fills(count: int, seed: int) -> Program:
    """Return a loop: each step fills a tensor, some of them large, and reads it together with one or two of the last
    steps' tensors.
    """
    random = Random(seed)
    instructions: list[Instruction] = []
    buffers: list[Buffer] = []
    made: list[int] = []
    for _ in range(count):
        fresh = len(buffers)
        buffers += [temporary(random.choice([100, 1000, 3000])), temporary(100)]
        instructions.append(launch((), (fresh,)))
        instructions.append(launch((fresh, *random.sample(made, min(len(made), random.randint(1, 2)))), (fresh + 1,)))
        made = [*made[-6:], fresh + 1]
    return program(instructions, buffers)


def test_leaves_are_made_early_only_where_that_is_much_faster() -> None:
    """To make what is cheap early holds more memory. So a schedule that does is taken where it is faster by a twentieth
    of its time, or where the other passes the bound of list scheduling; else leaves are held back."""
    early = late = 0
    for seed in range(60):
        source, count = loop_of_large_fills(60, seed), Random(seed).randint(2, 4)
        times, unknown = COSTS.estimates(source)
        on = Dependences(source, times, unknown=unknown)
        lower, graham = on.bounds(count)
        held = ListSimulation(on, count, list(range(on.count)), hold_back=True)
        if held.makespan > 1.05 * lower:
            held = min(held, ListSimulation(on, count, on.by_path(), hold_back=True), key=lambda each: each.makespan)
        eager = ListSimulation(on, count, on.by_path(), hold_back=False)
        gains = eager.makespan < held.makespan and held.makespan > 1.05 * lower
        much = gains and (held.makespan > graham or eager.makespan * 1.05 <= held.makespan)
        early, late = early + much, late + (gains and not much)
        expected, policy = eager if much else held, ListSchedule(count, COSTS, runs=0)
        assert Placement(expected.keys, expected.order) == policy.place(by(source, policy))
    assert early > 10
    assert late > 0


@pytest.mark.parametrize("branches", [2, 3, 4, 8])
def test_each_branch_stays_on_its_stream(branches: int) -> None:
    """The chains of a fork-join change no stream on their way: what waits is the branches' heads, and the join."""
    plan = planned(fork_join(branches, ListSchedule(4), depth=10))
    lane_of = {step.instruction.writes[0]: step.lane for step in plan.steps if isinstance(step, Execute)}
    for first in range(1, branches * 10, 10):
        assert len({lane_of[buffer] for buffer in range(first, first + 10)}) == 1
    used = min(branches, 4)
    assert len(plan.lanes) == used
    assert sum(isinstance(step, Wait) for step in plan.steps) == 2 * (used - 1)


def test_more_branches_than_streams_finish_a_few_at_a_time() -> None:
    """At most four of 40 equal chains are under way at the same time, in program order, so that little memory is
    held."""
    plan = planned(fork_join(40, ListSchedule(4), depth=5))
    order = [step.instruction.writes[0] for step in plan.steps if isinstance(step, Execute)]
    branch = [(buffer - 1) // 5 for buffer in order[1:-1]]
    for at, number in enumerate(branch):
        assert number <= at // 5 + 3


def test_the_longest_path_goes_first_where_it_matters() -> None:
    """One long chain that the program has last, behind short work: program order would take 1.5 times the bound."""
    short = [launch((), (n,)) for n in range(10)]
    long = [launch((10 + n - 1,) if n else (), (10 + n,)) for n in range(10)]
    source = program([*short, *long], [output()] * 20, ListSchedule(2, COSTS))
    bound = lower_bound(source, COSTS, 2)
    assert bound.seconds == pytest.approx(simulate(planned(source), COSTS).makespan)
    in_program_order = Placement(ListSchedule(2, COSTS).place(source).keys)
    assert simulate(schedule(source, in_program_order), COSTS).makespan >= bound.seconds


def test_what_is_cheap_to_make_late_is_not_made_early() -> None:
    """Each step of a loop fills a fresh tensor: that runs beside the step before, and not sooner."""
    fills = [launch((), (n,)) for n in range(1, 101)]
    steps = [launch((n - 1,), (n,)) for n in range(1, 101)]
    both = [instruction for pair in zip(fills, steps, strict=True) for instruction in pair]
    source = program([launch((), (0,)), *both], [*[temporary()] * 100, output()], ListSchedule(4, COSTS))
    after = ordered(source)
    for at, instruction in enumerate(after.instructions):
        if not instruction.reads and instruction.writes[0]:
            assert abs(at - 2 * instruction.writes[0]) <= 2
    assert simulate(schedule(source), COSTS).makespan <= 1.05 * lower_bound(source, COSTS, 4).seconds


def test_independent_ops_overlap_by_default() -> None:
    """With nothing said, branches of a `zip_ops` are on streams of their own."""
    plan = plan_of(zip_ops(zeros((4,)), zeros((5,)), zeros((6,))))
    assert len(plan.lanes) == 3


def test_an_attempt_is_given_up_only_if_it_is_late() -> None:
    """One with a limit ends as one without, or it is sure to take longer than that; and then it mostly stops early."""
    given_up = 0
    for seed in range(20):
        source = scattered(300, seed)
        on = Dependences(source, COSTS.times(source))
        whole = ListSimulation(on, 2, on.by_path(), hold_back=True)
        for share in (0.5, 0.9, 1.0, 1.1):
            found = ListSimulation(on, 2, on.by_path(), hold_back=True, limit=share * whole.makespan)
            if found.makespan < math.inf:
                assert (whole.keys, whole.order, whole.makespan) == (found.keys, found.order, found.makespan)
            else:
                assert share < 1
                given_up += len(found.order) < 300
    assert given_up > 20


# ---- copies


def piped(parts: int, *policies: SchedulingPolicy) -> Program:
    """For each part: an array is copied in, worked on, and copied out. 100 bytes each."""
    layout = contiguous_layout((100,), np.dtype(np.int8))
    instructions: list[Instruction] = []
    buffers: list[Buffer] = []
    for part in range(parts):
        cell, there, made, back = range(4 * part, 4 * part + 4)
        buffers += [
            Buffer(0, HOST, Role.INPUT), temporary(100), temporary(100), Buffer(0, HOST, Role.OUTPUT)
        ]  # fmt: skip
        instructions += [
            CopyHtoD(View(there, layout), Cell(cell), (cell,), (there,), 0, None),
            launch((there,), (made,)),
            CopyDtoH(Cell(back), View(made, layout), (made,), (back,), 0, None),
        ]
    return program(instructions, buffers, *policies, kind="cuda")


def test_copies_run_beside_the_work() -> None:
    """Copies each way have a stream to themselves: three kinds of work go on at once, at the pace of the slowest."""
    source = piped(8, ListSchedule(2, COSTS))
    plan = planned(source)
    keys = {
        engine_of(s.instruction, plan.buffers, [False]): {plan.lanes[s.lane].key}
        for s in plan.steps
        if isinstance(s, Execute)
    }
    assert keys[UPLOAD] == {2}
    assert keys[DOWNLOAD] == {4}
    # A copy takes 1 + 100 / 10 = 11 seconds, a launch 1 + 200 / 100 = 3; the last part has to get through.
    assert simulate(plan, COSTS).makespan == pytest.approx(8 * 11 + 3 + 11)
    assert simulate(schedule(piped(8)), COSTS).makespan == pytest.approx(8 * (11 + 3 + 11))


def test_copies_one_way_take_turns() -> None:
    """However many streams copies are spread over, the device has one engine for each direction."""
    plan = schedule(piped(4, RoundRobin(4)))
    timing = simulate(plan, COSTS)
    spans = [
        (start, end)
        for step, start, end in zip(plan.steps, timing.starts, timing.ends, strict=True)
        if isinstance(step, Execute) and engine_of(step.instruction, plan.buffers, [False]) == 1
    ]
    assert all(first[1] <= second[0] for first, second in pairwise(sorted(spans)))


def uploads(sizes: Sequence[int], *policies: SchedulingPolicy) -> Program:
    """Return a program of an upload of each of these sizes, with a launch behind each."""
    instructions: list[Instruction] = []
    buffers: list[Buffer] = []
    for nbytes in sizes:
        cell, there, made = range(len(buffers), len(buffers) + 3)
        buffers += [Buffer(0, HOST, Role.INPUT), temporary(nbytes), output()]
        view = View(there, contiguous_layout((nbytes,), np.dtype(np.int8)))
        instructions += [CopyHtoD(view, Cell(cell), (cell,), (there,), 0, None), launch((there,), (made,))]
    return program(instructions, buffers, *policies, kind="cuda")


@given(st.lists(st.sampled_from((1 << 10, 300_000, 1 << 20, 5 << 20, 1 << 26)), min_size=2, max_size=40))
def test_large_uploads_are_dealt_out(sizes: list[int]) -> None:
    """Over two streams, evenly but for one copy and the small ones; what one thread stages anyway has one stream. Each
    launch waits for its own upload, as it does where these have one stream."""
    plan = planned(uploads(sizes, ListSchedule()))
    verify(plan)
    taken: dict[int, int] = {}
    for step in plan.steps:
        if isinstance(step, Execute) and isinstance(step.instruction, CopyHtoD):
            taken[step.lane] = taken.get(step.lane, 0) + step.instruction.out.layout.nbytes
    assert PROMPT == PROMPT_IN
    assert len(taken) <= (UPLOAD_STREAMS if sum(sizes) > PROMPT else 1)
    least = min(taken.values()) if len(taken) == UPLOAD_STREAMS else 0
    small = sum(size for size in sizes if size < 2 << 20)
    assert max(taken.values()) <= max(least + small + max(sizes), PROMPT)
    assert sum(isinstance(step, Wait) for step in plan.steps) == len(sizes)


@pytest.mark.parametrize("nbytes", [1 << 22, 1 << 24])
@pytest.mark.parametrize("count", [8, 16, 32])
def test_arrays_of_ordinary_memory_are_uploaded_beside_each_other(count: int, nbytes: int) -> None:
    """Where each stream stages its own arrays, as devices of a host do it in a simulation, kernels of unknown cost
    behind uploads take at most twice as long as by four streams, however long they take; with one stream it would be
    four times."""
    plans = [planned(uploads([nbytes] * count, policy)) for policy in (ListSchedule(), RoundRobin(4))]
    for seconds in (1e-5, 1e-4, 1e-3, 1e-2):
        true = CostModel(host_bandwidth=4e9).declare({"step": seconds})
        made, other = [simulate(replace(plan, devices=("host:0",)), true).makespan for plan in plans]
        assert made <= 2 * other


# ---- policies and limits


def test_a_stream_of_ones_own_is_kept() -> None:
    """An instruction that another policy put on a stream stays there. The rest is arranged around it."""
    mine = OnStream("host:0", "mine")
    source = replace(fork_join(4, depth=2), policies=(ListSchedule(4, COSTS), mine), policy_of=(0,) * 9 + (1,))
    plan = planned(source)
    verify(plan)
    last = next(s for s in plan.steps if isinstance(s, Execute) and s.instruction is source.instructions[-1])
    assert plan.lanes[last.lane].key == "mine"


def test_a_policy_without_an_order_leaves_the_program_as_it_is() -> None:
    """Only a policy that returns a `Placement` with an order changes the order of a program."""
    source = layers(4, 4, SingleStream())
    assert ordered(source) is source


def test_a_policy_of_ones_own_may_choose_the_order() -> None:
    """The program's other policies then place the instructions in that order."""

    class Backwards:
        def place(self, program: Program) -> Placement:
            count = len(program.instructions)
            return Placement(["back"] * count, range(count - 1, -1, -1))

    launches = [launch((), (n,)) for n in range(6)]
    source = program(launches, [output()] * 6, RoundRobin(2), Backwards(), policy_of=(0, 0, 0, 1, 1, 1))
    placement = place_program(source)
    assert placement == Placement([0, 1, 0, "back", "back", "back"], range(5, -1, -1))
    plan = schedule(source)
    verify(plan)
    assert [step.instruction for step in plan.steps if isinstance(step, Execute)] == launches[::-1]


def test_a_memory_limit_trades_overlap_for_memory() -> None:
    """A plan that would take more waits for memory, or gives up streams; one that cannot fit is refused."""
    source = fork_join(8, depth=3)
    free = planned(by(source, ListSchedule(8)))
    tight = planned(by(source, ListSchedule(8, memory_limit=free.peak_bytes - 1)))
    verify(tight)
    assert tight.peak_bytes < free.peak_bytes
    assert len(tight.lanes) <= len(free.lanes)
    with pytest.raises(PlanError, match="memory_limit is 64"):
        planned(by(source, ListSchedule(8, memory_limit=64)))


def test_policies_are_compared_by_value() -> None:
    """Equal streams and costs mean the same choices."""
    assert ListSchedule(2, CostModel().declare({"f": 1.0})) == ListSchedule(2, CostModel().declare({"f": 1.0}))
    assert ListSchedule(2) != ListSchedule(2, CostModel().declare({"f": 1.0}))
    assert len({ListSchedule(), ListSchedule(4), ListSchedule(3)}) == 2


def test_a_policy_needs_a_stream() -> None:
    """No streams are refused when the policy is made."""
    with pytest.raises(ValueError, match=r"ListSchedule at .*: streams is 0, but a whole number, 1 or more, is wanted"):
        ListSchedule(0)


# ---- the cost model


def test_costs_count_bytes_at_a_bandwidth() -> None:
    """Each kind of instruction takes its launch and its bytes; a host call the time of handing it over."""
    source = piped(1)
    up, work, down = source.instructions
    assert pytest.approx(COSTS.times(source)) == [11.0, 3.0, 11.0]
    assert [COSTS.nbytes(instruction, source) for instruction in (up, work, down)] == [100, 200, 100]
    fill = Fill(View(1, contiguous_layout((50,), np.dtype(np.int16))), Constant(0), (), (1,), 0, None)
    assert COSTS.seconds(fill, source) == pytest.approx(2.0)
    assert COSTS.seconds(host_call((), 0), source) == 3.0
    assert engine_of(fill, source.buffers, [False]) == COMPUTE


def test_a_declared_time_takes_the_place_of_the_bytes() -> None:
    """By the kernel's name; the launch is added, and other kernels are as before."""
    source = chain(1)
    assert COSTS.declare({"step": 5.0}).times(source) == [6.0]
    assert COSTS.declare({"other": 5.0}).times(source) == COSTS.times(source)
    assert COSTS.declare({"step": 5.0}).learn([("step", 64, 7.0)]).times(source) == [6.0]


def test_counted_bytes_take_the_place_of_the_views() -> None:
    """By the kernel's name, for the time at the bandwidth and for measured times; a declared time stays as it is."""
    source = chain(1)  # writes 64 bytes
    counted = COSTS.count({"step": 300, "other": 7})
    assert [counted.nbytes(each, source) for each in source.instructions] == [300]
    assert counted.times(source) == [1.0 + 3.0]
    assert counted.count({"step": 100}).times(source) == [1.0 + 1.0]
    assert counted.learn([("step", 150, 12.0)]).times(source) == [1.0 + 20.0]
    assert counted.declare({"step": 5.0}).times(source) == [6.0]


def test_measured_times_are_averaged_and_on_lines() -> None:
    """Equal bytes give the mean; what is between two sizes that have been measured is on the line between them."""
    source = chain(1)  # writes 64 bytes
    learnt = COSTS.learn([("step", 64, 2.0), ("step", 64, 4.0)])
    assert learnt.times(source) == [1.0 + 3.0]
    assert learnt.learn([("step", 64, 6.0)]).times(source) == [1.0 + 4.0]
    assert COSTS.learn([("step", 32, 2.0), ("step", 160, 10.0)]).times(source) == [1.0 + 4.0]
    assert COSTS.learn([("step", 32, 12.0)]).times(source) == [1.0 + 20.0]  # four launches, and 8 for each 32 bytes
    assert COSTS.times(source) == [1.0 + 0.64]


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_times_that_are_none_are_refused(seconds: float) -> None:
    """A value that is not a time is refused when it is given, with the kernel's name."""
    with pytest.raises(ValueError, match=r"the time of step is .* but a number of seconds"):
        CostModel().declare({"step": seconds})
    with pytest.raises(ValueError, match=r"the time of step is .* but a number of seconds"):
        CostModel().learn([("step", 64, seconds)])


def test_a_bandwidth_is_more_than_nothing() -> None:
    """Bytes at no bandwidth would never arrive."""
    with pytest.raises(ValueError, match="bandwidth is 0, but a number of bytes a second, more than 0, is wanted"):
        CostModel(bandwidth=0)


def test_the_bound_is_the_path_or_the_work() -> None:
    """A diamond of seconds 1: the path is 3; four on one stream are 4."""
    source = fork_join(2)
    flat = CostModel(launch=1.0, bandwidth=1e30)
    assert lower_bound(source, flat, 2).seconds == pytest.approx(3.0)
    assert lower_bound(source, flat, 1).seconds == pytest.approx(4.0)
    assert simulate(planned(by(source, ListSchedule(2, flat))), flat).makespan == pytest.approx(3.0)
    assert simulate(schedule(source), flat).makespan == pytest.approx(4.0)


@final
class Ordered:
    """A policy that returns a fixed order, on one stream."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order

    def place(self, program: Program) -> Placement:
        return Placement([0] * len(program.instructions), self._order)


@given(programs(), st.data())
def test_an_order_keeps_dependences_or_is_refused(source: Program, data: st.DataObject) -> None:
    """A permutation in which an instruction comes before one that it depends on is a `PlanError`; no other one is."""
    count = len(source.instructions)
    order = data.draw(st.permutations(range(count)))
    position = {index: at for at, index in enumerate(order)}
    before = source.accesses.predecessors
    kept = all(position[one] < position[index] for index, found in enumerate(before) for one in found)
    placed = by(source, Ordered(order))
    if kept:
        verify(schedule(placed))
    else:
        with pytest.raises(PlanError, match="comes before instruction"):
            schedule(placed)


@pytest.mark.parametrize("order", [(), (0, 1), (0, 0, 1), (0, 1, 3), (-1, 0, 1), (0, 1, 2, 1)])
def test_an_order_has_every_instruction_once(order: Sequence[int]) -> None:
    """An order that omits, repeats or invents an instruction is a `PlanError`."""
    with pytest.raises(PlanError, match="does not have each of the 3 instructions once"):
        schedule(by(chain(3), Ordered(order)))
