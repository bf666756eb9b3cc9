"""Bodies of `If`s in plans: kept together by the scheduler, and never read where they may not have run."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.common.errors import PlanError
from dagpu.plans.list_schedule import ListSchedule
from dagpu.plans.policies import RoundRobin, with_bodies_together
from dagpu.plans.program import bodies_of, show_program
from dagpu.testing import Execute, If, Instruction, Plan, Program, View, contiguous_layout, schedule, verify
from tests.programs.plain_programs import launch, output, program

FLAGS = contiguous_layout((1,), np.dtype(np.uint32))


def when(flags: Sequence[int], body: int) -> If:
    """An `If` of so many instructions that reads these buffers of flags."""
    return If(tuple([View(flag, FLAGS) for flag in flags]), body, tuple(flags), (), 0, None)


def planned(*instructions: Instruction, policy: object = None) -> Plan:
    """The plan of instructions on buffers that stay."""
    written = max(max((*each.reads, *each.writes), default=0) for each in instructions)
    return schedule(program(instructions, [output()] * (written + 1), *([policy] if policy else [])))


def refused(*instructions: Instruction) -> str:
    """The message with which the plan of instructions is refused."""
    with pytest.raises(PlanError) as caught:
        verify(planned(*instructions))
    return str(caught.value)


def test_what_a_body_writes_is_read_where_it_has_run() -> None:
    """In the body; in another one with the same flag; and in one whose flag is set in the body alone. The flags are
    read anywhere."""
    made, inside = launch((), (0,)), (launch((), (1,)), launch((1,), (2,)))
    verify(planned(made, when([0], 2), *inside))
    verify(planned(made, when([0], 2), *inside, when([0], 1), launch((2,), (3,))))
    verify(planned(made, when([0], 2), *inside, when([2], 1), launch((1,), (3,))))
    verify(planned(made, launch((), (4,)), when([0], 2), *inside, when([2, 0], 1), launch((1,), (3,))))


@pytest.mark.parametrize("reader", [launch((1,), (3,)), launch((), (1,))])
def test_what_a_body_writes_is_not_read_outside(reader: Instruction) -> None:
    """A kernel may also read what it writes."""
    made, inside = launch((), (0,)), (launch((), (1,)), launch((1,), (2,)))
    assert "writes only if" in refused(made, when([0], 2), *inside, reader)
    other = launch((), (4,))
    assert "writes only if" in refused(made, other, when([0], 2), *inside, when([4], 1), reader)
    assert "writes only if" in refused(made, other, when([0], 2), *inside, when([4, 0], 1), reader)


def test_a_body_is_whole_and_holds_no_other() -> None:
    """An `If` in a body, and one that ends after the plan, are refused."""
    made, step = launch((), (0,)), launch((), (1,))
    assert "is in the body of" in refused(made, when([0], 2), when([0], 1), step)
    assert "ends after the plan does" in refused(made, step, when([0], 2), launch((1,), (2,)))


def test_a_program_shows_its_bodies() -> None:
    """The table of a program names an `If` with the length of its body."""
    shown = show_program(program([launch((), (0,)), when([0], 1), launch((0,), (1,))], [output()] * 2))
    assert "If: the next 1" in shown


@st.composite
def with_bodies(draw: st.DrawFn) -> Program:
    """Programs of launches that read earlier buffers, some of them in bodies; what a body writes, only they read."""
    instructions: list[Instruction] = [launch((), (0,))]
    outside, buffers = [0], 1
    for _ in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 3))):
            reads = draw(st.sets(st.sampled_from(outside), max_size=2))
            instructions.append(launch(tuple(reads), (buffers,)))
            outside.append(buffers)
            buffers += 1
        size, own = draw(st.integers(1, 4)), list(outside)
        instructions.append(when([draw(st.sampled_from(outside))], size))
        for _ in range(size):
            reads = draw(st.sets(st.sampled_from(own), max_size=2))
            instructions.append(launch(tuple(reads), (buffers,)))
            own.append(buffers)
            buffers += 1
    policy = draw(st.sampled_from((RoundRobin(3), ListSchedule(2), ListSchedule(3, memory_limit=1 << 20))))
    return program(instructions, [output()] * buffers, policy)


@given(whole=with_bodies())
def test_a_scheduler_keeps_bodies_together(whole: Program) -> None:
    """Whatever the policy and its order: in the plan each body has the same instructions, behind its `If`, and the plan
    is verified."""
    plan = schedule(whole)
    verify(plan)
    placed = [step.instruction for step in plan.steps if isinstance(step, Execute)]
    assert contents(placed) == contents(whole.instructions)


@given(whole=with_bodies(), data=st.data())
def test_bodies_stay_together_in_any_order(whole: Program, data: st.DataObject) -> None:
    """All of a body, and nothing else, follows its `If`, however the instructions were mixed."""
    order = data.draw(st.permutations(range(len(whole.instructions))))
    found = [whole.instructions[at] for at in with_bodies_together(whole, order)]
    assert contents(found) == contents(whole.instructions)
    assert len(found) == len(whole.instructions)


def contents(instructions: Sequence[Instruction]) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """For what each body writes, in sorted order, what its `If` reads; and for -1 what is in no body."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for instruction, body in zip(instructions, bodies_of(instructions), strict=True):
        found.setdefault(body, []).append(instruction.writes)
    return {
        (-1,) if body < 0 else tuple(sorted(sum(writes, ()))): sorted(writes)
        if body < 0
        else [instructions[body].reads]
        for body, writes in found.items()
    }
