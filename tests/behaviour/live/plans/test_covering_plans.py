"""Which plan serves a set of changed sources: the smallest one at hand that covers it, then its own."""

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import CostModel, ListSchedule, from_host, observe, source, use_interpreter, zip_ops
from dagpu.lowering.plan import Execute, Plan
from dagpu.reactive.plans.update_plans import INSTRUCTION_SECONDS, MOST_PLANS, PLAN_SECONDS, costs_of
from dagpu.runtime.interpreter import StreamInterpreter
from tests.behaviour.live.live_kernels import Op, array, blended, flipped
from tests.behaviour.live.live_trials import (
    MACHINES,
    Changes,
    Recipe,
    Trial,
    change,
    changes,
    explored,
    machine,
    mask_of,
    recipes,
    trial_of,
)


def chosen(trial: Trial, mask: int) -> tuple[int, ...]:
    """The instructions of the plan that a set of changed sources has for itself."""
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    return stage.staleness.instructions_for_mask(mask)


def instructions_of(trial: Trial, mask: int) -> int:
    """The number of these instructions."""
    return len(chosen(trial, mask))


def predicted(trial: Trial, mask: int, larger: int) -> float:
    """The predicted seconds of what the plan of a larger set runs beside that of a set."""
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    program = stage.staleness.program
    costs = costs_of(program, trial.settings.policy)
    more = set(chosen(trial, larger)) - set(chosen(trial, mask))
    return sum(costs.seconds(program.instructions[each], program) for each in more)


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=40)
@given(recipe=recipes(), steps=changes(), more=changes(), idle=st.booleans(), seed=st.integers(0, 9))
def test_a_larger_plan_changes_no_value(
    kind: str, recipe: Recipe, steps: Changes, more: Changes, idle: bool, seed: int
) -> None:
    """Each update has the bits of a run from scratch, and runs exactly the instructions of the smallest plan at hand
    whose set contains its own, if these take less time than its own plan takes to make; of its own plan otherwise, from
    the second time on, or once there was time to make it."""
    with machine(kind, seed):
        with explored(kind, seed):
            trial = trial_of(recipe)
            trial.check()
        own: set[int] = set()
        seen: set[int] = set()
        for number, which in enumerate([*more, *steps, *steps, *more]):
            with explored(kind, seed * 31 + number):
                mask = mask_of(trial, change(trial, which, number))
                trial.check()
            covering = sorted([instructions_of(trial, each), each] for each in own if not mask & ~each)
            wanted = instructions_of(trial, mask)
            if mask in seen or not covering or not wanted:
                own.add(mask)
            elif mask not in own:
                in_excess = predicted(trial, mask, covering[0][1])
                if in_excess > PLAN_SECONDS + wanted * INSTRUCTION_SECONDS:
                    own.add(mask)
            served = wanted if mask in own else covering[0][0]
            assert trial.ran == served
            seen.add(mask)
            while idle and trial.run.owes_plan:
                trial.run.make_owed_plan()
                own.add(mask)


def two_branches() -> tuple[Any, Any, Op]:
    """Two sources, and two kernels that depend on one each."""
    a, b = source(array(1)), source(array(2))
    return a, b, zip_ops(flipped(a.then(from_host)).to_host(), flipped(b.then(from_host)).to_host())


@pytest.mark.parametrize("kind", MACHINES)
def test_a_new_set_takes_a_larger_plan_once(kind: str) -> None:
    """After an update of both sources, the first update of one alone runs both branches, and the second its own."""
    with machine(kind):
        a, b, op = two_branches()
        trial = Trial(op, [a, b])
        for seed, (which, wanted) in enumerate([({0, 1}, 6), ({0, 1}, 6), ({0}, 6), ({0}, 3), ({1}, 6), ({1}, 3)]):
            change(trial, which, seed)
            with explored(kind, seed):
                trial.check()
            assert trial.ran == wanted


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("work", [1e-6, 1e-3])
def test_the_time_in_excess_decides(kind: str, work: float) -> None:
    """A new set takes the larger plan if the launches in excess are short, and gets its own at once if they are long;
    `explain` says which. On the host each launch is short."""
    policy = ListSchedule(costs=CostModel().declare({"flip": work}))
    with machine(kind), use_interpreter(StreamInterpreter(policy=policy)):
        a, b, op = two_branches()
        trial = Trial(op, [a, b], policy=policy)
        takes_larger = kind == "host" or work < 1e-4
        for seed, (which, wanted) in enumerate([(set(), 6), ({0, 1}, 6), ({0}, 6 if takes_larger else 3), ({0}, 3)]):
            change(trial, which, seed)
            with explored(kind, seed):
                trial.check()
            assert trial.ran == wanted
        (line,) = [each for each in trial.run.explain() if "new set of sources" in each]
        assert ("took the plan of a larger set: 3 instructions more" in line) == takes_larger
        assert ("got its own plan at once, about 390 us to make" in line) != takes_larger


def test_a_feed_that_waits_makes_the_plan_that_it_owes() -> None:
    """While nothing has changed, a feed makes the plan of the set that a larger plan has served; the next update of
    that set has it."""
    plans: list[int] = []

    def on_plan(_: object, plan: Plan) -> None:
        plans.append(sum(type(step) is Execute for step in plan.steps))

    async def main() -> None:
        a, b, op = two_branches()
        async with observe(op) as feed, trio.open_nursery() as nursery:
            await feed.next()
            a.set(array(3))
            b.set(array(4))
            await feed.next()
            a.set(array(5))
            await feed.next()
            assert (plans, feed.stats.launched) == ([6, 6], 18)
            served = trio.Event()

            async def serve() -> None:
                await feed.next()
                served.set()

            nursery.start_soon(serve)
            await trio.testing.wait_all_tasks_blocked()
            assert plans == [6, 6, 3]
            a.set(array(6))
            await served.wait()
            assert (plans, feed.stats.launched) == ([6, 6, 3], 21)

    with use_interpreter(StreamInterpreter(on_plan=on_plan)):
        trio.run(main)


def test_a_set_that_makes_nothing_stale_runs_nothing() -> None:
    """A source that no kernel depends on takes no larger plan, although there is one for it and others."""
    a, b, op = two_branches()
    name = source("x")
    trial = Trial(zip_ops(op, name), [a, b, name])
    for which, wanted in [(set[int](), 6), ({0, 2}, 3), ({2}, 0)]:
        for index in which:
            trial.sources[index].set(f"{trial.ran}" if index == 2 else array(9))
        trial.check()
        assert trial.ran == wanted


def test_a_feed_keeps_the_plans_used_last() -> None:
    """Of more sets than are kept, the one used longest ago loses its plan; values stay right."""
    sources: list[Any] = [source(float(number)) for number in range(6)]
    t = from_host(array(1)).share().shared()
    trial = Trial(zip_ops(*[blended(t, t, each).to_host() for each in sources]), sources)
    trial.check()
    (stage,) = trial.run._stages  # noqa: SLF001  # the plans are not public
    for number in range(1, 64):
        change(trial, {index for index in range(6) if number >> index & 1}, number)
        trial.check()
        assert len(stage.plans) <= MOST_PLANS
    assert len(stage.plans) == MOST_PLANS
