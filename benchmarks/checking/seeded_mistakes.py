"""The fraction of mistakes in ownership that the mypy plugin finds, in right programs that were made wrong.

    python -m benchmarks.checking.seeded_mistakes            1,000 mistakes: keeps results/seeded_mistakes.json and .md
    python -m benchmarks.checking.seeded_mistakes --show     and the functions that were missed; keeps nothing

Each mistake is made in a copy of one function of the examples or of the right programs in tests/typing/plugin. The copy
has a name of its own and stands behind the original, so no mistake changes what another function does. A copy is
discarded if mypy refuses the inserted lines without the plugin, or types them as `Any`: the variable is no tensor. In
the same run the unchanged functions must get no error.
"""

import argparse
import ast
import copy
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, final

from mypy import api

from benchmarks.support.table import Grid, load_average, machine, save, show

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = ("examples", "tests/typing/plugin/right")

HELPERS: Final = """
import typing as _typing
import dagpu as _dagpu
def _spend(t: "_dagpu.Tensor[_typing.Any]") -> None:
    t.share()
def _look(t: "_dagpu.TensorRef[_typing.Any]") -> None:
    print(t.shape)
"""
"""Appended to each module. `_spend` takes a tensor by value."""

INSERTED: Final = ("_spend(", ".borrow_mut()", "_r = ", "_look(")
"""Texts of the inserted lines, which mypy must accept without the plugin."""

DELIBERATE: Final = frozenset({"raises", "MovedError", "BorrowError", "OwnershipError", "suppress", "disagree"})
"""Names in functions that make mistakes on purpose."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Place: TypeAlias = tuple[list[ast.stmt], int]
"""A block, and the index of a statement in it."""
Edit: TypeAlias = Callable[[Function], None]
"""Makes a mistake in a copy of a function."""


# ---- the mistakes
def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Iterate over the suites of a function, without those of functions and classes in it."""
    for name in ("body", "orelse", "finalbody"):
        suite = getattr(node, name, None)
        if isinstance(suite, list) and suite and isinstance(suite[0], ast.stmt):
            yield suite
            for statement in suite:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from blocks(statement)
    for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
        yield from blocks(handler)


def places(function: Function) -> list[Place]:
    """Return the places of all statements, in an order that a copy of the function has as well."""
    return [(suite, index) for suite in blocks(function) for index in range(len(suite))]


def loads(node: ast.AST) -> list[str]:
    """Return the variables that a statement certainly reads: not those in closures and in nested statements."""
    if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return []
    found = [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            found += loads(child)
    return found


def written(text: str) -> ast.stmt:
    """Return the statement of this text."""
    return ast.parse(text).body[0]


def before(number: int, *texts: str) -> Edit:
    """Insert statements before the statement of this number."""

    def edit(function: Function) -> None:
        suite, index = places(function)[number]
        suite[index:index] = map(written, texts)

    return edit


def after(number: int, *texts: str) -> Edit:
    """Insert statements behind the statement of this number, and let the function return anything."""

    def edit(function: Function) -> None:
        suite, index = places(function)[number]
        suite[index + 1 : index + 1] = map(written, texts)
        if any(isinstance(written(text), ast.Return) for text in texts):
            function.returns = ast.Name("object", ast.Load())

    return edit


def moved_again(function: Function) -> Iterator[Edit]:
    """A tensor is moved before a statement that uses it."""
    arguments = [*function.args.args, *function.args.kwonlyargs]
    owned = {one.arg for one in arguments if one.annotation and ast.unparse(one.annotation).startswith("Tensor[")}
    for suite, index in places(function):
        match suite[index]:
            case ast.Assign(targets=[target], value=value) if not any(
                word in ast.unparse(value) for word in ("np.", ".shape")
            ):
                owned |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
            case _:
                pass
    for number, (suite, index) in enumerate(places(function)):
        if isinstance(suite[index], ast.Expr | ast.Assign | ast.Return | ast.AnnAssign | ast.For | ast.If | ast.With):
            for name in sorted(owned & set(loads(suite[index]))):
                yield before(number, f"_spend({name})")


def assigned(statement: ast.stmt) -> str:
    """Return the variable to which a statement assigns the result of a call; an empty string if it is another one."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() | ast.Await()):
            return name
        case _:
            return ""


def borrow_returned(function: Function) -> Iterator[Edit]:
    """A function returns a borrow of a tensor that it has just made."""
    generates = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
    for number, (suite, index) in enumerate(places(function)):
        name = assigned(suite[index])
        if name and not generates:
            yield after(number, f"return {name}.borrow_mut()")


def read_while_written(function: Function) -> Iterator[Edit]:
    """A borrow for reading is used after one for writing."""
    for number, (suite, index) in enumerate(places(function)):
        if name := assigned(suite[index]):
            yield after(number, f"_r = {name}.borrow()", f"_w = {name}.borrow_mut()", "_look(_r)", "print(_w.shape)")


def moved_while_lent(function: Function) -> Iterator[Edit]:
    """A tensor moves while a borrow of it is used later."""
    for number, (suite, index) in enumerate(places(function)):
        if name := assigned(suite[index]):
            yield after(number, f"_r = {name}.borrow()", f"_spend({name})", "_look(_r)")


def partition_dropped(function: Function) -> Iterator[Edit]:
    """An output is passed to a kernel whole."""
    for number, node in enumerate(ast.walk(function)):
        if isinstance(node, ast.Call) and node.args and _is_partition(node.args[0]):

            def edit(other: Function, number: int = number) -> None:
                call = list(ast.walk(other))[number]
                assert isinstance(call, ast.Call)
                inner = call.args[0]
                assert isinstance(inner, ast.Call)
                assert isinstance(inner.func, ast.Attribute)
                call.args[0] = inner.func.value

            yield edit


def _is_partition(e: ast.expr) -> bool:
    return isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr == "partition"


def op_dropped(function: Function) -> Iterator[Edit]:
    """A statement builds an op and does not run it."""
    for number, (suite, index) in enumerate(places(function)):
        statement = suite[index]
        if isinstance(statement, ast.Expr) and _run(statement.value) is not None:

            def edit(other: Function, number: int = number) -> None:
                inside, at = places(other)[number]
                run = inside[at]
                assert isinstance(run, ast.Expr)
                run.value = _run(run.value) or run.value

            yield edit


def _run(e: ast.expr) -> ast.expr | None:
    """Return the op that an expression runs."""
    match e:
        case ast.Await(value=ast.Call() as op):
            return op
        case ast.Call(func=ast.Attribute(value=ast.Call() as op, attr="sync"), args=[]):
            return op
        case _:
            return None


def op_overwritten(function: Function) -> Iterator[Edit]:
    """An op is built twice for one variable, which is run later."""
    run = {
        node.value.id
        for node in ast.walk(function)
        if (isinstance(node, ast.Await) or (isinstance(node, ast.Attribute) and node.attr == "sync"))
        and isinstance(node.value, ast.Name)
    }
    for number, (suite, index) in enumerate(places(function)):
        statement = suite[index]
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        name, called = assigned(statement), statement.value.func
        starts = isinstance(called, ast.Name) and called.id == "spawn"  # a task is not an op
        if name in run and name not in loads(statement) and not starts:
            yield after(number, ast.unparse(statement))


def used_twice(function: Function) -> Iterator[Edit]:
    """An op that was assigned takes two places of one op."""
    several = ("shared(", "value(", "source(", "cutoff(", "unzip(")  # these may be used several times
    run = {
        assigned(suite[index])
        for suite, index in places(function)
        if assigned(suite[index]) and not any(word in ast.unparse(suite[index]) for word in several)
    }
    for number, node in enumerate(ast.walk(function)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip_ops":
            for at, argument in enumerate(node.args):
                if isinstance(argument, ast.Name) and argument.id in run:

                    def edit(other: Function, number: int = number, at: int = at) -> None:
                        call = list(ast.walk(other))[number]
                        assert isinstance(call, ast.Call)
                        call.args.append(call.args[at])

                    yield edit


PLUGIN_ALONE: Final = {
    "a moved tensor is used": moved_again,
    "a borrow is returned": borrow_returned,
    "a tensor is written while it is read": read_while_written,
    "a tensor moves while it is lent": moved_while_lent,
    "an op is overwritten": op_overwritten,
    "an op is used twice in a run": used_twice,
}
"""Mistakes that mypy does not see without the plugin. If it refuses one, the variable is no tensor."""
EITHER: Final = {"a partition is dropped": partition_dropped, "an op is dropped": op_dropped}
"""Mistakes that mypy may find by itself."""
KINDS: Final = PLUGIN_ALONE | EITHER


# ---- the modules with mistakes
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
    parser.add_argument("--count", type=int, default=1000, help="mistakes that count: those that are discarded do not")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the functions that were missed; keep nothing")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    about = machine(("mypy",))
    with tempfile.TemporaryDirectory(prefix="seeded-") as place:
        outcomes, missed, alarms = judged(Path(place), arguments.count * 2, arguments.seed)
    table = Grid("Mistakes in right programs", ["made", "found", "missed"])
    for kind in KINDS:
        counts = [outcomes[kind, outcome] for outcome in ("found", "missed")]
        table.rows[kind] = [float(sum(counts)), *map(float, counts)]
    sums = [sum(column) for column in zip(*table.rows.values(), strict=True)]
    table.rows["all"] = sums
    table.note = f"False alarms in the unchanged functions of the same modules: {len(alarms)}."
    about["load average after"] = load_average()
    print(show([table], about))
    print("", *[f"false alarm: {alarm}" for alarm in alarms], sep="\n")
    for m in missed if arguments.show else missed[:20]:
        print(f"\nmissed: {m.kind}, {m.module}, {m.function}\n{m.text if arguments.show else ''}")
    if not arguments.show:
        for path in save("seeded_mistakes", "Seeded mistakes", [table], about):
            print(f"kept {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
