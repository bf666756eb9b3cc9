"""Feeds of random programs of all combinators, held against a model of them: each value, and all that runs for it."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.behaviour.live.live_trials import MACHINES, explored, machine
from tests.conftest import only_deep
from tests.programs.feeds.feed_recipes import Recipe, Step, Turn, recipes, turns
from tests.programs.feeds.feed_trials import try_feeds, try_runs

pytestmark = [
    pytest.mark.host_only("kernels' host bodies"),
    pytest.mark.filterwarnings("ignore:.*by which no plan can be found:RuntimeWarning"),  # their values are right
]


ONE = given(recipe=recipes(meshes=True), steps=turns(feeds=1))
TWO = given(recipe=recipes(meshes=True), steps=turns(feeds=2))
ELSEWHERE = given(recipe=recipes(), steps=turns(feeds=2), feeds=st.integers(1, 2), seed=st.integers(0, 9))
RUNS = given(recipe=recipes(all_shared=True), steps=turns(feeds=2, troubles=False))


def try_elsewhere(kind: str, recipe: Recipe, steps: list[Turn], feeds: int, seed: int) -> None:
    """Ask feeds on another machine."""
    with machine(kind, seed), explored(kind, seed):
        trio.run(try_feeds, recipe, steps, feeds, kind)


@settings(max_examples=24)
@ONE
def test_a_feed_does_what_the_model_says(recipe: Recipe, steps: list[Turn]) -> None:
    """Whatever the program and the changes are, also behind an update that failed or was cancelled: each value has the
    bits of NumPy's and of a run from scratch, and nothing runs that does not depend on the change."""
    trio.run(try_feeds, recipe, steps, 1)


@settings(max_examples=24)
@TWO
def test_two_feeds_do_what_the_model_says(recipe: Recipe, steps: list[Turn]) -> None:
    """So it is with two feeds that are asked in any order or at once: what is below a `shared()` op runs once for each
    snapshot, and what is not, no more often than in two feeds that share nothing."""
    trio.run(try_feeds, recipe, steps, 2)


def test_a_kernel_of_two_outputs_that_a_closure_reads_stays() -> None:
    """A number that only the closure reads changes: the kernel below it need not run again. Its value is right."""
    steps = (
        Step("halve", (0, 0, 0), True), Step("split", (0, 0, 0), False), Step("chosen", (13, 0, 0), True),
        Step("halve", (0, 0, 0), True),
    )  # fmt: skip
    changes = [Turn(((0, 0),), False, (0,), None), Turn(((2, 0),), False, (0,), None)]
    trio.run(try_feeds, Recipe(2, 1, steps, (6, 0)), changes, 2)


@pytest.mark.parametrize("kind", MACHINES[1:])
@settings(max_examples=12)
@ELSEWHERE
def test_feeds_on_other_machines_do_what_the_model_says(
    kind: str, recipe: Recipe, steps: list[Turn], feeds: int, seed: int
) -> None:
    """So it is in explored orders with poisoned memory, and on a simulated GPU, where updates are graphs."""
    try_elsewhere(kind, recipe, steps, feeds, seed)


@settings(max_examples=24)
@RUNS
def test_runs_do_what_the_model_says(recipe: Recipe, steps: list[Turn]) -> None:
    """Plain runs of an op over sources: what is `shared()` runs again only if one of its own sources has changed."""
    trio.run(try_runs, recipe, steps)


@only_deep
@settings(max_examples=1200)
@ONE
def test_a_feed_does_what_the_model_says_in_4500_updates(recipe: Recipe, steps: list[Turn]) -> None:
    """The same over many programs."""
    trio.run(try_feeds, recipe, steps, 1)


@only_deep
@settings(max_examples=900)
@TWO
def test_two_feeds_do_what_the_model_says_in_5500_updates(recipe: Recipe, steps: list[Turn]) -> None:
    """The same over many programs."""
    trio.run(try_feeds, recipe, steps, 2)


@only_deep
@pytest.mark.parametrize("kind", MACHINES[1:])
@settings(max_examples=200)
@ELSEWHERE
def test_feeds_on_other_machines_do_what_the_model_says_in_2000_updates(
    kind: str, recipe: Recipe, steps: list[Turn], feeds: int, seed: int
) -> None:
    """The same over many programs."""
    try_elsewhere(kind, recipe, steps, feeds, seed)


@only_deep
@settings(max_examples=400)
@RUNS
def test_runs_do_what_the_model_says_over_many_programs(recipe: Recipe, steps: list[Turn]) -> None:
    """The same over many programs."""
    trio.run(try_runs, recipe, steps)
