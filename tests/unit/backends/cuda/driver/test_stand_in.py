"""Python on the stand-in for the driver finds what its parent finds, and that driver before any other."""

import os
from pathlib import Path

import pytest

from tests.stand_in.build import StandIn, on_the_stand_in, run_python  # noqa: F401  # a fixture


def test_a_child_finds_the_packages_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that the parent finds by PYTHONPATH alone can be imported in the child, and so can the checkout."""
    (tmp_path / "only_there.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_python(tmp_path, "-c", "import only_there, tests.stand_in")
    assert done.returncode == 0, done.stderr


def test_the_stand_in_comes_before_another_driver(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may have a driver of its own: neither PyCUDA nor cuda.bindings nor ctypes gets it."""
    (tmp_path / "libcuda.so.1").write_text("whoever loads this fails")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path), prepend=os.pathsep)
    done = stand_in("tests.stand_in.make_graphs")
    assert done.returncode == 0, done.stderr
