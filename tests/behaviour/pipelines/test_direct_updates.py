"""Updates by direct calls do what the general way does; an exception at any line leaves a feed stale and not broken."""

import gc
import inspect
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagpu import (
    DagpuError,
    DeviceLostError,
    SharedTensor,
    cutoff,
    from_host,
    full,
    observe,
    source,
    zip_ops,
)
from dagpu import value as shared_value
from dagpu.reactive.live_stage import LiveStage
from dagpu.reactive.observing import Observed
from dagpu.reactive.update_plans import UpdatePlan
from dagpu.runtime.direct_call import OFTEN, DirectCall
from dagpu.runtime.loaded_plan import LEAVES
from dagpu.testing import Locks, storage_of
from tests.behaviour.live.live_kernels import array, blended, flipped
from tests.behaviour.live.live_trials import Trial
from tests.behaviour.tiles.tile_kernels import N, joined, smoothed, turned
from tests.simulated.cuda import driver, installed
from tests.simulated.raising import RaisingAt, lines_to_try

WARM: Final = OFTEN + 3
"""Updates before the one that is compared: by then a direct call exists."""


class Scene(NamedTuple):
    """The op of a feed over a number, an array and a tensor. It also holds a tensor of its own, and its result has two
    parts, of which one depends on everything."""

    trial: Trial
    held: SharedTensor[Any]
    tiles: bool
    """True if parts of the array and the tensor are written, so that launches run lists of tiles."""

    def change(self, which: int, number: int) -> None:
        """Change the sources of these bits. The lists of tiles after two changes differ, and their lengths do not."""
        level, given, tensor = self.trial.sources
        if which & 1:
            level.set(float(number))
        if self.tiles:
            begin = 1 + 8 * (number % 2)
            for bit, written in ((2, given), (4, tensor)):
                if which & bit:
                    part = slice(begin, begin + 2), slice(begin, begin + 1)
                    written.write(part, np.full((2, 1), number, np.float32))
            return
        if which & 2:
            given.set(array(number, 3))
        if which & 4:
            tensor.set(full((8,), number).sync())


def scene_in_tiles(*, home: bool) -> Scene:
    """A scene whose sources are written in parts, with a launch that sees its number as a whole."""
    ramp = np.arange(N * N, dtype=np.float32).reshape(N, N) % 5
    level, given, tensor = source(1.0), source(ramp), source(from_host(ramp).sync())
    held = full((N, N), 3.0).sync().share()
    loaded = given.then(from_host).shared()
    kept = smoothed(joined(tensor, held)).shared()
    both = joined(joined(kept, loaded, level.map(lambda x: 2 * x)), held, level)
    op = zip_ops(both.to_host() if home else both.share(), turned(joined(kept, loaded)).share())
    return Scene(Trial(op, [level, given, tensor]), held, tiles=True)


def scene(*, home: bool, plain: bool = False) -> Scene:
    """With `home` one part goes to the host. Without, an update is one launch of a graph in memory of the device.
    With `plain` nothing on the host is computed of the number."""
    level, given, tensor = source(1.0), source(array(1, 2)), source(full((8,), 2.0).sync())
    held = full((8,), 3.0).sync().share()
    loaded = given.then(from_host).shared()
    kept = flipped(blended(loaded, held, 0.5)).shared()
    both = blended(blended(kept, tensor, level if plain else level.map(lambda x: 2 * x)), held, level)
    op = zip_ops(both.to_host() if home else both.share(), flipped(blended(kept, held, level)).share())
    return Scene(Trial(op, [level, given, tensor]), held, tiles=False)


def bits_of(value: Any) -> list[bytes]:
    """The bits of a value of the scene."""
    return [each.tobytes() if isinstance(each, np.ndarray) else each.to_host().sync().tobytes() for each in value]


async def awaited_bits(value: Any) -> list[bytes]:
    """The same in a task."""
    return [each.tobytes() if isinstance(each, np.ndarray) else (await each.to_host()).tobytes() for each in value]


def stage_of(trial: Trial) -> LiveStage:
    (stage,) = trial.run._stages  # noqa: SLF001  # the plans are not public
    return stage


def direct_call(stage: LiveStage) -> DirectCall:
    """The direct call of the update that was run last."""
    loaded = plans_of(stage)[-1].loaded
    assert loaded is not None
    direct: DirectCall = loaded.direct[LEAVES]
    return direct


def plans_of(stage: LiveStage) -> list[UpdatePlan]:
    """The plans of a stage, the one used last at the end."""
    found = stage.plans.kept.values()
    return [plan for plan in found if type(plan) is UpdatePlan]


def _leave_no_memory(machine: Any) -> None:
    with driver().gpu.current():
        driver().memory.trim()
    machine.gpus[0].fail("cuMemAlloc", 2, 1)


TROUBLES: Final[dict[str, Callable[[Scene, Any], object]]] = {
    "none": lambda scene, machine: None,
    "too large": lambda scene, machine: scene.trial.sources[0].set(1e300),
    "an int": lambda scene, machine: scene.trial.sources[0].set(3),
    "written": lambda scene, machine: Locks(None).acquire({storage_of(scene.held): True}),
    "read": lambda scene, machine: Locks(None).acquire({storage_of(scene.held): False}),
    "refused launch": lambda scene, machine: machine.gpus[0].fail("cuGraphLaunch", 1, 1),
    "lost in the launch": lambda scene, machine: machine.gpus[0].fail("cuGraphLaunch", 700, 1),
    "refused query": lambda scene, machine: machine.gpus[0].fail("cuStreamQuery", 1, 1),
    "refused update": lambda scene, machine: machine.gpus[0].fail("cuGraphExecKernelNodeSetParams", 1, 1),
    "no memory": lambda scene, machine: _leave_no_memory(machine),
    "device lost": lambda scene, machine: machine.gpus[0].lose(700),
}


def observed(which: int, trouble: str, direct: bool, spin: str, home: bool, tiles: bool) -> list[object]:
    """All that two updates with trouble in the way, and one after it, let a program see."""
    seen: list[object] = []
    with pytest.MonkeyPatch.context() as patch, installed(7, gpus=1) as machine:
        patch.setenv("DAGPU_DIRECT", str(int(direct)))
        patch.setenv("DAGPU_SPIN_US", spin)
        made = scene_in_tiles(home=home) if tiles else scene(home=home)
        trial = made.trial
        for number in range(WARM):
            made.change(which, number)
            trial.update()
        assert bool(stage_of(trial).tiles.latest) == (tiles and which > 1)
        if direct:
            assert direct_call(stage_of(trial)) is not None
        gc.collect()
        used, calls, lock = driver().memory.used, machine.gpus[0].calls.copy(), storage_of(made.held).lock
        for number in (20, 21, 22):
            with suppress(DagpuError):  # a lost device makes no tensor
                made.change(which, number)
            if number == 20:
                with suppress(DagpuError):
                    TROUBLES[trouble](made, machine)
            value: Any = None
            try:
                value = trial.update()
            except DagpuError as error:
                seen.append((type(error), str(error).replace("0x", "")))
            with suppress(DagpuError):
                seen.append(None if value is None else bits_of(value))
            del value
            gc.collect()
            seen.append((trial.ran, sorted(stage_of(trial).lost), lock.readers, lock.writer is None))
            seen.append(len(driver().live))
            if number == 21:
                machine.gpus[0].heal()
                lock.readers, lock.writer = 0, None
        counts = machine.gpus[0].calls - calls
        seen.append({name: counts[name] for name in ("cuGraphLaunch", "cuGraphExecKernelNodeSetParams", "cuMemAlloc")})
        seen.append(driver().memory.used - used)
    return seen


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(1, 7), st.sampled_from(sorted(TROUBLES)), st.sampled_from(["0", "1000000"]), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_a_direct_update_is_no_different(which: int, trouble: str, spin: str, home: bool, tiles: bool) -> None:
    """Whatever is in its way, updates give what they give without direct calls: values, texts of errors, what is lost,
    locks, launches, updates of nodes, and memory in use."""
    gc.freeze()  # so that the collector only walks objects of this example
    try:
        expected = observed(which, trouble, False, spin, home, tiles)
        assert observed(which, trouble, True, spin, home, tiles) == expected
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(("awaits", "kind"), [*product([False, True], ["home", "device", "tiles"])])
def test_an_exception_at_any_line_of_an_update_leaves_it_stale(awaits: bool, kind: str) -> None:
    """At each line of the text that may be interrupted: when the call ends, nothing is locked or under way,
    and the next update gives the value that is due."""
    raised, which = 0, 4 if kind == "tiles" else 1
    with installed(5, gpus=1):
        made = scene_in_tiles(home=False) if kind == "tiles" else scene(home=kind == "home")
        trial, lock = made.trial, storage_of(made.held).lock

        async def main() -> int:
            nonlocal raised
            async with observe(trial.op) as feed:
                observed_by: Any = feed._stage  # noqa: SLF001  # the text is not public
                for number in range(WARM):
                    made.change(which, number)
                    await feed.next()
                (stage,) = observed_by._run._stages  # noqa: SLF001
                for code, line in lines_of_call(direct_call(stage), "in_task"):
                    made.change(which, 2 * line)
                    with RaisingAt(code, line) as raising, suppress(TimeoutError):
                        await feed.next()
                    raised += raising.raised
                    assert not driver().live, line
                    assert (lock.readers, lock.writer) == (0, None), line
                    made.change(which, 2 * line + 1)
                    assert await awaited_bits(await feed.next()) == await awaited_bits(await trial.op), line
            return raised

        if awaits:
            trio.run(main)
        else:
            for number in range(WARM):
                made.change(which, number)
                trial.update()
            for code, line in lines_of_call(direct_call(stage_of(trial)), "now"):
                made.change(which, line + 100)
                with RaisingAt(code, line) as raising, suppress(TimeoutError):
                    trial.update()
                raised += raising.raised
                assert not driver().live, line
                assert (lock.readers, lock.writer) == (0, None), line
                assert bits_of(trial.update()) == bits_of(trial.op.sync()), line
                assert stage_of(trial).lost == frozenset(), line
    assert raised > 15


def lines_of_call(call: DirectCall, way: str) -> list[Any]:
    """The lines of a direct call, and of what begins it."""
    return lines_of(getattr(call, way)) + lines_of(call._begin)  # noqa: SLF001


def lines_of(function: Any) -> list[Any]:
    """The lines of a text up to those that release its locks."""
    text, first = inspect.getsourcelines(function)
    end = next((number for number, line in enumerate(text, first) if line.strip() == "finally:"), first + len(text))
    return [(code, line) for code, line in lines_to_try(function) if line < end]


NUMBERS: Final[dict[str, float]] = {"other": 7.0, "the same": 1.5, "too large": 1e300, "negative zero": -0.0}


@settings(max_examples=30)
@given(
    st.lists(
        st.sampled_from([*NUMBERS, "tensor", "both", "new trace", "refused launch", "no memory", "cancelled"]),
        max_size=8,
    ),
    st.booleans(),
)
def test_an_update_that_comes_again_gives_the_value_of_a_run(changes: list[str], later_feed: bool) -> None:
    """A feed follows one number again and again by a direct call, until another input changes, another feed shares its
    work, or the update fails or is cancelled. Each value is that of a run from scratch, and memory stays level."""
    with installed(3, gpus=1) as machine:
        made = scene(home=False, plain=True)
        level, _, tensor = made.trial.sources

        async def main() -> None:
            async with observe(made.trial.op) as feed:
                for number in range(WARM):
                    level.set(float(number))
                    await feed.next()
                await awaited_bits(await made.trial.op)  # it keeps what is shared
                gc.collect()
                used = driver().memory.used
                for number, change in enumerate(changes):
                    if change in NUMBERS:
                        level.set(NUMBERS[change])
                    if change in ("tensor", "both"):
                        tensor.set(await full((8,), float(number)))
                    if change not in NUMBERS and change != "tensor":
                        level.set(10.0 + number)
                    if change == "refused launch":
                        machine.gpus[0].fail("cuGraphLaunch", 1, 1)
                    elif change == "no memory":
                        _leave_no_memory(machine)
                    elif change == "new trace":
                        level.set(3)
                    with trio.CancelScope() as scope, suppress(DagpuError):
                        if change == "cancelled":
                            scope.cancel()
                        await feed.next()
                    machine.gpus[0].heal()
                    level.set(100.0 + number)
                    if later_feed and number == 1:
                        async with observe(made.trial.op) as other:
                            await other.next()
                            level.set(200.0 + number)
                            assert await awaited_bits(await feed.next()) == await awaited_bits(await other.next())
                            level.set(300.0 + number)
                    assert await awaited_bits(await feed.next()) == await awaited_bits(await made.trial.op)
                    assert not driver().live
                gc.collect()
                assert driver().memory.used == used

        trio.run(main)


def test_an_update_that_comes_again_shares_with_a_later_feed() -> None:
    """From the time on at which another feed observes a `shared()` node, one of the two makes its tensor."""

    async def main() -> None:
        level, ones = source(1.0), (await full((8,), 1.0)).share()
        node = blended(ones, ones, level).shared()
        async with observe(flipped(node).share()) as one:
            for number in range(WARM):
                level.set(float(number))
                await one.next()
            async with observe(blended(node, ones, 2.0).share()) as two:
                await two.next()
                for number in range(WARM):
                    level.set(10.0 + number)
                    before = one.stats.launched + two.stats.launched
                    first, second = await one.next(), await two.next()
                    assert one.stats.launched + two.stats.launched == before + 3
                    assert (await first.to_host())[0] == (await flipped(node).to_host())[0]
                    assert (await second.to_host())[0] == (await blended(node, ones, 2.0).to_host())[0]

    with installed(3, gpus=1):
        trio.run(main)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from(["drop", "keep", "keep an op of it", "forget"]), st.integers(1, 7)),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_a_result_is_written_only_if_nothing_has_it(steps: list[tuple[str, int]], tiles: bool) -> None:
    """What a program keeps of a value, itself or an op of it, has the bits with which it was handed out, whatever is
    updated later; and each value is that of a run."""
    with installed(3, gpus=1):
        made = scene_in_tiles(home=False) if tiles else scene(home=False, plain=True)
        made.trial.update()
        for number in range(WARM):
            made.change(1, number)
            made.trial.update()
        kept: list[tuple[Any, list[bytes]]] = []
        for number, (then, which) in enumerate(steps, WARM):
            made.change(which, number)
            value = made.trial.update()
            bits = bits_of(value)
            assert bits == bits_of(made.trial.op.sync())
            if then == "keep":
                kept.append((value, bits))
            if then == "keep an op of it":
                kept.append((zip_ops(*map(shared_value, value)), bits))
            if then == "forget":
                kept.clear()
            del value
        for found, bits in kept:
            assert bits_of(found if isinstance(found, tuple) else found.sync()) == bits


def test_a_result_that_nothing_has_stays_at_its_address() -> None:
    """While its handles are dropped before the next update, each result is made where the last one was."""
    with installed(3, gpus=1):
        made = scene(home=False, plain=True)
        seen = []
        for number in range(2 * WARM):
            made.change(1, number)
            value: Any = made.trial.update()
            memory: list[Any] = [storage_of(each).memory for each in value]
            seen.append([block.address for block in memory])
            del value, memory
        assert all(each == seen[-1] for each in seen)


def test_a_tensor_that_is_written_as_an_update_begins_is_not_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update holds an instant before it looks at its sources. So a write after that look, by another thread, leaves
    the memory as it is that the update reads."""
    with installed(3, gpus=1):
        level, tensor = source(1.0), source(full((8,), 2.0).sync())
        op = blended(tensor, tensor, level).share()
        find = Observed._changed_snapshot  # noqa: SLF001  # the look is not public

        def written_after(observed: Observed) -> object:
            found = find(observed)
            monkeypatch.undo()
            tensor.write((slice(0, 8),), np.full(8, 7.0, np.float32))
            return found

        async def main() -> None:
            async with observe(op) as feed:
                for number in range(WARM):
                    level.set(float(number))
                    await feed.next()
                level.set(0.5)
                before = await (await op).to_host()
                monkeypatch.setattr(Observed, "_changed_snapshot", written_after)
                assert np.array_equal(await (await feed.next()).to_host(), before)
                assert tensor.revision == 1
                assert np.array_equal(await (await feed.next()).to_host(), await (await op).to_host())

        trio.run(main)


CUT_CHANGES: Final = ("equal", "different", "level", "both", "refused launch", "device lost")


def cut_updates(changes: list[str], *, direct: bool, lacking: str) -> list[object]:
    """All that updates of an op with a cutoff on a tensor let a program see, after some that make direct calls. They
    are in two parts if the driver lacks something for conditional nodes."""
    seen: list[object] = []
    with pytest.MonkeyPatch.context() as patch, installed(3, gpus=1) as machine:
        patch.setenv("DAGPU_DIRECT", "1" if direct else "0")
        machine.gpus[0].lacks_conditions = lacking
        level, tensor, held = source(1.0), source(full((8,), 2.0).sync()), full((8,), 3.0).sync().share()
        cut: Any = cutoff(blended(tensor, held, 0.5))
        trial = Trial(zip_ops(blended(cut, held, level).share(), flipped(cut).share()), [level, tensor])
        trial.update()
        content = 2.0
        for number, change in enumerate([*("equal", "different", "level") * WARM, *changes]):
            if change in ("different", "both"):
                content += 1.0
            if change != "level":
                tensor.set(full((8,), content).sync())
            if change in ("level", "both"):
                level.set(float(number))
            if change == "refused launch":
                machine.gpus[0].fail("cuGraphLaunch", 1, 1)
            if change == "device lost":
                machine.gpus[0].lose(700)
                with pytest.raises(DeviceLostError):
                    trial.update()
                return seen
            with suppress(DagpuError):
                bits = bits_of(trial.update())
                seen.append((bits, trial.ran))
                assert direct or bits == bits_of(trial.op.sync())
            machine.gpus[0].heal()
        if direct and not changes:
            stage = stage_of(trial)
            called = [plan.decides for plan in plans_of(stage) if plan.loaded and LEAVES in plan.loaded.direct]
            written = [called.count(False), called.count(True)]
            assert written == ([3, 0] if lacking else [1, 1]), "compared, let through and level; or level, and the rest"
    return seen


@pytest.mark.parametrize("lacking", ["", "it is old"])
@settings(max_examples=12)
@example([])
@given(st.lists(st.sampled_from(CUT_CHANGES), max_size=8))
def test_direct_calls_of_cutoffs_are_no_different(lacking: str, changes: list[str]) -> None:
    """The parts of an update with a cutoff, which makes a tensor and compares it, and what comes after, or both as one
    graph, run by direct calls, with the values, the numbers of instructions and the errors of the general way."""
    direct, general = (cut_updates(changes, direct=each, lacking=lacking) for each in (True, False))
    assert direct == general
