"""The explore backend: every order that streams and events allow gives the host's bits, and a wrong plan does not."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from dagpu import ListSchedule, RoundRobin, SchedulingPolicy, arange, dup, i32, use_device, value, zeros
from dagpu.backends.explore.search import Bits, Trial
from dagpu.common.errors import PlanError
from dagpu.testing import (
    Allocate,
    Execute,
    Plan,
    Program,
    Record,
    Release,
    Run,
    Search,
    Step,
    Wait,
    backend,
    exploring,
    schedule,
)
from tests.programs.named_dags import EXPECTED, NAMED
from tests.programs.named_kernels import gather, step
from tests.programs.plain_programs import Keys, launch, output, program, programs
from tests.programs.trials import planned, random_dag, trial

POLICIES: dict[str, SchedulingPolicy] = {"round robin": RoundRobin(4), "list schedule": ListSchedule(4)}


def arrays(found: Bits) -> list[Any]:
    """The arrays that a plan has copied to the host, in an order of their own."""
    return sorted((held for held in found if isinstance(held, tuple)), key=repr)


def outcome(found: Trial, seed: int) -> object:
    """The bits, or what was raised instead: a wrong plan may end either way."""
    try:
        with np.errstate(all="ignore"):  # poison is no number to calculate with
            return found.seeded(seed)
    except Exception as error:
        return type(error).__name__


def shows(wrong: Plan, inputs: dict[int, object], right: Bits, seeds: int = 300) -> bool:
    """Return True if one of the first seeds gives wrong bits."""
    found = Trial(wrong, inputs)
    return any(outcome(found, seed) != right for seed in range(seeds))


def small_plans() -> Iterator[tuple[Plan, dict[int, object], Bits]]:
    """Plans of random DAGs, with inputs and right results."""
    for seed in range(20):
        plan, inputs = planned(random_dag(seed, 12), RoundRobin(3))
        yield plan, inputs, Trial(plan, inputs).in_plan_order()


# ---- right plans


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NAMED)
def test_named_dags_give_the_same_bits_in_every_order(name: str, policy: str) -> None:
    """A hundred seeded orders of each named DAG give what NumPy gives."""
    found = trial(NAMED[name](), POLICIES[policy])
    right = found.in_plan_order()
    expected = tuple((array.shape, array.dtype, array.tobytes()) for array in EXPECTED[name]())
    assert arrays(right) == arrays(expected)
    assert all(found.seeded(seed) == right for seed in range(100))


@pytest.mark.parametrize("policy", POLICIES)
def test_random_dags_give_the_same_bits_in_every_order(policy: str) -> None:
    """Forty seeded orders of each of thirty random DAGs give what the host backend gives."""
    for seed in range(30):
        found = trial(random_dag(seed), POLICIES[policy])
        right = found.in_plan_order()
        with use_device("host:0"):
            expected = tuple((array.shape, array.dtype, array.tobytes()) for array in random_dag(seed).sync())
        assert arrays(right) == arrays(expected)
        assert all(found.seeded(order) == right for order in range(40)), f"random_dag({seed})"


def test_seeds_give_many_orders() -> None:
    """Hardly two of a hundred seeds give the same order of steps."""
    found = trial(NAMED["lu"](), RoundRobin(4))
    assert len({found.order for seed in range(100) if found.seeded(seed)}) > 80


def test_a_right_plan_has_one_class_of_executions() -> None:
    """Up to steps that have nothing to do with each other, all orders of a verified plan are one; and it is right."""
    interleavings = 0
    for plan, inputs, right in small_plans():
        search = Search(plan)
        assert search.races == {}
        (only,) = search.classes()
        assert Trial(plan, inputs).listed(only) == right
        interleavings += search.interleavings() or 0
    assert interleavings > 1_000_000


@settings(max_examples=60)
@given(programs(max_instructions=25))
def test_a_scheduled_program_has_no_race(p: Program) -> None:
    """Whatever the program, devices and policies: by a search that shares nothing with the verifier, on the bytes of
    the arenas."""
    search = Search(schedule(p))
    assert search.races == {}
    assert sum(1 for _ in search.classes()) == 1


def test_interleavings_are_counted() -> None:
    """Two lanes of an allocation and a kernel's two halves, with nothing between them: 6 choose 3 orders. Where that
    would take too many states, none is given."""
    instructions = [launch((), (0,)), launch((), (1,))]
    lanes = Search(schedule(program(instructions, [output(), output()], Keys((0, 1)))))
    assert [len(lane) for lane in lanes.script.lanes] == [3, 3]
    assert lanes.interleavings() == 20
    assert lanes.interleavings(most_states=2) is None


def test_two_devices_are_explored_together() -> None:
    """Work on two devices and a copy between them: all lanes are explored, and each device has its arena."""
    ends = set()
    for seed in range(30):
        away = step(arange(8, i32).partition((8,)), 2, 1).first().unpartition().on("explore:1")
        here = away.then(lambda t: dup(t).on("explore:0"))
        op = gather(arange(8, i32).on("explore:0").partition((8,)), here).first().unpartition().to_host()
        with use_device("explore:0"), exploring(seed=seed) as found:
            np.testing.assert_array_equal(3 * np.arange(8, dtype=i32) + i32(1), op.sync())
        ends.add(tuple(found.taken))
    assert len(ends) > 10


# ---- wrong plans


def test_a_dropped_wait_shows() -> None:
    """Each wait of each plan is needed: without it there is a race, some seed shows it, and so does the search."""
    waits = 0
    for plan, inputs, right in small_plans():
        for at, what in enumerate(plan.steps):
            if isinstance(what, Wait):
                wrong = replace(plan, steps=(*plan.steps[:at], *plan.steps[at + 1 :]))
                search = Search(wrong)
                assert search.races
                assert shows(wrong, inputs, right), f"{plan}\nwithout step {at}"
                found = Trial(wrong, inputs)
                assert any(_listed(found, order) != right for order in islice(search.classes(), 500))
                waits += 1
    assert waits > 50


def _listed(found: Trial, lanes: list[int]) -> object:
    try:
        with np.errstate(all="ignore"):
            return found.listed(lanes)
    except Exception as error:
        return type(error).__name__


def test_a_release_moved_forward_shows() -> None:
    """Memory that is given back before its last use is poisoned when that comes, in some order at least; but for what
    that use writes over in place."""
    releases = 0
    for plan, inputs, right in small_plans():
        handed_on = Search(plan).script.successor
        for at, what in enumerate(plan.steps):
            if isinstance(what, Release) and what.buffer not in handed_on:
                wrong = replace(plan, steps=_moved(plan.steps, at, _last_use(plan, what.buffer)))
                assert shows(wrong, inputs, right), f"{plan}\nwith step {at} before the last use"
                releases += 1
    assert releases > 30


def _last_use(plan: Plan, buffer: int) -> int:
    return max(
        at
        for at, what in enumerate(plan.steps)
        if isinstance(what, Execute) and buffer in (*what.instruction.reads, *what.instruction.writes)
    )


def _moved(steps: tuple[Step, ...], at: int, to: int) -> tuple[Step, ...]:
    return (*steps[:to], steps[at], *steps[to:at], *steps[at + 1 :])


def test_overlapping_slots_show() -> None:
    """Two temporaries that live at once, put into the same bytes of the arena, spoil each other."""
    pairs = 0
    for plan, inputs, right in small_plans():
        for one, other in _alive_together(plan):
            if plan.offsets[one] != plan.offsets[other]:
                offsets = [plan.offsets[one] if b == other else offset for b, offset in enumerate(plan.offsets)]
                assert shows(replace(plan, offsets=tuple(offsets)), inputs, right), f"{plan}\nb{other} on b{one}"
                pairs += 1
    assert pairs > 10


def _alive_together(plan: Plan) -> Iterator[tuple[int, int]]:
    alive: list[int] = []
    for what in plan.steps:
        if isinstance(what, Allocate) and plan.offsets[what.buffer] >= 0:
            yield from ((other, what.buffer) for other in alive)
            alive.append(what.buffer)
        elif isinstance(what, Release):
            alive.remove(what.buffer)


def test_unordered_updates_lose_one() -> None:
    """Two increments of one buffer commute if each runs in one piece. With no order between them one may be lost."""
    op = zeros((4,), i32)
    for _ in range(2):
        op = step(op.partition((4,)), 1, 1).first().unpartition()
    plan, inputs = planned(op.to_host(), Keys((0, 0, 1, 0)))
    first = next(at for at, what in enumerate(plan.steps) if isinstance(what, Wait))
    # The second increment now waits for the fill alone, not for the first one.
    record = next(at for at, what in enumerate(plan.steps) if isinstance(what, Record))
    increment = max(at for at, what in enumerate(plan.steps[:first]) if isinstance(what, Execute) and what.lane == 0)
    wrong = replace(plan, steps=_moved(plan.steps, record, increment))
    found = Trial(wrong, inputs)
    ends = {np.frombuffer(held[2], i32)[0] for seed in range(200) for held in arrays(found.seeded(seed))}
    assert ends == {1, 2}


def test_work_in_place_is_explored() -> None:
    """If an output takes the bytes of an input, neither the output's start nor the input's end poisons them, and all
    orders of such plans are right.
    """
    taken = 0
    for plan, inputs, right in small_plans():
        found = Trial(plan, inputs)
        taken += len(found.script.successor)
        assert all(found.seeded(seed) == right for seed in range(20))
    assert taken > 3


def test_an_event_that_never_happens_is_said() -> None:
    """A wait for an event that nobody records ends the execution with an error that names both, not with a hang."""
    plan, inputs = planned(NAMED["fork_join"](), RoundRobin(4))
    at = next(at for at, what in enumerate(plan.steps) if isinstance(what, Record))
    wrong = Trial(replace(plan, steps=(*plan.steps[:at], *plan.steps[at + 1 :])), inputs)
    with pytest.raises(PlanError, match=r"waits in lane \d for event 0, which never happens.*Behind it is Launch"):
        wrong.seeded(0)


def test_choices_are_held_against_the_plan() -> None:
    """A choice of a lane that may not go on says which choice, and what there was to choose from."""
    found = trial(NAMED["fork_join"](), RoundRobin(4))
    with pytest.raises(PlanError, match=r"choices\[0\] is lane 9, which may not go on there"):
        found.listed([9])


def test_a_trial_leaves_written_inputs_as_they_were() -> None:
    """A tensor of the caller that an op writes has the same initial contents in every execution."""
    with use_device("explore:0"):
        total, more = arange(8, i32).sync(), arange(8, i32).sync()
        op = gather(total.borrow_mut().partition((8,)), more.borrow()).last().map(lambda _: None)
        found = trial(op, RoundRobin(2))
        ends = {found.seeded(seed) for seed in range(10)}
        assert ends == {((2 * np.arange(8, dtype=i32)).tobytes(),)}
        del op
        assert value(total).then(lambda t: t.to_host()).sync().tolist() == list(range(8))


# ---- the end of a run, seen from outside


def submitted() -> Run:
    """A run of a random DAG."""
    plan, inputs = planned(random_dag(0, 12), RoundRobin(3))
    bindings: list[Any] = [None] * len(plan.buffers)
    for buffer, held in inputs.items():
        bindings[buffer] = held
    return backend("explore").prepare(plan).submit(bindings)


def late_looks(**order: Any) -> int:
    """Return the number of polls that see a finished run as in progress, if no caller waits for it."""
    with exploring(**order) as found:
        run, late = submitted(), 0
        while not run.done():
            late += not found.under_way
        assert run.done()
        assert not run.failures()
    return late


def test_the_end_of_a_run_may_be_seen_late() -> None:
    """As on a device, for some seeds a finished run counts as in progress for a few more polls.

    The same seed gives the same number. Listed choices contain steps only.
    """
    found = [late_looks(seed=seed) for seed in range(30)]
    assert set(found) == {0, 1, 3}
    assert found == [late_looks(seed=seed) for seed in range(30)]
    assert late_looks(choices=[]) == 0


def test_who_waits_sees_the_end_of_a_run() -> None:
    """Whatever the seed, a run that was waited for is done at the first look."""
    for seed in range(30):
        with exploring(seed=seed):
            run = submitted()
            assert run.wait()
            assert run.done()
