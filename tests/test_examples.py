"""The examples run as a user would run them: each a script in a Python of its own, from an empty folder."""

from pathlib import Path

import pytest

from tests.example_scripts import LONG, SCRIPTS, run


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
