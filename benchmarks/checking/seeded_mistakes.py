"""The fraction of mistakes in ownership that the mypy plugin finds, in right programs that were made wrong.

    python -m benchmarks.checking.seeded_mistakes            all mistakes: keeps results/seeded_mistakes.json and .md
    python -m benchmarks.checking.seeded_mistakes --show     keeps nothing

Each mistake is made in a copy of one function of the examples, of the right programs in tests/typing/plugin, or of the
benchmarks. The copy has a name of its own and stands behind the original, so no mistake changes what another function
does. A copy is discarded if mypy refuses the inserted lines without the plugin, or types them as `Any`: the variable is
no tensor. In the same run the unchanged functions must get no error.
"""

import argparse
import ast
import copy
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from mypy import api

from benchmarks.checking.seeded_edits import HELPERS, INSERTED, KINDS, PLUGIN_ALONE, Edit, Function
from benchmarks.support.table import Grid, load_average, machine, save, show

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = ("examples", "tests/typing/plugin/right", "benchmarks")

DELIBERATE: Final = frozenset({"raises", "MovedError", "BorrowError", "OwnershipError", "suppress", "disagree"})
"""Names in functions that make mistakes on purpose."""


@final
@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong copy of a function."""

    file: str
    """The name of the written file."""
    module: str
    function: str
    kind: str
    text: str
    first: int
    """Its lines in the written module: from this one to `last`."""
    last: int


def candidates(tree: ast.Module) -> Iterator[tuple[Function, list[ast.stmt], str, Edit]]:
    """Iterate over the mistakes that can be made in a module: the function, where it stands, the kind and the edit."""
    homes = [tree.body, *(s.body for s in tree.body if isinstance(s, ast.ClassDef))]
    for home in homes:
        for function in home:
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.decorator_list:
                continue
            nodes = list(ast.walk(function))
            named = {node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in nodes}
            shares = any(isinstance(node, ast.Global | ast.Nonlocal) for node in nodes)
            if function.name.startswith("__") or named & DELIBERATE or shares:
                continue
            for kind, find in KINDS.items():
                for edit in find(function):
                    yield function, home, kind, edit


def sources() -> list[Path]:
    """Return the files of the right programs."""
    found = [file for folder in PROGRAMS for file in sorted((ROOT / folder).rglob("*.py"))]
    return [file for file in found if file.name != "__init__.py"]


def write_modules(folder: Path, count: int, seed: int) -> list[Mistake]:
    """Draw mistakes, equally many of each kind as far as there are, and write the modules with them to a folder."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sources()}
    chance = random.Random(seed)
    by_kind: dict[str, list[tuple[Path, Function, list[ast.stmt], Edit]]] = {kind: [] for kind in KINDS}
    for file, tree in trees.items():
        for function, home, kind, edit in candidates(tree):
            by_kind[kind].append((file, function, home, edit))
    chosen: dict[Path, list[tuple[Function, list[ast.stmt], str, Edit]]] = {}
    left = count
    for number, (kind, found) in enumerate(sorted(by_kind.items(), key=lambda pair: len(pair[1]))):
        some = chance.sample(found, min(len(found), left // (len(by_kind) - number)))
        left -= len(some)
        for file, function, home, edit in some:
            chosen.setdefault(file, []).append((function, home, kind, edit))
    return [
        mistake
        for number, (file, some) in enumerate(sorted(chosen.items()))
        for mistake in _write(folder / f"seeded_{number}.py", file, trees[file], some)
    ]


def _write(
    target: Path, file: Path, tree: ast.Module, some: list[tuple[Function, list[ast.stmt], str, Edit]]
) -> list[Mistake]:
    made: dict[str, tuple[str, str]] = {}
    for number, (function, home, kind, edit) in enumerate(some):
        wrong = copy.deepcopy(function)
        edit(wrong)
        wrong.name = f"{function.name}_seeded_{number}"
        made[wrong.name] = function.name, kind
        home.insert(home.index(function) + 1, wrong)
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n" + HELPERS
    target.write_text(text, encoding="utf-8")
    lines = text.splitlines()
    return [
        Mistake(
            target.name,
            str(file.relative_to(ROOT)),
            *made[node.name],
            "\n".join(lines[node.lineno - 1 : node.end_lineno]),
            node.lineno,
            node.end_lineno or node.lineno,
        )
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in made
    ]


# ---- mypy
def errors(folder: Path, *, plugin: bool) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """Return the lines on which mypy reports an error, by file name, and those on which the plugin does."""
    configuration = folder / "mypy.ini"
    plugins = "plugins = dagpu.mypy_plugin\n" if plugin else ""
    configuration.write_text(
        f"[mypy]\nstrict = true\nmypy_path = {ROOT}\nexplicit_package_bases = true\n{plugins}"
        "warn_unused_ignores = false\nignore_missing_imports = true\n"
        f"disallow_any_expr = {not plugin}\n",
        encoding="utf-8",
    )
    cache = folder / ("with" if plugin else "without")
    files = map(str, sorted(folder.glob("seeded_*.py")))
    report, crash, _ = api.run(["--config-file", str(configuration), f"--cache-dir={cache}", *files])
    if crash:
        raise AssertionError(crash)
    found: dict[str, set[int]] = {}
    ours: dict[str, set[int]] = {}
    for line in report.splitlines():
        parts = line.split(":", 3)
        if len(parts) == 4 and parts[2].strip() == "error":
            found.setdefault(Path(parts[0]).name, set()).add(int(parts[1]))
            if "[dagpu-" in line:
                ours.setdefault(Path(parts[0]).name, set()).add(int(parts[1]))
    return found, ours


def judged(folder: Path, count: int, seed: int) -> tuple[Counter[tuple[str, str]], list[Mistake], list[str]]:
    """Return how many mistakes of each kind had each outcome, those that were missed, and the lines refused wrongly."""
    made = write_modules(folder, count, seed)
    without, _ = errors(folder, plugin=False)
    either, ours = errors(folder, plugin=True)
    outcomes: Counter[tuple[str, str]] = Counter()
    missed: list[Mistake] = []
    alarms = {(file, line) for file, lines in ours.items() for line in lines}
    for m in made:
        lines = set(range(m.first, m.last + 1))
        texts = enumerate(m.text.splitlines(), m.first)
        inserted = {number for number, text in texts if any(word in text for word in INSERTED)}
        alarms -= {(m.file, line) for line in lines}
        if m.kind in PLUGIN_ALONE and inserted & without.get(m.file, set()):
            outcome = "discarded"
        else:
            found = ours if m.kind in PLUGIN_ALONE else either
            outcome = "found" if lines & found.get(m.file, set()) else "missed"
        outcomes[m.kind, outcome] += 1
        if outcome == "missed":
            missed.append(m)
    lines_of = {file: (folder / file).read_text(encoding="utf-8").splitlines() for file, _ in alarms}
    return outcomes, missed, [f"{file}:{line}: {lines_of[file][line - 1].strip()}" for file, line in sorted(alarms)]


def main() -> None:
    """Make the mistakes, print the table, and save it."""
    parser = argparse.ArgumentParser(description="Mistakes that the mypy plugin finds in right programs made wrong.")
    parser.add_argument("--draw", type=int, default=3600, help="mistakes that are made; two thirds are discarded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="keep nothing")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    about = machine(("mypy",))
    with tempfile.TemporaryDirectory(prefix="seeded-") as place:
        outcomes, missed, alarms = judged(Path(place), arguments.draw, arguments.seed)
    table = Grid("Mistakes in right programs", ["made", "found", "missed"])
    for kind in KINDS:
        counts = [outcomes[kind, outcome] for outcome in ("found", "missed")]
        table.rows[kind] = [sum(counts), *counts]
    sums = [sum(column) for column in zip(*table.rows.values(), strict=True)]
    table.rows["all"] = sums
    discarded = sum(number for (_, outcome), number in outcomes.items() if outcome == "discarded")
    table.note = (
        f"Of {arguments.draw:,} mistakes drawn with seed {arguments.seed}, {discarded:,} are none: the variable is no "
        f"tensor. False alarms in the unchanged functions of the same modules: {len(alarms)}."
    )
    about["load average after"] = load_average()
    print(show([table], about))
    print("", *[f"false alarm: {alarm}" for alarm in alarms], sep="\n")
    for m in missed:
        print(f"\nmissed: {m.kind}, {m.module}, {m.function}\n{m.text}")
    if not arguments.show:
        for path in save("seeded_mistakes", "Seeded mistakes", [table], about):
            print(f"kept {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
