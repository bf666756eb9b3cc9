"""The placement of memory: reused or not, in place, within a limit, and reported before a run begins."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import RoundRobin, StreamInterpreter, f32, from_host, plan_of, use_interpreter, zeros, zip_ops
from dagpu.common.errors import OutOfMemoryError, PlanError
from dagpu.plans.fitting import fit
from dagpu.plans.memory import alive_at_peak, place_in_spans, place_in_units
from dagpu.plans.policies import Placement, reordered
from dagpu.plans.scheduler import as_placed
from dagpu.testing import (
    ALIGNMENT,
    HOST,
    Allocate,
    Buffer,
    Execute,
    HostBackend,
    Launch,
    Plan,
    Program,
    Record,
    Role,
    Tiles,
    View,
    Wait,
    contiguous_layout,
    schedule,
    verify,
)
from tests.programs.alive import most_alive
from tests.programs.arithmetic import add, scale
from tests.programs.plain_programs import (
    Keys,
    chain,
    conflicts,
    fork_join,
    launch,
    layers,
    output,
    program,
    programs,
    scattered,
    sized,
    temporary,
)
from tests.unit.plans.memory.in_place_kernels import SHAPE, double_beside, double_over, doubled_by, numbers

MIB = 1 << 20


# ---- how little


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("shape", ["chain", "fork", "layers", "random"])
def test_the_arena_is_hardly_larger_than_what_is_alive_at_once(shape: str, lanes: int) -> None:
    """Buffers of many sizes: within 1.15 of the most bytes that some execution of the plan holds at once, taken over
    some programs; within 1.25 in each of them."""
    policy = RoundRobin(lanes)
    taken = needed = 0
    for seed in range(4):
        source = {
            "chain": lambda: chain(150, policy),
            "fork": lambda: fork_join(12, policy, depth=6),
            "layers": lambda: layers(8, 20, policy),
            "random": lambda: scattered(150, seed, policy),  # noqa: B023  # called at once
        }[shape]()
        plan = schedule(sized(source, seed))
        verify(plan)
        least = most_alive(plan)
        assert plan.arena_bytes[0] <= 1.25 * least
        taken, needed = taken + plan.arena_bytes[0], needed + least
    assert taken <= 1.15 * needed


@settings(max_examples=40)
@given(programs(max_instructions=30))
def test_no_arena_is_smaller_than_what_is_alive_at_once(source: Program) -> None:
    """The bound is one: no plan that verifies is below it, whatever its sizes."""
    plan = schedule(sized(source, 1))
    verify(plan)
    for device, nbytes in enumerate(plan.arena_bytes):
        assert nbytes > most_alive(plan, device) - ALIGNMENT


def test_a_chain_needs_two_places() -> None:
    """However long it is."""
    plan = schedule(chain(100))
    assert set(plan.offsets[:-1]) == {0, ALIGNMENT}
    assert plan.offsets[-1] == -1  # it is handed out
    assert plan.arena_bytes == (ALIGNMENT + 64,)


def test_a_place_is_used_again_across_lanes_only_where_an_order_is_there() -> None:
    """Lane 1 waits for lane 0 because it reads from it: then it may have what ended there before; lane 2 may not."""
    # lane 0: 0 -> 1 -> 2; lane 1 reads 2 and writes 3; lane 2 writes 4 on its own
    source = program(
        [launch((), (0,)), launch((0,), (1,)), launch((1,), (2,)), launch((2,), (3,), 0), launch((), (4,))],
        [temporary()] * 5,
        Keys((0, 0, 0, 1, 2)),
    )
    plan = schedule(source)
    verify(plan)
    assert plan.offsets[3] in plan.offsets[:2]
    assert plan.offsets[4] not in plan.offsets[:4]
    assert plan.events == 1  # and no wait for the sake of memory


def test_small_buffers_fill_the_hole_of_a_large_one() -> None:
    """Bytes are used again in parts, and parts that have come free are one hole again."""
    sizes = [4096, 512, 512, 3072, 4096]
    source = program(
        [
            launch((), (0,)), launch((0,), ()), launch((), (1, 2, 3)), launch((1, 2, 3), ()),
            launch((), (4,)), launch((4,), ()),
        ],
        [temporary(size) for size in sizes],
    )  # fmt: skip
    plan = schedule(source)
    verify(plan)
    assert plan.arena_bytes == (4096,)


def test_empty_buffers_take_nothing() -> None:
    """A temporary of no bytes has a place, which is nobody's."""
    plan = schedule(program([launch((), (0, 1))], [temporary(0), temporary(0)]))
    verify(plan)
    assert plan.arena_bytes == (0,)
    assert plan.peak_bytes == 0


@settings(max_examples=50)
@given(programs(max_instructions=20))
def test_the_peak_is_what_a_run_takes(source: Program) -> None:
    """The arenas and the results; temporaries lie in arenas, nothing else does."""
    plan = schedule(source)
    used = {step.buffer for step in plan.steps if isinstance(step, Allocate)}
    for number, buffer in enumerate(plan.buffers):
        inside = number in used and buffer.role is Role.TEMPORARY
        assert (plan.offsets[number] >= 0) == inside
    results = sum(b.nbytes for b in plan.buffers if b.role is Role.OUTPUT and b.device != HOST)
    assert plan.peak_bytes == sum(plan.arena_bytes) + results


def _forks(limit: int | None) -> Program:
    return replace(
        fork_join(16, RoundRobin(4, memory_limit=limit), depth=4), buffers=(temporary(MIB),) * 65 + (output(MIB),)
    )


# ---- a limit


def test_a_memory_limit_makes_lanes_wait() -> None:
    """A lane waits for the bytes of another one before all lanes but one are given up; what fits is left as it is."""
    free = schedule(_forks(None))
    tight = schedule(_forks(free.peak_bytes - 1))
    verify(tight)
    assert len(tight.lanes) > 1
    assert tight.peak_bytes < free.peak_bytes
    assert schedule(_forks(free.peak_bytes)) == replace(free)


@given(programs(max_instructions=30), st.integers(0, 1 << 16), st.integers(1, 5))
@settings(max_examples=100)
def test_lanes_that_wait_take_what_their_order_takes_on_one_lane(source: Program, seed: int, lanes: int) -> None:
    """Whatever the lanes of the instructions are. The verifier accepts every such plan, so each wait is needed."""
    draw = Random(seed)
    placed = sized(source, seed)
    keys = [draw.randrange(lanes) for _ in placed.instructions]
    plan = as_placed(placed, Placement(keys).one_by_one())
    verify(plan)
    alone = as_placed(placed, Placement([0] * len(keys)))
    assert plan.peak_bytes <= alone.peak_bytes


def test_an_order_that_goes_depth_first_takes_less() -> None:
    """Leaves first, and then their sums: within a limit each pair is summed as soon as it is there."""
    leaves = 32
    instructions = [launch((), (leaf,)) for leaf in range(leaves)]
    ends = list(range(leaves))
    while len(ends) > 1:
        for one, other in zip(ends[::2], ends[1::2], strict=True):
            instructions.append(launch((one, other), (len(instructions),)))
        ends = list(range(len(instructions) - len(ends) // 2, len(instructions)))
    buffers = [temporary(MIB)] * (len(instructions) - 1) + [output(MIB)]
    assert schedule(program(instructions, buffers, RoundRobin(4))).peak_bytes > leaves * MIB
    plan = schedule(program(instructions, buffers, RoundRobin(4, memory_limit=8 * MIB)))
    verify(plan)
    assert plan.peak_bytes <= 8 * MIB
    assert len(instructions) == sum(isinstance(step, Execute) for step in plan.steps)


@given(programs(max_instructions=25), st.integers(0, 5000))
@settings(max_examples=60)
def test_whatever_the_limit_a_plan_keeps_it_or_is_refused(source: Program, limit: int) -> None:
    """A plan keeps its memory limit or is refused. The plan verifies: its buffers allow the order of its
    instructions."""
    limited = replace(source, policies=(RoundRobin(4, memory_limit=limit),), policy_of=(0,) * len(source.instructions))
    try:
        plan = schedule(limited)
    except PlanError as error:
        assert "memory_limit" in str(error)  # noqa: PT017  # which of the two comes is not known
        return
    verify(plan)
    assert plan.peak_bytes <= limit


@given(programs(max_instructions=25))
@settings(max_examples=60)
def test_whatever_order_a_limit_asks_for_keeps_what_depends_on_each_other(source: Program) -> None:
    """Each program that is tried has all instructions, and each behind every earlier one whose buffers it reads or
    writes. (A plan cannot show it: in another order of a write and a read it would be the plan of another program.)"""
    limited = replace(source, policies=(RoundRobin(4, memory_limit=0),), policy_of=(0,) * len(source.instructions))
    plan = replace(schedule(source), peak_bytes=1)  # whatever is made takes too much, so everything is tried
    tried: list[Program] = []

    def make(other: Program, placement: Placement) -> Plan:
        tried.append(other if placement.order is None else reordered(other, placement.order))
        return plan

    with pytest.raises(PlanError, match="memory_limit"):
        fit(limited, Placement(RoundRobin(4).place(limited)), make)
    assert len(tried) >= 2
    for other in tried:
        assert sorted(map(id, source.instructions)) == sorted(map(id, other.instructions))
        assert conflicts(source.instructions) == conflicts(other.instructions)


@pytest.mark.parametrize("spare", [0, 1, 1 << 40])
def test_a_plan_that_keeps_its_limit_is_left_as_it_is(spare: int) -> None:
    """However much less it takes: no other placement is tried."""
    plan = schedule(_forks(None))
    source = _forks(plan.peak_bytes + spare)

    made: list[Plan] = []

    def make(source: Program, placement: Placement) -> Plan:
        made.append(plan)
        return plan

    assert fit(source, Placement(RoundRobin(4).place(source)), make).plan is plan
    assert len(made) == 1


def test_a_limit_that_cannot_be_kept_is_said_before_the_run() -> None:
    """With what it takes, the limit, and what is alive at the peak."""
    with pytest.raises(
        PlanError, match=r"takes [\d,]+ bytes, and the policy's memory_limit is 1,048,576.*Alive at once: Launch step"
    ):
        schedule(_forks(MIB))


# ---- too little


def test_what_is_alive_at_the_peak_comes_largest_first() -> None:
    """Each with the instruction that first writes it."""
    first, second, third = launch((), (0,)), launch((0,), (1,)), launch((1,), (2,))
    plan = schedule(program([first, second, third], [temporary(10), temporary(1000), temporary(5)]))
    assert alive_at_peak(plan, 0) == [(Buffer(1000, 0, Role.TEMPORARY), second), (Buffer(10, 0, Role.TEMPORARY), first)]


def test_a_run_that_cannot_fit_begins_nothing() -> None:
    """The error names the ops that are alive at the peak, with their lines; the op may be run again."""
    ran: list[int] = []
    huge = (1 << 30, 1 << 28)
    op = zip_ops(
        zeros((4, 4)).to_host().host_map(lambda a: ran.append(1)),
        add(zeros(huge).partition((1, 1)), zeros(huge), zeros(huge)),
    )
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=r"alive at the peak: .*Fill at .*test_memory_plan.py:\d+"):
            op.sync()
    assert ran == []


def test_the_host_runs_in_the_arena() -> None:
    """A plan that puts two living buffers at one place gives wrong results on the host as well."""
    backend = HostBackend()
    op = add(zeros((4, 4)).partition((4, 4)), from_host(np.ones((4, 4), f32)), from_host(np.full((4, 4), 2, f32)))
    plan = plan_of(op.first().unpartition().to_host())

    def run(plan: Plan) -> Any:
        bindings: list[Any] = [None] * len(plan.buffers)
        arrays = iter([np.ones((4, 4), f32), np.full((4, 4), 2, f32)])
        for number, buffer in enumerate(plan.buffers):
            if buffer.role is Role.INPUT:
                bindings[number] = next(arrays)
        run = backend.prepare(plan).submit(bindings)
        assert run.wait(30)
        assert not run.failures()
        (result,) = [bindings[n] for n, b in enumerate(plan.buffers) if b.role is Role.OUTPUT]
        return result

    assert (run(plan) == 3).all()
    wrong = replace(plan, offsets=tuple(min(offset, 0) for offset in plan.offsets))
    assert (run(wrong) != 3).all()


@settings(max_examples=20)
@given(st.integers(0, 3), st.integers(1, 3))
def test_in_place_and_overlap_give_the_same_numbers(depth: int, lanes: int) -> None:
    """Branches of kernels that work in place beside others, whatever the lanes."""
    with use_interpreter(StreamInterpreter(policy=RoundRobin(lanes))):
        root = from_host(numbers() % 8).shared()
        branches = []
        for k in (double_over, double_beside, double_over):
            op: Any = doubled_by(k, root)
            for _ in range(depth):
                op = doubled_by(k, op)
            branches.append(scale(zeros(SHAPE).partition((16, 16)), 1.0, op).first().unpartition().to_host())
        for result in zip_ops(*branches).sync():
            assert (result == np.fmod(numbers() % 8 * 2 ** (depth + 1), 64)).all()


@st.composite
def _in_place_programs(draw: st.DrawFn) -> Program:
    """Launches of kernels that may work in place and of some that may not, all over tensors of one shape."""
    layout = contiguous_layout((256,), np.dtype(f32))
    instructions = []
    for out in range(draw(st.integers(1, 25))):
        kernel = draw(st.sampled_from([double_over, double_over, double_beside])).spec
        reads = tuple(draw(st.lists(st.integers(0, out - 1), max_size=2, unique=True))) if out else ()
        args = (Tiles(View(out, layout), (256,), (1,)), *[View(buffer, layout) for buffer in reads])
        instructions.append(Launch(kernel, args, (1,), reads, (out,), 0, None))
    lanes = draw(st.tuples(*[st.integers(0, 3)] * len(instructions)))
    return program(instructions, [temporary(1024)] * len(instructions), Keys(lanes))


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 3), st.randoms(use_true_random=False))
def test_a_map_of_units_places_as_spans_do(count: int, most: int, random: Random) -> None:
    """The two ways to place by size find the same offsets, and both give up above the same top."""
    upper = np.array([[random.random() < 0.4 for _ in range(count)] for _ in range(count)])
    beside = upper | upper.T | np.eye(count, dtype=bool)
    sizes = np.array([512 * random.randint(0, most) for _ in range(count)])
    order = random.sample(range(count), count)
    top = int(sizes.sum()) // random.choice((1, 1, 2, 4))
    by_units, by_spans = place_in_units(order, beside, sizes, top, 512), place_in_spans(order, beside, sizes, top)
    if by_units is None or by_spans is None:
        assert by_units is by_spans
    else:
        assert by_units.tolist() == by_spans.tolist()


@settings(max_examples=80)
@given(_in_place_programs(), st.randoms(use_true_random=False))
def test_every_read_finds_what_was_written(source: Program, random: Random) -> None:
    """Played in any order that lanes and events allow, each launch reads its inputs, and nothing else, there."""
    plan = schedule(source)
    verify(plan)
    queues = [[step for step in plan.steps if step.lane == lane] for lane in range(len(plan.lanes))]
    recorded: set[int] = set()
    bytes_at: dict[int, int] = {}
    while any(queues):
        ready = [q for q in queues if q and not (isinstance(q[0], Wait) and q[0].event not in recorded)]
        step = random.choice(ready).pop(0)
        if isinstance(step, Record):
            recorded.add(step.event)
        elif isinstance(step, Execute):
            for buffer in step.instruction.reads:
                assert bytes_at[plan.offsets[buffer]] == buffer
            for buffer in step.instruction.writes:
                bytes_at[plan.offsets[buffer]] = buffer
