"""One proof serves all parts of one shape: the tiles of a shifted part are those that an analysis finds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dagpu import batch, empty, from_host, source, zip_ops
from dagpu.common.errors import PlanError
from dagpu.reactive.claims import EVERYTHING, Change
from dagpu.reactive.tile_updates import StageTiles, TileUpdates, list_array
from dagpu.reactive.verify_tiles import TileVerifier, find_shifts
from tests.behaviour.live.live_trials import Trial, machine
from tests.behaviour.tiles.tile_kernels import N, joined, line, negated, smooth, smoothed, turned
from tests.behaviour.tiles.tile_trials import TileRecipe, Write, check, trial_of, write


@st.composite
def recipes(draw: st.DrawFn) -> TileRecipe:
    """Recipes over tensors alone, most often of launches with the same tiles."""
    tiles = draw(st.sampled_from([(0,), (3,), (0,), (3,), (1,), (0, 3), (2, 4)]))
    kinds = st.sampled_from(["negate", "join", "turn", "gain", "smooth", "product"])
    step = st.tuples(kinds, st.integers(0, 9), st.integers(0, 9), st.sampled_from(tiles))
    steps = draw(st.lists(step, min_size=1, max_size=3))
    return TileRecipe((False,) * draw(st.integers(1, 2)), tuple(steps), on_device=True)


def tiles_of(trial: Trial) -> StageTiles:
    (stage,) = trial.run._stages  # noqa: SLF001  # the plans are not public
    return stage.tiles


def shifted(written: list[Write], by: tuple[int, int]) -> list[Write] | None:
    """The parts behind a shift; None if they do not lie in the array."""
    found = [
        (which, tuple([slice(part.start + each, part.stop + each) for part, each in zip(at, by, strict=True)]))
        for which, at in written
    ]
    inside = all(part.start >= 0 and part.stop <= N for _, at in found for part in at)
    return found if inside else None  # type: ignore[return-value]  # the two slices are a pair


parts = st.sampled_from([4, 5, 6, 4, 5, 0, 9]).flatmap(
    lambda begin: st.integers(1, 2).map(lambda size: slice(begin, begin + size))
)
writes: Any = st.lists(st.tuples(st.integers(0, 1), st.tuples(parts, parts)), min_size=1, max_size=2)
shifts = st.tuples(st.sampled_from([-4, 0, 4, -3, 6]), st.sampled_from([-4, 0, 4, 1, -2]))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(recipes(), writes, st.lists(shifts, min_size=2, max_size=5))
def test_the_tiles_of_a_shifted_part_are_those_of_an_analysis(
    recipe: TileRecipe, written: list[Write], by: list[tuple[int, int]]
) -> None:
    """For random kernels, parts and shifts: the value is that of a run from scratch, and the lists are those that an
    analysis of the shifted parts finds, which the verifier proves."""
    trial = trial_of(recipe)
    check(trial)
    write(trial, written, 1)
    check(trial)
    tiles = tiles_of(trial)
    proofs: list[bool] = []
    verifier = tiles._tile_verifier  # noqa: SLF001
    for step, each in enumerate(by):
        moved = shifted(written, each)
        if moved is None:
            continue
        before, kept = set(tiles._prepared), len(tiles._shapes._proved)  # noqa: SLF001
        write(trial, moved, 2 + step)
        check(trial)
        for key in tiles._prepared.keys() - before:  # noqa: SLF001
            change, changed = key
            dirt = tiles._leaves.dirt(dict(changed))  # noqa: SLF001
            fresh = TileUpdates(tiles._staleness).update(change, dirt)  # noqa: SLF001
            prepared = tiles._prepared[key]  # noqa: SLF001
            verifier.verify(change, dirt, fresh)
            assert prepared.update.chosen == fresh.chosen
            assert {index: len(each) for index, each in prepared.update.lists.items()} == {
                index: len(each) for index, each in fresh.lists.items()
            }
            if prepared.array is not None:
                wanted = list_array(prepared.lengths, fresh.lists, tiles._totals)  # noqa: SLF001
                places = [place for place in range(len(wanted)) if place in _listed(prepared.lengths)]
                assert prepared.array[places].tolist() == wanted[places].tolist()
                proofs.append(len(tiles._shapes._proved) == kept)  # noqa: SLF001
    event(f"served by a shift: {sum(proofs)}")


def _listed(lengths: tuple[tuple[int, int], ...]) -> set[int]:
    """The places of an array of lists in which there is a number."""
    found, begin = set(), 0
    for _, length in lengths:
        found |= set(range(begin, begin + length))
        begin += -(-length // 16) * 16
    return found


def scene() -> Trial:
    """Two results of kernels that look around and across, with tiles of 4 x 4."""
    given = source(from_host(np.ones((N, N), np.float32)).sync())
    return Trial(
        zip_ops(turned(negated(smoothed(given)).shared()).share(), negated(given).share()), [given, source(0.0)]
    )


@pytest.mark.parametrize("kind", ["host", "explore", "simulated"])
def test_a_shifted_part_needs_no_further_proof(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts of a shape are analysed and proved, others that lie whole tiles farther are not. Parts at the edge,
    where tiles are missing, have proofs of their own."""
    proofs: list[Change] = []
    proof = TileVerifier.verify

    def counted(self: TileVerifier, change: Change, leaves: Any, update: Any) -> frozenset[int]:
        proofs.append(change)
        return proof(self, change, leaves, update)

    monkeypatch.setattr(TileVerifier, "verify", counted)
    with machine(kind):
        given = source(from_host(np.ones((96, N), np.float32)).sync())
        sums = smooth(empty((96, N)).partition((4, N)), given).first().unpartition()
        trial = Trial(zip_ops(sums.share()), [given, source(0.0)])
        check(trial)
        found = []
        for step, row in enumerate((8, 16, 12, 60, 80, 0, 92, 9, 13)):
            before = len(proofs)
            given.write(slice(row, row + 2), np.full((2, N), step, np.float32))
            check(trial)
            found.append(len(proofs) - before)
        assert found == [1, 1, 0, 0, 0, 1, 1, 1, 0]


def test_parts_of_arrays_of_different_ranks_do_not_shift_together() -> None:
    """An update after writes to a row and to a square has no axes along which both move. Each has its own proof, and
    the right value."""
    square, row = (source(from_host(np.ones(shape, np.float32)).sync()) for shape in ((N, N), (N,)))
    inverted = line(empty((N,)).partition((4,)), row).first().unpartition()
    trial = Trial(zip_ops(negated(square).share(), inverted.share()), [square, row, source(0.0)])
    check(trial)
    for step, begin in enumerate((0, 4, 8, 4)):
        at = slice(begin, begin + 1)
        with batch():
            square.write((at, at), np.full((1, 1), step, np.float32))
            row.write(at, np.full(1, step, np.float32))
        check(trial)


@pytest.mark.parametrize("turned_first", [False, True])
def test_arrays_that_move_along_different_axes_do_not_shift_together(turned_first: bool) -> None:
    """A tile that sees a source and its transpose at one place becomes dirty by parts that move in two ways, whichever
    it reads first. A part on the diagonal makes one tile dirty, and one beside it makes two."""
    given = source(from_host(np.ones((N, N), np.float32)).sync())
    across: Any = turned(given).share().shared()
    inputs = (across, given) if turned_first else (given, across)
    trial = Trial(zip_ops(joined(*inputs).share()), [given, source(0.0)])
    check(trial)
    for step, (row, column) in enumerate(((0, 0), (8, 8), (4, 4), (4, 8), (0, 4))):
        given.write((slice(row, row + 1), slice(column, column + 1)), np.full((1, 1), 2 + step, np.float32))
        check(trial)


def test_a_source_that_may_differ_anywhere_has_no_shifts() -> None:
    """So many parts of it have changed that they count as everything: no part is left that could be shifted."""
    trial = scene()
    check(trial)
    (stage,) = trial.run._stages  # noqa: SLF001  # the plans are not public
    staleness = stage.staleness
    leaves = dict.fromkeys(stage.leaves.bits_of_sources(), EVERYTHING)
    change = Change(stage.leaves.bits[min(leaves)])
    update = TileUpdates(staleness).update(change, leaves)
    assert find_shifts(TileVerifier(staleness), change, leaves, update) is None


def test_a_list_without_a_dirty_tile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused wherever the part is: what was not proved does not serve shifted parts."""
    analyse = TileUpdates.update

    def wrong(self: TileUpdates, change: Change, leaves: Any) -> Any:
        found = analyse(self, change, leaves)
        return found._replace(lists={index: numbers[1:] for index, numbers in found.lists.items()})

    trial = scene()
    check(trial)
    given = trial.sources[0]
    with monkeypatch.context() as patch:
        patch.setattr(TileUpdates, "update", wrong)
        for column in (1, 5, 9):
            given.write((slice(5, 6), slice(column, column + 1)), np.zeros((1, 1), np.float32))
            with pytest.raises(PlanError, match="runs a list of tiles"):
                trial.update()
    check(trial)
