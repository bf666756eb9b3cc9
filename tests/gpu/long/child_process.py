"""A program in a child process, with a deadline."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_child(
    command: Sequence[str], folder: Path | str, environment: Mapping[str, str], deadline: float
) -> tuple[int | None, str]:
    """Run a program in a folder, for at most `deadline` seconds. Return its exit status, or None if it did not end by
    itself, and what it printed."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            timeout=deadline,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.TimeoutExpired as error:
        return None, error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else ""
    return done.returncode, done.stdout
