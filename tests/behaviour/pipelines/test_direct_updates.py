"""Updates by direct calls do what the general way does; an exception at any line leaves a feed stale and not broken."""

import gc
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DagpuError, SharedTensor, from_host, full, observe, source, zip_ops
from dagpu.handles.handle_trees import storage_of
from dagpu.handles.storage import Locks
from dagpu.reactive.live_stage import LiveStage
from dagpu.runtime.calls.direct_call import OFTEN, DirectCall
from tests.behaviour.live.live_kernels import array, blended, flipped
from tests.behaviour.live.live_trials import Trial
from tests.simulated.cuda import driver, installed
from tests.simulated.raising import RaisingAt, lines_to_try

WARM: Final = OFTEN + 3
"""Updates before the one that is compared: by then a direct call exists."""


class Scene(NamedTuple):
    """The op of a feed over a number, an array and a tensor. It also holds a tensor of its own, and its result has two
    parts, of which one depends on everything."""

    trial: Trial
    held: SharedTensor[Any]


def scene(*, home: bool) -> Scene:
    """With `home` one part goes to the host. Without, an update is one launch of a graph in memory of the device."""
    level, given, tensor = source(1.0), source(array(1, 2)), source(full((8,), 2.0).sync())
    held = full((8,), 3.0).sync().share()
    loaded = given.then(from_host).shared()
    kept = flipped(blended(loaded, held, 0.5)).shared()
    both = blended(blended(kept, tensor, level.map(lambda x: 2 * x)), held, level)
    op = zip_ops(both.to_host() if home else both.share(), flipped(blended(kept, held, level)).share())
    return Scene(Trial(op, [level, given, tensor]), held)


def change(trial: Trial, which: int, number: int) -> None:
    """Change the sources of these bits."""
    values: list[Callable[[], Any]] = [
        lambda: float(number), lambda: array(number, 3), lambda: full((8,), number).sync(),
    ]  # fmt: skip
    for index, make in enumerate(values):
        if which >> index & 1:
            trial.sources[index].set(make())


def bits_of(value: Any) -> list[bytes]:
    """The bits of a value of the scene."""
    return [each.tobytes() if isinstance(each, np.ndarray) else each.to_host().sync().tobytes() for each in value]


async def awaited_bits(value: Any) -> list[bytes]:
    """The same in a task."""
    return [each.tobytes() if isinstance(each, np.ndarray) else (await each.to_host()).tobytes() for each in value]


def stage_of(trial: Trial) -> LiveStage:
    (stage,) = trial.run._stages  # noqa: SLF001  # the plans are not public
    return stage


def direct_call(trial: Trial) -> DirectCall:
    """The direct call of the update that was repeated last."""
    latest = stage_of(trial).plans._repeated  # noqa: SLF001
    assert latest is not None
    assert latest[1].loaded is not None
    direct: DirectCall = latest[1].loaded.again
    return direct


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


def observed(which: int, trouble: str, direct: bool, spin: str, home: bool) -> list[object]:
    """All that two updates with trouble in the way, and one after it, let a program see."""
    seen: list[object] = []
    with pytest.MonkeyPatch.context() as patch, installed(7, gpus=1) as machine:
        patch.setenv("DAGPU_DIRECT", str(int(direct)))
        patch.setenv("DAGPU_SPIN_US", spin)
        made = scene(home=home)
        trial = made.trial
        for number in range(WARM):
            change(trial, which, number)
            trial.update()
        if direct:
            assert direct_call(trial) is not None
        gc.collect()
        used, calls, lock = driver().memory.used, machine.gpus[0].calls.copy(), storage_of(made.held).lock
        for number in (20, 21, 22):
            with suppress(DagpuError):  # a lost device makes no tensor
                change(trial, which, number)
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


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 7), st.sampled_from(sorted(TROUBLES)), st.sampled_from(["0", "1000000"]), st.booleans())
def test_a_direct_update_is_no_different(which: int, trouble: str, spin: str, home: bool) -> None:
    """Whatever is in its way, updates give what they give without direct calls: values, texts of errors, what is lost,
    locks, launches, updates of nodes, and memory in use."""
    gc.freeze()  # so that the collector only walks objects of this example
    try:
        expected = observed(which, trouble, False, spin, home)
        assert observed(which, trouble, True, spin, home) == expected
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("home", [False, True])
@pytest.mark.parametrize("awaits", [False, True])
def test_an_exception_at_any_line_of_an_update_leaves_it_stale(awaits: bool, home: bool) -> None:
    """At each line of the text that may be interrupted: when the call ends, nothing is locked or under way,
    and the next update gives the value that is due."""
    raised = 0
    with installed(5, gpus=1):
        made = scene(home=home)
        trial, lock = made.trial, storage_of(made.held).lock

        async def main() -> int:
            nonlocal raised
            async with observe(trial.op) as feed:
                stage: Any = feed._stage  # noqa: SLF001  # the text is not public
                for number in range(WARM):
                    trial.sources[0].set(float(number))
                    await feed.next()
                (_, latest) = stage._run._stages[0].plans._repeated  # noqa: SLF001
                for code, line in lines_of(latest.loaded.again.in_task):
                    trial.sources[0].set(trial.sources[0].get() + 1)
                    with RaisingAt(code, line) as raising, suppress(TimeoutError):
                        await feed.next()
                    raised += raising.raised
                    assert not driver().live, line
                    assert (lock.readers, lock.writer) == (0, None), line
                    trial.sources[0].set(trial.sources[0].get() + 1)
                    assert await awaited_bits(await feed.next()) == await awaited_bits(await trial.op), line
            return raised

        if awaits:
            trio.run(main)
        else:
            for number in range(WARM):
                change(trial, 1, number)
                trial.update()
            for code, line in lines_of(direct_call(trial).now):
                change(trial, 1, line + 100)
                with RaisingAt(code, line) as raising, suppress(TimeoutError):
                    trial.update()
                raised += raising.raised
                assert not driver().live, line
                assert (lock.readers, lock.writer) == (0, None), line
                assert bits_of(trial.update()) == bits_of(trial.op.sync()), line
                assert stage_of(trial).lost == frozenset(), line
    assert raised > 15


def lines_of(function: Any) -> list[Any]:
    """The lines of a text up to those that release its locks."""
    text, first = inspect.getsourcelines(function)
    end = next((number for number, line in enumerate(text, first) if line.strip() == "finally:"), first + len(text))
    return [(code, line) for code, line in lines_to_try(function) if line < end]
