"""The tests of this folder notice small mistakes in the compiled reader, and memory errors."""

import json
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from dagpu.common.compiled import READER
from tests.compiled.building import MODULES, build_changed, build_driver, build_reader, missing, run_child
from tests.compiled.mistakes import MISTAKES, Mistake
from tests.conftest import only_deep

FEW: Final = {"DAGPU_TEST_CALLS": "4000", "DAGPU_TEST_PATIENCE": "20"}
UNOPTIMISED: Final = "-O0"


@pytest.fixture(name="built", scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the driver, the outcomes of all cases by Python, and the right reader with its objects."""
    if why := missing():
        pytest.skip(why)
    if READER is None:
        pytest.skip("there is no compiled reader")
    folder = tmp_path_factory.mktemp("right")
    build_driver(folder)
    build_reader(folder, UNOPTIMISED)
    expected = {}
    for module in MODULES:
        ended = run_child("tests.compiled.run_cases", str(folder / "libnull.so"), module, compiled=False, more=FEW)
        assert ended.returncode == 0, ended.stderr
        expected[module] = json.loads(ended.stdout)
    (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
    return folder


TRIED = MISTAKES if os.environ.get("MISTAKES") == "all" else MISTAKES[::3]
"""Each takes six seconds, so `make deep` tries every third one, and `make deep MISTAKES=all` tries all."""


def noticed(built: Path, reader: Path) -> str:
    """Return what is noticed of a reader; an empty string for nothing."""
    arguments = str(built / "libnull.so"), str(built / "expected.json")
    try:
        ended = run_child("tests.compiled.noticing", *arguments, reader=reader, more=FEW)
    except subprocess.TimeoutExpired:
        return "it hangs"
    return ended.stderr or f"status {ended.returncode}" if ended.returncode else ""


@only_deep
def test_nothing_is_noticed_of_the_right_reader(built: Path) -> None:
    assert noticed(built, built) == ""


@only_deep
@pytest.mark.parametrize("mistake", TRIED, ids=lambda mistake: mistake.text[:60])
def test_a_mistake_is_noticed(built: Path, tmp_path: Path, mistake: Mistake) -> None:
    reader = build_changed(tmp_path, built, *mistake, UNOPTIMISED)
    assert noticed(built, reader) != ""


@only_deep
def test_the_address_sanitizer_finds_nothing(built: Path, tmp_path: Path) -> None:
    """All cases, with each access to memory checked."""
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("gcc has no address sanitizer")
    flags = "-fsanitize=address", "-fno-omit-frame-pointer", "-g", "-O1"
    build_driver(tmp_path, *flags)
    more = {
        **FEW,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "PYTHONMALLOC": "malloc",  # else blocks of Python's own allocator are not watched
    }
    arguments = str(tmp_path / "libnull.so"), str(built / "expected.json")
    ended = run_child("tests.compiled.noticing", *arguments, reader=build_reader(tmp_path, *flags), more=more)
    assert "AddressSanitizer" not in ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")
