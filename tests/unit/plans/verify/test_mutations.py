"""Mutation tests of the verifier: whatever is broken in a plan of a random program, it says so.

Plans are those of random programs under several policies, and of random ops as they are traced.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dagpu import StreamInterpreter, plan_of, use_interpreter
from dagpu.common.errors import PlanError
from dagpu.testing import HOST, Allocate, Execute, Plan, Program, Record, Release, Role, Step, Wait, schedule, verify
from tests.programs.expressions import Building, Expr, build
from tests.programs.plain_programs import programs
from tests.programs.strategies import descriptions, policies


def _place(source: Program, policy: Any) -> Plan:
    placed = replace(source, policies=(policy,), policy_of=(0,) * len(source.instructions))
    return schedule(placed)


def _trace(e: Expr, policy: Any) -> Plan:
    with use_interpreter(StreamInterpreter(policy=policy)):
        return plan_of(build(e, Building()).to_host())


plans = st.one_of(
    programs(max_instructions=25).map(schedule),
    st.builds(_place, programs(max_instructions=25), policies),
    st.builds(_trace, descriptions, policies),
)


def _refused(plan: Plan) -> str:
    with pytest.raises(PlanError) as caught:
        verify(plan)
    return str(caught.value)


def _with_steps(plan: Plan, steps: list[Step]) -> Plan:
    return replace(plan, steps=tuple(steps))


def _touches(step: Step, buffer: int) -> bool:
    return isinstance(step, Execute) and buffer in (*step.instruction.reads, *step.instruction.writes)


def _conflict(one: Step, other: Step) -> bool:
    """Return True if two steps use the same buffer and at least one of them writes it."""
    if isinstance(one, Execute) and isinstance(other, Execute):
        a, b = one.instruction, other.instruction
        writes = {*a.writes} & {*b.writes, *b.reads} | {*b.writes} & {*a.reads}
        return bool(writes)
    if isinstance(one, Allocate | Release):
        return _touches(other, one.buffer) or (isinstance(other, Allocate | Release) and one.buffer == other.buffer)
    return isinstance(other, Allocate | Release) and _touches(one, other.buffer)


@settings(max_examples=60)
@given(plans)
def test_any_wait_removed_is_caught(plan: Plan) -> None:
    """Each is needed: two steps that nothing orders any more are named, with their origins."""
    for at, step in enumerate(plan.steps):
        if isinstance(step, Wait):
            assert " and nothing orders " in _refused(_with_steps(plan, [*plan.steps[:at], *plan.steps[at + 1 :]]))


@settings(max_examples=25)
@given(plans, st.data())
def test_a_wait_added_is_caught(plan: Plan, data: st.DataObject) -> None:
    """One more wait, for any event on any lane anywhere behind its record, is either needless or makes another so."""
    records = [at for at, step in enumerate(plan.steps) if isinstance(step, Record)]
    assume(records)
    at = data.draw(st.sampled_from(records))
    record = plan.steps[at]
    assert isinstance(record, Record)
    place = data.draw(st.integers(at + 1, len(plan.steps)))
    wait = Wait(record.event, data.draw(st.integers(0, len(plan.lanes) - 1)))
    assert "is not needed" in _refused(_with_steps(plan, [*plan.steps[:place], wait, *plan.steps[place:]]))


def _swaps(plan: Plan) -> Iterator[tuple[int, int]]:
    """Pairs of steps that conflict, the first of which the second needs."""
    known = {b for b, buffer in enumerate(plan.buffers) if buffer.role is Role.INPUT}
    for at, step in enumerate(plan.steps):
        fresh = {*step.instruction.writes} - known if isinstance(step, Execute) else set()
        for later in range(at + 1, len(plan.steps)):
            other = plan.steps[later]
            runs = isinstance(step, Execute) and isinstance(other, Execute)
            reads = isinstance(other, Execute) and fresh & {*other.instruction.reads}
            if reads or (not runs and _conflict(step, other)):
                yield at, later
        known |= fresh


@settings(max_examples=40)
@given(plans, st.data())
def test_two_dependent_steps_swapped_are_caught(plan: Plan, data: st.DataObject) -> None:
    """A use with its allocation or release, a read with what it reads for the first time: whatever lies between."""
    pairs = list(_swaps(plan))
    assume(pairs)
    one, other = data.draw(st.sampled_from(pairs))
    steps = list(plan.steps)
    steps[one], steps[other] = steps[other], steps[one]
    _refused(_with_steps(plan, steps))


@settings(max_examples=40)
@given(plans)
def test_any_lifetime_shortened_is_caught(plan: Plan) -> None:
    """A release before the last use, on any lane, and an allocation behind the first."""
    for at, step in enumerate(plan.steps):
        if isinstance(step, Release):
            last = max(i for i, other in enumerate(plan.steps) if _touches(other, step.buffer))
            for lane in range(len(plan.lanes)):
                steps = [*plan.steps[:at], *plan.steps[at + 1 :]]
                _refused(_with_steps(plan, [*steps[:last], replace(step, lane=lane), *steps[last:]]))
        if isinstance(step, Allocate):
            uses = [i for i, other in enumerate(plan.steps) if _touches(other, step.buffer)]
            if uses:
                steps = [*plan.steps[:at], *plan.steps[at + 1 : uses[0] + 1], step, *plan.steps[uses[0] + 1 :]]
                _refused(_with_steps(plan, steps))


def _lifetimes(plan: Plan) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for at, step in enumerate(plan.steps):
        if isinstance(step, Allocate) and plan.offsets[step.buffer] >= 0:
            found[step.buffer] = at, at
        elif isinstance(step, Release):
            found[step.buffer] = found[step.buffer][0], at
    return found


def _sums_put_right(plan: Plan) -> Plan:
    ends = [0] * len(plan.devices)
    for about, at in zip(plan.buffers, plan.offsets, strict=True):
        if at >= 0:
            ends[about.device] = max(ends[about.device], at + about.nbytes)
    results = sum(b.nbytes for b in plan.buffers if b.role is Role.OUTPUT and b.device != HOST)
    return replace(plan, arena_bytes=tuple(ends), peak_bytes=sum(ends) + results)


@settings(max_examples=60)
@given(plans)
def test_any_slot_moved_onto_a_living_one_is_caught(plan: Plan) -> None:
    """Every pair whose lifetimes overlap in the plan's order: the message names both, and the bytes that they share."""
    lives = _lifetimes(plan)
    for one, (start, end) in lives.items():
        for other, (begin, finish) in lives.items():
            about, at = plan.buffers[one], plan.buffers[other]
            if one == other or about.device != at.device or not (about.nbytes and at.nbytes):
                continue
            if plan.offsets[one] == plan.offsets[other]:  # a kernel writes over its input
                continue
            if start < finish and begin < end:
                offsets = list(plan.offsets)
                offsets[one] = offsets[other]
                said = _refused(_sums_put_right(replace(plan, offsets=tuple(offsets))))
                assert " takes bytes " in said
                assert "allocated by step " in said


@settings(max_examples=30)
@given(plans, st.data())
def test_any_wrong_sum_is_caught(plan: Plan, data: st.DataObject) -> None:
    """A peak that is too high or too low by anything, an arena that is not just as large as what lies in it."""
    wrong = data.draw(st.integers(-1000, 1000).filter(bool))
    assert "peak_bytes is " in _refused(replace(plan, peak_bytes=plan.peak_bytes + wrong))
    number = data.draw(st.integers(0, len(plan.arena_bytes) - 1))
    arenas = list(plan.arena_bytes)
    arenas[number] += wrong
    assert "the arena of " in _refused(replace(plan, arena_bytes=tuple(arenas)))


@settings(max_examples=30)
@given(plans, st.data())
def test_a_slot_out_of_place_is_caught(plan: Plan, data: st.DataObject) -> None:
    """An offset that is not aligned, or is set for what lies in no arena, or is missing."""
    buffer = data.draw(st.integers(0, len(plan.buffers) - 1))
    offsets = list(plan.offsets)
    offsets[buffer] = offsets[buffer] + 8 if offsets[buffer] >= 0 else 0
    if plan.buffers[buffer].role is Role.TEMPORARY and plan.buffers[buffer].device != HOST and offsets[buffer] == 0:
        said = _refused(_sums_put_right(replace(plan, offsets=tuple(offsets))))
        assert "has a place in an arena, but is never allocated" in said
    else:
        assert f"has the offset {offsets[buffer]} in an arena" in _refused(replace(plan, offsets=tuple(offsets)))
    if plan.offsets[buffer] >= 0:
        offsets[buffer] = -1
        assert "no place is set for it" in _refused(_sums_put_right(replace(plan, offsets=tuple(offsets))))
