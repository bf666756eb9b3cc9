"""Updates: equal to runs from scratch bit for bit, and no instruction too many. On the host, in explored orders with
poisoned memory, and on a simulated GPU."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import PlanError, from_host, ones, zip_ops
from dagpu.lowering.updates.staleness import Change
from dagpu.lowering.updates.subprogram import extract
from dagpu.lowering.verify.verify_update import UpdateVerifier, verify_update
from dagpu.ops.live.source_op import cutoff, source
from tests.behaviour.live.live_kernels import array, blended, flipped, gathered
from tests.behaviour.live.live_trials import (
    MACHINES,
    Changes,
    Recipe,
    Trial,
    change,
    changes,
    explored,
    labels_of,
    machine,
    mask_of,
    recipes,
    same,
    trial_of,
)
from tests.simulated.cuda import installed


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=40)
@given(recipe=recipes(cutoffs=True), steps=changes(), seed=st.integers(0, 9))
def test_an_update_equals_a_run_from_scratch(kind: str, recipe: Recipe, steps: Changes, seed: int) -> None:
    """After any changes, a feed's value has the bits of a run from scratch with the same values of the sources."""
    with machine(kind, seed):
        with explored(kind, seed):
            trial = trial_of(recipe)
            trial.check()
        for number, which in enumerate(steps):
            with explored(kind, seed * 31 + number):
                change(trial, which, number)
                trial.check()


@settings(max_examples=60)
@given(recipe=recipes(), steps=changes())
def test_an_update_runs_what_depends_on_the_change(recipe: Recipe, steps: Changes) -> None:
    """With a plan of its own, from the second time on: each instruction that depends on what has changed, and others
    only to make written buffers again."""
    trial = trial_of(recipe)
    trial.check()
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    staleness = stage.staleness
    once = all(len(writers) == 1 for writers in staleness.writers.values())
    for number, which in enumerate(steps):
        change(trial, which, number)
        trial.check()
        mask = mask_of(trial, change(trial, which, number + 50))
        trial.check()
        stale = sum(bool(deps & mask) for deps in staleness.deps)
        assert trial.ran == stale if once else trial.ran >= stale


@settings(max_examples=60)
@given(recipe=recipes(cutoffs=True))
def test_every_instruction_of_an_update_is_needed(recipe: Recipe) -> None:
    """For each set of changes, the checker proves the update, and notices each instruction that is taken away."""
    trial = trial_of(recipe)
    trial.check()
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    staleness, live = stage.staleness, trial.run._live  # noqa: SLF001
    assert live is not None
    of_all = UpdateVerifier(staleness)
    for mask in range(1, min(1 << len(live.bit_names), 64)):
        update = Change(mask)
        chosen = staleness.instructions_for(staleness.stale_targets(update))
        verify_update(staleness, update, extract(staleness.program, chosen, staleness.targets))
        of_all.verify(update, extract(staleness.program, chosen, staleness.targets))
        for missing in chosen:
            rest = tuple(index for index in chosen if index != missing)
            with pytest.raises(PlanError, match=r"stale|holds nothing"):
                of_all.verify(update, extract(staleness.program, rest, staleness.targets))


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=25)
@given(recipe=recipes(), steps=changes(), seed=st.integers(0, 9), share=st.integers(0, 8))
def test_a_budget_changes_no_value(kind: str, recipe: Recipe, steps: Changes, seed: int, share: int) -> None:
    """With any limit for the memory that stays, values are the same, and no more memory stays."""
    with machine(kind, seed):
        with explored(kind, seed):
            free = trial_of(recipe)
            free.check()
            (stage,) = free.run._stages  # noqa: SLF001  # the analysis is not public
            sizes = [stage.staleness.program.buffers[b].nbytes for b in stage.staleness.results]
            limit = sum(sizes) + share * (free.run.kept_bytes - sum(sizes)) // 8
            trial = trial_of(recipe, limit)
            trial.check()
            assert trial.run.kept_bytes <= limit
        for number, which in enumerate(steps):
            with explored(kind, seed * 31 + number):
                change(trial, which, number)
                trial.check()


@pytest.mark.parametrize("kind", MACHINES)
def test_what_a_slider_reruns(kind: str) -> None:
    """A chain of three kernels, each with a number: a change runs the kernels behind it, and the copy home."""
    x, first, second, third = source(array(1, 2)), source(1.0), source(2.0), source(3.0)
    with machine(kind):
        t = x.then(from_host).shared()
        soft = blended(t, t, first).share().shared()
        bright = blended(soft, soft, second).share().shared()
        trial = Trial(blended(bright, t, third).to_host(), [x, first, second, third])
        with explored(kind, 0):
            trial.check()
        assert labels_of(trial) == ["CopyHtoD", "Launch blend", "Launch blend", "Launch blend", "CopyDtoH"]
        for given_source, value, wanted in [(third, 4.0, 2), (second, 5.0, 3), (first, 6.0, 4), (third, 7.0, 2)]:
            given_source.set(value)
            with explored(kind, 1):
                trial.check()
            assert trial.ran == wanted
        x.set(array(5))
        with explored(kind, 2):
            trial.check()
        assert trial.ran == 5
        third.set(7.0)
        trial.update()
        assert trial.ran == 0


@pytest.mark.parametrize("kind", MACHINES)
def test_a_cutoff_on_the_device_stops_equal_bits(kind: str) -> None:
    """What comes after a cutoff runs again only if the tensor differs; what depends on more still runs."""
    x, amount = source(array(1, 2)), source(0.0)
    with machine(kind):
        ends = cutoff(gathered(x.then(from_host).shared()))
        op = zip_ops(flipped(ends).to_host(), blended(ends, ends, amount).to_host())
        trial = Trial(op, [x, amount])
        for seed, (set_x, set_amount, wanted) in enumerate(
            [(None, None, 7), (array(1, 2), None, 3), (array(3, 2), None, 7), (array(3, 2), 2.0, 5), (None, 3.0, 2)]
        ):
            if set_x is not None:
                x.set(set_x)
            if set_amount is not None:
                amount.set(set_amount)
            with explored(kind, seed):
                trial.check()
            assert trial.ran == wanted


def test_a_cutoff_of_host_values_stops_equal_ones() -> None:
    """A number that a closure computes, and that comes out the same, makes nothing stale."""
    x, level = source(array(1, 2)), source(3.7)
    whole = cutoff(level.map(int))
    trial = Trial(
        blended(x.then(from_host).shared(), x.then(from_host).shared(), whole.map(float)).to_host(), [x, level]
    )
    trial.check()
    level.set(3.2)
    trial.check()
    assert trial.ran == 0
    level.set(4.2)
    trial.check()
    assert trial.ran == 2


def test_a_closure_is_called_again_only_if_what_it_is_given_changes() -> None:
    """Closures on host values, before and after the device, run when their own argument is another one."""
    called: list[str] = []

    def note(name: str, value: Any) -> Any:
        called.append(name)
        return value

    x, level, other = source(array(1, 2)), source(1.0), source(2.0)
    t = x.then(from_host).shared()
    first = (
        blended(t, t, level.map(lambda v: note("level", 2 * v))).to_host().map(lambda a: note("sum", float(a.sum())))
    )
    second = blended(t, t, other.map(lambda v: note("other", -v))).to_host().map(lambda a: note("max", float(a.max())))
    trial = Trial(zip_ops(first, second), [x, level, other])
    trial.update()
    called.clear()
    for given_source, wanted in [(level, ["level", "sum"]), (other, ["other", "max"])]:
        given_source.set(given_source.get() + 1)
        trial.update()
        assert called == wanted
        called.clear()
    trial.update()
    assert called == []


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("on_device", [False, True])
def test_a_later_stage_writes_what_an_earlier_one_made(kind: str, on_device: bool) -> None:
    """It writes to a copy: what the earlier stage made is right in the next update too, for each of its uses."""
    with machine(kind), explored(kind, 0):
        x = source(array(1))
        later = ones((8,)).to_host().then(lambda _: x.then(from_host)).shared()
        parts: list[Any] = [
            gathered(later),
            gathered(flipped(later)),
            gathered(later, later),
            blended(later, later, 1.0),
        ]
        if on_device:
            parts = [part.share().shared() for part in parts]
        trial = Trial(zip_ops(*[part if on_device else part.to_host() for part in parts]), [x])
        handed_out: list[tuple[Any, list[Any]]] = []
        for number in range(4):
            x.set(array(number, 2))
            value = trial.update()
            scratch = [each.to_host().sync() for each in parts] if on_device else list(trial.op.sync())
            handed_out.append((value, scratch))
            for made, wanted in handed_out:
                arrays = [each.clone().to_host().sync() for each in made] if on_device else list(made)
                assert same(tuple(arrays), tuple(wanted))


def test_an_update_is_one_launch_of_a_graph() -> None:
    """On a GPU, from the third update of one set of sources on: whatever is clean, one launch, of what has changed."""
    with installed(3, gpus=1) as gpus:
        level, x = source(1.0), source(array(1))
        t = x.then(from_host).shared()
        op: Any = t
        for _ in range(20):
            op = flipped(op)
        trial = Trial(blended(op.share().shared(), t, level).to_host(), [level, x])
        for number in range(3):
            level.set(float(number))
            trial.update()
        before = gpus.gpus[0].calls.copy()
        for number in range(3, 6):
            level.set(float(number))
            trial.update()
            assert trial.ran == 2
        made: Counter[str] = gpus.gpus[0].calls - before
        assert made["cuGraphLaunch"] == made["cuGraphExecKernelNodeSetParams"] == 3
        assert (
            not made["cuLaunchKernelEx"] + made["cuMemcpyDtoHAsync"] + made["cuMemAlloc"] + made["cuGraphInstantiate"]
        )
        level.set(1.0)
        trial.check()
