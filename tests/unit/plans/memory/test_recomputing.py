"""Recomputation: programs that make temporaries again compute the same in fewer bytes, and wrong ones are found."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import CostModel, ListSchedule, PlanError, StreamInterpreter, expr, f32, plan_of, use_interpreter, value
from dagpu.plans.memory_order import order_for_memory
from dagpu.plans.placed_values import verify_placement
from dagpu.plans.plan import Plan
from dagpu.plans.policies import Placement, SingleStream
from dagpu.plans.prediction import makespan_of
from dagpu.plans.program import Instruction, Launch, Program, Renumbering, Role
from dagpu.plans.recomputing import Recomputation, recomputed
from dagpu.plans.scheduler import as_placed
from dagpu.testing import schedule, verify
from tests.programs.plain_programs import Keys, launch, output, program, temporary
from tests.programs.taped import taped_op, taped_program, taped_results

COSTS = CostModel()
SHARES = (0.3, 0.45, 0.6, 0.75, 0.9, 1.0, 1.5)


def limited(source: Program, streams: int, nbytes: int) -> Program:
    policy = ListSchedule(streams, memory_limit=nbytes, recompute=True)
    return replace(source, policies=(policy,), policy_of=(0,) * len(source.instructions))


def planned(source: Program) -> tuple[Program, Plan]:
    """The program with its recomputation, and its plan, both proved."""
    found = recomputed(source)
    verify_placement(source, found, again=True)
    plan = schedule(found)
    verify(plan)
    return found, plan


# ---- any step


@settings(max_examples=25)
@given(st.integers(0, 1 << 16), st.integers(4, 14), st.sampled_from((1, 2, 4)))
def test_a_limit_is_kept_and_a_larger_one_takes_no_longer(seed: int, depth: int, streams: int) -> None:
    """Whatever the limit: the plan keeps it or is refused; all plans are proved, and so are the values; and of two
    limits the larger one has a plan if the smaller one has, which takes no longer."""
    source = taped_program(seed, depth, SingleStream())
    whole = schedule(limited(source, streams, 1 << 40)).peak_bytes
    before: float | None = None
    for share in SHARES:
        limit = int(share * whole)
        try:
            _, plan = planned(limited(source, streams, limit))
        except PlanError as error:
            assert "memory_limit" in str(error)  # noqa: PT017  # which of the two comes is not known
            assert before is None
            continue
        assert plan.peak_bytes <= limit
        time = makespan_of(plan, COSTS)
        assert before is None or time <= before * (1 + 1e-12)
        before = time
    assert before is not None


@settings(max_examples=8)
@given(st.integers(0, 1 << 16), st.integers(6, 14))
def test_results_have_the_same_bits_for_every_limit_and_lane_count(seed: int, depth: int) -> None:
    """They are NumPy's. Some of the runs make something again."""
    want = [each.tobytes() for each in taped_results(seed, depth)]
    for streams in (1, 4):
        whole = plan_of(taped_op(seed, depth).schedule(ListSchedule(streams))).peak_bytes
        for share in (0.5, 0.7, 0.9):
            policy = ListSchedule(streams, memory_limit=int(share * whole), recompute=True)
            with use_interpreter(StreamInterpreter(policy=policy)):
                try:
                    found = taped_op(seed, depth).sync()
                except PlanError:
                    continue
            assert [each.to_host().sync().tobytes() for each in found] == want


def test_less_than_half_of_a_chain_and_its_way_back() -> None:
    """Without recomputation nothing fits in less than all of the chain; with it a third does, for less work again than
    two thirds of the step. The report says what was paid for what."""
    source = _chain(24)
    whole = schedule(source).peak_bytes
    with pytest.raises(PlanError, match="memory_limit"):
        schedule(limited(source, 1, whole - 1))
    found, plan = planned(limited(source, 1, whole // 3))
    assert plan.peak_bytes <= whole // 3
    again = len(found.instructions) - len(source.instructions)
    assert 0 < again < 2 / 3 * len(source.instructions)
    (policy,) = found.policies
    assert f"{again} instructions made again" in policy.placement.about
    assert f"the plan without a limit takes {whole:,}" in policy.placement.about


def test_no_plan_says_the_least_that_it_could_take() -> None:
    """A limit below what anything takes is refused with the least peak of all that was tried; with that limit there is
    a plan."""
    source = _chain(16)
    with pytest.raises(PlanError, match=r"this takes [\d,]+ bytes, and the policy's memory_limit is 1:") as caught:
        schedule(recomputed(limited(source, 2, 1)))
    least = int(str(caught.value).split()[2].replace(",", ""))
    _, plan = planned(limited(source, 2, least))
    assert plan.peak_bytes == least
    with pytest.raises(PlanError):
        schedule(recomputed(limited(source, 2, least - 1)))


def test_the_states_fall_in_peak_and_rise_in_work() -> None:
    """None is beaten in both by another one."""
    source = taped_program(3, 20, SingleStream())
    states = Recomputation(source, COSTS.times(source)).states
    assert len(states) > 3
    assert [each.peak for each in states] == sorted({each.peak for each in states}, reverse=True)
    assert [each.work for each in states] == sorted(each.work for each in states)


def test_an_op_says_what_was_paid() -> None:
    """`explain()` has a line for the limit."""
    op = taped_op(5, 30)
    whole = plan_of(op.schedule(ListSchedule(1))).peak_bytes
    report = op.schedule(ListSchedule(1, memory_limit=int(0.75 * whole), recompute=True)).explain()
    assert "made again" in report[report.index("Memory limit") :]
    assert "Memory limit" not in op.schedule(ListSchedule(1, memory_limit=whole, recompute=True)).explain()


def test_a_copy_to_the_host_may_have_another_policy() -> None:
    """`op.schedule(policy).to_host()` is the natural order. A kernel with another policy is left alone."""
    step = taped_op(5, 30).then(lambda results: value(results[-1]))
    whole = plan_of(step.schedule(ListSchedule(1))).peak_bytes
    policy = ListSchedule(1, memory_limit=int(0.75 * whole), recompute=True)
    assert plan_of(step.schedule(policy).to_host()).peak_bytes <= 0.75 * whole
    with pytest.raises(PlanError, match="memory_limit"):
        plan_of(expr(f32)(lambda x: x + 1.0)(step.schedule(policy)))


# ---- what may be made again


def _chain(depth: int) -> Program:
    """A chain, and its way back that reads each link."""
    instructions: list[Instruction] = [launch((), (0,))]
    instructions += [launch((link - 1,), (link,)) for link in range(1, depth)]
    for link in range(depth - 1, -1, -1):
        instructions.append(launch((len(instructions) - 1, link), (len(instructions),)))
    buffers = [temporary(1 << 16)] * (len(instructions) - 1) + [output(1 << 16)]
    return program(instructions, buffers, SingleStream())


def _most_again(source: Program) -> int:
    """The instructions that the state of the least peak makes again."""
    return Recomputation(source, COSTS.times(source)).states[-1].again


def test_what_changes_is_made_once() -> None:
    """Nothing is made again where each instruction writes a buffer that others write too."""
    source = _chain(12)
    assert _most_again(source) > 4
    first = source.instructions[0]
    twice = replace(source, instructions=(first, *[replace_writes(each) for each in source.instructions[1:]]))
    assert _most_again(twice) == 0


def replace_writes(each: Instruction) -> Instruction:
    """The instruction, which also writes the first buffer of the chain."""
    return launch(each.reads, (*each.writes, 0))


# ---- mistakes


@settings(max_examples=40)
@given(st.integers(0, 1 << 16), st.integers(8, 16), st.integers(0, 1 << 16))
def test_a_wrong_recomputation_is_found(seed: int, depth: int, chance: int) -> None:
    """One read of the program that was made is moved to another buffer that is written by then. The proof finds it,
    unless that buffer holds the same value."""
    source = taped_program(seed, depth, SingleStream())
    search = Recomputation(source, COSTS.times(source))
    made = search.program(search.states[-1])
    verify_placement(source, made, again=True)
    draw = Random(chance)
    at = draw.randrange(len(made.instructions))
    moved = made.instructions[at]
    if not moved.reads:
        return
    read = draw.choice(moved.reads)
    written = {buffer for each in made.instructions[:at] for buffer in each.writes}
    value_of = _values_of(made)
    others = [
        buffer
        for buffer in sorted(written | {n for n, each in enumerate(made.buffers) if each.role is Role.INPUT})
        if value_of[buffer] != value_of[read] and buffer not in moved.writes
    ]
    if not others:
        return
    numbers = {buffer: buffer for buffer in range(len(made.buffers))} | {read: draw.choice(others)}
    wrong = Renumbering().instruction(moved, numbers, moved.device)
    bad = replace(made, instructions=(*made.instructions[:at], wrong, *made.instructions[at + 1 :]))
    with pytest.raises(PlanError, match=r"reads other contents than before|is missing|holds other contents"):
        verify_placement(source, bad, again=True)


def _values_of(made: Program) -> list[int]:
    """For each buffer a number of its contents: that of what its instruction computes, of which contents."""
    numbers: dict[object, int] = {}
    found = [numbers.setdefault(buffer, buffer) for buffer in range(len(made.buffers))]
    for each in made.instructions:
        assert isinstance(each, Launch)
        for buffer in each.writes:
            term = each.kernel, tuple([found[read] for read in each.reads]), made.buffers[buffer].nbytes
            found[buffer] = numbers.setdefault(term, len(numbers))
    return found


def test_an_instruction_that_is_left_out_or_has_effects_is_found() -> None:
    """Each instruction has to be there, and one with effects once."""
    source = _chain(6)
    extra = replace(source, buffers=(*source.buffers, source.buffers[0]))
    with pytest.raises(PlanError, match=r"missing|other contents"):
        verify_placement(source, replace(source, instructions=source.instructions[:-1]), again=True)
    again = launch((0,), (len(source.buffers),))
    twice = replace(extra, instructions=(*source.instructions[:2], again, *source.instructions[2:]))
    verify_placement(source, _same_kernel(twice, 1, 2), again=True)
    with pytest.raises(PlanError, match="once more than before"):
        verify_placement(source, _same_kernel(twice, 1, 2))


def _same_kernel(source: Program, one: int, other: int) -> Program:
    """The program in which an instruction is a launch of the kernel of another one."""
    first, second = source.instructions[one], source.instructions[other]
    assert isinstance(first, Launch)
    assert isinstance(second, Launch)
    changed = replace(source, policy_of=(0,) * len(source.instructions))
    made = [*source.instructions]
    made[other] = Launch(
        first.kernel, first.args, first.grid, second.reads, second.writes, second.device, second.origin
    )
    return replace(changed, instructions=tuple(made))


# ---- orders


@settings(max_examples=60)
@given(st.integers(0, 1 << 16), st.integers(2, 12))
def test_an_order_for_memory_takes_no_more_than_the_program(seed: int, depth: int) -> None:
    """It has each instruction once, after all that it depends on, and hardly ever takes more than the order of the
    program."""
    source = taped_program(seed, depth, Keys((0,) * 200))
    order = order_for_memory(source)
    place = {index: at for at, index in enumerate(order)}
    assert sorted(order) == list(range(len(source.instructions)))
    for index, before in enumerate(source.accesses.predecessors):
        assert all(place[earlier] < place[index] for earlier in before)
    keys = [0] * len(order)
    assert as_placed(source, Placement(keys, order)).peak_bytes <= 1.1 * as_placed(source, Placement(keys)).peak_bytes
