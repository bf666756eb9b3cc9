"""The mypy plugin on the corpus of tests/typing/plugin: each error at its line with its code, and no other.

A comment `# E: code` stands at the end of each line where mypy must report an error. The files in `right` have none,
and neither have those in `unjudged`, whose mistakes a run finds.
The corpus is checked with an empty cache of its own, from that cache, and by several processes.

    python -m tests.plugin.test_mypy_plugin FOLDER     # the differences alone; FOLDER keeps the cache from run to run
"""

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from mypy import api

from tests.conftest import only_deep
from tests.plugin.plugin_corpus import AWAITS_GRAPHS, CORPUS, EXPECTED, programs
from tests.support.mypy_checks import CONFIGURATION, dependencies
from tests.support.paths import ROOT

ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: .*?(?:  \[(?P<code>[\w-]+)\])?$")

Errors: TypeAlias = Counter[tuple[str, int, str]]
"""How often each (file, line, code) is reported."""


def corpus() -> list[Path]:
    """The files that are checked."""
    return sorted(file for file in CORPUS.glob("*/*.py") if file.stem not in AWAITS_GRAPHS)


def expected() -> Errors:
    """Return the errors that the comments announce."""
    return Counter(
        (str(file), number, code)
        for file in corpus()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for code in EXPECTED.findall(line)
    )


def reported(folder: Path, *options: str) -> Errors:
    """Return the errors that mypy finds in the corpus, with the cache in `folder`.

    A line of its report that is no error, or a note that the plugin has failed, fails the test.
    """
    configuration = folder / "mypy.ini"
    configuration.write_text(CONFIGURATION, encoding="utf-8")
    arguments = ["--config-file", str(configuration), "--cache-dir", str(folder / "cache"), "--no-error-summary"]
    report, crash, _ = api.run([*arguments, *options, *map(str, corpus())])
    assert crash == "", crash
    found: Errors = Counter()
    for line in report.splitlines():
        match = ERROR.match(line)
        assert match, line
        found[str(ROOT / match["file"]), int(match["line"]), match["code"] or ""] += 1
    return found


def differences(found: Errors) -> list[str]:
    """Return the differences between mypy and the comments, one line each."""
    wanted = expected()
    sides = {"missed": wanted - found, "false alarm": found - wanted}
    return [
        f"{what}: {Path(file).relative_to(CORPUS)}:{line} {code}"
        for what, errors in sides.items()
        for file, line, code in sorted(errors.elements())
    ]


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a cache of what the corpus depends on, and nothing of the corpus in it."""
    shutil.copytree(dependencies(tmp_path_factory), tmp_path / "cache")
    with pytest.MonkeyPatch.context() as patch:
        # mypy's own worker processes are to find the plugin where this process has it from.
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        patch.chdir(ROOT)
        yield tmp_path


def test_the_corpus_is_as_large_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """The corpus has the announced size, each wrong program has its comment, and no right one has."""
    wrong, right = ([p for p in programs(side) if p.module not in AWAITS_GRAPHS] for side in ("wrong", "right"))
    errors = expected()
    with capsys.disabled():
        print(f"\n{len(wrong)} wrong functions, {errors.total()} errors, {len(right)} right functions")
    assert len(wrong) >= 120
    assert len(right) >= 120
    assert errors.total() >= len(wrong)
    assert {Path(file).parent.name for file, _, _ in errors} == {"wrong"}


def test_cold_and_warm(folder: Path) -> None:
    """With an empty cache each error is found at its line with its code, and no other; and so from the cache."""
    assert differences(reported(folder)) == []
    assert differences(reported(folder)) == []


@only_deep
def test_in_parallel(folder: Path) -> None:
    """Two worker processes find the same."""
    assert differences(reported(folder, "-n", "2")) == []


if __name__ == "__main__":
    home = Path(sys.argv[1])
    home.mkdir(exist_ok=True)
    os.chdir(ROOT)
    print(*differences(reported(home)), sep="\n")
