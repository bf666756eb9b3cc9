"""Runs mypy with the plugin for tests: programs in a folder are checked in one run, with a cache that is built once.

All programs depend on numpy, trio and dagpu, which mypy checks for many seconds without a cache. So the first test that
needs the cache builds it for all test processes. Each checker works on a copy.
"""

import fcntl
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, final

import pytest
from mypy import api

from tests.support.paths import ROOT

# NumPy's stubs are read for the Python that it is installed in: below Python 3.12, those of NumPy 2.5 lose overloads.
CONFIGURATION = f"""
[mypy]
strict = true
python_version = {sys.version_info.major}.{sys.version_info.minor}
plugins = dagpu.mypy_plugin
mypy_path = {ROOT}
explicit_package_bases = true
enable_error_code = ignore-without-code, redundant-expr, truthy-bool, exhaustive-match
show_traceback = true
"""

_DEPENDENCIES = "import numpy\nimport trio\n\nimport dagpu\n"
_LINE = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): (?P<kind>error|note): (?P<text>.*?)(?:  \[(?P<code>[\w-]+)\])?$")


class Message(NamedTuple):
    """One line of mypy's report; `file` is a bare name."""

    file: str
    line: int
    kind: str
    text: str
    code: str


def parsed(report: str) -> list[Message]:
    """Parse a report of mypy into messages. A line that is not a message fails the test."""
    found = []
    for line in report.splitlines():
        match = _LINE.match(line)
        assert match, line
        file, number, kind, text, code = match.groups()
        found.append(Message(Path(file).name, int(number), kind, text, code or ""))
    return found


@final
class Checker:
    """Runs mypy in a separate folder, on programs given by their file names."""

    def __init__(self, folder: Path, dependencies: Path, path: str = str(ROOT)) -> None:
        """With `path`, programs find modules in these folders: dagpu's, and others after a colon."""
        self.folder = folder
        self.configuration = folder / "mypy.ini"
        self.cache = folder / "cache"
        text = CONFIGURATION.replace(f"mypy_path = {ROOT}\n", f"mypy_path = {path}\n")
        self.configuration.write_text(text, encoding="utf-8")
        shutil.copytree(dependencies, self.cache)

    def write(self, programs: Mapping[str, str]) -> None:
        """Write programs to the folder."""
        for name, text in programs.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def check(self, *names: str) -> list[Message]:
        """Return the messages of mypy for these files."""
        return parsed(self.report(*names))

    def report(self, *names: str) -> str:
        """Return what mypy prints for these files."""
        arguments = ["--config-file", str(self.configuration), "--cache-dir", str(self.cache), "--no-error-summary"]
        report, crash, _ = api.run([*arguments, *(str(self.folder / name) for name in names)])
        assert crash == "", crash
        return report


def dependencies(factory: pytest.TempPathFactory) -> Path:
    """Return a mypy cache of the modules that programs import. The first test process builds it; the others wait."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    cache = shared / "mypy-dependencies"
    with (shared / "mypy-dependencies.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cache.exists():
            built, configuration = shared / "mypy-building", shared / "mypy-building.ini"
            configuration.write_text(CONFIGURATION, encoding="utf-8")
            report, crash, status = api.run(
                ["--config-file", str(configuration), "--cache-dir", str(built), "-c", _DEPENDENCIES]
            )
            assert (crash, status) == ("", 0), report + crash
            built.rename(cache)
    return cache
