"""The verifier: it passes what the scheduler makes, and refuses what is broken or orders too much."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dagpu.common.errors import PlanError
from dagpu.common.places import Origin, describe, here
from dagpu.plans.policies import RoundRobin
from dagpu.plans.verifier import name_of
from dagpu.testing import (
    HOST,
    Allocate,
    Buffer,
    Execute,
    Lane,
    Plan,
    Record,
    Release,
    Role,
    Step,
    Wait,
    schedule,
    verify,
)
from tests.programs.plain_programs import (
    Keys,
    fork_join,
    host_call,
    launch,
    output,
    program,
    programs,
    short_lived,
    temporary,
)

plans = programs(max_instructions=25).map(schedule)


def _passes(plan: Plan) -> bool:
    try:
        verify(plan)
    except PlanError:
        return False
    return True


# ---- an independent judge: transitive closure with sets ---------------------------------------


def _before(plan: Plan, without: int = -1) -> list[set[int]] | None:
    """For each step, all that happen before it; None where an event is not recorded once before its waits."""
    last: dict[int, int] = {}
    record: dict[int, int] = {}
    before: list[set[int]] = []
    for at, step in enumerate(plan.steps):
        parents = [last[step.lane]] if step.lane in last else []
        if isinstance(step, Record):
            if step.event in record:
                return None
            record[step.event] = at
        if isinstance(step, Wait):
            if step.event not in record:
                return None
            if at != without:
                parents.append(record[step.event])
        last[step.lane] = at
        before.append(set().union(*[before[p] | {p} for p in parents]))
    return before if record.keys() == set(range(plan.events)) else None


def _sound(plan: Plan, before: list[set[int]]) -> bool:
    """Invariants 1 and 2 by the book: every pair of accesses, every buffer."""
    for number, buffer in enumerate(plan.buffers):
        allocates = [at for at, s in enumerate(plan.steps) if isinstance(s, Allocate) and s.buffer == number]
        releases = [at for at, s in enumerate(plan.steps) if isinstance(s, Release) and s.buffer == number]
        runs = [(at, s.instruction) for at, s in enumerate(plan.steps) if isinstance(s, Execute)]
        reads = [at for at, instruction in runs if number in instruction.reads]
        writes = [at for at, instruction in runs if number in instruction.writes]
        touches = {*reads, *writes}
        held = buffer.device != HOST and buffer.role is not Role.INPUT
        if held:
            if len(allocates) > 1 or (touches and not allocates) or (buffer.role is Role.OUTPUT and not allocates):
                return False
            if len(releases) != (len(allocates) if buffer.role is Role.TEMPORARY else 0):
                return False
        elif allocates or releases:
            return False
        if buffer.role is Role.OUTPUT and buffer.device == HOST and not writes:
            return False
        for first in allocates:
            if not all(first in before[at] for at in (*touches, *releases)):
                return False
        for end in releases:
            if not all(at in before[end] for at in touches):
                return False
        if any(a != b and a not in before[b] and b not in before[a] for a in writes for b in touches):
            return False
        if buffer.role is not Role.INPUT and any(not before[at].intersection(writes) for at in reads):
            return False
    return True


def _apart(plan: Plan, before: list[set[int]]) -> bool:
    """Invariants 3 and 5 by the book: every pair of temporaries that share bytes, every sum."""
    spans: dict[int, tuple[int, int]] = {}
    for at, step in enumerate(plan.steps):
        if isinstance(step, Allocate) and plan.buffers[step.buffer].role is Role.TEMPORARY:
            spans[step.buffer] = at, at
        if isinstance(step, Release):
            spans[step.buffer] = spans[step.buffer][0], at
    for one, (start, end) in spans.items():
        for other, (begin, finish) in spans.items():
            here, there = plan.buffers[one], plan.buffers[other]
            low, high = plan.offsets[one], plan.offsets[other]
            shared = low < high + there.nbytes and high < low + here.nbytes and here.device == there.device
            if one != other and shared and end not in before[begin] and finish not in before[start]:
                return False
    ends = [0] * len(plan.devices)
    for buffer, about in enumerate(plan.buffers):
        if (plan.offsets[buffer] >= 0) != (buffer in spans) or plan.offsets[buffer] < -1:
            return False
        if buffer in spans:
            ends[about.device] = max(ends[about.device], plan.offsets[buffer] + about.nbytes)
    handed_out = sum(b.nbytes for b in plan.buffers if b.role is Role.OUTPUT and b.device != HOST)
    return tuple(ends) == plan.arena_bytes and sum(ends) + handed_out == plan.peak_bytes


def _judge(plan: Plan) -> bool:
    """All the invariants that `verify` claims, each by its definition."""
    for step in plan.steps:
        if isinstance(step, Execute) and step.instruction.device != plan.lanes[step.lane].device:
            return False
    before = _before(plan)
    if before is None or not _sound(plan, before) or not _apart(plan, before):
        return False
    for at, step in enumerate(plan.steps):
        if isinstance(step, Wait):
            less = _before(plan, without=at)
            assert less is not None
            if _sound(plan, less):
                return False
    return True


@st.composite
def mutated(draw: st.DrawFn) -> Plan:
    """A scheduled plan, changed in one to three places."""
    plan = draw(plans)
    assume(plan.steps)
    steps: list[Step] = list(plan.steps)
    for _ in range(draw(st.integers(1, 3))):
        if not steps:
            break
        at = draw(st.integers(0, len(steps) - 1))
        match draw(st.sampled_from(["drop", "repeat", "swap", "move", "lane", "wait", "place"])):
            case "place":
                plan = _placed(plan, draw(st.integers(0, len(plan.buffers) - 1)), 512 * draw(st.integers(0, 5)))
            case "drop":
                del steps[at]
            case "repeat":
                steps.insert(draw(st.integers(0, len(steps))), steps[at])
            case "swap":
                steps[at : at + 2] = reversed(steps[at : at + 2])
            case "move":
                steps.insert(draw(st.integers(0, len(steps) - 1)), steps.pop(at))
            case "lane":
                steps[at] = replace(steps[at], lane=draw(st.integers(0, len(plan.lanes) - 1)))
            case _:
                if plan.events:
                    event = draw(st.integers(0, plan.events - 1))
                    steps.insert(at, Wait(event, draw(st.integers(0, len(plan.lanes) - 1))))
    return replace(plan, steps=tuple(steps))


def _placed(plan: Plan, buffer: int, offset: int) -> Plan:
    """Return the same plan with a temporary at another place in its arena, and with corrected sums."""
    if plan.offsets[buffer] < 0:
        return plan
    offsets = (*plan.offsets[:buffer], offset, *plan.offsets[buffer + 1 :])
    ends = [0] * len(plan.devices)
    for about, at in zip(plan.buffers, offsets, strict=True):
        if at >= 0:
            ends[about.device] = max(ends[about.device], at + about.nbytes)
    peak = plan.peak_bytes - sum(plan.arena_bytes) + sum(ends)
    return replace(plan, offsets=offsets, arena_bytes=tuple(ends), peak_bytes=peak)


@given(mutated())
def test_verdicts_agree_with_the_definitions(plan: Plan) -> None:
    """On plans changed at random, the verdict is that of a transitive closure over all pairs of accesses."""
    assert _judge(plan) == _passes(plan)


@given(short_lived().map(schedule))
def test_verdicts_on_shared_bytes_agree_with_the_definitions(plan: Plan) -> None:
    """One temporary may have the place of another just where its allocation comes after the other's release."""
    held = [buffer for buffer, offset in enumerate(plan.offsets) if offset >= 0][:8]
    for one in held:
        for other in held:
            if plan.buffers[one].device == plan.buffers[other].device:
                moved = _placed(plan, one, plan.offsets[other])
                assert _judge(moved) == _passes(moved)


@given(plans)
def test_scheduled_plans_pass_by_the_definitions(plan: Plan) -> None:
    """The plans of the scheduler keep the invariants as they are defined, not only as they are verified."""
    assert _judge(plan)


@given(st.data())
def test_no_wait_can_be_left_out(data: st.DataObject) -> None:
    """Removing any one wait of a scheduled plan is caught, as two accesses that nothing orders."""
    plan = data.draw(plans)
    waits = [at for at, step in enumerate(plan.steps) if isinstance(step, Wait)]
    for at in waits:
        with pytest.raises(PlanError, match="nothing orders them"):
            verify(_without(plan, at))


@given(plans)
def test_memory_steps_are_all_needed_and_all_unique(plan: Plan) -> None:
    """Dropping or repeating any allocation, release or record is caught."""
    for at, step in enumerate(plan.steps):
        if isinstance(step, Allocate | Release | Record):
            assert not _passes(_without(plan, at))
            assert not _passes(_with(plan, at + 1, step))


@given(st.data())
def test_a_wait_too_many_is_caught(data: st.DataObject) -> None:
    """A second wait for an event, anywhere behind the first on its lane, is refused as not needed."""
    plan = data.draw(plans)
    waits = [at for at, step in enumerate(plan.steps) if isinstance(step, Wait)]
    assume(waits)
    at = data.draw(st.sampled_from(waits))
    again = data.draw(st.integers(at + 1, len(plan.steps)))
    with pytest.raises(PlanError, match=r"is not needed: all is ordered without it"):
        verify(_with(plan, again, plan.steps[at]))


@given(plans)
def test_neighbours_that_depend_on_each_other_cannot_change_places(plan: Plan) -> None:
    """Swapping neighbours on a lane is caught where the second needs the first."""
    for at in range(len(plan.steps) - 1):
        first, second = plan.steps[at], plan.steps[at + 1]
        if first.lane != second.lane:
            continue
        match first, second:
            case (Allocate(buffer, _), Execute(instruction, _)) if buffer in instruction.writes:
                pass
            case (Execute(instruction, _), Release(buffer, _)) if buffer in (
                *instruction.reads,
                *instruction.writes,
            ):
                pass
            case (Execute(), Record()) | (Wait(), Execute()):
                pass
            case (Execute(earlier, _), Execute(later, _)) if _defines(plan, at) & set(later.reads):
                assert set(earlier.writes) & set(later.reads)
            case _:
                continue
        steps = list(plan.steps)
        steps[at], steps[at + 1] = second, first
        assert not _passes(replace(plan, steps=tuple(steps)))


def _defines(plan: Plan, at: int) -> set[int]:
    """The buffers that have no value before step `at` writes them."""
    known = {b for b, buffer in enumerate(plan.buffers) if buffer.role is Role.INPUT}
    for step in plan.steps[:at]:
        if isinstance(step, Execute):
            known.update(step.instruction.writes)
    step = plan.steps[at]
    assert isinstance(step, Execute)
    return set(step.instruction.writes) - known


def _without(plan: Plan, at: int) -> Plan:
    return replace(plan, steps=plan.steps[:at] + plan.steps[at + 1 :])


def _with(plan: Plan, at: int, step: Step) -> Plan:
    return replace(plan, steps=(*plan.steps[:at], step, *plan.steps[at:]))


# ---- waits that only pass word on -------------------------------------------------------------


def _relay(*, direct: bool) -> Plan:
    """Lane 0 writes an input, lane 2 reads it; word goes through lane 1, and, if `direct`, straight too."""
    write, read = launch((), (0,)), launch((0,), ())
    steps: list[Step] = [
        Execute(write, 0),
        Record(0, 0),
        Wait(0, 1),
        Record(1, 1),
        Wait(1, 2),
        *([Wait(0, 2)] if direct else []),
        Execute(read, 2),
    ]
    lanes = tuple(Lane(0, key) for key in range(3))
    return Plan(("host:0",), lanes, (Buffer(8, 0, Role.INPUT),), tuple(steps), 2, 0, (-1,), (0,))


def test_a_wait_that_only_passes_word_on_is_needed() -> None:
    """A lane may wait for no step of its own, where another lane learns of the event through it."""
    verify(_relay(direct=False))


def test_two_ways_for_one_word_are_one_too_many() -> None:
    """If an ordering holds by two paths, the waits of either can be left out, and the first is named."""
    with pytest.raises(PlanError, match=r"step 3 \(Wait of event 0, lane 1.*is not needed"):
        verify(_relay(direct=True))


# ---- messages ---------------------------------------------------------------------------------


def _two_lanes() -> Plan:
    """0 Allocate, 1 Launch, 2 Record on lane 0; 3 Wait, 4 Launch, 5 Release on lane 1."""
    origin = _origin()
    source = program(
        [launch((), (0,), 0, origin), launch((0,), (1,), 0, origin)],
        [temporary(), Buffer(8, 0, Role.INPUT)],
        Keys((0, 1)),
    )
    return schedule(source)


def _origin() -> Origin:
    return here()


def _refusal(plan: Plan) -> str:
    with pytest.raises(PlanError) as caught:
        verify(plan)
    message = str(caught.value)
    assert message.endswith("report it together with what print(plan) shows.")
    return message.partition(" The plan is at fault")[0]


def _replaced(plan: Plan, at: int, step: Step) -> Plan:
    return replace(plan, steps=(*plan.steps[:at], step, *plan.steps[at + 1 :]))


def test_unordered_accesses_are_named_with_their_origins() -> None:
    """Both steps, their lanes, files and lines, and the buffer."""
    message = _refusal(_without(_two_lanes(), 3))
    assert message.startswith("step 2 (Launch step, lane 0, at /")
    assert "test_verify.py:" in message
    assert " and step 4 (Launch step, lane 1, at /" in message
    assert message.endswith("both use buffer 0, not both to read it, and nothing orders them.")


def test_each_misuse_of_memory_is_told_apart() -> None:
    """Absent, blank, released, twice, foreign: each message says which."""
    plan = _two_lanes()
    used = plan.steps[4]
    assert "which is not allocated yet" in _refusal(_without(plan, 0))
    assert "writes buffer 0" in _refusal(_without(plan, 0))
    assert "reads buffer 0, which nothing has written yet" in _refusal(_replaced(plan, 1, Execute(launch((), ()), 0)))
    assert "which step 6 (Release of buffer 0" in _refusal(_with(plan, 6, used))
    assert "which step 6 (Release of buffer 0" in _refusal(_with(plan, 6, Release(0, 1)))
    assert "which step 1 (Allocate of buffer 0" in _refusal(_with(plan, 1, Allocate(0, 0)))
    assert "is never released" in _refusal(_without(plan, 5))
    assert "allocates buffer 1, which is an input" in _refusal(_with(plan, 0, Allocate(1, 0)))
    assert "releases buffer 1, which is an input" in _refusal(_with(plan, 6, Release(1, 0)))
    assert "releases buffer 9, but the plan has 2 buffers" in _refusal(_with(plan, 6, Release(9, 0)))
    assert "reads buffer -1, but the plan has 2 buffers" in _refusal(_with(plan, 6, Execute(launch((-1,), ()), 0)))


def test_what_is_handed_out_is_neither_missing_nor_released() -> None:
    """Outputs: device memory has been allocated, a cell written, and no release takes it back."""
    plan = schedule(program([launch((), (0,))], [output()]))
    assert "buffer 0 is handed out but never allocated" in _refusal(replace(plan, steps=()))
    assert "releases buffer 0, which is handed out" in _refusal(_with(plan, 2, Release(0, 0)))
    plan = schedule(program([host_call((), 0)], [Buffer(0, HOST, Role.OUTPUT)]))
    assert "buffer 0 is handed out but never written" in _refusal(replace(plan, steps=()))
    assert "releases buffer 0, which is a cell" in _refusal(_with(plan, 1, Release(0, 0)))


def test_each_misuse_of_events_is_told_apart() -> None:
    """Before its record, recorded twice or never, out of range, not needed."""
    plan = _two_lanes()
    assert "comes before any record of event 0" in _refusal(_without(plan, 2))
    assert "event 0 is recorded twice: by step 3 (Record of event 0" in _refusal(_with(plan, 3, Record(0, 0)))
    assert "event 1 is never recorded" in _refusal(replace(plan, events=2))
    assert "the plan has 1 events" in _refusal(_with(plan, 3, Record(1, 0)))
    assert "is not needed: all is ordered without it" in _refusal(_with(plan, 3, Wait(0, 0)))


def test_numbers_must_refer_to_something() -> None:
    """Lanes and buffers lie on devices of the plan, steps on its lanes, instructions on their own device."""
    plan = _two_lanes()
    assert "is on lane 2 of 2" in _refusal(_replaced(plan, 1, replace(plan.steps[1], lane=2)))
    assert "lane 0 is on device 1 of 1" in _refusal(replace(plan, lanes=(Lane(1, 0), Lane(0, 1))))
    assert "buffer 0 has 64 bytes on device 3 of 1" in _refusal(
        replace(plan, buffers=(temporary(64, 3), plan.buffers[1]))
    )
    assert "belongs on device 0, but its lane is on device 1" in _refusal(
        replace(plan, devices=("host:0", "host:1"), lanes=(Lane(0, 0), Lane(1, 1)), arena_bytes=(64, 0))
    )


@pytest.mark.parametrize("number", [-1, 2, 9])
def test_no_step_refers_to_what_is_not_there(number: int) -> None:
    """A number below the first or above the last is refused in every kind of step. (To Python, -1 is the last.)"""
    plan = _two_lanes()
    accesses: dict[str, Step] = {
        "reads": Execute(launch((number,), ()), 0),
        "writes": Execute(launch((), (number,)), 0),
        "allocates": Allocate(number, 0),
        "releases": Release(number, 0),
    }
    for verb, step in accesses.items():
        assert f"{verb} buffer {number}, but the plan has 2 buffers" in _refusal(_with(plan, 2, step))
    assert "the plan has 1 events" in _refusal(_with(plan, 3, Record(number, 0)))
    assert f"comes before any record of event {number}" in _refusal(_with(plan, 3, Wait(number, 0)))
    for at, step in enumerate(plan.steps):
        assert f"is on lane {number} of 2" in _refusal(_replaced(plan, at, replace(step, lane=number)))


def test_a_step_is_named_with_the_instruction_that_it_serves() -> None:
    """A buffer's step is named with the first instruction that uses the buffer, a record with the one before it in its
    lane, and a wait with the one after it.
    """
    origin = _origin()
    source = program(
        [launch((), (0,), 0, origin), host_call((0,), 1)], [temporary(), Buffer(0, HOST, Role.OUTPUT)], Keys((0, 1))
    )
    plan = schedule(source)
    first, second = f", for Launch step at {describe(origin)})", ", for HostCall len at "
    for at, (text, served) in enumerate(
        [
            ("step 1 (Allocate of buffer 0, lane 0", first),
            ("step 2 (Launch step, lane 0, at ", describe(origin)),
            ("step 3 (Record of event 0, lane 0", first),
            ("step 4 (Wait of event 0, lane 1", second),
            ("step 5 (HostCall len, lane 1, at ", ""),
            ("step 6 (Release of buffer 0, lane 1", first),
        ]
    ):
        assert name_of(plan, at).startswith(text + served)
    assert name_of(replace(plan, steps=plan.steps[2:]), 0) == "step 1 (Record of event 0, lane 0)"


def test_an_unused_buffer_needs_no_memory() -> None:
    """A temporary that nothing touches is neither allocated nor missed."""
    verify(schedule(program([launch((), (0,))], [temporary(), temporary()])))


def test_a_join_of_many_lanes_verifies() -> None:
    """Groups of many waits are settled together."""
    verify(schedule(fork_join(40, RoundRobin(40), depth=2)))
