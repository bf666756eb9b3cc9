"""CONTRIBUTING.md describes the package as it is."""

import re
import subprocess
import sys
from typing import Final

from tests.support.paths import ROOT

TEXT: Final = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_life_of_an_op_is_the_program_s() -> None:
    """The picture of the modules that an op passes through is what a profiler sees now.

    Where it is not: put the output of `python -m tests.project.docs.life_of_an_op` in its place.
    """
    command = [sys.executable, "-m", "tests.project.docs.life_of_an_op"]
    seen = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
    (shown,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    assert shown == seen


def test_every_path_exists() -> None:
    """A file or folder that the text names is there."""
    named = re.findall(r"`((?:dagpu|tests|docs|examples|benchmarks|stubs)/[\w/.-]*)`", TEXT)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
