"""The plan of a set of changed sources runs exactly what depends on the set, also in the first update of the set."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import from_host, source, zip_ops
from dagpu.reactive.update_plans import MOST_PLANS
from tests.behaviour.laws.marked_ops import marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
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
from tests.support.marks import MARKS


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=40)
@given(recipe=recipes(), steps=changes(), more=changes(), seed=st.integers(0, 9))
def test_each_set_runs_its_own_instructions(
    kind: str, recipe: Recipe, steps: Changes, more: Changes, seed: int
) -> None:
    """In any order of sets, each update has the bits of a run from scratch, and runs the instructions that its set
    makes stale, and no others."""
    with machine(kind, seed):
        with explored(kind, seed):
            trial = trial_of(recipe)
            trial.check()
        (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
        for number, which in enumerate([*more, *steps, *steps, *more]):
            with explored(kind, seed * 31 + number):
                mask = mask_of(trial, change(trial, which, number))
                trial.check()
            assert trial.ran == len(stage.staleness.instructions_for_mask(mask))


@given(sets=st.lists(st.sets(st.integers(0, 3), min_size=1), max_size=12))
def test_the_kernels_that_run_are_those_of_the_changed_sources(sets: list[set[int]]) -> None:
    """Counted in the kernels' own bodies, not in plans: of four branches, two kernels over two branches each, and one
    over both, those run that depend on a changed source."""
    sources: list[Any] = [source(tensor(number)) for number in range(4)]
    branches = [marked(number, each).shared() for number, each in enumerate(sources)]
    pairs = [marked(4 + number, *branches[2 * number : 2 * number + 2]).shared() for number in range(2)]
    trial = Trial(zip_ops(marked(6, *pairs).to_host(), *[each.to_host() for each in (*pairs, *branches)]), sources)
    trial.update()
    for step, which in enumerate(sets):
        for index in which:
            sources[index].set(tensor(step))
        MARKS.clear()
        trial.update()
        assert sorted(MARKS.seen()) == sorted({*which, *[4 + index // 2 for index in which], 6})


def tensor(number: float) -> Any:
    """A tensor of two elements, shared."""
    return from_host(array(number)[:2]).sync().share()


def two_branches() -> tuple[Any, Any, Op]:
    """Two sources, and two kernels that depend on one each."""
    a, b = source(array(1)), source(array(2))
    return a, b, zip_ops(flipped(a.then(from_host)).to_host(), flipped(b.then(from_host)).to_host())


def test_a_set_that_makes_nothing_stale_runs_nothing() -> None:
    """A source that no kernel depends on needs no plan, although there is one for it and others."""
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
    sources: list[Any] = [source(float(number)) for number in range(7)]
    t = from_host(array(1)).share().shared()
    trial = Trial(zip_ops(*[blended(t, t, each).to_host() for each in sources]), sources)
    trial.check()
    (stage,) = trial.run._stages  # noqa: SLF001  # the plans are not public
    for number in range(1, 128):
        change(trial, {index for index in range(7) if number >> index & 1}, number)
        trial.check()
        assert len(stage.plans) <= MOST_PLANS
    assert len(stage.plans) == MOST_PLANS
