"""The fraction of small mistakes in scheduling, memory planning, ownership and reactive code that the tests notice.

    python -m benchmarks.checking.mutants --mutants 300     keeps results/mutants.json and mutants.md
    python -m benchmarks.checking.mutants --of updates --mutants 60 --seed 31
                                                            of the updates of feeds, by the tests of these rooms; keeps
                                                            results/mutants_of_updates.json and mutants_of_updates.md
    python -m benchmarks.checking.mutants --only verify     mutants of modules with this in their name; keeps nothing

Cosmic Ray (https://cosmic-ray.readthedocs.io) makes the mutants: one comparison, number, boolean, `and`, operator, loop
or exception changed. A random sample of places is drawn, and one mutant at each. Each is tried in a clone of this
repository by the tests that execute its line, quickest first, until one of them fails; a module's top level is tried by
those that execute any line of it. Needs `pip install cosmic-ray pytest-cov`, and the tests in order of time: one run
of the suite under coverage, some minutes, before the first mutant.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, final

from benchmarks.support.table import RESULTS, machine

ROOT: Final = Path(__file__).parents[2]


@final
@dataclass(frozen=True, slots=True)
class Subject:
    """What is mutated, and what tries it."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    """Folders and files: the tests of the rooms in which a mistake in the modules is to be noticed."""
    results: str
    title: str


SUBJECTS: Final = {
    "plans": Subject(
        ("dagpu/plans", "dagpu/tracing", "dagpu/runtime", "dagpu/handles"), ("tests",),
        "mutants", "Mutants",
    ),
    "updates": Subject(
        (
            "dagpu/reactive", "dagpu/tracing/live_inputs.py", "dagpu/tracing/program_builder.py",
            "dagpu/tracing/sources.py", "dagpu/tracing/compare_values.py",
        ),
        (
            "tests/behaviour/live", "tests/behaviour/flows", "tests/behaviour/tiles", "tests/unit/reactive",
            "tests/unit/ops", "tests/unit/runtime/test_repeated_updates.py",
        ),
        "mutants_of_updates",
        "Mutants of the updates of feeds",
    ),
}  # fmt: skip
"""What may be mutated: the lowering and running of plans, or the updates of feeds with the proof of each."""

SLOW: Final = re.compile(
    "mypy|docs|examples|readme|typing|interrupt|dropped_runs|stubs|stand_in|gpu_suite|parity|showpieces|digits"
)
"""Tests that start processes, or check texts for users. They would also notice mutants, but take too long."""

SECONDS: Final = 25.0
"""Most seconds that the tests of one mutant may take in all, as measured without the mutant.

A line that everything executes has hundreds of tests, which would take minutes for each unnoticed mutant. So a mutant
that survives may still be noticed by a slower test.
"""

LIMIT: Final = 400.0
"""Seconds after which a mutant counts as hung, and so as noticed."""

ALIKE: Final = re.compile(r"ReplaceBinaryOperator_BitOr|Replace\w+_(Is|IsNot)_\w+|_Eq_Is|_NotEq_IsNot|VariableInserter")
"""Equivalent mutants: `X | None` in an annotation, and `==` for `is` if there is only one object of each value."""

TYPING: Final = re.compile(r"\s*@(final|overload|override)\b")
"""Lines that only type checkers read."""


@final
@dataclass(frozen=True, slots=True)
class Mutant:
    """One change at one place."""

    module: str
    line: int
    operator: str
    occurrence: int
    arguments: dict[str, object]


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of testing a mutant."""

    mutant: Mutant
    outcome: str
    tests: int
    """Number of tests that execute its line."""
    diff: str


@final
class Tests:
    """The tests that execute each line, and the duration of each test."""

    def __init__(self, coverage: Path, times: Path) -> None:
        from coverage import CoverageData

        self._data = CoverageData(str(coverage))
        self._data.read()
        self._files = {Path(file).as_posix().rpartition("/dagpu/")[2]: file for file in self._data.measured_files()}
        self._seconds = {
            f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(case.get("time", 0))
            for case in ET.parse(times).getroot().iter("testcase")
            if case.find("failure") is None  # a test that fails without a mutant notices none
        }

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the mutant's line, quickest first."""
        file = self._files.get(mutant.module.removeprefix("dagpu/"))
        by_line = self._data.contexts_by_lineno(file) if file else {}
        names = {context.rpartition("|")[0] for context in by_line.get(mutant.line, ())} - {""}
        if not names:
            names = {context.rpartition("|")[0] for contexts in by_line.values() for context in contexts} - {""}
        chosen, total = list[str](), 0.0
        for name in sorted(names & self._seconds.keys(), key=lambda name: (self._seconds[name], name)):
            total += self._seconds[name]
            if total > SECONDS and chosen:
                break
            chosen.append(name)
        return chosen


def mutants(modules: Sequence[str], only: str, count: int, seed: int) -> list[Mutant]:
    """Draw a sample: places with equal probability, and one mutant at each."""
    from cosmic_ray.commands import init
    from cosmic_ray.modules import find_modules
    from cosmic_ray.work_db import WorkDB, use_db

    places = dict[tuple[str, tuple[int, int], str], list[Mutant]]()
    with TemporaryDirectory() as folder, use_db(f"{folder}/session.sqlite", WorkDB.Mode.create) as database:
        init([path for path in find_modules([Path(module) for module in modules]) if only in str(path)], database, {})
        for item in database.work_items:
            (change,) = item.mutations
            line = change.module_path.read_text(encoding="utf-8").splitlines()[change.start_pos[0] - 1]
            if not ALIKE.search(change.operator_name) and not TYPING.match(line):
                family = change.operator_name.split("_")[0]
                mutant = Mutant(
                    change.module_path.as_posix(),
                    change.start_pos[0],
                    change.operator_name,
                    change.occurrence,
                    dict(change.operator_args),
                )
                places.setdefault((mutant.module, change.start_pos, family), []).append(mutant)
    chance = random.Random(seed)
    drawn = chance.sample(sorted(places), min(count, len(places)))
    return [chance.choice(sorted(places[place], key=lambda mutant: mutant.operator)) for place in drawn]


def tried(clone: Path, work: Sequence[Mutant], tests: Tests) -> Iterable[Verdict]:
    """Test each mutant in a clone of the repository. Iterate over the verdicts."""
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_item import MutationSpec

    os.chdir(clone)
    for mutant in work:
        chosen = tests.of(mutant)
        Path("chosen.txt").write_text("\n".join(chosen), encoding="utf-8")
        spec = MutationSpec(
            mutant.module, mutant.operator, mutant.occurrence, (mutant.line, 0), (mutant.line, 1), mutant.arguments
        )
        command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider -p no:randomly @chosen.txt"
        result = mutate_and_test([spec], command, LIMIT)
        outcome = "not executed" if not chosen else str(result.test_outcome.value if result.test_outcome else "none")
        yield Verdict(mutant, outcome, len(chosen), result.diff or "")


def first_of_path(folder: Path) -> str:
    """Return a `PYTHONPATH` that begins with this folder."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def worker(number: int, folder: Path, work: Sequence[Mutant], coverage: Path, times: Path) -> list[Verdict]:
    """Test one worker's share of the mutants, in a separate clone."""
    clone = folder / f"clone{number}"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    os.environ["PYTHONPATH"] = first_of_path(clone)
    verdicts = list[Verdict]()
    for verdict in tried(clone, work, Tests(coverage, times)):
        verdicts.append(verdict)
        mutant = verdict.mutant
        print(
            f"{verdict.outcome:13}{mutant.module}:{mutant.line} {mutant.operator} ({verdict.tests} tests)", flush=True
        )
        if verdict.outcome == "survived":
            print(verdict.diff, flush=True)
    return verdicts


def record(folder: Path, tests: Sequence[str]) -> tuple[Path, Path]:
    """Run the tests once, and save the lines that each test executes and its duration."""
    coverage, times = folder / ".coverage", folder / "times.xml"
    paths = {
        path
        for name in tests
        for path in ((ROOT / name).rglob("test_*.py") if (ROOT / name).is_dir() else [ROOT / name])
    }
    files = [str(path) for path in sorted(paths) if not SLOW.search(path.name)]
    options = ["--cov=dagpu", "--cov-context=test", "--cov-report=", f"--junitxml={times}", "-q", "-n", "2"]
    environment = {**os.environ, "COVERAGE_FILE": str(coverage), "PYTHONPATH": first_of_path(ROOT)}
    done = subprocess.run([sys.executable, "-m", "pytest", *options, *files], check=False, cwd=ROOT, env=environment)
    if done.returncode > 1:  # 1: some test has failed
        raise SystemExit("the tests could not be run")
    return coverage, times


def report(title: str, verdicts: Sequence[Verdict], about: dict[str, str]) -> str:
    """Return the score by module, and each unnoticed mutant."""
    modules = sorted({verdict.mutant.module for verdict in verdicts})
    count = Counter((verdict.mutant.module, verdict.outcome) for verdict in verdicts)
    lines = [f"# {title}", "", *(f"- {key}: {value}" for key, value in about.items()), ""]
    noticed = sum(verdict.outcome == "killed" for verdict in verdicts)
    lines += [f"{noticed} of {len(verdicts)} noticed ({noticed / len(verdicts):.1%}).", ""]
    lines += ["| module | mutants | noticed |", "| --- | ---: | ---: |"]
    for module in modules:
        total = sum(found for (name, _), found in count.items() if name == module)
        lines.append(f"| {module} | {total} | {count[module, 'killed']} |")
    for verdict in verdicts:
        if verdict.outcome != "killed":
            lines += ["", f"{verdict.outcome}: {verdict.mutant.module}:{verdict.mutant.line}", ""]
            lines += ["```diff", verdict.diff.strip(), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Draw, try, report."""
    parser = argparse.ArgumentParser(description="How many mutants do the tests notice?")
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--of", choices=SUBJECTS, default="plans", help="what is mutated")
    parser.add_argument("--only", default="", help="modules with this in their path")
    parser.add_argument("--recorded", type=Path, help="a folder with .coverage and times.xml of an earlier run")
    arguments = parser.parse_args()
    subject: Subject = SUBJECTS[arguments.of]
    os.chdir(ROOT)
    start = time.perf_counter()
    with TemporaryDirectory() as name:
        folder = Path(name)
        earlier: Path | None = arguments.recorded
        coverage, times = (
            record(folder, subject.tests) if earlier is None else (earlier / ".coverage", earlier / "times.xml")
        )
        drawn = mutants(subject.modules, arguments.only, arguments.mutants, arguments.seed)
        shares = [
            (number, folder, drawn[number :: arguments.workers], coverage, times) for number in range(arguments.workers)
        ]
        with get_context("spawn").Pool(arguments.workers) as pool:
            verdicts = [verdict for share in pool.starmap(worker, shares, chunksize=1) for verdict in share]
    verdicts.sort(key=lambda verdict: (verdict.mutant.module, verdict.mutant.line))
    about = {
        **machine(["cosmic-ray", "pytest"]),
        "seed": str(arguments.seed),
        "minutes": f"{(time.perf_counter() - start) / 60:.0f}",
    }
    print(report(subject.title, verdicts, about))
    if not arguments.only:
        (RESULTS / f"{subject.results}.md").write_text(report(subject.title, verdicts, about), encoding="utf-8")
        data = {"machine": about, "verdicts": [asdict(verdict) for verdict in verdicts]}
        (RESULTS / f"{subject.results}.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
