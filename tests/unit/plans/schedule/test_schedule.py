"""The scheduler: what it places around the instructions, over hand-made and random programs."""

import sys
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.common.errors import DagpuError, PlanError
from dagpu.common.places import Origin, here
from dagpu.plans.list_schedule import ListSchedule
from dagpu.plans.policies import OnStream, RoundRobin, SchedulingPolicy, SingleStream
from dagpu.testing import (
    HOST,
    Allocate,
    Buffer,
    Execute,
    Lane,
    Plan,
    Program,
    Record,
    Release,
    Role,
    Wait,
    schedule,
    verify,
)
from tests.programs.plain_programs import (
    Keys,
    chain,
    fork_join,
    host_call,
    launch,
    layers,
    output,
    program,
    programs,
    temporary,
)


def _count(plan: Plan) -> Counter[str]:
    return Counter(type(step).__name__ for step in plan.steps)


@given(programs())
def test_every_program_schedules_to_a_plan_that_verifies(source: Program) -> None:
    """Any program under any placement gives a plan that keeps every invariant."""
    verify(schedule(source))


@given(programs(), st.sampled_from([SingleStream(), RoundRobin(1), RoundRobin(), RoundRobin(7)]))
def test_given_policies_place_every_program(source: Program, policy: SchedulingPolicy) -> None:
    """The given policies schedule every program to a plan that keeps every invariant."""
    placed = Program(source.devices, source.buffers, source.instructions, (policy,), (0,) * len(source.instructions))
    verify(schedule(placed))


@given(programs())
def test_instructions_stay_in_program_order(source: Program) -> None:
    """A plan executes each instruction once, in the order of the program, on a lane of its device."""
    plan = schedule(source)
    executed = [step for step in plan.steps if isinstance(step, Execute)]
    assert list(source.instructions) == [step.instruction for step in executed]
    assert all(plan.lanes[step.lane].device == step.instruction.device for step in executed)


@given(programs())
def test_memory_is_held_for_what_is_used(source: Program) -> None:
    """Temporaries that are used and all outputs are allocated; the temporaries alone are released."""
    plan = schedule(source)
    written = {b for i in source.instructions for b in i.writes}
    on_device = {b for b, buffer in enumerate(source.buffers) if buffer.device != HOST}
    temporaries = {b for b in on_device & written if source.buffers[b].role is Role.TEMPORARY}
    outputs = {b for b in on_device if source.buffers[b].role is Role.OUTPUT}
    allocated = [step.buffer for step in plan.steps if isinstance(step, Allocate)]
    released = [step.buffer for step in plan.steps if isinstance(step, Release)]
    assert sorted(temporaries | outputs) == sorted(allocated)
    assert sorted(temporaries) == sorted(released)


@given(programs(), st.randoms(use_true_random=False))
def test_peak_bytes_bounds_every_execution(source: Program, random: Random) -> None:
    """Whatever order the lanes advance in, the bytes held never exceed `peak_bytes`."""
    plan = schedule(source)
    queues = [[step for step in plan.steps if step.lane == lane] for lane in range(len(plan.lanes))]
    recorded: set[int] = set()
    held = peak = 0
    while any(queues):
        ready = [q for q in queues if q and not (isinstance(q[0], Wait) and q[0].event not in recorded)]
        step = random.choice(ready).pop(0)
        match step:
            case Record():
                recorded.add(step.event)
            case Allocate():
                held += plan.buffers[step.buffer].nbytes
                peak = max(peak, held)
            case Release():
                held -= plan.buffers[step.buffer].nbytes
            case _:
                pass
    assert peak <= plan.peak_bytes


@given(programs())
def test_scheduling_is_deterministic(source: Program) -> None:
    """The same program always gives the same plan."""
    assert schedule(source) == schedule(source)


@pytest.mark.parametrize("policy", [SingleStream(), RoundRobin(4)])
def test_a_chain_needs_no_event(policy: SchedulingPolicy) -> None:
    """A chain stays on one lane, holds two buffers at a time and needs no event."""
    plan = schedule(chain(100, policy))
    assert _count(plan) == {"Allocate": 100, "Execute": 100, "Release": 99}
    assert plan.events == 0
    assert plan.lanes == (Lane(0, 0),)
    assert plan.arena_bytes == (512 + 64,)  # two places, 512 bytes apart
    assert plan.peak_bytes == 512 + 64 + 64


@pytest.mark.parametrize("branches", [2, 3, 4])
def test_a_fork_join_waits_as_little_as_can_be(branches: int) -> None:
    """With a lane for each branch, k - 1 branches wait for the root and the join waits for k - 1 branches."""
    plan = schedule(fork_join(branches, RoundRobin(branches), depth=5))
    assert len(plan.lanes) == branches
    assert _count(plan)["Wait"] == 2 * (branches - 1)
    assert plan.events == branches  # the root's is shared


def test_a_wide_join_waits_once_for_each_lane() -> None:
    """A join of 100 branches over 4 lanes waits for the last branch of each of the other 3."""
    plan = schedule(fork_join(100, RoundRobin(4)))
    assert _count(plan)["Wait"] == 3 + 3


def test_one_lane_needs_no_events_at_all() -> None:
    """One stream on one device orders everything by itself."""
    assert schedule(layers(8, 8, SingleStream())).events == 0


def test_a_wait_that_another_covers_is_left_out() -> None:
    """C needs A and B, on three lanes; B has waited for A: C waits for B alone."""
    #  A -> B -> C, and A -> C
    source = program([launch((), (0,)), launch((0,), (1,)), launch((0, 1), (2,))], [temporary()] * 3, Keys((0, 1, 2)))
    plan = schedule(source)
    assert next(step for step in plan.steps if step.lane == 2) == Wait(1, 2)
    assert _count(plan)["Wait"] == 2


def test_a_wait_that_the_lane_has_made_is_left_out() -> None:
    """A lane that has waited for an instruction once does not wait for it again."""
    source = program([launch((), (0,)), launch((0,), (1,)), launch((0,), (2,))], [temporary()] * 3, Keys((0, 1, 1)))
    assert _count(schedule(source))["Wait"] == 1


def test_a_write_waits_for_the_readers_before_it() -> None:
    """Overwriting waits for whoever still reads: here across lanes, and for a cell as for device memory."""
    for buffer in (temporary(), Buffer(0, HOST, Role.TEMPORARY)):
        first = launch((), (0,))
        source = program([first, launch((0,), (1,)), launch((), (0,))], [buffer, output()], Keys((0, 1, 0)))
        plan = schedule(source)
        assert _count(plan)["Wait"] == 2
        verify(plan)


def test_cells_are_ordered_and_not_allocated() -> None:
    """A host call's result is waited for like any other, and has no memory in the plan."""
    cell = Buffer(0, HOST, Role.TEMPORARY)
    plan = schedule(program([host_call((), 0), host_call((0,), 1)], [cell, cell], Keys((0, 1))))
    assert _count(plan) == {"Execute": 2, "Record": 1, "Wait": 1}


def test_shared_memory_is_released_where_the_readers_meet() -> None:
    """A buffer that two lanes read is released where a later join has seen both, with no wait added."""
    plan = schedule(fork_join(2, RoundRobin(2)))
    release = plan.steps.index(next(s for s in plan.steps if isinstance(s, Release) and s.buffer == 0))
    join = max(at for at, step in enumerate(plan.steps) if isinstance(step, Execute))
    assert isinstance(plan.steps[release - 1], Wait)
    assert release < join
    assert plan.steps[release].lane == plan.steps[join].lane


def test_shared_memory_whose_readers_meet_only_on_a_third_lane_is_released_there() -> None:
    """Readers on lanes 1 and 2 are joined on lane 3, long before the end: the release stands at the join."""
    source = program(
        [launch((), (0,)), launch((0,), (1,)), launch((0,), (2,)), launch((1, 2), (3,)), launch((3,), (3,))],
        [temporary()] * 4,
        Keys((0, 1, 2, 3, 3)),
    )
    plan = schedule(source)
    verify(plan)
    assert Release(0, 3) in plan.steps
    assert plan.steps.index(Release(0, 3)) < plan.steps.index(Execute(source.instructions[3], 3))


def test_shared_memory_whose_readers_never_meet_is_released_at_the_end() -> None:
    """If no lane sees all the readers, the release comes last, after the one wait that it needs."""
    source = program(
        [launch((), (0,)), launch((0,), (1,)), launch((0,), (2,))],
        [temporary(), output(), output()],
        Keys((0, 0, 1)),
    )
    plan = schedule(source)
    verify(plan)
    assert isinstance(plan.steps[-2], Wait)
    assert isinstance(plan.steps[-1], Release)


def test_an_output_that_nothing_writes_is_allocated() -> None:
    """Memory that is handed out as it is gets a lane of its device, even in an empty program."""
    plan = schedule(Program(("host:0", "host:1"), (output(64, 1),), (), (SingleStream(),), ()))
    assert plan.steps == (Allocate(0, 0),)
    assert plan.lanes == (Lane(1, 0),)
    assert plan.peak_bytes == 64


def test_equal_keys_on_two_devices_are_two_lanes() -> None:
    """Lanes are per device: a single stream on each of two devices makes two lanes."""
    plan = schedule(program([launch((), (0,)), launch((), (1,), 1)], [output(), output(8, 1)], SingleStream()))
    assert plan.lanes == (Lane(0, 0), Lane(1, 0))


def test_each_policy_places_what_the_program_gives_it() -> None:
    """Two policies in one program: each instruction is where its own policy puts it."""
    stream = OnStream("host:0", "mine")
    source = program(
        [launch((), (0,)), launch((0,), (1,)), launch((1,), (2,))],
        [temporary(), temporary(), output()],
        RoundRobin(2),
        stream,
        policy_of=(0, 1, 0),
    )
    plan = schedule(source)
    verify(plan)
    assert plan.lanes == (Lane(0, 0), Lane(0, "mine"), Lane(0, 1))


def test_an_explicit_stream_minds_only_its_own_instructions() -> None:
    """Work on another device under another policy does not concern the stream."""
    source = program(
        [launch((), (0,), 1), launch((), (1,))],
        [output(8, 1), output()],
        SingleStream(),
        OnStream("host:0", "mine"),
        policy_of=(0, 1),
    )
    verify(schedule(source))


def test_an_explicit_stream_refuses_another_device() -> None:
    """The error names the instruction, where it was built, both devices and the cure."""
    source = program([launch((), (0,), 1, _origin())], [output(8, 1)], OnStream("host:0", 5))
    with pytest.raises(DagpuError, match=r"Launch step, built at .*test_schedule.py:\d+, belongs on host:1") as caught:
        schedule(source)
    assert "give a stream of host:1" in str(caught.value)


def test_round_robin_refuses_no_streams() -> None:
    """A policy without a stream is refused when it is made."""
    with pytest.raises(ValueError, match=r"RoundRobin at .*: streams is 0, but a whole number, 1 or more, is wanted"):
        RoundRobin(0)
    for wrong in (2.0, True):  # they are equal to numbers of streams, whose plans they would be given
        with pytest.raises(
            TypeError, match=r"RoundRobin at .*: streams is .*, but a whole number, 1 or more, is wanted"
        ):
            RoundRobin(wrong)  # type: ignore[arg-type]  # reason: wrong on purpose
        with pytest.raises(TypeError, match=r"ListSchedule at .*: streams is .*, but a whole number, 1 or more, is w"):
            ListSchedule(wrong)  # type: ignore[arg-type]  # reason: wrong on purpose


def test_a_policy_must_place_every_instruction() -> None:
    """A policy that returns too few keys is named."""
    with pytest.raises(PlanError, match=r"Keys\(keys=\(0,\)\) placed 1 of 2 instructions; its `place` must"):
        schedule(program([launch((), (0,)), launch((0,), (0,))], [temporary()], Keys((0,))))


def test_round_robin_takes_turns_on_each_device() -> None:
    """Independent work goes round the streams of each device by itself."""
    source = program([launch((), (i,), i % 2) for i in range(6)], [output(8, i % 2) for i in range(6)])
    assert list(RoundRobin(2).place(source)) == [0, 0, 1, 1, 0, 0]


def test_round_robin_goes_on_from_the_latest_producer_once() -> None:
    """A join stays with the latest branch; the other branch's stream is free for the next who reads it."""
    source = program(
        [launch((), (0,)), launch((), (1,)), launch((0, 1), (2,)), launch((0,), (3,)), launch((1,), (4,))],
        [temporary()] * 5,
    )
    assert list(RoundRobin(4).place(source)) == [0, 1, 1, 0, 2]


def test_round_robin_goes_on_from_who_wrote_what_is_written_again() -> None:
    """A launch that overwrites a buffer follows the one that wrote it before, as if it read it."""
    source = program([launch((), (0,)), launch((), (1,)), launch((), (0,))], [output()] * 2)
    assert list(RoundRobin(4).place(source)) == [0, 1, 0]


def test_round_robin_goes_on_from_producers_on_the_same_device_alone() -> None:
    """The stream of a launch does not depend on producers on another device: the next stream in turn is taken."""
    for near, far in ((0, 1), (1, 0)):
        source = program(
            [launch((), (0,), far), launch((), (1,), far), launch((1,), (2,), near)],
            [output(8, far), output(8, far), output(8, near)],
        )
        assert list(RoundRobin(4).place(source)) == [0, 1, 0]


def _origin() -> Origin:
    return here()


@pytest.mark.parametrize("shape", ["chain", "fork", "layers"])
def test_the_work_of_planning_is_linear(shape: str) -> None:
    """Scheduling and verifying 5,000 instructions make ten times the calls that 500 make."""

    def calls(count: int) -> int:
        policy = RoundRobin(4)
        source = {
            "chain": lambda: chain(count, policy),
            "fork": lambda: fork_join(count - 2, policy),
            "layers": lambda: layers(8, count // 8, policy),
        }[shape]()
        made = 0

        def count_call(_frame: object, event: str, _argument: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count_call)
        try:
            verify(schedule(source))
        finally:
            sys.setprofile(before)
        return made

    assert calls(5_000) < 11 * calls(500)


def test_plans_print_without_recursion_and_in_full() -> None:
    """A line for each instruction or step and for each buffer, with lanes, events, bytes and origins."""
    source = program(
        [launch((), (0,), 0, _origin()), host_call((0,), 1)],
        [temporary(2048), Buffer(0, HOST, Role.OUTPUT)],
        Keys((0, "mine")),
    )
    text = str(schedule(source))
    assert text.startswith("Plan: 6 steps, 2 lanes, 1 event, 2,048 bytes beyond its inputs, devices: host:0\n")
    for part in (
        "Launch step",
        "HostCall len",
        "Record e0",
        "Wait e0",
        "host:0/own-1",
        "b0 -> c1",
        "test_schedule.py:",
    ):
        assert part in text
    rows = [line.split() for line in text.splitlines()]
    executed = [row for row in rows if "Launch" in row or "HostCall" in row]
    assert executed[0][1:8] == ["1", "Launch", "step", "host:0/0", "->", "b0", "2,048"]
    assert executed[1][1:7] == ["2", "HostCall", "len", "host:0/own-1", "b0", "->"]
    assert "0" not in executed[1][1:]  # a cell has no bytes
    assert rows[-2:] == [["b0", "host:0", "temporary", "2,048", "0"], ["c1", "cell", "output"]]
    text = str(source)
    assert text.startswith("Program: 2 instructions, 2 buffers, devices: host:0\n")
    assert "Keys(keys=(0, 'mine'))" in text
    long = chain(10_000, SingleStream())
    assert len(str(schedule(long)).splitlines()) == 1 + 1 + 29_999 + 1 + 1 + 10_000
    assert len(str(long).splitlines()) == 1 + 1 + 10_000 + 1 + 1 + 10_000
