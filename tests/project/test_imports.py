"""Imports run one way: the layers of CONTRIBUTING.md, held over the source of every module.

The check reads the syntax tree, not a running program, so that an import inside a function or under
`TYPE_CHECKING` counts like any other: a layer that may not know of another may not name its types either,
but for the few that TYPING_ONLY gives a reason for. Counting all of them, the modules form one circle, HANDLE_AND_OP.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dagpu"

# From the lowest to the highest. A name stands for the module or for all of the package of that name. Where several
# layers share a package, modules of it are named too, with the package; the longest name counts.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"common.facts", "compiled"}),
    frozenset({"mypy_plugin"}),
    frozenset({"common"}),
    frozenset({"handles.device_handles", "handles.library_bodies", "handles.operators", "handles.symbolic"}),
    frozenset({"handles"}),
    frozenset({"ops"}),
    frozenset({"plans"}),
    frozenset({"kernels"}),
    frozenset({"arrays"}),
    frozenset({"tracing"}),
    frozenset({"meshes"}),
    frozenset({"backends"}),
    frozenset({"runtime"}),
    frozenset({"interop"}),
    frozenset({"grad"}),
    frozenset({"reactive"}),
    frozenset({"cluster"}),
    frozenset({"entry.public"}),
    frozenset({"__init__", "__main__", "array", "entry", "pytest_plugin", "testing"}),
)

# What runs inside mypy, and so knows no other layer but the facts about the others, and is known to none.
APART = frozenset({"mypy_plugin"})

# Names of types from a higher layer, for annotations alone, where the public contract has them.
TYPING_ONLY: dict[tuple[str, str], str] = {
    ("dagpu.handles.tensors", "dagpu.ops.base"): "`to_host()` of a handle is an op",
    ("dagpu.ops.graph", "dagpu.plans.plan"): "`plan` of a CudaGraph is a Plan",
}

# The one circle of imports, typing-only ones included: `to_host()` of a handle is an op, `graph()` of an op is a
# CudaGraph, and both are made of handles.
HANDLE_AND_OP = ("dagpu.handles", "dagpu.ops.base", "dagpu.ops.graph")

# Folders whose rooms (modules and packages in them) import each other one way only.
ONE_WAY_FOLDERS = ("dagpu.runtime", "dagpu.backends", "dagpu.backends.cuda", "dagpu.plans")

# Who alone may import what; an empty tuple says nobody. Trio has two places: `runtime` waits for one run; `reactive`
# keeps tasks that start many runs, one after another, and stop with the block that opened them. In `cluster`, trio
# is for the block that opens and closes a cluster.
RESERVED: dict[str, tuple[str, ...]] = {
    "trio": ("dagpu.runtime", "dagpu.reactive", "dagpu.cluster"),
    "distributed": ("dagpu.cluster",),
    "dask": ("dagpu.cluster",),
    "cloudpickle": ("dagpu.cluster",),
    "pycuda": ("dagpu.backends.cuda",),
    "cuda": ("dagpu.backends.cuda",),
    "mypy": ("dagpu.mypy_plugin",),
}


class Import(NamedTuple):
    """One imported module, by its absolute name, its line, and whether only type checkers see it."""

    target: str
    line: int
    typing_only: bool = False


def modules(package: Path) -> dict[str, Path]:
    """Every module of the package, by its absolute name."""
    found: dict[str, Path] = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


def layer_of(module: str) -> int | None:
    """The layer's number, counted from the lowest, or None where the module is in no layer."""
    parts = module.split(".")[1:] or ["__init__"]
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        for number, names in enumerate(LAYERS):
            if name in names:
                return number
    return None


def imports(tree: ast.Module, module: str, *, is_package: bool, known: frozenset[str]) -> Iterator[Import]:
    """Return the modules that a module imports anywhere: by statements, and by `import_module` with a literal name.

    `from a import b` names the module `a.b` where there is one, and else the module `a`.
    """
    unrun = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(alias.name, node.lineno, id(node) in unrun) for alias in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                origin = _absolute(name, level, module, is_package=is_package)
                for alias in names:
                    inner = f"{origin}.{alias.name}"
                    yield Import(inner if inner in known else origin, node.lineno, id(node) in unrun)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(name, node.lineno)
            case _:
                pass


def _absolute(name: str | None, level: int, module: str, *, is_package: bool) -> str:
    if level == 0:
        assert name is not None
        return name
    parts = module.split(".")
    base = parts[: len(parts) - level + is_package]
    return ".".join([*base, *([name] if name else [])])


@cache
def imports_of(package: Path) -> dict[str, list[Import]]:
    """The imports of each module of a package. Its files are read once for all tests."""
    found = modules(package)
    known = frozenset(found)
    return {
        module: list(
            imports(
                ast.parse(path.read_text(encoding="utf-8"), str(path)),
                module,
                is_package=path.name == "__init__.py",
                known=known,
            )
        )
        for module, path in found.items()
    }


def violations(package: Path) -> list[str]:
    """Every breach of the rules, one line each: file, line, and what is wrong."""
    found = modules(package)
    made = imports_of(package)
    wrong: list[str] = []
    for module, path in found.items():
        where = path.relative_to(package.parent)
        mine = layer_of(module)
        if mine is None:
            wrong.append(f"{where}: in no layer: give it one in LAYERS and in CONTRIBUTING.md")
            continue
        for target, line, typing_only in made[module]:
            top = target.split(".")[0]
            allowed = RESERVED.get(top)
            if allowed is not None and not any(_inside(module, place) for place in allowed):
                wrong.append(f"{where}:{line}: imports {top}; only {', '.join(allowed) or 'nobody'} may")
            if top != package.name:
                continue
            theirs = layer_of(target)
            if _is_apart(target) and not _is_apart(module):
                wrong.append(f"{where}:{line}: imports {target}, which stands apart")
            elif theirs is None:
                wrong.append(f"{where}:{line}: imports {target}, which is in no layer")
            elif theirs > mine and not (typing_only and (module, target) in TYPING_ONLY):
                wrong.append(f"{where}:{line}: imports {target}, which is in a higher layer")
    return wrong


def edges(package: Path, *, typing: bool = True) -> dict[str, set[str]]:
    """The modules that each module of the package imports anywhere in it; under `TYPE_CHECKING` too, with `typing`."""
    made = imports_of(package)
    return {
        module: {each.target for each in targets if each.target in made and (typing or not each.typing_only)}
        for module, targets in made.items()
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules of which each reaches each other by imports, and of single ones that import themselves."""
    reached: dict[str, set[str]] = {}
    for module, targets in graph.items():
        found: set[str] = set()
        todo = list(targets)
        while todo:
            target = todo.pop()
            if target not in found:
                found.add(target)
                todo += graph[target]
        reached[module] = found
    together = {frozenset(other for other in reached[m] if m in reached[other]) for m in graph if m in reached[m]}
    return sorted(map(sorted, together))


def rooms_of(graph: dict[str, set[str]], folder: str) -> dict[str, set[str]]:
    """The rooms of a folder, each with the other rooms of it that its modules import."""

    def room(module: str) -> str:
        return module.removeprefix(f"{folder}.").split(".")[0]

    inner = {module: targets for module, targets in graph.items() if module.startswith(f"{folder}.")}
    rooms: dict[str, set[str]] = {room(module): set() for module in inner}
    for module, targets in inner.items():
        rooms[room(module)] |= {room(target) for target in targets if target in inner} - {room(module)}
    return rooms


def _is_apart(module: str) -> bool:
    return any(part in APART for part in module.split(".")[1:2])


def _inside(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def test_imports_run_one_way() -> None:
    """Each module imports from its own layer or a lower one, and what is reserved stays where it belongs."""
    assert violations(PACKAGE) == []


def test_every_layer_exists() -> None:
    """No layer is a leftover: each names a module that is there, so that the order describes the package."""
    present = {name.removeprefix("dagpu.") if "." in name else "__init__" for name in modules(PACKAGE)}
    assert [sorted(layer) for layer in LAYERS if not layer & present] == []


def test_every_exception_is_needed() -> None:
    """An import that TYPING_ONLY allows is still made: none is left over for a later one to hide behind."""
    for module, target in TYPING_ONLY:
        made = imports_of(PACKAGE)[module]
        assert any(name == target and typing_only for name, _, typing_only in made)


def test_no_import_that_runs_closes_a_circle() -> None:
    """At run time, imports inside functions included, no module waits for one that waits for it."""
    assert circles(edges(PACKAGE, typing=False)) == []


def test_handle_and_op_are_the_only_circle() -> None:
    """Counting imports for types as well, one circle is left."""
    (circle,) = circles(edges(PACKAGE))
    assert [module for module in circle if not any(_inside(module, place) for place in HANDLE_AND_OP)] == []


@pytest.mark.parametrize("folder", ONE_WAY_FOLDERS)
def test_the_rooms_of_a_folder_import_one_way(folder: str) -> None:
    """No two rooms of these folders need each other, so that a reader can take one after the other."""
    rooms = rooms_of(edges(PACKAGE), folder)
    assert rooms
    assert circles(rooms) == []


def test_a_circle_of_rooms_is_found() -> None:
    """Two packages make a circle also where no two modules of theirs do."""
    graph = {"d.a.one": {"d.b.one"}, "d.b.one": set[str](), "d.b.two": {"d.a.two"}, "d.a.two": set[str]()}
    assert circles(graph) == []
    assert circles(rooms_of(graph, "d")) == [["a", "b"]]


def test_a_circle_is_found(tmp_path: Path) -> None:
    """The count itself sees a circle through a function and one for types, and tells two circles apart."""
    sources = {
        "a": "def f():\n    from dagpu import b",
        "b": "from dagpu import a, c",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dagpu.d import D",
        "d": "from dagpu import c",
        "e": "from dagpu import a, d",
    }
    (tmp_path / "dagpu").mkdir()
    for name, text in sources.items():
        (tmp_path / "dagpu" / f"{name}.py").write_text(text, encoding="utf-8")
    assert circles(edges(tmp_path / "dagpu")) == [["dagpu.a", "dagpu.b"], ["dagpu.c", "dagpu.d"]]
    assert circles(edges(tmp_path / "dagpu", typing=False)) == [["dagpu.a", "dagpu.b"]]


def test_errors_imports_nothing_of_ours() -> None:
    """The exception tree stands alone, so that any module may raise any error."""
    path = PACKAGE / "common" / "errors.py"
    found = imports(ast.parse(path.read_text("utf-8")), "dagpu.common.errors", is_package=False, known=frozenset())
    assert [name for name, *_ in found if name.split(".")[0] == "dagpu"] == []


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("common/errors.py", "from dagpu import handles", "higher layer"),
        ("common/errors.py", "from ..handles import Tensor", "higher layer"),
        (
            "common/errors.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import dagpu.ops",
            "higher layer",
        ),
        ("ops/base.py", "def f():\n    from ..runtime import run", "higher layer"),
        ("tracing/tracer.py", "from dagpu import Tensor", "higher layer"),
        ("handles/tensors.py", "import importlib\nimportlib.import_module('dagpu.runtime')", "higher layer"),
        ("handles/tensors.py", "from dagpu.ops.base import DeviceOp", "higher layer"),
        ("handles/tensors.py", "from ..misc import thing", "no layer"),
        ("misc.py", "", "no layer"),
        ("backends/host/worker_threads.py", "import trio", "only dagpu.runtime, dagpu.reactive, dagpu.cluster may"),
        ("runtime/execute.py", "import pycuda.driver", "only dagpu.backends.cuda may"),
        ("plans/plan.py", "from cuda.bindings import driver", "only dagpu.backends.cuda may"),
        ("ops/base.py", "import mypy.nodes", "only dagpu.mypy_plugin may"),
        ("runtime/execute.py", "from dagpu.mypy_plugin import messages", "which stands apart"),
        ("mypy_plugin/plugin.py", "from dagpu.common.errors import MovedError", "higher layer"),
    ],
)
def test_a_breach_is_reported(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    """The check itself sees absolute, relative, local, typing-only and dynamic imports, and stray files."""
    package = tmp_path / "dagpu"
    packages = [f"{room}/__init__.py" for room in ("common", "handles", "ops", "runtime", "mypy_plugin")]
    sources = dict.fromkeys(["__init__.py", "common/errors.py", "mypy_plugin/messages.py", *packages], "")
    for name, text in {**sources, file: source}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    (line,) = violations(package)
    assert complaint in line


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "ops/base.py",
            "from ..handles import Tensor\nfrom . import value\nfrom dagpu.common.errors import MovedError",
        ),
        ("runtime/execute.py", "import trio\nfrom dagpu.ops.base import DeviceOp"),
        ("backends/cuda/driver/driver_protocol.py", "import pycuda.driver\nfrom cuda.bindings import driver"),
        ("__init__.py", "from .runtime import spawn"),
        ("mypy_plugin/typing/type_facts.py", "from mypy.types import Type\nfrom dagpu.mypy_plugin import names"),
    ],
)
def test_what_is_allowed_is_not_reported(tmp_path: Path, file: str, source: str) -> None:
    """A module may import from its own layer and from lower ones, and who owns a library may import it."""
    path = tmp_path / "dagpu" / file
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
    assert violations(tmp_path / "dagpu") == []


def test_importing_dagpu_loads_no_gpu_library_no_checker_and_no_engine() -> None:
    """`import dagpu` works on a machine with neither PyCUDA nor mypy nor Dask: it touches none."""
    program = (
        "import sys, dagpu; dagpu.Cluster; "
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'pycuda', 'cuda', 'mypy', 'sklearn', 'dask', "
        "'distributed', 'cloudpickle', 'cryptography'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []


def test_a_part_of_dagpu_is_enough() -> None:
    """A program that imports `dagpu.interop` or `dagpu.array` alone can run what they give."""
    program = (
        "import numpy as np\n"
        "from dagpu.interop import from_array\n"
        "tensor = from_array(np.arange(3, dtype=np.float32)).sync()\n"
        "import dagpu.array as named\n"
        "from dagpu.array import sum\n"
        "import dagpu\n"
        "assert named is dagpu.array and sum is named.sum\n"
        "print(sum(tensor).to_host().sync())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("3.0\n", "")
