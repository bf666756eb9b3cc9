"""The examples run as a user would run them: each a script in a Python of its own, from an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import first_in

ROOT = Path(__file__).resolve().parent.parent
# A file without a main part is a script's helper, and runs with it.
SCRIPTS = sorted(file for file in (ROOT / "examples").glob("*.py") if "__main__" in file.read_text(encoding="utf-8"))
# Take longer than a test may; the suite runs their short forms.
LONG = {"cholesky.py", "digits.py", "flash_attention.py", "life.py", "photo.py", "server.py"}
# Far above what any takes: only ends a run that hangs.
DEADLINE_S = 120


def run(script: Path, folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run `script` in `folder`; a RuntimeWarning (a `sync` that holds up a loop, say) is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", str(script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": first_in("PYTHONPATH", ROOT), **environment},
        timeout=DEADLINE_S,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_there_are_examples() -> None:
    """The folder is found, so that the tests below are not an empty list."""
    assert {"hello.py", "saxpy.py"} <= {script.name for script in SCRIPTS}


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.name not in LONG], ids=lambda s: s.stem)
def test_example(script: Path, tmp_path: Path) -> None:
    """An example ends well, with all its assertions held, and says something."""
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.strip()


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.name in LONG], ids=lambda s: s.stem)
def test_long_example(script: Path, tmp_path: Path) -> None:
    """A long example ends well in its short form."""
    if "--quick" not in script.read_text(encoding="utf-8"):
        pytest.skip(f"{script.name} has no --quick form")
    done = run(script, tmp_path, "--quick")
    assert done.returncode == 0, done.stdout
