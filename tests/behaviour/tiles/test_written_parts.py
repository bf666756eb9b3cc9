"""`Source.write`: what readers see, where memory is written in place, and updates after failures, sets and threads."""

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import DeviceError, SharedTensor, Source, batch, cutoff, from_host, observe, source, zip_ops
from dagpu.ops.array_parts import MOST_PARTS, Parts
from dagpu.ops.versions import Snapshot
from dagpu.testing import live_state
from tests.behaviour.live.live_trials import MACHINES, Trial, explored, machine
from tests.behaviour.tiles.tile_kernels import N, joined, negated, smoothed
from tests.behaviour.tiles.tile_trials import (
    TileRecipe,
    Write,
    check,
    on_host,
    parts,
    tile_recipes,
    trial_of,
    write,
    writes,
)

START = np.arange(N * N, dtype=np.float32).reshape(N, N)


def source_of(on_host: bool) -> Source[Any]:
    """A source of an array, or of a tensor that nothing else holds."""
    return source(START) if on_host else source(from_host(START).sync())


def contents(held: Any) -> NDArray[Any]:
    """The contents of the value of a source."""
    array: NDArray[Any] = held if isinstance(held, np.ndarray) else held.to_host().sync()
    return array


def address(held: SharedTensor[Any]) -> object:
    """The memory of a tensor."""
    return live_state(held).storage.memory


# ---- what readers see


Steps = list[tuple[bool, tuple[slice, slice]]]
steps = st.lists(st.tuples(st.booleans(), parts()), max_size=6)


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("array", [False, True])
@settings(max_examples=20)
@given(changes=steps, together=st.booleans(), hold=st.booleans(), look=st.booleans())
def test_a_source_has_what_was_written(
    kind: str, array: bool, changes: Steps, together: bool, hold: bool, look: bool
) -> None:
    """After sets and writes `get` gives their sum, in a batch too, whether it was asked in between or not; values that
    were read before stay as they were."""
    with machine(kind), explored(kind, 0):
        given_source, model = source_of(array), START.copy()
        before: list[tuple[Any, NDArray[Any]]] = []

        def change() -> None:
            for number, (whole, at) in enumerate(changes):
                if whole:
                    model[...] = number
                    given_source.set(model.copy() if array else from_host(model).sync())
                else:
                    model[at] = number + 0.5
                    given_source.write(at, model[at].copy())
                if hold:
                    before.append((given_source.get(), model.copy()))
                if look:
                    assert np.array_equal(contents(given_source.get()), model)

        if together:
            with batch():
                change()
                revision = given_source.revision
            changed = any(whole or model[at].size for whole, at in changes)
            assert (revision, given_source.revision) == (0, int(changed))
        else:
            change()
        assert np.array_equal(contents(given_source.get()), model)
        for held, was in before:
            assert np.array_equal(contents(held), was)


def test_parts_take_tensors_and_fewer_slices() -> None:
    """The data may be a tensor, which moves, or a shared one; axes that are left out are written whole."""
    s = source_of(False)
    row: Any = from_host(np.zeros((1, N), np.float32)).sync()
    s.write(slice(2, 3), row)
    assert "gone" in repr(row)
    s.write((slice(-1, None), slice(0, 2)), from_host(np.ones((1, 2), np.float32)).sync().share())
    wanted = START.copy()
    wanted[2], wanted[-1, :2] = 0, 1
    assert np.array_equal(contents(s.get()), wanted)


def test_memory_that_nothing_else_holds_is_written_in_place() -> None:
    """A handle, a run or an open batch makes the write a copy; with none of them it is in place."""
    s, patch = source_of(False), np.zeros((2, 2), np.float32)
    here = address(s.get())
    s.write((slice(0, 2), slice(0, 2)), patch)
    assert address(s.get()) is here
    held = s.get()
    s.write((slice(0, 2), slice(0, 2)), patch + 1)
    there = address(s.get())
    assert there is not here
    assert np.array_equal(contents(held)[:2, :2], patch)
    del held
    with batch():
        s.write((slice(0, 2), slice(0, 2)), patch + 2)
        first = address(s.get())
        s.write((slice(2, 4), slice(0, 2)), patch + 2)
        assert address(s.get()) is first
    assert first is not there
    s.write((slice(0, 2), slice(0, 2)), patch)
    assert address(s.get()) is first


@pytest.mark.parametrize("kind", MACHINES)
def test_a_batch_writes_in_place_when_it_ends(kind: str) -> None:
    """Parts that a batch writes to a tensor which nothing else holds go to its memory, together at one instant, unless
    the batch asks for the value; a handle, or an update that began before, makes the write a copy."""
    corner, other = (slice(0, 2), slice(0, 2)), (slice(3, 5), slice(1, 3))

    def both(first: float, second: float) -> NDArray[Any]:
        model = START.copy()
        model[corner], model[other] = first, second
        return model

    def patch(number: float) -> NDArray[Any]:
        return np.full((2, 2), number, np.float32)

    with machine(kind), explored(kind, 0):
        s = source_of(False)
        before = address(s.get())
        with batch():
            s.write(corner, patch(1))
            s.write(other, patch(2))
        assert address(s.get()) is before
        assert np.array_equal(contents(s.get()), both(1, 2))
        held = s.get()
        with batch():
            s.write(corner, patch(3))
            assert np.array_equal(contents(held), both(1, 2))
            s.write(other, patch(4))
        assert address(s.get()) is not before
        assert np.array_equal(contents(held), both(1, 2))
        assert np.array_equal(contents(s.get()), both(3, 4))
        del held
        here, snapshot = address(s.get()), Snapshot()
        with batch():
            s.write(corner, patch(5))
        assert address(s.get()) is not here
        assert np.array_equal(contents(s.cell.history.at(snapshot).value), both(3, 4))


def test_an_empty_part_changes_nothing() -> None:
    """There is no new revision, and nothing runs."""
    s = source_of(False)
    trial = Trial(negated(s).to_host(), [s])
    trial.update()
    s.write((slice(3, 3), slice(0, 2)), np.zeros((0, 2), np.float32))
    assert s.revision == 0
    trial.update()
    assert trial.ran == 0


def test_the_record_of_parts_is_bounded() -> None:
    """Any number of writes leaves a bounded record, which never forgets a part."""
    record = Parts(3)
    for revision in range(4, 1004):
        record = record.with_part(revision, ((revision % 97, revision % 97 + 1),))
        assert len(record.boxes) == len(record.revisions) <= MOST_PARTS
        assert list(record.revisions) == sorted(record.revisions)
    for since in (3, 500, 900, 1002, 1003):
        wanted = {revision % 97 for revision in range(since + 1, 1004)}
        found = record.since(since)
        assert found is not None
        assert wanted <= {place for ((begin, end),) in found for place in range(begin, end)}
    assert record.since(2) is None
    assert record.since(1003) == ()


# ---- updates


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=15)
@given(recipe=tile_recipes(), changed=writes, seed=st.integers(0, 9), share=st.integers(0, 8))
def test_a_budget_changes_no_value(
    kind: str, recipe: TileRecipe, changed: list[list[Write]], seed: int, share: int
) -> None:
    """With any limit for the memory that stays, updates in tiles give the same values, and no more memory stays."""
    with machine(kind, seed):
        with explored(kind, seed):
            free = trial_of(recipe)
            check(free)
            write(free, [(0, (slice(0, 1), slice(0, 1))), (1, (slice(0, 1), slice(0, 1)))], -1)
            check(free)
            (stage,) = free.run._stages  # noqa: SLF001  # the analysis is not public
            sizes = sum(stage.staleness.program.buffers[b].nbytes for b in stage.staleness.results)
            limit = sizes + share * (free.run.kept_bytes - sizes) // 8
            trial = trial_of(recipe, limit)
            check(trial)
        for number, written in enumerate(changed):
            with explored(kind, seed * 31 + number):
                write(trial, written, number)
                check(trial)
                assert trial.run.kept_bytes <= limit


@settings(max_examples=60)
@given(recipe=tile_recipes(cutoffs=True), changed=writes, seed=st.integers(0, 9), fail_at=st.integers(0, 12))
def test_an_update_that_failed_is_made_good(
    recipe: TileRecipe, changed: list[list[Write]], seed: int, fail_at: int
) -> None:
    """A fault at any step of an update in tiles raises; the next update, with more writes, has the right value."""
    with machine("explore"):
        with explored("explore", seed):
            trial = trial_of(recipe)
            check(trial)
        for number, written in enumerate(changed):
            with explored("explore", seed):
                write(trial, written, number)
            with explored("explore", seed * 7 + number, fail_at), suppress(DeviceError):
                trial.update()
        with explored("explore", seed + 1):
            write(trial, changed[0], 9)
            check(trial)


@pytest.mark.parametrize("kind", MACHINES)
def test_what_an_update_did_not_get_to_run_is_made_with_later_writes(kind: str) -> None:
    """A closure of the host raises before the device runs anything. The next update runs the tiles of both writes."""

    def refuse_13(number: int) -> int:
        if number == 13:
            raise ZeroDivisionError
        return number

    with machine(kind), explored(kind, 0):
        s, number = source_of(False), source(1)
        trial = Trial(zip_ops(negated(s).share().to_host(), number.map(refuse_13).map(np.float32)), [s, number])
        for step in range(3):
            s.write((slice(0, 2), slice(0, 2)), np.full((2, 2), step, np.float32))
            trial.update()
        s.write((slice(0, 2), slice(0, 2)), np.full((2, 2), 7, np.float32))
        number.set(13)
        with pytest.raises(ZeroDivisionError):
            trial.update()
        s.write((slice(8, 10), slice(8, 10)), np.full((2, 2), 8, np.float32))
        number.set(2)
        found, _ = trial.update()
        assert np.array_equal(found, negated(s).to_host().sync())


@pytest.mark.parametrize("kind", MACHINES)
def test_many_tiles_run_from_a_list_only_in_place(kind: str) -> None:
    """Two thirds of the tiles run alone where the result is written in place. Where the value before is held, a copy of
    it and these tiles would take longer than all tiles."""
    with machine(kind), explored(kind, 0):
        s = source_of(False)
        trial = Trial(negated(s).share(), [s])
        held: Any = None
        for number, hold in enumerate((False, False, True, False, True, True)):
            s.write((slice(0, 8), slice(0, N)), np.full((8, N), number, np.float32))
            value = trial.update()
            assert np.array_equal(contents(value), contents(trial.op.sync()))
            (stage,) = trial.run._stages  # noqa: SLF001  # the counts are not public
            if number:
                assert stage.tiles.counts == (((0, 6, 9),) if held is None else ())
            held = value if hold else None
            del value


@pytest.mark.parametrize("kind", MACHINES)
def test_a_feed_shows_the_tiles_of_its_last_update(kind: str) -> None:
    """`explain` names the launches with their tiles; with `check=True` each value is compared with one from scratch."""

    async def main() -> None:
        async with observe(smoothed(negated(s)).to_host(), check=True) as feed:
            await feed.next()
            for number in range(3):
                s.write((slice(0, 2), slice(0, 2)), np.full((2, 2), number, np.float32))
                await feed.next()
            assert "the last update ran tiles: Launch negate 1 of 9, Launch smooth 4 of 9 tiles" in feed.explain()
            assert "on, a launch runs all of them and has no list: Launch negate 7, Launch smooth 7\n" in feed.explain()
            s.set(await from_host(START + 1))
            await feed.next()
            assert "ran tiles" not in feed.explain()

    with machine(kind), explored(kind, 0):
        s = source_of(False)
        trio.run(main)


def test_a_part_that_is_most_of_a_source_is_not_taken_apart() -> None:
    """A write of three quarters of the elements or more runs launches whole, and is not looked at tile by tile."""
    s = source_of(False)
    trial = Trial(negated(s).to_host(), [s])
    trial.update()
    for rows in (8, 9, 8, N):
        s.write((slice(0, rows), slice(0, N)), np.full((rows, N), rows, np.float32))
        assert np.array_equal(trial.update(), 1 - contents(s.get()))
        assert any("ran tiles" in line for line in trial.run.explain()) == (rows == 8)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_tensor_that_a_cutoff_let_through_is_not_written_in_place(kind: str) -> None:
    """Writes of equal and of other elements, made in tiles: after a tensor was cut off, the next one is compared with
    the one before it, whose memory it may not be in."""
    with machine(kind), explored(kind, 0):
        s = source_of(False)
        trial = Trial(zip_ops(smoothed(cutoff(negated(s))).to_host(), negated(s).share()), [s])
        corner = (slice(0, 2), slice(0, 2))
        ran, before = [], START[corner]
        for shade in (1, 1, 2, 2, 2, 3, 1, 1):
            now = np.full((2, 2), shade, np.float32)
            s.write(corner, now)
            found, _ = trial.update()
            assert np.array_equal(found, smoothed(negated(s)).to_host().sync())
            ran.append(trial.ran - (2 if np.array_equal(now, before) else 4))
            before = now
        assert ran[1:] == [0] * 7  # the first update makes everything


def test_a_number_beside_a_write_runs_all_tiles() -> None:
    """A change of what every tile depends on is not hidden by a write to a part."""
    s, number = source_of(False), source(0.5)
    trial = Trial(joined(s, s, number).to_host(), [s, number])
    check(trial)
    for change_number in (False, True, False):
        s.write((slice(0, 2), slice(0, 2)), np.full((2, 2), 7, np.float32))
        if change_number:
            number.set(number.get() + 1)
        check(trial)


def test_results_that_something_holds_are_not_written() -> None:
    """A device result is written in place only if no handle to it is left."""
    s = source_of(False)
    trial = Trial(negated(s).share(), [s])
    kept: list[tuple[Any, Any]] = []
    memory: list[object] = []
    for number in range(6):
        s.write((slice(0, 2), slice(0, 2)), np.full((2, 2), number, np.float32))
        result = trial.update()
        memory.append(address(result))
        if number % 2:
            kept.append((result, on_host((result,))[0]))
        del result
        for held, was in kept:
            assert np.array_equal(on_host((held,))[0], was)
    assert memory[2] is not memory[1]  # the second one is held
    assert memory[3] is memory[2]


def test_a_thread_that_writes_pairs_tears_none() -> None:
    """A feed that runs beside a thread which writes two sources in batches sees both writes or none, and the last
    ones."""
    first, second = source_of(False), source_of(False)
    rounds = 60
    seen: list[tuple[float, float]] = []

    def write_pairs() -> None:
        for number in range(1, rounds + 1):
            patch = np.full((2, 2), number, np.float32)
            with batch():
                first.write((slice(0, 2), slice(4, 6)), patch)
                second.write((slice(0, 2), slice(4, 6)), patch)

    async def main() -> None:
        both: Any = zip_ops(negated(first).to_host(), negated(second).to_host())
        async with observe(both) as feed:
            await feed.next()
            writer = threading.Thread(target=write_pairs)
            writer.start()
            while not seen or seen[-1][0] != 1 - rounds:
                a, b = await feed.next()
                assert np.array_equal(a[:2, 4:6], np.full((2, 2), a[0, 4]))
                assert np.array_equal(a[2:], (1 - START)[2:])
                seen.append((float(a[0, 4]), float(b[0, 4])))
            writer.join()

    trio.run(main)
    assert all(a == b for a, b in seen)
    assert sorted(seen, reverse=True) == seen


def test_threads_that_write_other_parts_lose_none() -> None:
    """Writes of several threads to parts of one source are all there, beside runs and feeds that read it."""
    s = source_of(False)

    def write_row(row: int) -> None:
        for number in range(20):
            s.write(slice(row, row + 1), np.full((1, N), number, np.float32))

    async def main() -> None:
        async with observe(negated(s).to_host()) as feed:
            threads = [threading.Thread(target=write_row, args=(row,)) for row in range(4)]
            for each in threads:
                each.start()
            wanted = START.copy()
            wanted[:4] = 19
            shown = await feed.next()
            while not np.array_equal(shown, 1 - wanted):
                scratch = await s.then(lambda t: t.to_host())
                assert all(len(set(scratch[row].tolist())) == 1 for row in range(4) if scratch[row, 0] != START[row, 0])
                shown = await feed.next()
            for each in threads:
                each.join()

    trio.run(main)
    assert s.revision == 80


def test_a_kernel_of_a_tensor_with_its_own_memory_is_not_confused() -> None:
    """A later trace of the op does not take memory of before a write in place for what it was."""
    s, deep = source_of(False), source(1)
    op = deep.then(lambda n: smoothed(negated(s), (4, 4) if n % 2 else (3, 6)).to_host())
    trial = Trial(op, [s, deep])
    for number in range(4):
        s.write((slice(0, 2), slice(0, 2)), np.full((2, 2), number, np.float32))
        deep.set(number)
        check_one(trial)


def check_one(trial: Trial) -> None:
    """Hold one array against a run from scratch."""
    made, wanted = trial.update(), trial.op.sync()
    assert np.array_equal(made, wanted)
