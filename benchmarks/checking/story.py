"""The Python calls between an op and its result: of one saxpy on the simulated GPU, with the files that they are in.

    python -m benchmarks.checking.story          keeps results/story.json and story.md
    python -m benchmarks.checking.story --dry    keeps nothing

Nothing is timed, so the numbers need no GPU and no idle machine, and are equal in all runs of one Python. A profiler
notes each call of a function of dagpu on the calling thread. A coroutine that is resumed counts as a call. A change of
file is a call in another file than the call before it. Calls of the simulated driver do not count.
"""

import argparse
from collections.abc import Callable
from itertools import pairwise
from types import CodeType
from typing import Any, Final, TypeAlias

import numpy as np
import trio

from benchmarks.support.table import Grid, machine, save, show
from dagpu import DeviceOp, SharedTensor, Tensor, f32, from_host, ones, pipeline, value
from tests.programs.arithmetic import axpy
from tests.project.docs.life_of_an_op import module_of, profiled
from tests.simulated.cuda import installed

FIRST: Final = (350, 40)
"""Goals for a first run: calls, and files."""
LATER: Final = (30, 10)
"""Goals for a later run: calls, and files."""
COLUMNS: Final = ("calls", "files", "functions", "changes of file")

Runs: TypeAlias = dict[str, tuple[list[int], tuple[int, int]]]
"""The counts of each run, in the order of `COLUMNS`, with its goals."""


def count_calls(call: Callable[[], object]) -> list[int]:
    """Return the calls, files, functions and changes of file of one call."""
    seen: list[CodeType] = []
    with profiled(seen):
        call()
    return count(seen)


def count(seen: list[CodeType]) -> list[int]:
    """Return the number of calls, files, functions and changes of file."""
    files = [module_of(code) for code in seen]
    return [len(seen), len(set(files)), len(set(seen)), sum(one != other for one, other in pairwise(files))]


def count_plain_ops() -> tuple[list[int], Runs]:
    """Return the counts of building an op, and those of ops of one structure: each is built separately, and run once.
    The fifth is run twice. From the seventh on, the place in the code finds the plan."""
    x = from_host(np.ones((16, 16), np.float32))
    y = ones((16, 16))
    ops: list[DeviceOp[Any, Any, Any]] = []

    def build() -> None:
        ops.append(axpy(y.partition((4, 4)), 2.0, x).first().unpartition().to_host())

    def run() -> None:
        ops[-1].sync()

    built = count_calls(build)
    runs = {"first op: sync()": (count_calls(run), FIRST)}
    for which in ("second", "third", "fourth", "fifth"):
        build()
        runs[f"{which} op of its structure: sync()"] = count_calls(run), LATER
    runs["the fifth op again: sync()"] = count_calls(run), LATER
    for _ in range(4):
        build()
        run()
    build()
    runs["tenth op of its structure: sync()"] = count_calls(run), LATER
    return built, runs


def count_calls_of_plans() -> Runs:
    """Return the counts of a pipeline and of a captured graph, in a run after the first five."""

    @pipeline
    def step(y: Tensor[f32], a: float, x: SharedTensor[f32]) -> DeviceOp[Tensor[f32], Any, Any]:
        return axpy(value(y).partition((4, 4)), a, x).first().unpartition()

    x = from_host(np.ones((16, 16), np.float32)).sync().share()
    held = [ones((16, 16)).sync()]

    def call() -> None:
        held[0] = step(held[0], 2.0, x).sync()

    async def awaited() -> list[int]:
        seen: list[CodeType] = []
        for _ in range(5):
            held[0] = await step(held[0], 2.0, x)
        with profiled(seen):
            held[0] = await step(held[0], 2.0, x)
        return count(seen)

    for _ in range(5):
        call()
    runs = {"pipeline: call and sync()": (count_calls(call), LATER)}
    runs["pipeline: call and await"] = trio.run(awaited), LATER
    lent = ones((16, 16)).sync()
    graph = axpy(value(lent.borrow_mut()).partition((4, 4)), 2.0, x).first().unpartition().graph()

    def launch() -> None:
        graph.launch().sync()

    for _ in range(5):
        launch()
    runs["graph.launch().sync()"] = count_calls(launch), LATER
    return runs


def count_story() -> list[Grid]:
    """Run the program on a simulated GPU, and return the tables."""
    with installed(gpus=1):
        built, runs = count_plain_ops()
        runs |= count_calls_of_plans()
    building = Grid("Building the op", list(COLUMNS), rows={"one saxpy": [*built]})
    calls, files, *others = COLUMNS
    running = Grid("From the op, or from the call, to the result", [calls, "goal", files, "goal", *others])
    for name, (found, goals) in runs.items():
        running.rows[name] = [found[0], goals[0], found[1], goals[1], *found[2:]]
    met = sum(found[0] <= goals[0] and found[1] <= goals[1] for found, goals in runs.values())
    running.note = f"{met} of {len(runs)} rows meet their goals."
    return [building, running]


def main() -> None:
    """Count, print the table, and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="keep nothing")
    dry = parser.parse_args().dry
    found = machine(("numpy",))
    about = {name: found[name] for name in ("python", "numpy", "date")}
    grids = count_story()
    print(show(grids, about))
    if not dry:
        save("story", "Calls between an op and its result", grids, about)


if __name__ == "__main__":
    main()
