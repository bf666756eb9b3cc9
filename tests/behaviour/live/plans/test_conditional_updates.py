"""Updates whose graphs decide cutoffs by themselves, on simulated GPUs: the same values, and the same instructions, as
where the host decides between two plans; and what remains right when one fails."""

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DeviceError, PlanError, batch, cutoff, from_host, observe, source, use_device, zip_ops
from dagpu.reactive.claims import ConditionalUpdate
from dagpu.reactive.conditional_updates import conditional_update
from dagpu.reactive.verify_updates import UpdateVerifier, verify_conditional
from dagpu.runtime.loaded_plan import plan_program
from dagpu.testing import If, Instruction, Plan, Program, live_state, verify
from tests.behaviour.live.live_kernels import array, blended, flipped, gathered
from tests.behaviour.live.live_trials import (
    Changes,
    Recipe,
    Trial,
    change,
    changes,
    recipes,
    same,
    trial_of,
    writes_each_once,
)
from tests.simulated.cuda import installed

OLD: Final = "the driver is of CUDA 12.2, and conditional nodes need 12.4"


def stage_of(trial: Trial) -> Any:
    """The only stage of a trial."""
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    return stage


def why(trial: Trial) -> str | None:
    """Why the last update that had cutoffs to decide was run in parts; empty if it was one graph."""
    reason: str | None = stage_of(trial).cutoffs.in_parts
    return reason


def let_through(trial: Trial) -> list[Any]:
    """The memory of the tensor that each cutoff on the device has let through last."""
    return [live_state(cut.value).storage.memory for cut in stage_of(trial).cutoffs.inputs]


def changed_bits(trial: Trial, changed: set[int], before: list[Any]) -> int:
    """The bits of the sources of these numbers, and of the cutoffs that have let another tensor through since."""
    live = trial.run._live  # noqa: SLF001  # the analysis is not public
    assert live is not None
    bit_of = {node: 1 << number for number, node in enumerate(live.bit_names)}
    bits = sum([bit_of.get(trial.sources[index], 0) for index in changed])
    cuts = zip(stage_of(trial).cutoffs.inputs, before, let_through(trial), strict=True)
    return bits | sum([int(cut.own) for cut, old, new in cuts if old is not new])


# ---- laws


def run_trial(recipe: Recipe, steps: Changes, seed: int, lacking: str) -> tuple[list[Any], list[int], list[int]]:
    """The values of updates, which cutoffs have cut off their last tensors after each, and how many instructions each
    has run: exactly those that depend on what has changed, if no buffer is written twice and it is one graph."""
    values, cut_off, counts = list[Any](), list[int](), list[int]()
    with installed(seed, gpus=1) as machine:
        machine.gpus[0].lacks_conditions = lacking
        trial = trial_of(recipe)
        trial.check()
        staleness = stage_of(trial).staleness
        once = writes_each_once(staleness.program)
        for number, which in enumerate(steps):
            before = let_through(trial)
            changed = change(trial, which, number // 2)
            values.append(trial.check())
            counts.append(trial.ran)
            cut_off.append(stage_of(trial).cutoffs.cut_off)
            mask = changed_bits(trial, changed, before)
            if once and why(trial) == "":
                assert trial.ran == sum([bool(deps & mask) for deps in staleness.deps])
    return values, cut_off, counts


@settings(max_examples=80)
@given(recipe=recipes(cutoffs=True), steps=changes(), seed=st.integers(0, 99))
def test_a_graph_runs_what_two_plans_run(recipe: Recipe, steps: Changes, seed: int) -> None:
    """Each update has the value of a run from scratch, and runs each instruction that depends on what differs once. Two
    plans, where the driver is too old, give the same values, decide the cutoffs in the same way, and run no less."""
    values, cut_off, counts = run_trial(recipe, steps, seed, "")
    others, decided, more = run_trial(recipe, steps, seed, OLD)
    assert same(tuple(values), tuple(others))
    assert cut_off == decided
    assert all(one <= two for one, two in zip(counts, more, strict=True))


CALLS: Final = (
    "cuGraphConditionalHandleCreate", "cuGraphAddNode", "cuGraphAddKernelNode", "cuGraphAddMemcpyNode",
    "cuGraphAddMemsetNode", "cuGraphInstantiate", "cuGraphLaunch", "cuGraphExecKernelNodeSetParams",
    "cuGraphExecMemcpyNodeSetParams", "cuMemAlloc", "cuMemHostAlloc",
)  # fmt: skip


@settings(max_examples=100)
@given(
    recipe=recipes(cutoffs=True),
    steps=changes(),
    call=st.sampled_from(CALLS),
    nth=st.integers(1, 4),
    code=st.sampled_from((1, 2)),
    seed=st.integers(0, 9),
)
def test_an_update_that_fails_is_made_good(
    recipe: Recipe, steps: Changes, call: str, nth: int, code: int, seed: int
) -> None:
    """Whichever call of the driver is refused, or finds no memory: the update is done in another way, or it raises and
    the next one makes the newest value."""
    with installed(seed, gpus=1) as machine:
        trial = trial_of(recipe)
        trial.check()
        for number, which in enumerate(steps):
            change(trial, which, number)
            machine.gpus[0].fail(call, code, nth)
            with suppress(DeviceError):
                trial.update()
            machine.gpus[0].heal()
            trial.check()
            change(trial, which, number)
            trial.check()


@settings(max_examples=60)
@given(
    recipe=recipes(cutoffs=True),
    steps=st.lists(st.tuples(st.sets(st.integers(0, 4), min_size=1, max_size=2), st.integers(0, 2), st.booleans())),
    seed=st.integers(0, 9),
)
def test_an_update_whose_value_cannot_be_built_is_made_good(
    recipe: Recipe, steps: list[tuple[set[int], int, bool]], seed: int
) -> None:
    """A function of the user's fails after the device's work, sometimes in two updates in a row: what is kept of these
    is right."""
    fails = False

    def checked(value: Any) -> Any:
        if fails:
            raise ValueError("it fails")
        return value

    with installed(seed, gpus=1):
        plain = trial_of(recipe)
        trial = Trial(plain.op.map(checked), plain.sources)
        trial.check()
        for which, number, also_later in steps:
            for step in (number, number + 1) if also_later else (number,):
                change(trial, which, step)
                fails = True
                with suppress(ValueError):  # where nothing that it reads has changed, it is not called
                    trial.update()
                fails = False
            trial.check()


@settings(max_examples=40)
@given(values=st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=8), seed=st.integers(0, 9))
def test_a_cancelled_update_is_made_good(values: list[tuple[int, bool]], seed: int) -> None:
    """A call of `next()` that is cancelled, before its graph is launched or while that runs, loses no value."""
    x = source(array(1))
    op: Any = flipped(cutoff(gathered(x.then(from_host).shared()))).to_host()

    async def main() -> None:
        async with observe(op) as feed:
            await feed.next()
            for value, early in values:
                x.set(array(value, seed))
                with trio.CancelScope() as scope:
                    if early:
                        scope.cancel()
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(feed.next)
                        await trio.lowlevel.checkpoint()
                        scope.cancel()
                x.set(array(value, seed))
                assert np.array_equal(await feed.next(), await op)

    with installed(seed, gpus=1):
        trio.run(main)


# ---- what an outcome leaves


def cut_chain(x: Any) -> Any:
    """A tensor, a cutoff, and two results after it, of which one goes to the host."""
    cut: Any = cutoff(gathered(x.then(from_host).shared()))
    return zip_ops(flipped(cut).share(), flipped(gathered(cut)).to_host(), cut)


def test_what_did_not_run_leaves_all_results_as_they_were() -> None:
    """A tensor that is cut off keeps its memory and that of all results; the blocks for new ones are free again, and
    the array on the host is the same object. What is held from earlier updates is never written."""
    with installed(4, gpus=1) as machine:
        x = source(array(1, 2))
        trial = Trial(cut_chain(x), [x])
        before = trial.update()
        held: list[tuple[Any, bytes]] = []
        level: set[int] = set()
        for number, value in enumerate([1, 1, 2, 2, 2, 3, 2, 2, 2, 3, 3, 2, 3, 3]):
            decisions = len(machine.decisions)
            x.set(array(value, 2))
            found = trial.update()
            assert why(trial) == ""
            (ran,) = machine.decisions[decisions:]
            assert ran == (before[1] is not found[1])
            for old, new in ((before[0], found[0]), (before[2], found[2])):
                assert (live_state(old).storage.memory is not live_state(new).storage.memory) == ran
            assert trial.ran == (8 if ran else 3)
            held.append((found[1], found[1].tobytes()))
            for array_held, bits in held:
                assert array_held.tobytes() == bits
            before = found
            if number > 8:
                held.clear()
                level.add(machine.gpus[0].used)
        assert len(level) == 1


def test_held_results_of_earlier_updates_keep_their_bits() -> None:
    """However many are held, no later update writes them, whether its body runs or not."""
    with installed(6, gpus=1):
        x = source(array(1, 2))
        trial = Trial(cut_chain(x), [x])
        held: list[tuple[Any, bytes]] = []
        for value in (1, 2, 2, 1, 1, 1, 3, 3, 1, 2, 3, 3):
            x.set(array(value, 2))
            shared, _, cut = trial.update()
            held += [(each, each.clone().to_host().sync().tobytes()) for each in (shared, cut)]
        assert all(each.clone().to_host().sync().tobytes() == bits for each, bits in held)


def test_several_cutoffs_are_one_launch() -> None:
    """Two side by side, a third one behind the first, and what depends on two of them: one graph whichever differ."""
    with installed(2, gpus=1) as machine:
        x, y = source(array(1)), source(array(2))
        a, b = (cutoff(gathered(each.then(from_host).shared())) for each in (x, y))
        c: Any = cutoff(blended(a, a, 1e30))  # which is rarely let through: its sums have no small bits
        trial = Trial(zip_ops(flipped(c).share(), blended(a, b, 0.5).share(), flipped(b).share()), [x, y])
        trial.update()
        for values, wanted in [((1, 2), 6), ((1, 3), 8), ((2, 3), 8), ((3, 4), 9), ((3, 4), 6), ((1e38, 4), 9)]:
            before = machine.gpus[0].calls["cuGraphLaunch"]
            with batch():
                x.set(array(values[0]))
                y.set(array(values[1]))
            found = trial.update()
            assert machine.gpus[0].calls["cuGraphLaunch"] == before + 1
            assert trial.ran == wanted
            assert same(values_of(found), values_of(trial.op.sync()))
            if wanted == 6 and values == (1, 2):  # the third one was not reached, and stands as it did
                lines = [line for line in trial.run.explain() if line.startswith("cutoff")]
                assert [line.rpartition(" was ")[2] for line in lines] == ["cut off", "let through", "cut off"]


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("differs", [False, True])
def test_an_update_that_is_cancelled_before_its_launch_loses_nothing(differs: bool, often: bool) -> None:
    """The next one is one graph, and runs no more than the cancelled one would have."""
    with installed(4, gpus=1) as machine:
        x = source(array(1, 2))
        op = cut_chain(x)

        async def main() -> None:
            async with observe(op) as feed:
                await feed.next()
                for number in range(10 if often else 2):
                    x.set(array(number % 2, 2))
                    await feed.next()
                x.set(array(2 if differs else 1, 2))
                decisions, before = len(machine.decisions), feed.stats.launched
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await feed.next()
                assert len(machine.decisions) == decisions
                _, home, _ = await feed.next()
                assert machine.decisions[decisions:] == [differs]
                assert feed.stats.launched - before == (8 if differs else 3)
                assert np.array_equal(home, (await op)[1])

        trio.run(main)


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("differs", [False, True])
def test_what_a_graph_has_made_is_not_made_again(differs: bool, often: bool) -> None:
    """If a function of the user's fails after the launch, the next update keeps all that the graph has made, whether it
    has let the tensor through or not: it runs nothing."""
    with installed(4, gpus=1) as machine:
        fails = False

        def first(home: Any) -> float:
            if fails:
                raise ValueError("it fails")
            return float(home[0])

        x = source(array(1, 2))
        cut: Any = cutoff(gathered(x.then(from_host).shared()))
        after = flipped(gathered(cut)).to_host()
        op: Any = zip_ops(flipped(cut).share(), after, gathered(x.then(from_host)).to_host().map(first))
        trial = Trial(op, [x])
        trial.update()
        for number in range(10 if often else 2):
            x.set(array(number % 2, 2))
            trial.update()
        decisions, fails = len(machine.decisions), True
        x.set(array(2, 2) if differs else array(1, 2))
        with pytest.raises(ValueError, match="it fails"):
            trial.update()
        fails = False
        assert machine.decisions[decisions:] == [differs]
        found = trial.update()
        assert trial.ran == 0
        assert same(values_of(found), values_of(op.sync()))


# ---- two plans, and why


def reasons() -> dict[str, tuple[str, Any]]:
    """For each reason a device and an op of two sources, whose updates after a change of both are run in parts."""
    return {
        "its backend launches no CUDA graphs": ("host:0", lambda x, y: flipped(cutoff(gathered(x))).share()),
        "HostCall sum is a function of the host": (
            "cuda:0",
            lambda x, y: flipped(cutoff(gathered(x))).to_host().host_map(np.sum),
        ),
        "Launch blend runs in any case, and reads what Launch flip makes after a cutoff": (
            "cuda:0",
            lambda x, y: blended(flipped(cutoff(gathered(x))).share().shared(), y, 1.0).share(),
        ),
        "two cutoffs compare one tensor": (
            "cuda:0",
            lambda x, y: zip_ops(*[flipped(cutoff(made)).share() for made in [gathered(x).share().shared()] * 2]),
        ),
        "two cutoffs compare one tensor, made twice": (
            "cuda:0",
            lambda x, y: zip_ops(*[flipped(cutoff(gathered(x))).share() for _ in range(2)]),
        ),
    }


@pytest.mark.parametrize("reason", reasons())
def test_an_update_in_parts_says_why(reason: str) -> None:
    """`explain()` names what stands against one graph; the values are right all the same."""
    device, build = reasons()[reason]
    with installed(1, gpus=1), use_device(device):
        x, y = source(array(1)), source(array(2))
        trial = Trial(build(*[each.then(from_host).shared() for each in (x, y)]), [x, y])
        trial.update()
        for number in range(3):
            with batch():
                x.set(array(number))
                y.set(array(number))
            trial.update()
            why = reason.removesuffix(", made twice")
            wanted = f"the device compares the bits, and a second run does the rest, since {why}, and the last"
            assert any(wanted in line for line in trial.run.explain())
        assert same(values_of(trial.update()), values_of(trial.op.sync()))


def values_of(value: Any) -> tuple[Any, ...]:
    """The contents of a result."""
    items = value if isinstance(value, tuple) else (value,)
    return tuple([item.clone().to_host().sync() if hasattr(item, "to_host") else item for item in items])


def test_an_old_driver_decides_on_the_host() -> None:
    """The reason is the driver's; with a newer one the same update is one graph."""
    for lacking in (OLD, ""):
        with installed(1, gpus=1) as machine:
            machine.gpus[0].lacks_conditions = lacking
            x = source(array(1))
            trial = Trial(flipped(cutoff(gathered(x.then(from_host).shared()))).to_host(), [x])
            trial.update()
            assert "; the device compares the bits, and the last tensor was let through" in trial.run.explain()[1]
            x.set(array(2))
            trial.check()
            assert (OLD in trial.run.explain()[1]) == bool(lacking)
            assert ("one graph compares the bits, and decides what runs" in trial.run.explain()[1]) != bool(lacking)
            assert bool(machine.decisions) != bool(lacking)


def test_a_graph_that_the_driver_refuses_is_two_plans() -> None:
    """The driver's words are the reason, and no later update tries again."""
    with installed(1, gpus=1) as machine:
        x = source(array(1))
        trial = Trial(flipped(cutoff(gathered(x.then(from_host).shared()))).to_host(), [x])
        trial.update()
        machine.gpus[0].fail("cuGraphAddNode", 801)
        for number in (2, 2, 3):
            x.set(array(number))
            trial.check()
            assert "a second run does the rest, since cuGraphAddNode failed" in trial.run.explain()[1]
        assert machine.decisions == []


def test_a_lost_device_is_an_error_of_the_update() -> None:
    """It is raised, and not taken for a graph that cannot be launched."""
    with installed(1, gpus=1) as machine:
        x = source(array(1))
        trial = Trial(flipped(cutoff(gathered(x.then(from_host).shared()))).share(), [x])
        for number in (1, 2, 3):
            x.set(array(number))
            trial.update()
        machine.gpus[0].lose()
        x.set(array(4))
        with pytest.raises(DeviceError):
            trial.update()


# ---- the checkers


def updates_of(trial: Trial) -> list[ConditionalUpdate]:
    """The conditional updates of a trial, of each source and of all together."""
    stage, found = stage_of(trial), []
    every = stage.cutoffs.bits
    for mask in {each for each in stage.leaves.bits.values() if not each & every}:
        wait = stage.cutoffs.waiting_bits(stage.cutoffs.inputs, mask, frozenset())
        made = conditional_update(stage.staleness, stage.cutoffs.comparisons, mask, wait)
        if isinstance(made, ConditionalUpdate):
            found.append(made)
    return found


def wrong_programs(program: Program) -> list[Program]:
    """Programs with one mistake: a body one instruction shorter or longer, or one that always runs."""
    found: list[Program] = []
    for at, each in enumerate(program.instructions):
        if isinstance(each, If):
            rest = len(program.instructions) - at - 1
            sizes = [size for size in (each.body - 1, each.body + 1, 0) if size <= rest]
            found += [with_instruction(program, at, replace(each, body=size)) for size in sizes]
    return found


def with_instruction(program: Program, at: int, new: Instruction) -> Program:
    """The program with another instruction at a place."""
    return replace(program, instructions=(*program.instructions[:at], new, *program.instructions[at + 1 :]))


@settings(max_examples=40)
@given(recipe=recipes(cutoffs=True))
def test_the_checker_notices_each_wrong_body(recipe: Recipe) -> None:
    """The update is proved as it is; with an instruction out of its body, with one more in it, and with a body that
    runs in any case it is not."""
    with installed(0, gpus=1):
        trial = trial_of(recipe)
        trial.check()
        stage = stage_of(trial)
        comparisons = stage.cutoffs.comparisons
        verifier = UpdateVerifier(stage.staleness, comparisons)
        for update in updates_of(trial):
            verify_conditional(verifier, comparisons, update)
            for program in wrong_programs(update.subprogram.program):
                wrong = replace_program(update, program)
                with pytest.raises(PlanError):
                    verify_conditional(verifier, comparisons, wrong)


def replace_program(update: ConditionalUpdate, program: Program) -> ConditionalUpdate:
    """The update with another program."""
    part = update.subprogram
    other = type(part)(program, part.chosen, part.inputs, part.outputs)
    return ConditionalUpdate(update.mask, other, update.guards, update.made, update.comparing)


@settings(max_examples=40)
@given(recipe=recipes(cutoffs=True))
def test_a_plan_that_reads_what_did_not_run_is_noticed(recipe: Recipe) -> None:
    """The plans of conditional updates are verified. Where the body of an `If` ends too early, an instruction that
    follows reads what it may not have written, unless nothing reads that."""
    with installed(0, gpus=1):
        trial = trial_of(recipe)
        trial.check()
        for update in updates_of(trial):
            program = update.subprogram.program
            plan: Plan = plan_program(program, check=True)
            assert any(type(getattr(step, "instruction", None)) is If for step in plan.steps)
            for at, each in enumerate(program.instructions):
                if isinstance(each, If) and each.body > 1:
                    body = program.instructions[at + 1 : at + 1 + each.body]
                    cut = with_instruction(program, at, replace(each, body=1))
                    reads = {buffer for other in body[1:] for buffer in (*other.reads, *other.writes)}
                    if not reads.isdisjoint(body[0].writes):
                        with pytest.raises(PlanError, match=r"writes only if|is not needed"):
                            verify(plan_program(cut, check=False))
