"""mypy with the plugin, for tests: programs written to a folder are checked in one run, on a cache built once.

What every program depends on (numpy, trio, dagpu) takes mypy many seconds from nothing. So its cache is built by the
first test that needs it, for all test processes together, and copied for each that writes to it.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, final

import pytest
from mypy import api

from tests.support.paths import ROOT

CONFIGURATION = f"""
[mypy]
strict = true
python_version = 3.11
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
    """A report of mypy's, line by line. A line that is no message fails the test."""
    found = []
    for line in report.splitlines():
        match = _LINE.match(line)
        assert match, line
        file, number, kind, text, code = match.groups()
        found.append(Message(Path(file).name, int(number), kind, text, code or ""))
    return found


@final
class Checker:
    """mypy in a folder of its own, for programs by their file names."""

    def __init__(self, folder: Path, dependencies: Path) -> None:
        self.folder = folder
        self.configuration = folder / "mypy.ini"
        self.cache = folder / "cache"
        self.configuration.write_text(CONFIGURATION, encoding="utf-8")
        shutil.copytree(dependencies, self.cache)

    def write(self, programs: Mapping[str, str]) -> None:
        """Put programs into the folder."""
        for name, text in programs.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def check(self, *names: str) -> list[Message]:
        """What mypy says of these files."""
        arguments = ["--config-file", str(self.configuration), "--cache-dir", str(self.cache), "--no-error-summary"]
        report, crash, _ = api.run([*arguments, *(str(self.folder / name) for name in names)])
        assert crash == "", crash
        return parsed(report)


def dependencies(factory: pytest.TempPathFactory) -> Path:
    """A mypy cache of what programs depend on. The first test process that asks builds it, the others wait for it."""
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
