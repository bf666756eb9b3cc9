"""Updates: equal to runs from scratch bit for bit, and no instruction too many. On the host, in explored orders with
poisoned memory, and on a simulated GPU."""

from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DeviceError, PlanError, SharedTensor, current_device, from_host, ones, share_array, zip_ops
from dagpu.ops.source_op import cutoff, source
from dagpu.reactive.claims import Change
from dagpu.reactive.subprogram import extract
from dagpu.reactive.verify_updates import UpdateVerifier
from dagpu.testing import CopyDtoH, Execute, Plan, live_state
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
    writes_each_once,
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
    once = writes_each_once(staleness.program)
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
        UpdateVerifier(staleness).verify(update, extract(staleness.program, chosen, staleness.targets))
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


@pytest.mark.parametrize("length", [1, 11, 12, 13])
def test_what_runs_again_is_named_up_to_twelve_instructions(length: int) -> None:
    """`explain` ends the list with `...` if more instructions run again for a source than it names, and only then."""
    level = source(1.0)
    op: Any = from_host(array(1)).share().shared()
    for _ in range(length):
        op = blended(op, op, level).share().shared()
    trial = Trial(op, [level])
    trial.update()
    (line,) = (line for line in trial.run.explain() if line.startswith("source"))
    named = ", ".join(["Launch blend"] * min(length, 12)) + (", ..." if length > 12 else "")
    assert line.endswith(f": {length} of {length + 1} instructions: {named}")


def test_a_source_that_a_closure_reads_is_said_to_trace_the_op_again() -> None:
    """`explain` says so of that source, and of no other one."""
    size, level = source(2), source(1.0)
    t = from_host(array(1)).share().shared()
    trial = Trial(zip_ops(size.then(lambda n: ones((n,)).share()), blended(t, t, level).share()), [size, level])
    plain = Trial(blended(t, t, level).share(), [level])
    for each, wanted in ((trial, [True, False]), (plain, [False])):
        each.update()
        lines = [line for line in each.run.explain() if line.startswith("source")]
        assert ["; a closure reads it, so the op is traced again" in line for line in lines] == wanted


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


@pytest.mark.parametrize("kind", MACHINES)
@settings(max_examples=12)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from((None, 1.0, 2.0)), st.sampled_from((0.0, 1e30)), st.integers(0, 9)), max_size=5
    )
)
def test_what_runs_after_cutoffs_follows_from_the_bits(kind: str, steps: list[tuple[float | None, float, int]]) -> None:
    """Equal and unequal tensors at random, before two cutoffs, one behind the other: exactly what each lets through
    runs, and `explain` says which tensor was cut off."""
    x, amount = source(array(0)), source(0.0)

    def seen(number: float, added: float) -> tuple[bytes, bytes]:
        first = np.ones(8, np.float32) + array(number) * np.float32(0.25)
        return first.tobytes(), (first * np.float32(0.5) + first + np.float32(added)).tobytes()

    with machine(kind):
        first = cutoff(gathered(x.then(from_host).shared()))
        second = cutoff(blended(first, first, amount))
        trial = Trial(flipped(second).to_host(), [x, amount])
        with explored(kind, 0):
            trial.check()
        number, before = 0.0, seen(0.0, 0.0)
        for given_number, added, seed in steps:
            number, wanted = number if given_number is None else given_number, 0
            if given_number is not None:
                x.set(array(number))
                wanted += 3  # the upload, the output of gather, and gather
            now, old = seen(number, added), amount.get()
            amount.set(added)
            wanted += now[0] != before[0] or added != old
            wanted += 2 * (now[1] != before[1])
            with explored(kind, seed):
                trial.check()
            assert trial.ran == wanted
            lines = [line for line in trial.run.explain() if line.startswith("cutoff")]
            if given_number is not None:
                assert lines[0].endswith("was let through" if now[0] != before[0] else "was cut off")
            before = now


@pytest.mark.parametrize("kind", MACHINES)
def test_a_tensor_that_is_cut_off_keeps_its_address(kind: str) -> None:
    """The tensor that was let through last is handed out again, and the new one is freed at once."""
    x = source(array(1, 2))
    with machine(kind), explored(kind, 0):
        trial = Trial(cutoff(gathered(x.then(from_host).shared())), [x])
        handed_out, used = [], []
        for value in (array(1, 2), array(1, 2), array(1, 2), array(3), array(3)):
            x.set(value)
            handed_out.append(trial.update())
            used.append(current_device().memory_used())
        memory = [live_state(each).storage.memory for each in handed_out]
        assert memory[0] is memory[1] is memory[2] is not memory[3] is memory[4]
        assert used[0] == used[1] == used[2] < used[3] == used[4]  # two values are held in the end, and no third
        assert [float(each.to_host().sync()[0]) for each in handed_out] == [1.25, 1.25, 1.25, 1.75, 1.75]


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_a_cutoff_compares_the_elements_of_a_strided_array_alone(dtype: Any) -> None:
    """A shared array of another library may have gaps; what lies in them does not count."""

    def shared(between: float, last: float) -> SharedTensor[Any]:
        held = np.full((3, 4, 2), between, dtype)
        held[..., 0] = 1
        held[-1, -1, 0] = last
        return share_array(held[..., 0])

    x: Any = source(shared(5, 1))
    trial = Trial(cutoff(x).then(lambda t: t.to_host()), [x])
    trial.check()
    for between, last, wanted in ((6, 1, 0), (6, 2, 1), (7, 2, 0)):
        x.set(shared(between, last))
        trial.check()
        assert trial.ran == wanted


@pytest.mark.parametrize("step", range(8))
def test_an_update_that_fails_before_a_cutoff_is_decided_is_made_good(step: int) -> None:
    """A fault at each step of the run that compares, its flags among them: targets alone count as lost."""
    x = source(array(1))
    with machine("explore"):
        trial = Trial(flipped(cutoff(gathered(x.then(from_host).shared()))).to_host(), [x])
        with explored("explore", 0):
            trial.check()
        x.set(array(2))
        with explored("explore", 1, step), suppress(DeviceError):
            trial.update()
        (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
        assert stage.lost <= stage.staleness.targets
        with explored("explore", 2):
            trial.check()
        assert stage.lost == frozenset()
        x.set(array(2))
        with explored("explore", 3):
            trial.check()
        assert trial.ran == 3


def test_a_comparison_copies_nothing_to_the_host() -> None:
    """On a GPU an update with a cutoff is one graph with a comparison, whose kernel writes the flags into memory of the
    host, whether the tensor differs or not."""
    copied: list[int] = []

    def on_plan(_: object, plan: Plan) -> None:
        steps = [step.instruction for step in plan.steps if isinstance(step, Execute)]
        copied.extend(each.source.layout.nbytes for each in steps if isinstance(each, CopyDtoH))

    with installed(5, gpus=1) as gpus:
        x = source(array(1))
        trial = Trial(flipped(cutoff(gathered(x.then(from_host).shared()))).share(), [x], on_plan=on_plan)
        for number in (1, 1, 1, 2, 3, 4):
            x.set(array(number))
            trial.update()
        assert copied == []
        for number, graphs in ((4, 1), (5, 1), (5, 1)):
            x.set(array(number))
            before = gpus.gpus[0].calls.copy()
            trial.update()
            made = gpus.gpus[0].calls - before
            assert (made["cuGraphLaunch"], made["cuMemcpyDtoHAsync"], made["cuLaunchKernelEx"]) == (graphs, 0, 0)


@settings(max_examples=30)
@given(recipe=recipes(cutoffs=True))
def test_the_checker_notices_a_comparison_of_other_contents(recipe: Recipe) -> None:
    """Each instruction of an update that decides cutoffs is needed, the comparison among them; and so is the
    order: a comparison before what makes the tensor is noticed."""
    trial = trial_of(recipe)
    trial.check()
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    staleness, comparisons = stage.staleness, stage.cutoffs.comparisons
    for cut in stage.cutoffs.inputs:
        update = Change(stage.cutoffs.watched_bits(cut), cut.own, compare=cut.own)
        chosen = staleness.instructions_for(staleness.stale_targets(update))
        whole = comparisons.extract(chosen, cut.own, staleness.targets)
        UpdateVerifier(staleness, comparisons).verify(update, whole)
        orders = [tuple(i for i in whole.chosen if i != missing) for missing in whole.chosen]
        if chosen:
            orders.append(whole.chosen[-1:] + whole.chosen[:-1])
        targets = staleness.targets | {each.flags for each in comparisons.of(cut.own)}
        for order in orders:
            wrong = extract(comparisons.program, order, targets)
            with pytest.raises(PlanError, match=r"stale|holds nothing|other contents"):
                UpdateVerifier(staleness, comparisons).verify(update, wrong)


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
