"""Updates in tiles: equal to runs from scratch bit for bit, and no tile too many. On the host, in explored orders with
poisoned memory, and on a simulated GPU."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import batch
from tests.behaviour.live.live_trials import MACHINES, Trial, explored, machine, same
from tests.behaviour.tiles.tile_trials import TileRecipe, Write, dirty_tiles, tile_recipes, trial_of, write, writes


def on_host(value: Any) -> tuple[Any, ...]:
    """The arrays of a value of a trial."""
    return tuple([each if isinstance(each, np.ndarray) else each.clone().to_host().sync() for each in value])


def check(trial: Trial) -> Any:
    """Update, hold the value against a run from scratch, bit for bit, and return it."""
    value = trial.update()
    got, wanted = on_host(value), on_host(trial.op.sync())
    assert same(got, wanted), (got, wanted)
    return value


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=30)
@given(recipe=tile_recipes(), steps=writes, seed=st.integers(0, 9), keep=st.booleans(), together=st.booleans())
def test_an_update_in_tiles_equals_a_run_from_scratch(
    kind: str, recipe: TileRecipe, steps: list[list[Write]], seed: int, keep: bool, together: bool
) -> None:
    """After any writes, a feed's value has the bits of a run from scratch; and values handed out before stay as they
    were, whether something holds them or not."""
    with machine(kind, seed):
        with explored(kind, seed):
            trial = trial_of(recipe)
            handed_out = [check(trial)] if keep else []
            before = [on_host(each) for each in handed_out]
        for number, written in enumerate(steps):
            with explored(kind, seed * 31 + number):
                if together:
                    with batch():
                        write(trial, written, number)
                else:
                    write(trial, written, number)
                if number == 2:
                    trial.sources[-1].set(float(number))
                value = check(trial)
                if keep:
                    handed_out.append(value)
                    before.append(on_host(value))
                del value
                for each, was in zip(handed_out, before, strict=True):
                    assert same(on_host(each), was)


@settings(max_examples=120)
@given(recipe=tile_recipes(), steps=writes)
def test_the_tiles_that_see_a_change_run_and_no_others(recipe: TileRecipe, steps: list[list[Write]]) -> None:
    """The number of tiles that run is that of the model; above half of the tiles, and where earlier contents are gone,
    all of them."""
    trial = trial_of(recipe)
    trial.update()
    write(trial, [(index, (slice(0, 1), slice(0, 1))) for index in range(2)], -1)
    trial.update()  # from now on what launches in tiles need is kept
    for number, written in enumerate(steps):
        wanted = dirty_tiles(trial, write(trial, written, number))
        (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
        staleness = stage.staleness
        trial.update()
        counts = {each.instruction: (each.tiles, each.total) for each in stage.tiles.counts}
        for index, (dirty, total) in wanted.items():
            outputs = staleness.program.instructions[index].writes
            alone = all(len(staleness.writers[buffer]) == 1 for buffer in outputs)
            if counts and alone:
                assert counts[index] == (dirty if 2 * dirty <= total else total, total)
            if not counts:
                assert not dirty or 2 * dirty > total or not alone
