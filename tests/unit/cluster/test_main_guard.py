"""A program that its own workers would run again is refused before a process is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagpu.cluster.connection import is_guarded
from tests.support.paths import ROOT, first_in

PROGRAM = """import trio
from dagpu import Cluster


async def main() -> None:
    print("once")
    async with Cluster.local(1):
        raise AssertionError("a cluster was opened")


trio.run(main)
"""


def run(file: Path, *how: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(file.parent), first_in("PYTHONPATH", ROOT)])}
    command = [sys.executable, *how] if how else [sys.executable, str(file)]
    return subprocess.run(
        command, cwd=file.parent, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("by_name", [False, True])
def test_a_program_without_a_guard_gets_one_error(tmp_path: Path, by_name: bool) -> None:
    """By its file or by its name. It says what, where, and what to write, and no process is started."""
    file = tmp_path / "unguarded.py"
    file.write_text(PROGRAM, encoding="utf-8")
    done = run(file, *(["-m", "unguarded"] if by_name else []))
    assert done.returncode == 1
    assert done.stdout == "once\n"
    assert done.stderr.count("Traceback") == 1
    last = done.stderr.splitlines()[-1]
    assert "ClusterError: Cluster.local at " in last
    assert "unguarded.py:7: each worker is a process that imports the main module again" in last
    assert "would run unguarded.py:11 again, and with it this call. Put that line under" in last
    assert last.endswith('if __name__ == "__main__":')


def test_what_an_if_encloses_is_guarded() -> None:
    """An `if` of any kind, for a program may know by other means that it is a worker. Of a text that is no Python, or
    has no such line, nothing is known."""
    guarded = 'import trio\nif __name__ == "__main__":\n    with open("x") as f:\n        trio.run(f)\nprint()\n'
    assert is_guarded(guarded, 4)
    assert not is_guarded(guarded, 5)
    assert not is_guarded("try:\n    run()\nfinally:\n    pass\n", 2)
    assert is_guarded("not Python at all", 1)
    assert is_guarded("run()\n", 9)
    assert is_guarded("", 1)
