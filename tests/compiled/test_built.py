"""The compiled reader is there where it can be, and Python reads calls if a variable says so."""

import os
import subprocess
import sys
from typing import Final

import pytest

from dagpu.common.compiled import READER, WHY_NOT
from dagpu.common.env_vars import COMPILED
from tests.compiled.building import build_reader, missing, run_child
from tests.support.paths import ROOT

QUIET: Final = "-Wno-missing-field-initializers", "-Wno-cast-function-type"
"""Warnings about what every extension does: tables that end with zeros, and methods in the form that Python calls."""


def test_the_compiled_reader_is_built_where_a_compiler_is() -> None:
    if why := missing():
        pytest.skip(why)
    if not COMPILED.get() or os.environ.get("DAGPU_PURE") == "1":
        pytest.skip(WHY_NOT or "DAGPU_PURE leaves it out")
    assert READER is not None, f"calls are read by Python: {WHY_NOT}. Build it: pip install -e ."
    assert WHY_NOT == ""


def test_the_sources_compile_without_a_warning(tmp_path_factory: pytest.TempPathFactory) -> None:
    if why := missing():
        pytest.skip(why)
    build_reader(tmp_path_factory.mktemp("reader"), "-Wall", "-Wextra", "-Wno-unused-parameter", *QUIET, "-Werror")


def test_python_reads_calls_if_the_variable_says_so() -> None:
    ended = run_child("dagpu", "info", compiled=False, more={"DAGPU_DEVICE": "host"})
    assert ended.returncode == 0, ended.stderr
    assert f"{COMPILED.name} turns the compiled reader off" in ended.stdout
    if READER is not None:
        ended = run_child("dagpu", "info", more={"DAGPU_DEVICE": "host"})
        assert f"{COMPILED.name} turns the compiled reader off" not in ended.stdout


def test_a_second_import_leaves_the_first_alone() -> None:
    """The methods in C belong to the classes of the import that they were made for."""
    program = """
import sys, dagpu as first
for name in [each for each in sys.modules if each.split(".")[0] == "dagpu"]:
    del sys.modules[name]
import dagpu as second
assert first is not second
for each in (first, second, first):
    assert each.ones((4,)).to_host().sync().sum() == 4
    assert each.pipeline(lambda x, a: x.to_host())(each.ones((4,)).sync(), 1.0).sync().sum() == 4
"""
    environ = {**os.environ, "DAGPU_DEVICE": "host"}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
