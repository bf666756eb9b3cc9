"""Updates in tiles: equal to runs from scratch bit for bit, and no tile too many. On the host, in explored orders with
poisoned memory, and on a simulated GPU."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import PlanError, batch
from dagpu.ops.array_parts import Box
from dagpu.reactive.claims import Change, Dirt
from dagpu.reactive.subprogram import extract
from dagpu.reactive.tile_updates import TileUpdates
from dagpu.reactive.verify_tiles import TileVerifier
from dagpu.reactive.verify_updates import UpdateVerifier
from tests.behaviour.live.live_trials import MACHINES, explored, machine, same
from tests.behaviour.tiles.tile_trials import (
    TileRecipe,
    Write,
    check,
    dirty_tiles,
    on_host,
    tile_recipes,
    trial_of,
    write,
    writes,
)


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=30)
@given(
    recipe=tile_recipes(cutoffs=True), steps=writes, seed=st.integers(0, 9), keep=st.booleans(), together=st.booleans()
)
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
    """The number of tiles that run is that of the model; from three quarters of the tiles on, and where earlier
    contents are gone, all of them."""
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
            accesses = staleness.program.accesses
            alone = all(map(accesses.is_alone, accesses.makes(index)))
            if counts and alone:
                assert counts[index] == (dirty if 4 * dirty < 3 * total else total, total)
            if not counts:
                assert not dirty or 4 * dirty >= 3 * total or not alone


@settings(max_examples=60)
@given(recipe=tile_recipes(), steps=writes)
def test_every_tile_of_an_update_is_needed(recipe: TileRecipe, steps: list[list[Write]]) -> None:
    """The checker proves each update in tiles. It notices each tile that is taken out of a list, and a claim that a
    dirty tile is clean."""
    trial = trial_of(recipe)
    trial.update()
    write(trial, [(index, (slice(0, 1), slice(0, 1))) for index in range(2)], -1)
    trial.update()
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    live = trial.run._live  # noqa: SLF001
    assert live is not None
    tiles, verifier = TileUpdates(stage.staleness), TileVerifier(stage.staleness)
    for written in steps:
        boxes = {
            made.own: [((at[0].start, at[0].stop), (at[1].start, at[1].stop)) for _, at in written]
            for made in live.inputs
            if made.source is trial.sources[0]
        }
        change, leaves = Change(sum(boxes)), stage.leaves.dirt(boxes)
        update = tiles.update(change, leaves)
        unchanged = verifier.verify(change, leaves, update)
        UpdateVerifier(stage.staleness).verify(
            change,
            extract(stage.staleness.program, update.chosen, stage.staleness.targets),
            unchanged,
        )
        for index, numbers in update.lists.items():
            for missing in range(len(numbers)):
                lists = {**update.lists, index: np.delete(numbers, missing)}
                with pytest.raises(PlanError, match="leaves buffer"):
                    verifier.verify(change, leaves, update._replace(lists=lists))
            lost = change._replace(lost=frozenset(stage.staleness.program.instructions[index].writes))
            with pytest.raises(PlanError, match="leaves buffer"):
                verifier.verify(lost, leaves, update)
        for value, dirt in update.dirt.items():
            if value < len(stage.staleness.program.buffers) or type(dirt) is not Dirt:
                continue
            elsewhere = Dirt(dirt.layout, (((0, 0),) * len(dirt.layout.shape),), dirt.tiles, dirt.of)
            with pytest.raises(PlanError, match="leaves"):  # the boxes are not those of the tiles
                verifier.verify(change, leaves, update._replace(dirt={**update.dirt, value: elsewhere}))
            for number in range(len(dirt.boxes)):
                less = Dirt(dirt.layout, without(dirt.boxes, number), without(dirt.tiles, number))
                claimed = less if less.boxes else None
                with pytest.raises(PlanError, match="leaves"):
                    verifier.verify(change, leaves, update._replace(dirt={**update.dirt, value: claimed}))


def without(boxes: tuple[Box, ...], number: int) -> tuple[Box, ...]:
    """All boxes but one."""
    return boxes[:number] + boxes[number + 1 :]
