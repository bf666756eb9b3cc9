"""The compiled reader is there where it can be, and Python reads calls if a variable says so."""

import os
from typing import Final

import pytest

from dagpu.common.compiled import READER, WHY_NOT
from dagpu.common.env_vars import COMPILED
from tests.compiled.building import build_reader, missing, run_child

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
    assert f"{COMPILED.name} turns it off" in ended.stdout
    if READER is not None:
        ended = run_child("dagpu", "info", more={"DAGPU_DEVICE": "host"})
        assert f"{COMPILED.name} turns it off" not in ended.stdout
