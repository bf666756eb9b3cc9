"""The examples, run as a user runs them: each a script in a Python process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT, first_in

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
