"""Random ops over sources, and a trial: updates after random changes, each held against a run from scratch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, final

import numpy as np
from hypothesis import strategies as st

from dagpu import DagpuError, SchedulingPolicy, StreamInterpreter, from_host, use_device, zip_ops
from dagpu.common.critical import Section
from dagpu.common.places import here
from dagpu.ops.source_op import Source, cutoff, source
from dagpu.ops.versions import Snapshot
from dagpu.plans.program import label
from dagpu.reactive.incremental import IncrementalRun
from dagpu.runtime.waits import BlockingWaits, drive
from dagpu.testing import Plan, Program, exploring
from tests.behaviour.live.live_kernels import Op, array, blended, flipped, gathered
from tests.simulated.cuda import installed

MACHINES: Final = ("host", "explore", "simulated")


class Recipe(NamedTuple):
    """A random op over `tensors` sources of arrays and `numbers` sources of numbers."""

    tensors: int
    numbers: int
    steps: tuple[tuple[str, int, int, int], ...]
    """For each op its kind, and which earlier values and which number it uses."""
    cutoffs: frozenset[int]
    """The steps behind which there is a cutoff."""


KINDS: Final = ("blend", "gather", "flip", "chain", "double")


@st.composite
def recipes(draw: st.DrawFn, *, most: int = 8, cutoffs: bool = False) -> Recipe:
    """Random recipes, the small ones first."""
    tensors, numbers = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    step = st.tuples(st.sampled_from(KINDS), st.integers(0, 20), st.integers(0, 20), st.integers(0, 3))
    steps = tuple(draw(st.lists(step, min_size=1, max_size=most)))
    cut = draw(st.sets(st.integers(0, len(steps) - 1), max_size=2)) if cutoffs else ()
    return Recipe(tensors, numbers, steps, frozenset(cut))


def build(recipe: Recipe, tensors: list[Any], numbers: list[Any]) -> Op:
    """The op of a recipe over these inputs: sources, or values. No instruction of it is without use."""
    pool: list[Any] = [each.then(from_host).shared() for each in tensors]
    used: set[int] = set()

    def pick(index: int) -> Any:
        used.add(index % len(pool))
        return pool[index % len(pool)]

    for number, (kind, first, second, third) in enumerate(recipe.steps):
        scalar: Any = numbers[third % len(numbers)] if numbers else float(third)
        match kind:
            case "blend":
                made = blended(pick(first), pick(second), scalar)
            case "gather":
                made = gathered(pick(first))
            case "flip":
                made = flipped(pick(first))
            case "double" if numbers:
                made = blended(pick(first), pick(second), scalar.map(lambda x: 2.0 * x))
            case _:
                made = flipped(gathered(pick(first), pick(second), pick(third)))
        pool.append(cutoff(made) if number in recipe.cutoffs else made.shared())
    ends = [each.to_host() for index, each in enumerate(pool) if index not in used]
    return zip_ops(*ends[:8])


@final
class Trial:
    """An op over sources, and the updates of it."""

    def __init__(
        self,
        op: Op,
        sources: list[Source[Any]],
        memory: int | None = None,
        on_plan: Callable[[Any, Plan], None] | None = None,
        policy: SchedulingPolicy | None = None,
    ) -> None:
        self.op = op
        self.sources = sources
        self.settings = StreamInterpreter(policy=policy, verify=True, on_plan=on_plan).settings()
        self.run = IncrementalRun(op, self.settings, memory, here())
        self.ran = 0

    def update(self) -> Any:
        """Update, and return the value; `ran` is the number of instructions that it took."""
        before = self.run.launched
        with Section("an update was run"):
            value = drive(self.run.update(Snapshot(), BlockingWaits()))
        self.ran = self.run.launched - before
        return value

    def check(self) -> Any:
        """Update, hold the value against a run from scratch, bit for bit, and return it."""
        value, wanted = self.update(), self.op.sync()
        assert same(value, wanted), (value, wanted)
        return value


def same(a: Any, b: Any) -> bool:
    """True if two host values have the same bits."""
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    return bool(type(a) is type(b) and a == b)


def trial_of(recipe: Recipe, memory: int | None = None) -> Trial:
    """The trial of a recipe, over new sources."""
    tensors: list[Any] = [source(array(1.0 + each, -each)) for each in range(recipe.tensors)]
    numbers: list[Any] = [source(0.5 + each) for each in range(recipe.numbers)]
    return Trial(build(recipe, tensors, numbers), [*tensors, *numbers], memory)


Changes = list[set[int]]


def change(trial: Trial, which: set[int], step: int) -> set[int]:
    """Set the sources of these numbers to values of this step; return those that there are."""
    changed = {index for index in which if index < len(trial.sources)}
    for index in changed:
        given = trial.sources[index]
        value = given.get()
        given.set(array(step, index, 0.25) if isinstance(value, np.ndarray) else step + 0.125 * index)
    return changed


def mask_of(trial: Trial, changed: set[int]) -> int:
    """The bits of the sources of these numbers."""
    assert trial.run._live is not None  # noqa: SLF001  # the analysis is not public
    bit = {node: 1 << number for number, node in enumerate(trial.run._live.bit_names)}  # noqa: SLF001
    return sum(bit.get(trial.sources[index], 0) for index in changed)


def stirs(trial: Trial, which: set[int], step: int) -> bool:
    """Change sources as `change` does; true if a feed watches one whose value is another one now."""
    before = [each.revision for each in trial.sources]
    change(trial, which, step)
    return any(each.revision != was and each.cell.watchers() for each, was in zip(trial.sources, before, strict=True))


def changes() -> st.SearchStrategy[Changes]:
    """Which sources change before each of a few updates."""
    return st.lists(st.sets(st.integers(0, 4), max_size=3), min_size=1, max_size=4)


@contextmanager
def machine(kind: str, seed: int = 0) -> Iterator[None]:
    """Run on this kind of machine: in explored orders, on a simulated GPU, or on the host."""
    if kind == "simulated":
        with installed(seed, gpus=1):
            yield
    elif kind == "explore":
        with use_device("explore:0"):
            yield
    else:
        yield


@contextmanager
def explored(kind: str, seed: int, fail_at: int | None = None) -> Iterator[None]:
    """Explore one order of the runs in the block, with a fault at a step if one is wanted; else do nothing."""
    if kind != "explore":
        yield
        return
    try:
        with exploring(seed=seed, fail_at=fail_at):
            yield
    except DagpuError as error:
        if "no order was explored" not in str(error):
            raise


def writes_each_once(program: Program) -> bool:
    """Whether no buffer of a program is written twice."""
    written = [buffer for instruction in program.instructions for buffer in instruction.writes]
    return len(written) == len(set(written))


def labels_of(trial: Trial) -> list[str]:
    """The labels of all instructions of the op."""
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    return [label(instruction) for instruction in stage.staleness.program.instructions]
