"""Installs the wheel and the sdist of dagpu in clean environments, and tries each: a matrix of what works.

    python -m benchmarks.checking.packages [--no-save]

For each Python from 3.11 to 3.14 that this machine has: the wheel and the sdist, each with the oldest and with the
newest versions of the dependencies and of mypy that pyproject.toml allows. An environment is tried by

- a program that runs kernels, an expression, a pipeline and an exploration, and that reads the entry points,
- `python -m dagpu info`, which tests each device,
- mypy with the plugin over a right file, which it must accept, and a wrong one, which it must refuse.

For a Python that this machine lacks, the matrix says which versions have wheels for it; nothing was run then. The stubs
for PyCUDA are built and tried as a distribution of their own. Needs `pip install uv`, which builds and installs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from benchmarks.support.table import RESULTS, machine

ROOT: Final = Path(__file__).resolve().parents[2]
STUBS: Final = ROOT / "stubs" / "pycuda-stubs"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
RESOLUTIONS: Final = {"oldest": "lowest-direct", "newest": "highest"}
_NOT_PASSED: Final = {"PYTHONPATH", "MYPYPATH", "DAGPU_DEVICE"}
"""Environment variables that would let an environment see the checkout, or take another device."""
SHOWN: Final = ("numpy", "trio", "mypy")
"""The packages whose versions the matrix names."""

SMOKE: Final = """
import importlib.resources
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import dagpu
from dagpu import Elem, In, Out, SharedTensor, Tile, array, expr, f32, from_host, kernel, pipeline, zeros


@kernel(cuda="__global__ void twice(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = 2 * x[i]; }")
def twice(y: Out[f32], x: In[f32]) -> None: ...


@twice.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = 2 * x[y.at]


@expr
def shifted(x: Elem[f32], by: Elem[f32]) -> Elem[f32]:
    return x + by


@pipeline
def both(x: SharedTensor[f32]):
    return array.sum(shifted(twice.new((8,), (4,))(x), 1.0))


assert "site-packages" in dagpu.__file__, dagpu.__file__
assert importlib.resources.files("dagpu").joinpath("py.typed").is_file()
assert {point.name for point in entry_points(group="dagpu.backends")} >= {"host", "cuda", "explore"}
for point in entry_points(group="dagpu.backends"):
    point.load()
x = from_host(np.arange(8, dtype=f32)).sync().share()
for _ in range(3):
    assert float(both(x).to_host().sync()) == 64.0
assert "Critical path" in both(x).explain()
with dagpu.use_device("explore"):
    assert twice.new((8,), (4,))(zeros((8,))).to_host().sync().tolist() == [0.0] * 8
print("ran")
"""

RIGHT: Final = """
from dagpu import DeviceOp, Tensor, from_host, zeros, zip_ops


def sums(weights: Tensor) -> float:
    shared = weights.share()
    left, right = zip_ops(shared.clone().to_host(), shared.to_host()).sync()
    return float(left.sum() + right.sum())


kept: DeviceOp[Tensor] = zeros((4,))
print(sums(kept.sync()))
"""

WRONG: Final = """
from dagpu import zeros

tensor = zeros((4,)).sync()
shared = tensor.share()
print(tensor.to_host().sync(), shared)
"""

WITH_STUBS: Final = """
import numpy
import pycuda.driver as cuda

reveal_type(cuda.Device.count())
cuda.mem_alloc("nonsense")
"""


@final
class Failed(Exception):
    """A step that did not do what it should; the message has its output."""


@final
@dataclass(frozen=True)
class Outcome:
    """A row of the matrix."""

    python: str
    package: str
    resolution: str
    versions: dict[str, str]
    said: str
    """`works`, the reason why not, or what was looked up instead."""

    def cells(self) -> list[str]:
        return [
            self.python,
            self.package,
            self.resolution,
            *[self.versions.get(name, "") for name in SHOWN],
            self.said,
        ]


def run(command: Sequence[str | Path], folder: Path, *, exits: int = 0) -> str:
    """Run a command. Return what it prints.

    Raises:
        Failed: it ends with another exit status.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in _NOT_PASSED},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != exits:
        raise Failed(f"{' '.join(map(str, command[:4]))}: exit status {done.returncode}\n{done.stdout[-2000:]}")
    return done.stdout


def uv(*arguments: str | Path) -> list[str | Path]:
    """Return the command that calls uv, which must not download a Python."""
    return [sys.executable, "-m", "uv", *arguments[:1], "--quiet", "--no-python-downloads", *arguments[1:]]


def found(python: str, folder: Path) -> str | None:
    """Return the path of this machine's Python of a version, also of one of pyenv's; None if there is none."""
    try:
        return run([sys.executable, "-m", "uv", "python", "find", "--no-python-downloads", python], folder).strip()
    except Failed:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
        return next((str(path) for path in sorted(pyenv.glob(f"versions/{python}*/bin/python{python}"))), None)


def requirements() -> list[str]:
    """Return what dagpu needs, and mypy, as pyproject.toml bounds them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *[each for each in extras["dev"] if each.startswith("mypy")]]


def build(source: Path, folder: Path) -> tuple[Path, Path]:
    """Build a wheel and an sdist. Return their paths."""
    run(uv("build", "--wheel", "--sdist", "--out-dir", folder, source), folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def environment(
    interpreter: str, packages: Sequence[str | Path], resolution: str, folder: Path
) -> tuple[Path, dict[str, str]]:
    """Make an environment with these packages. Return its Python, and the versions of all packages in it."""
    run(uv("venv", "--python", interpreter, folder / "env"), folder)
    inside = folder / "env" / "bin" / "python"
    wheels_only = [part for name in ("numpy", "ml-dtypes", "mypy") for part in ("--only-binary", name)]
    run([*uv("pip"), "install", "--python", inside, "--resolution", resolution, *wheels_only, *packages], folder)
    listed = json.loads(run([*uv("pip"), "list", "--python", inside, "--format", "json"], folder))
    return inside, {each["name"]: each["version"] for each in listed}


def try_dagpu(inside: Path, folder: Path) -> None:
    """Run the program and the checks in an environment.

    Raises:
        Failed: one of them does not do what it should.
    """
    for name, text in (("smoke", SMOKE), ("right", RIGHT), ("wrong", WRONG)):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    if run([inside, "smoke.py"], folder) != "ran\n":
        raise Failed("the program did not run to its end")
    run([inside, "-m", "dagpu", "info"], folder)
    run([inside, "right.py"], folder)
    run([inside, "-m", "dagpu", "check", "right.py"], folder)
    refused = run([inside, "-m", "dagpu", "check", "wrong.py"], folder, exits=1)
    if "[dagpu-use-after-move]" not in refused:
        raise Failed(f"the plugin did not report the mistake:\n{refused}")


def try_stubs(inside: Path, folder: Path) -> None:
    """Check a program of PyCUDA's, which is not installed.

    Raises:
        Failed: the stubs do not serve.
    """
    (folder / "gpu.py").write_text(WITH_STUBS, encoding="utf-8")
    said = run([inside, "-m", "mypy", "--strict", "gpu.py"], folder, exits=1)
    if 'Revealed type is "int"' not in said and 'Revealed type is "builtins.int"' not in said:
        raise Failed(f"the stubs were not read:\n{said}")
    if "[arg-type]" not in said or "[import" in said:
        raise Failed(f"the stubs did not report the mistake:\n{said}")


def trials(wheels: dict[str, Path], stubs: dict[str, Path], python: str, interpreter: str) -> Iterator[Outcome]:
    """Iterate over the rows of one Python that this machine has, at the path `interpreter`."""
    for kind, package in wheels.items():
        for which in RESOLUTIONS:
            yield trial(python, interpreter, f"dagpu, {kind}", which, [package, *requirements()])
    for kind, package in stubs.items():
        yield trial(python, interpreter, f"pycuda-stubs, {kind}", "newest", [package, requirements()[-1]])


def trial(python: str, interpreter: str, name: str, which: str, packages: Sequence[str | Path]) -> Outcome:
    """Install and try one combination."""
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            inside, versions = environment(interpreter, packages, RESOLUTIONS[which], folder)
            (try_dagpu if name.startswith("dagpu") else try_stubs)(inside, folder)
        except Failed as error:
            print(f"{python}, {name}, {which}: {error}", file=sys.stderr)
            return Outcome(python, name, which, versions, f"fails: {str(error).splitlines()[0]}")
    return Outcome(python, name, which, versions, "works")


def looked_up(python: str, folder: Path) -> Iterator[Outcome]:
    """Iterate over the rows of a Python that this machine lacks: the versions that have wheels for it."""
    (folder / "needed.in").write_text("\n".join(requirements()) + "\n", encoding="utf-8")
    for which, resolution in RESOLUTIONS.items():
        options = ("--python-version", python, "--no-build", "--resolution", resolution, "--no-header", "--no-annotate")
        try:
            lines = run([*uv("pip"), "compile", *options, "needed.in"], folder).split()
        except Failed as error:
            yield Outcome(python, "dagpu", which, {}, f"no wheels: {str(error).splitlines()[-1]}")
            continue
        versions = dict(line.split("==") for line in lines if "==" in line)
        yield Outcome(python, "dagpu", which, versions, "not tried: no such Python here; all dependencies have wheels")


def matrix(folder: Path) -> list[Outcome]:
    """Build everything, and try it on every Python."""
    parts: dict[str, dict[str, Path]] = {}
    for name, source in (("dagpu", ROOT), ("stubs", STUBS)):
        (folder / name).mkdir()
        wheel, sdist = build(source, folder / name)
        parts[name] = {"wheel": wheel, "sdist": sdist}
    rows: list[Outcome] = []
    for python in PYTHONS:
        here = found(python, folder)
        rows += looked_up(python, folder) if here is None else trials(parts["dagpu"], parts["stubs"], python, here)
    return rows


def as_markdown(rows: Sequence[Outcome]) -> str:
    """Return the matrix, with the machine."""
    about = machine(["uv"])
    head = ["Python", "package", "dependencies", *SHOWN, ""]
    lines = [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *[row.cells() for row in rows]]]
    tried = sum(not row.said.startswith("not tried") for row in rows)
    works = sum(row.said == "works" for row in rows)
    facts = [f"- {key}: {value}" for key, value in about.items()]
    note = (
        "Each row is a clean environment: a program runs, `python -m dagpu info` tests the devices, and mypy with the "
        "plugin accepts a right file and refuses a wrong one. `python -m benchmarks.checking.packages` tries it again."
    )
    return "\n".join(["# Packages", "", *facts, "", f"{works} of {tried} environments work.", "", note, "", *lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-save", action="store_true", help="only print")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = matrix(Path(temporary))
    text = as_markdown(rows)
    print(text)
    if not given.no_save:
        (RESULTS / "packages.md").write_text(text, encoding="utf-8")
    return int(any(row.said.startswith(("fails", "no wheels")) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
