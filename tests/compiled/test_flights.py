"""With the compiled reader and without it, calls return, raise, change and leave behind the same, on a driver that does
nothing."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from dagpu.common.compiled import READER
from tests.compiled.building import MODULES, build_driver, missing, run_child
from tests.conftest import MARKS, only_deep

FEW: Final = "10000"
"""Calls of the long cases by Python, which the suite has tested."""
NOTHING: Final = ("problems", "contexts", "inside", "live", "unraisable")
"""What no call may leave behind."""


@pytest.fixture(name="driver", scope="module")
def built_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the driver that does nothing."""
    if why := missing():
        pytest.skip(why)
    if READER is None:
        pytest.skip("there is no compiled reader")
    return build_driver(tmp_path_factory.mktemp("driver"))


def outcomes(driver: Path, module: str, *, compiled: bool, calls: str = "") -> dict[str, Any]:
    """Run the cases of a module, and return their outcomes."""
    more = {"DAGPU_TEST_CALLS": calls, "DAGPU_TEST_PATIENCE": "140"} if calls else {}
    ended = run_child("tests.compiled.run_cases", str(driver), module, compiled=compiled, more=more)
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


IN_DEPTH: Final = ("feeds.failure_cases", "feeds.random_cases", "feeds.step_cases", "feeds.memory_cases")
"""The modules for which `make deep` has the time."""


@pytest.mark.parametrize(
    "module",
    [pytest.param(each, marks=MARKS if each in IN_DEPTH else ()) for each in MODULES if each != "long_cases"],
)
def test_both_readers_do_the_same(driver: Path, module: str) -> None:
    by_python = outcomes(driver, module, compiled=False)
    assert len(by_python) > 5
    by_c = outcomes(driver, module, compiled=True)
    assert by_python.keys() == by_c.keys()
    different = {name: (by_python[name], found) for name, found in by_c.items() if found != by_python[name]}
    assert different == {}
    assert [name for name, found in by_c.items() if any(found["rest"][each] for each in NOTHING)] == []


@only_deep
def test_many_calls_leave_nothing_behind(driver: Path) -> None:
    """Of memory, references, locks and the gate; with errors, threads and Ctrl-C."""
    by_c = outcomes(driver, "long_cases", compiled=True, calls="10000000")
    by_python = outcomes(driver, "long_cases", compiled=False, calls=FEW)
    level = [[], "level", "level"]
    expected: dict[str, list[Any]] = {
        "calls of a pipeline": [*level, True],
        "calls with new results": level,
        "calls that share": level,
        "plain ops": level,
        "calls that are refused": level,
        "awaited calls": ["level"] * 3,
        "updates of a feed": ["level"] * 11,
        "six threads": [["own", 3]],
        "every run is counted": 1200,  # type: ignore[dict-item]  # a count
        "ctrl c during many calls": [3000, True],
        "finalisers that run ops": True,  # type: ignore[dict-item]  # a truth value
    }
    for found in (by_c, by_python):
        assert {name: each["result"] for name, each in found.items()} == {
            name: ["value", each] for name, each in expected.items()
        }
        assert [name for name, each in found.items() if "served" in each] == []
        assert [name for name, each in found.items() if any(each["rest"][what] for what in NOTHING)] == []
    for found in (by_c, by_python):
        assert found["updates of a feed"]["notes"] == [0, 1, 0, [0, 0, 0], True]
        assert found["six threads"]["notes"] == [True, 0, True]
        assert found["ctrl c during many calls"]["notes"] == [0, True]
        assert found["finalisers that run ops"]["notes"] == [200, 0, True]


@pytest.mark.parametrize(
    "way", ["exit under way", "exit with a thread between calls", "exit with a task under way", "fork"]
)
def test_a_process_ends_while_runs_are_under_way(driver: Path, way: str) -> None:
    ended = [run_child("tests.compiled.exits", str(driver), way, compiled=compiled) for compiled in (False, True)]
    by_python, by_c = [(each.returncode, each.stdout, each.stderr) for each in ended]
    assert by_c == by_python
    assert by_c[0] == 0
    assert by_c[1]
