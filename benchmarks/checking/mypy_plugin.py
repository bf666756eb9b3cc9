"""The cost of the mypy plugin: for an edited file of dense pipelines, for a tree without dagpu, for a cached run.

    python -m benchmarks.checking.mypy_plugin             some minutes; keeps results/mypy_plugin.json and .md
    python -m benchmarks.checking.mypy_plugin --quick     half a minute; keeps nothing
    python -m benchmarks.checking.mypy_plugin --packages  fetches large packages with pip and checks them both ways

Each sample is a separate process, `python -m mypy`, with the program's dependencies in mypy's cache. Runs with and
without the plugin alternate. All times are those of the processor: mypy computes throughout, and what else the machine
does changes the clock more than the plugin does. The only assertion is that the plugin is silent on code without dagpu:
mypy's report on the packages has to be the same with it.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import final

from benchmarks.support.table import Span, Table, load_average, machine, measure, save, show

ROOT = Path(__file__).resolve().parents[2]
DENSE, ELSEWHERE, CACHED = 1.5, 1.03, 1.05
"""Targets: ratios of a run with the plugin to one without, for dense pipelines, no dagpu at all, unchanged code."""

PACKAGES = (
    "sympy", "django", "sqlalchemy", "networkx", "setuptools", "botocore", "sphinx", "nltk", "docutils", "pip",
)  # fmt: skip
"""Large packages in pure Python that do not use dagpu."""

PIPELINES = '''"""Dense pipelines: nearly every line makes, moves, lends or runs something."""

from dagpu import In, Out, Tensor, f32, kernel, zeros, zip_ops

SOURCE = """
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {}
__global__ void add(Tile<float, 2> z, View<const float, 2> x, View<const float, 2> y) {}
"""


@kernel(cuda=SOURCE)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None: ...


@kernel(cuda=SOURCE)
def add(z: Out[f32], x: In[f32], y: In[f32]) -> None: ...
'''
PIPELINE = """

async def step_{number}(x: Tensor[f32], n: int, flag: bool) -> Tensor[f32]:
    y = await zeros((8, 8))
    z = await zeros((8, 8))
    total = 0.0
    for k in range(n):
        p, a, x = await saxpy(y.partition((4, 4)), float(k), x)
        y = p.unpartition()
        total += a
    if flag:
        await add(z.borrow_mut().partition((4, 4)), x.borrow(), y.borrow())
    else:
        q, x, y = await add(z.partition((4, 4)), x, y)
        z = q.unpartition()
    s = z.share()
    try:
        op = saxpy(y.partition((4, 4)), total, s)
        pp, aa, ss = op.unzip()
        res = await zip_ops(pp.map(lambda t: t.unpartition()), aa, ss)
        y = res[0]
    finally:
        print("done", n, total)
    return x
"""


def dense(lines: int) -> str:
    """Return a file of at least `lines` lines."""
    each = PIPELINE.count("\n")
    return PIPELINES + "".join(PIPELINE.format(number=number) for number in range(-(-lines // each)))


# ---- mypy, with and without -------------------------------------------------------------------------
@final
@dataclass(frozen=True, slots=True)
class Mypy:
    """Runs mypy on some targets, in a folder, with a separate cache."""

    folder: Path
    name: str
    targets: tuple[str, ...]
    plugin: bool
    options: str = "strict = true\n"

    @property
    def cache(self) -> Path:
        """The folder of the cache."""
        return self.folder / f"cache-{self.name}-{'with' if self.plugin else 'without'}"

    def run(self, *flags: str) -> tuple[Span, str]:
        """Run mypy. Return its processor time, and the report."""
        configuration = self.folder / f"{self.cache.name}.ini"
        plugins = "plugins = dagpu.mypy_plugin\n" if self.plugin else ""
        configuration.write_text(f"[mypy]\n{self.options}{plugins}", encoding="utf-8")
        command = [sys.executable, "-m", "mypy", f"--config-file={configuration}", f"--cache-dir={self.cache}"]
        return timed([*command, *flags, *self.targets], self.folder)


def timed(command: Sequence[str], folder: Path) -> tuple[Span, str]:
    """Run a command as users do, with the bytecode that Python keeps. Return its processor time and the output."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    kept |= {"PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode > 1 or done.stderr:
        raise AssertionError(f"the benchmark is broken: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Span(processor, processor), done.stdout


def edited(mypy: Mypy, file: Path) -> dict[str, Span]:
    """Measure a run after an edit."""
    with file.open("a", encoding="utf-8") as opened:
        opened.write("# one more line\n")
    return {_label(mypy): mypy.run()[0]}


def unchanged(mypy: Mypy) -> dict[str, Span]:
    """Measure a run with everything in the cache."""
    return {_label(mypy): mypy.run()[0]}


def anew(mypy: Mypy) -> dict[str, Span]:
    """Measure a run without a cache."""
    return {_label(mypy): mypy.run("--cache-dir=" + os.devnull)[0]}


def _label(mypy: Mypy) -> str:
    return "with the plugin" if mypy.plugin else "without"


def compared(
    title: str, note: str, contender: Callable[[Mypy], dict[str, Span]], pair: Sequence[Mypy], most: float, repeats: int
) -> Table:
    """Return a table of a run without the plugin and one with it."""
    table = Table(title, "s", note=note, ratio_to="without")
    found = measure([partial(contender, mypy) for mypy in pair], repeats)
    base = found["without"]
    table.add("without", base, 1.0, base=base)
    target = most * median(span.wall for span in base)
    table.add("with the plugin", found["with the plugin"], 1.0, base=base, target=round(target, 3))
    return table


def tables(folder: Path, *, quick: bool) -> list[Table]:
    """Return the tables of the ordinary run."""
    file = folder / "pipelines.py"
    file.write_text(dense(2000), encoding="utf-8")
    lines = len(file.read_text(encoding="utf-8").splitlines())
    tree = "trio"
    ours = [Mypy(folder, "dense", (str(file),), plugin) for plugin in (False, True)]
    theirs = [Mypy(folder, "tree", (f"--package={tree}",), plugin, "") for plugin in (False, True)]
    for mypy in [*ours, *([] if quick else theirs)]:
        mypy.run()  # fills its cache
    repeats = 3 if quick else 9
    note = f"{lines:,} lines, one of them new; all that the file imports is in the cache."
    found = [
        compared(
            f"An edited file of dense pipelines (at most {DENSE}x)",
            note,
            partial(edited, file=file),
            ours,
            DENSE,
            repeats,
        ),
        compared(f"The same file, unchanged (at most {CACHED}x)", "", unchanged, ours, CACHED, repeats),
    ]
    if not quick:
        note = f"The package {tree}, checked from nothing, typeshed included."
        found.append(compared(f"A tree without dagpu (at most {ELSEWHERE}x)", note, anew, theirs, ELSEWHERE, 5))
        found.append(compared(f"The same tree, unchanged (at most {CACHED}x)", "", unchanged, theirs, CACHED, repeats))
    return found


# ---- packages of others -----------------------------------------------------------------------------
EVERYTHING = """
import importlib, sys
# by name: as an attribute of the package, `plugin` is the function that mypy calls
plugin = importlib.import_module("dagpu.mypy_plugin.plugin")
assert hasattr(plugin, "_concerns_us")
plugin._concerns_us = lambda checker: not checker.is_stub
from mypy.main import main
main(args=sys.argv[1:], stdout=sys.stdout, stderr=sys.stderr, clean_exit=True)
"""


def package_table(folder: Path, names: Sequence[str]) -> Table:
    """Measure each package without a cache: without the plugin, with it, and with all of its functions analysed."""
    table = Table("Packages in pure Python that know nothing of dagpu", "s", ratio_to="without", remarks="findings")
    table.note = "One run each, from nothing. Analysed: the flow rules run over every module, as if it used dagpu."
    for name in names:
        target = folder / name
        install = ["install", "--quiet", "--no-deps", "--no-compile", "--target", str(target), name]
        subprocess.run([sys.executable, "-m", "pip", *install], check=True, stdout=subprocess.DEVNULL)
        sources = [str(file) for file in sorted(target.rglob("*.py"))]
        lines = sum(Path(file).read_bytes().count(b"\n") for file in sources)
        base, said = checked(target, plugin=False)
        with_plugin, same = checked(target, plugin=True)
        analysed, found = checked(target, plugin=True, everything=True)
        different = [line for line in found.splitlines() if line not in said] if found != said else []
        if same != said:
            raise AssertionError(f"{name}: the report is another one with the plugin")
        print(f"{name}: {lines:,} lines, {len(said.splitlines()):,} of mypy's own messages", *different, sep="\n")
        table.add(f"{name}, {lines:,} lines, without", [base], 1.0)
        table.add("with the plugin", [with_plugin], 1.0, base=[base], remark="0")
        table.add("all of it analysed", [analysed], 1.0, base=[base], remark=str(len(different)))
    return table


def checked(target: Path, *, plugin: bool, everything: bool = False) -> tuple[Span, str]:
    """Return the time of a package's check, and the report."""
    configuration = target.parent / "packages.ini"
    plugins = "plugins = dagpu.mypy_plugin\n" if plugin else ""
    options = "ignore_missing_imports = true\ncheck_untyped_defs = true\nshow_traceback = true\n"
    configuration.write_text(f"[mypy]\n{options}{plugins}", encoding="utf-8")
    run = ["-c", EVERYTHING] if everything else ["-m", "mypy"]
    flags = [f"--config-file={configuration}", "--cache-dir=" + os.devnull, "--no-error-summary"]
    folders = [place.name for place in sorted(target.iterdir()) if (place / "__init__.py").exists()]
    return timed([sys.executable, *run, *flags, *(f"--package={name}" for name in folders)], target)


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description="What the mypy plugin costs.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no tree of others; keeps nothing")
    parser.add_argument(
        "--packages", nargs="*", metavar="NAME", help="check these packages; without names, ten large ones"
    )
    arguments = parser.parse_args()
    about = machine(("mypy", "numpy", "trio"))
    with tempfile.TemporaryDirectory(prefix="mypy-plugin-") as place:
        if arguments.packages is not None:
            found = [package_table(Path(place), arguments.packages or PACKAGES)]
        else:
            found = tables(Path(place), quick=arguments.quick)
    about["load average after"] = load_average()
    print(show(found, about))
    if not arguments.quick:
        name = "mypy_plugin" if arguments.packages is None else "mypy_plugin_packages"
        for path in save(name, "The mypy plugin", found, about):
            print(f"kept {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
