"""What a reader of dagpu's code meets: files, lines of code, and the files that the first run of an op enters.

    python -m benchmarks.checking.reader             keeps results/reader.json and reader.md
    python -m benchmarks.checking.reader --dry       keeps nothing
    python -m benchmarks.checking.reader --changed A..B   the files of dagpu/ that a change touches

Nothing is timed. A line of code is neither blank nor a comment nor part of a docstring. A profiler notes the calls of
functions of dagpu, on the host backend and with all modules loaded. A crossing is a call in another folder than the
call before it. The exit status is 1 if a figure is above its goal.
"""

import argparse
import ast
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple, final

import numpy as np
import trio

from benchmarks.support.table import Grid, machine, save, show
from dagpu import DeviceOp, Elem, Feed, SharedTensor, expr, f32, from_host, observe, pipeline, source, zip_ops
from tests.project.docs.life_of_an_op import module_of, profiled
from tests.support.paths import ROOT

PACKAGE: Final = ROOT / "dagpu"
GOALS: Final = {
    "files": 290,
    "lines of code": 46_000,
    "median lines of a file": 250,
    "largest file": 700,
    "first run: files": 38,
    "first run: crossings": 100,
    "feed's first value: files": 60,
    "feed's first value: crossings": 300,
}
"""The figures that have a goal, each with the most that it may be."""


@final
class Way(NamedTuple):
    """The path that one call takes through the code."""

    calls: int
    files: int
    crossings: int


@expr
def power(x: Elem[f32], gain: Elem[f32]) -> Elem[f32]:
    """An expression of two arguments."""
    return gain * x * x


@expr
def shifted(x: Elem[f32], gain: Elem[f32]) -> Elem[f32]:
    """Another one, whose run loads the modules before anything is counted."""
    return gain + x * x


@pipeline
def powers(x: SharedTensor[f32], gain: float) -> DeviceOp[Any, Any, Any]:
    """A pipeline of the first."""
    return power.sum()(x, gain).to_host()


def path_of(seen: list[CodeType]) -> Way:
    """Return how many calls were seen, in how many files, and how often they crossed between folders."""
    files = [module_of(code) for code in seen]
    folders = [name.rpartition("/")[0] for name in files]
    return Way(len(files), len(set(files)), sum(one != other for one, other in pairwise(folders)))


def paths() -> dict[str, Way]:
    """Return the paths of an op's first run, of a pipeline's calls, and of a feed's values."""
    ones = np.ones(64, np.float32)
    shifted.sum()(from_host(ones), 2.0).to_host().sync()
    found: dict[str, Way] = {}

    def count(name: str, work: Any) -> None:
        seen: list[CodeType] = []
        with profiled(seen):
            work()
        found[name] = path_of(seen)

    op = power.sum()(from_host(ones), 2.0).to_host()
    count("first run", op.sync)
    x = from_host(ones).sync().share()
    count("pipeline's first call", lambda: powers(x, 2.0).sync())
    for _ in range(8):
        powers(x, 2.0).sync()
    count("pipeline's tenth call", lambda: powers(x, 2.0).sync())

    async def next_value(name: str, feed: Feed[Any]) -> None:
        seen: list[CodeType] = []
        with profiled(seen):
            await feed.next()
        found[name] = path_of(seen)

    async def follow() -> None:
        left, right = source(np.ones(4, f32)), source(np.ones(4, f32))
        ops = [power.sum()(each.then(from_host).shared(), 2.0).to_host() for each in (left, right)]
        async with observe(zip_ops(*ops)) as feed:
            await next_value("feed's first value", feed)
            for number in range(5):
                right.set(np.full(4, 2.0 + number, f32))
                await feed.next()
            right.set(np.full(4, 9.0, f32))
            await next_value("feed's seventh value", feed)

    trio.run(follow)
    return found


def code_lines(path: Path) -> int:
    """Return how many lines of a module are neither blank nor comments nor docstrings."""
    text = path.read_text(encoding="utf-8")
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and at not in documented for at, line in lines)


def sizes() -> dict[str, tuple[int, int]]:
    """Return the number of files and of lines of code of each room of dagpu."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        inner = path.relative_to(PACKAGE).parts
        room = inner[0] if len(inner) > 1 else "dagpu"
        files[room] += 1
        lines[room] += code_lines(path)
    return {room: (files[room], lines[room]) for room in sorted(files)}


def figures(rooms: dict[str, tuple[int, int]], ways: dict[str, Way]) -> Iterator[tuple[str, int]]:
    """Iterate over the figures that have a goal."""
    lengths = sorted(path.read_text(encoding="utf-8").count("\n") for path in PACKAGE.rglob("*.py"))
    yield "files", sum(files for files, _ in rooms.values())
    yield "lines of code", sum(lines for _, lines in rooms.values())
    yield "median lines of a file", round(statistics.median(lengths))
    yield "largest file", lengths[-1]
    for name in ("first run", "feed's first value"):
        yield f"{name}: files", ways[name].files
        yield f"{name}: crossings", ways[name].crossings


def changed_files(commits: str) -> list[str]:
    """Return the files of dagpu/ that a range of commits changes."""
    done = subprocess.run(
        ["git", "diff", "--name-only", commits, "--", "dagpu"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def main() -> int:
    """Count, print the tables, save them, and return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="keep nothing")
    parser.add_argument("--changed", metavar="A..B", help="print the files of dagpu/ that these commits change")
    asked = parser.parse_args()
    if asked.changed:
        names = changed_files(asked.changed)
        print(*names, f"{len(names)} files", sep="\n")
        return 0
    rooms, ways = sizes(), paths()
    found = dict(figures(rooms, ways))
    goals = Grid("Figures with a goal", ["now", "goal"], rows={name: [found[name], GOALS[name]] for name in GOALS})
    missed = [name for name in GOALS if found[name] > GOALS[name]]
    goals.note = f"{len(GOALS) - len(missed)} of {len(GOALS)} goals are met."
    walked = Grid("Calls on the way", [*Way._fields], rows={name: [*way] for name, way in ways.items()})
    housed = Grid("Rooms", ["files", "lines of code"], rows={name: [*size] for name, size in rooms.items()})
    grids = [goals, walked, housed]
    about = {name: text for name, text in machine(("numpy",)).items() if name in ("python", "numpy", "date")}
    print(show(grids, about))
    if not asked.dry:
        save("reader", "What a reader of the code meets", grids, about)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
