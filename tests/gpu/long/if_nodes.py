"""Cutoffs that a graph decides by conditional nodes: right, quick, and level in memory.

    python -m tests.gpu.long.if_nodes                 on a GPU: under 40 seconds
    python -m tests.gpu.long.if_nodes --rehearse      on a simulated GPU, whose times say nothing

First the driver layer alone makes a graph with conditional nodes, and launches it with flags that are set or not. Then
random ops with cutoffs are updated after random changes; each value is held against a run from scratch, and each number
of instructions against what has changed. Then a chain of kernels is timed as a graph, and in the body of a conditional
node that is true and false; and a feed with a cutoff beside one without. At the end, memory is the same after thousands
of updates, whatever they have decided.
"""

import argparse
import gc
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

from benchmarks.support.table import show
from benchmarks.updates import compare_cutoffs
from dagpu import array as arrays
from dagpu import current_device, cutoff, from_host, source, use_device, zip_ops
from dagpu.backends.cuda.backend import CudaBackend
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.common.errors import DagpuError
from dagpu.testing import (
    Arange,
    GraphNode,
    IfNode,
    KernelLaunch,
    RawGraph,
    backend,
    contiguous_layout,
    driver_of,
    live_state,
)
from tests.behaviour.live.live_kernels import array, flipped, gathered
from tests.behaviour.live.live_trials import KINDS, Recipe, Trial, mask_of, trial_of, writes_each_once
from tests.gpu.support.conditional_graphs import ConditionalGraph

CHAIN: Final = 300
"""The kernels of the chain that is timed."""

GOAL_FALSE_US: Final = 12.0
GOAL_TRUE: Final = 1.05
"""The time of a chain in a body that runs, as a part of its time alone."""


def timed(call: Callable[[], object], count: int) -> float:
    """Return the median of the microseconds of a call, after a few."""
    for _ in range(5):
        call()
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return statistics.median(found) * 1e6


def probe(device: CudaDevice, count: int) -> str:
    """Launch a graph with two conditional nodes with random flags, also after its nodes were updated."""
    choose, graph = random.Random(1), ConditionalGraph(device)
    for number in range(count):
        if number == count // 2:
            graph.move()
        first, second = choose.random() < 0.5, choose.random() < 0.5
        found = graph.run(first=first, second=second)
        assert found == (first, first or second), (number, first, second, found)
    graph.destroy()
    return f"{count} launches of a graph with two conditional nodes: right"


def random_recipe(choose: random.Random) -> Recipe:
    """Return a random op with up to three cutoffs."""
    steps = tuple(
        (choose.choice(KINDS), choose.randrange(20), choose.randrange(20), choose.randrange(4))
        for _ in range(choose.randint(1, 8))
    )
    cut = frozenset(choose.sample(range(len(steps)), min(len(steps), choose.randint(1, 3))))
    return Recipe(choose.randint(1, 3), choose.randint(0, 2), steps, cut)


def change_some(trial: Trial, choose: random.Random) -> set[int]:
    """Set about half of the sources to values that are often equal to those before, and return their numbers."""
    changed = {number for number in range(len(trial.sources)) if choose.random() < 0.5}
    for number in changed:
        given = trial.sources[number]
        value = float(choose.randrange(2))
        given.set(array(value, 2) if isinstance(given.get(), np.ndarray) else value)
    return changed


def random_ops(ops: int, updates: int) -> list[str]:
    """Update random ops, and hold values and numbers of instructions against what they should be."""
    choose, ways, decided = random.Random(2), Counter[str](), Counter[bool]()
    for _ in range(ops):
        trial = trial_of(random_recipe(choose))
        trial.check()
        (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
        once = writes_each_once(stage.staleness.program)
        for _ in range(updates):
            before = [live_state(cut.value).storage.memory for cut in stage.cutoffs.inputs]
            revisions = [each.revision for each in trial.sources]
            change_some(trial, choose)
            changed = {n for n, each in enumerate(trial.sources) if each.revision != revisions[n]}
            stage.cutoffs.in_parts = None
            trial.check()
            reason = stage.cutoffs.in_parts
            if reason is None:
                continue
            mask = mask_of(trial, changed)
            for cut, old in zip(stage.cutoffs.inputs, before, strict=True):
                differs = live_state(cut.value).storage.memory is not old
                mask |= cut.own * differs
                decided[differs] += reason == ""
            ways["one graph" if not reason else "two plans, or nothing to decide"] += 1
            if once and not reason:
                assert trial.ran == sum(bool(deps & mask) for deps in stage.staleness.deps)
    assert ways["one graph"] > ways.total() // 2, ways
    assert min(decided.values()) > 0, decided
    return [
        f"{ways.total()} updates of {ops} random ops: right; {dict(ways)}",
        f"cutoffs that graphs have decided: {decided[True]} let through, {decided[False]} cut off",
    ]


def library_in_a_body() -> str:
    """Update a product of matrices behind a cutoff."""
    x, y = source(np.ones((64, 64), np.float32)), from_host(np.ones((64, 64), np.float32)).sync().share()
    try:
        cut: Any = cutoff(x.then(from_host).shared())
        trial = Trial(arrays.matmul(cut, y).to_host(), [x])
        for number in (1, 1, 2, 2, 3):
            x.set(np.full((64, 64), number, np.float32))
            assert (trial.update() == 64 * number).all()
    except DagpuError as error:
        return f"a product in a body: not tried, {error}"
    (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
    return f"a product in a body: right; {stage.cutoffs.describe()}"


class Chains:
    """A chain of kernels as a graph, and in the body of a conditional node."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        found = backend("cuda")
        assert isinstance(found, CudaBackend)
        factories = found.factories
        work, decide = (
            factories.fill(Arange(0.0, 1.0), contiguous_layout((2048,), np.dtype(np.float32))),
            factories.decide([1024]),
        )
        with device.gpu.current():
            self._memory = device.memory.take(2048 * 4)
            self.flags = device.mapped_memory(4096)
            self.flags.content.fill(0)
            kernel, decides = self._launch(work, self._memory), self._launch(decide, self.flags.memory)
            chain: list[GraphNode] = [kernel] * CHAIN
            alone = [(node, (number - 1,) if number else ()) for number, node in enumerate(chain)]
            inside: list[tuple[GraphNode, tuple[int, ...]]] = [
                (decides._replace(decides=1), ()),
                (IfNode(), (0,)),
                *[(node, (number + 1,) if number else ()) for number, node in enumerate(chain)],
            ]
            gpu = device.gpu
            self.alone = gpu.make_graph(alone)
            self.inside = gpu.make_graph(inside, (), (-1, -1, *[1] * CHAIN))
            self.one = gpu.make_graph(alone[:1])
            self._stream = gpu.new_stream()

    def _launch(self, work: Any, memory: Any) -> KernelLaunch:
        parameters = bytearray(work.arguments)
        (at,) = work.pointers
        parameters[at : at + 8] = memory.address.to_bytes(8, "little")
        return KernelLaunch(self._device.library.load_builtin(work), work.grid, work.block, parameters, 0)

    def run(self, graph: RawGraph) -> None:
        """Launch a graph, and wait for its end."""
        with self._device.gpu.current():
            graph.launch(self._stream)
            self._stream.synchronize()

    def destroy(self) -> None:
        """Destroy the graphs."""
        with self._device.gpu.current():
            for graph in (self.alone, self.inside, self.one):
                graph.destroy()


def times(device: CudaDevice, count: int, *, real: bool) -> list[str]:
    """Time a chain of kernels alone, and in a body that runs and one that does not."""
    chains = Chains(device)
    one, alone = timed(lambda: chains.run(chains.one), count), timed(lambda: chains.run(chains.alone), count)
    skipped = timed(lambda: chains.run(chains.inside), count)
    chains.flags.content.fill(1)
    inside = timed(lambda: chains.run(chains.inside), count)
    chains.destroy()
    met = ["met" if good else "MISSED" for good in (skipped <= GOAL_FALSE_US, inside <= GOAL_TRUE * alone)]
    goals = met if real else ["not asked"] * 2
    false = f"a conditional node that is false, with the kernel that decides: {skipped:.1f} us"
    true = f"the chain in a body that runs: {inside:.1f} us, {inside / alone:.3f} of it alone"
    return [
        f"a graph of one kernel {one:.1f} us, of {CHAIN} kernels {alone:.1f} us",
        f"{false} (goal {GOAL_FALSE_US}: {goals[0]})",
        f"{true} (goal {GOAL_TRUE}: {goals[1]})",
    ]


def level_memory(updates: int) -> str:
    """Update one op many times, with equal and different tensors, and compare what is held."""
    x = source(array(1))
    cut: Any = cutoff(gathered(x.then(from_host).shared()))
    trial = Trial(zip_ops(flipped(cut).share(), flipped(gathered(cut)).to_host()), [x])
    levels = []
    for part in range(4):
        for number in range(updates // 4):
            x.set(array(number // 3 % 2, 2))
            trial.update()
        x.set(array(part % 2))
        trial.update()
        gc.collect()
        levels.append((current_device().memory_used(), len(gc.get_objects()) // 100))
    assert len({memory for memory, _ in levels[1:]}) == 1, levels
    assert levels[-1][1] - levels[1][1] <= 2, levels
    return f"{updates:,} updates: {levels[-1][0]:,} bytes on the device after each quarter, objects level"


def check(device: CudaDevice, *, real: bool) -> None:
    """Do all parts, and print a line or more for each."""
    begin = time.perf_counter()

    def say(*lines: str) -> None:
        for line in lines:
            print(f"{time.perf_counter() - begin:5.1f} s  {line}", flush=True)

    lacking = device.lacks_conditions
    say(f"{device.gpu.name}: {lacking or 'conditional nodes can be made'}")
    if lacking:
        return
    say(probe(device, 400 if real else 20))
    say(*random_ops(60 if real else 20, 8))
    if real:
        say(library_in_a_body())
    say(*times(device, 300 if real else 2, real=real))
    say(level_memory(4000 if real else 80))
    if real:
        print(show([compare_cutoffs(60, 5, gpu=True)], {}), flush=True)
    say("done")


def main() -> None:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="on a simulated GPU")
    rehearse = parser.parse_args().rehearse
    machine: Any = nullcontext()
    if rehearse:
        from tests.simulated.cuda import installed

        machine = installed(3, gpus=1)
    with machine, use_device("cuda:0"):
        found = backend("cuda")
        assert isinstance(found, CudaBackend)
        driver = driver_of(found.device(0))
        assert isinstance(driver, CudaDevice)
        check(driver, real=not rehearse)


if __name__ == "__main__":
    main()
