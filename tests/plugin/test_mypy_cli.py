"""`python -m dagpu check`: what it runs, what it says, and how it exits."""

import os
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

import dagpu.entry.commands
from dagpu.__main__ import main
from tests.support.mypy_checks import CONFIGURATION, dependencies
from tests.support.paths import ROOT

WRONG = """\
from dagpu import zeros

size: int = ""
tile = zeros((10,)).partition((4,))
"""

RECORDER = """\
import pathlib
import sys

config = [a.partition("=")[2] for a in sys.argv if a.startswith("--config-file=")]
print("arguments", *(a for a in sys.argv[1:] if not a.startswith("--config-file=")))
print(*(line for file in config for line in pathlib.Path(file).read_text().splitlines() if "=" in line), sep="\\n")
print("a.py:1: error: one  [dagpu-use-after-move]")
print("a.py:2: error: two  [arg-type]")
print("a.py:3: error: three  [arg-type]")
print("a.py:3: note: a note  [no-code]")
print("a.py:4: error: four  [dagpu-unused-op]")
print("Found 4 errors in 1 file (checked 1 source file)")
sys.exit(1)
"""


class Done(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


Check: TypeAlias = Callable[..., Done]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: the root of a repository, so that no configuration further up counts."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def check(capfd: pytest.CaptureFixture[str]) -> Check:
    """Runs the command."""

    def run(*arguments: str) -> Done:
        status = main(["check", *arguments])
        return Done(status, *capfd.readouterr())

    return run


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mypy that says what it was asked, and finds four errors."""
    (tmp_path / "recorder" / "mypy").mkdir(parents=True)
    (tmp_path / "recorder" / "mypy" / "__init__.py").touch()
    (tmp_path / "recorder" / "mypy" / "__main__.py").write_text(RECORDER, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "recorder"))


@pytest.mark.usefixtures("place", "recorder")
def test_without_a_configuration_the_plugin_is_on(check: Check) -> None:
    """mypy gets the paths, the flags after `--`, and a configuration that switches the plugin on."""
    done = check("src", "b.py", "--", "--strict")
    lines = done.out.splitlines()
    assert lines[0] == "arguments --strict -- src b.py"
    assert "plugins = dagpu.mypy_plugin" in lines


@pytest.mark.usefixtures("place", "recorder")
def test_the_summary_comes_last_and_counts_codes(check: Check) -> None:
    """mypy's lines are passed on, its summary is said with a tally, dagpu's codes first, and its status is ours."""
    done = check("a.py")
    tally = "1 dagpu-unused-op, 1 dagpu-use-after-move, 2 arg-type"
    assert done.out.splitlines()[-1] == f"Found 4 errors in 1 file (checked 1 source file): {tally}"
    assert done.out.count("Found 4 errors") == 1
    assert "a.py:4: error: four  [dagpu-unused-op]" in done.out
    assert (done.status, done.err) == (1, "")


@pytest.mark.usefixtures("place", "recorder")
def test_paths_are_the_folder_unless_said(check: Check) -> None:
    """With no path, the current folder is checked."""
    assert check().out.startswith("arguments -- .\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mypy.ini", "[mypy]\nplugins = dagpu.mypy_plugin\n"),
        (".mypy.ini", "[mypy]\nplugins = numpy.typing.mypy_plugin,\n    dagpu.mypy_plugin:plugin\n"),
        ("setup.cfg", "[mypy]\nplugins = dagpu.mypy_plugin\n"),
        ("pyproject.toml", '[tool.mypy]\nplugins = ["numpy.typing.mypy_plugin", "dagpu.mypy_plugin"]\n'),
        ("pyproject.toml", '[tool.mypy]\nplugins = "dagpu.mypy_plugin"\n'),
    ],
)
@pytest.mark.parametrize("inside", [".", "src/deep"])
@pytest.mark.usefixtures("recorder")
def test_a_configuration_with_the_plugin_is_used(
    place: Path, check: Check, monkeypatch: pytest.MonkeyPatch, name: str, text: str, inside: str
) -> None:
    """mypy is left to find the configuration that is there, in this folder or above it."""
    (place / "src" / "deep").mkdir(parents=True)
    (place / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(place / inside)
    lines = check("a.py").out.splitlines()
    assert lines[0] == "arguments -- a.py"
    assert not any("plugins" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "text", "cure"),
    [
        ("mypy.ini", "[mypy]\nstrict = true\n", "[mypy]: plugins = dagpu.mypy_plugin"),
        ("pyproject.toml", "[tool.mypy]\nstrict = true\n", '[tool.mypy]: plugins = ["dagpu.mypy_plugin"]'),
    ],
)
@pytest.mark.usefixtures("recorder")
def test_a_configuration_without_the_plugin_is_refused(
    place: Path, check: Check, name: str, text: str, cure: str
) -> None:
    """The user's own settings are neither ignored nor changed: the message says which line to add, and the way out."""
    (place / name).write_text(text, encoding="utf-8")
    done = check("a.py")
    assert (done.status, done.out) == (2, "")
    assert str(place / name) in done.err
    assert cure in done.err
    out = check("--no-config", "a.py")
    assert "plugins = dagpu.mypy_plugin" in out.out


@pytest.mark.usefixtures("recorder")
def test_a_configuration_given_after_the_dashes_wins(place: Path, check: Check) -> None:
    """`-- --config-file=x` is the user's own choice: none is looked for, and none is written."""
    (place / "mypy.ini").write_text("[mypy]\n", encoding="utf-8")
    (place / "mine.ini").write_text("[mypy]\nplugins = dagpu.mypy_plugin, other\n", encoding="utf-8")
    done = check("a.py", "--", "--config-file=mine.ini")
    assert "plugins = dagpu.mypy_plugin, other" in done.out


@pytest.mark.usefixtures("recorder")
def test_files_of_others_configure_nothing(place: Path, check: Check) -> None:
    """A pyproject.toml or setup.cfg that says nothing of mypy does not count."""
    (place / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    (place / "setup.cfg").write_text("[metadata]\n", encoding="utf-8")
    assert "plugins = dagpu.mypy_plugin" in check("a.py").out


@pytest.mark.parametrize(
    ("installed", "words"),
    [(None, "mypy is not installed"), ("2.3.9", "mypy 2.3.9 is too old, 2.4 is wanted"), ("1.19.1", "too old")],
)
def test_a_missing_or_old_mypy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], installed: str | None, words: str
) -> None:
    """Exit status 2, and how to install one for this Python."""

    def version(package: str) -> str:
        if installed is None:
            raise PackageNotFoundError(package)
        return installed

    monkeypatch.setattr(dagpu.entry.commands, "version", version)
    assert main(["check", "a.py"]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert f"{sys.executable} -m pip install 'mypy>=2.4'" in printed.err
    assert printed.out == ""


def test_a_command_that_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    """It exits with 2, and says which commands there are."""
    with pytest.raises(SystemExit) as exited:
        main(["no-such-command"])
    assert exited.value.code == 2
    assert "check" in capfd.readouterr().err


def test_the_real_mypy(
    place: Path, check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wrong programs are refused by mypy and by the plugin, and right ones pass."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    (place / "mypy.ini").write_text(CONFIGURATION, encoding="utf-8")
    shutil.copytree(dependencies(tmp_path_factory), place / ".mypy_cache")
    (place / "wrong.py").write_text(WRONG, encoding="utf-8")
    wrong = check("wrong.py")
    assert wrong.status == 1, wrong
    assert "wrong.py:4: error: tile (4,) does not cut shape (10,)" in wrong.out
    assert wrong.out.splitlines()[-1].endswith("(checked 1 source file): 1 dagpu-output-partition, 1 assignment")
    (place / "right.py").write_text(WRONG.replace('""', "10").replace("(4,)", "(5,)"), encoding="utf-8")
    assert check("right.py") == Done(0, "Success: no issues found in 1 source file\n", "")


def test_what_is_written_for_mypy_is_a_configuration(
    place: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real mypy takes it as it is, without a word."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    (place / "a.py").write_text("x = 1\n", encoding="utf-8")
    assert check("a.py") == Done(0, "Success: no issues found in 1 source file\n", "")
