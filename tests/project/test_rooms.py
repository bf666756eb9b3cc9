"""The house: rooms of a size that one screen shows, and names that lead to one place.

The rules are those of "How the code is laid out" in CONTRIBUTING.md. They read the files, and import nothing of them.
"""

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import dagpu

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "dagpu"
ROOM: Final = 25
"""Entries of a folder, at most."""

OUTSIDE_OF_ROOMS: Final = {"__init__.py", "__main__.py", "array.py", "testing.py", "py.typed"}
"""Files that Python wants at the root of the package, and public modules. Nobody looks for code by their names."""

SHARED_MODULES: Final = {"__init__", "__main__", "backend"}
"""Basenames that several folders of a room may have: each backend has a `backend`."""


def folders(root: Path) -> list[Path]:
    """The folder and the folders inside it, without caches and empty folders."""
    found = [root]
    for path in sorted(root.rglob("*")):
        inner = path.relative_to(root).parts
        if path.is_dir() and not any(part.startswith((".", "__")) for part in inner) and entries(path):
            found.append(path)
    return found


def entries(folder: Path) -> list[str]:
    """The names that `ls` shows, without what Python leaves there, and wants there at the package's root."""
    outside = OUTSIDE_OF_ROOMS if folder == PACKAGE else set()
    return sorted(
        path.name
        for path in folder.iterdir()
        if not path.name.startswith((".", "__pycache__")) and path.name not in outside
    )


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(path for path in PACKAGE.rglob("*.py"))


def classes(path: Path) -> Iterator[str]:
    """The names of the module's classes, without those that begin with an underscore."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def clashes(named: list[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that several places have, with the places."""
    places = defaultdict(list)
    for name, place in named:
        places[name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize("root", ["dagpu", "tests"])
def test_a_folder_fits_on_a_screen(root: str) -> None:
    """No folder has more than 25 entries, so that a reader finds a file by reading names."""
    crowded = {
        str(folder.relative_to(ROOT)): len(entries(folder))
        for folder in folders(ROOT / root)
        if len(entries(folder)) > ROOM and "typing" not in folder.relative_to(ROOT).parts[1:2]
    }
    assert crowded == {}


def rooms() -> dict[str, list[Path]]:
    """The modules of each room, which is a folder of the package with all that is in it."""
    found = defaultdict(list)
    for path in modules():
        found[path.relative_to(PACKAGE).parts[0]].append(path)
    return found


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_module_is_found_by_its_name(room: str) -> None:
    """No two modules of a room have one basename, apart from each backend's `backend`."""
    inside = [path for path in rooms()[room] if path.stem not in SHARED_MODULES]
    assert clashes([(path.stem, str(path.relative_to(ROOT))) for path in inside]) == {}


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_class_is_found_by_its_name(room: str) -> None:
    """No two public classes of a room have one name."""
    named = [(name, str(path.relative_to(ROOT))) for path in rooms()[room] for name in classes(path)]
    assert clashes(named) == {}


def test_no_module_hides_a_public_name() -> None:
    """No module or package has the name of a public function: `dagpu.trace` is the function, and nothing else."""
    public = {name for name in dagpu.__all__ if not inspect.ismodule(getattr(dagpu, name))}
    assert [str(path.relative_to(ROOT)) for path in modules() if path.stem in public] == []
    assert [str(path.relative_to(ROOT)) for path in folders(PACKAGE)[1:] if path.name in public] == []


def test_a_test_file_is_read_in_one_sitting() -> None:
    """No file of tests has more than 700 lines."""
    long = {
        str(path.relative_to(ROOT)): count
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 700
    }
    assert long == {}


def test_tests_import_no_tests() -> None:
    """Code that test files share is in separate modules, so that a test can be moved without breaking others."""
    importing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("tests.")
        and (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert importing == []
