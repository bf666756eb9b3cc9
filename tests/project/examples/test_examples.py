"""The examples run as a user would run them: each a script in a Python of its own, from an empty folder.

Most of these processes are forked from one that has imported numpy, sklearn and dagpu; those in `COLD` import them.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import MARKS
from tests.project.examples.warm_python import WarmPython
from tests.support.example_scripts import EXAMPLES, LONG, OTHER_PROCESSES, SCRIPTS, lacks_library, run, texts

COLD: Final = {"hello", "decode", *OTHER_PROCESSES}
"""A script, a package, and one that starts processes of its own."""


def parameters() -> list[Any]:
    """The examples that are no long ones, each with its name."""
    return [
        pytest.param(script, id=script.stem, marks=MARKS if script.stem in OTHER_PROCESSES else ())
        for script in SCRIPTS
        if script.stem not in LONG
    ]


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPython]:
    """The process that the examples are forked from."""
    python = WarmPython()
    yield python
    python.close()


def test_there_are_examples() -> None:
    """The folder is found, so that the tests below are not an empty list."""
    assert {"hello.py", "saxpy.py"} <= {script.name for script in SCRIPTS}


@pytest.mark.host_only("it reads a table")
def test_the_table_of_the_readme_has_a_row_for_each_example() -> None:
    """Each example has one row in examples/README.md, whose number of lines is right to within a tenth."""
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    rows = {name: int(lines) for name, lines in re.findall(r"^\| `(\S+)` \| .* \| (\d+) \| no \|", table, re.MULTILINE)}
    assert rows.keys() == {script.name for script in SCRIPTS}
    for script in SCRIPTS:
        lines = texts(script).count("\n")
        assert abs(rows[script.name] - lines) <= lines / 10, (script.name, lines)


@pytest.mark.parametrize("script", parameters())
def test_example(script: Path, tmp_path: Path, warm: WarmPython) -> None:
    """An example ends well, with all its assertions held, and says something."""
    if lacks_library(script):
        pytest.skip("nvmath-python is not installed")
    done = run(script, tmp_path) if script.stem in COLD else warm.run(script, tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.strip()


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.stem in LONG], ids=lambda s: s.stem)
def test_long_example(script: Path, tmp_path: Path, warm: WarmPython) -> None:
    """A long example ends well in its short form."""
    if "--quick" not in texts(script):
        pytest.skip(f"{script.name} has no --quick form")
    done = warm.run(script, tmp_path, "--quick")
    assert done.returncode == 0, done.stdout
