"""Fixtures of every test: the host is the device, regardless of the machine and the environment."""

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from inspect import isfunction
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings

# Read when dagpu is first imported or when a device is first asked for, so it is set before either.
os.environ["DAGPU_DEVICE"] = "host"
os.environ.pop("DAGPU_CHECKED", None)
# A plan that is made after a run depends on how long that took. Tests of the table of costs turn it on.
os.environ["DAGPU_MEASURE"] = "0"

# The tests start a hundred processes, each of which imports dagpu: it is compiled once, and not in each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts jobs in the background with SIGINT ignored, and children inherit that. Tests interrupt themselves and
# their children: without a handler, an endless function would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Properties are derandomised so that a red run is red again; deadlines are off because tests share their
# cores with other work, and no test here asserts how long anything takes.
settings.register_profile("dagpu", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dagpu")

DEEP = os.environ.get("DAGPU_DEEP") == "1"
"""True where properties are tried on all of their examples, and more ways of running are interrupted at each line."""
MANY, SHARE = 25, 0.3
"""A property with so many examples or more is otherwise tried on this share of them."""


_Test = TypeVar("_Test", bound=Callable[..., Any])
MARKS: Final = (pytest.mark.deep, pytest.mark.skipif(not DEEP, reason="make deep has the time for it"))


def only_deep(test: _Test) -> _Test:
    """Run a test with `make deep` only."""
    for mark in MARKS:
        test = mark(test)
    return test


def sampled(values: Iterable[Any], every: int = 4) -> list[Any]:
    """Return the parameters of a test: all of them with `make deep`, and else one of `every`."""
    return [pytest.param(value, marks=MARKS if number % every else ()) for number, value in enumerate(values)]


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """Exclude all objects of imports and earlier modules from the cyclic collector.

    Otherwise it would walk over them for a tenth of a second, each time that a test collects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_garbage(request: pytest.FixtureRequest) -> None:
    """Free what earlier tests left in cycles before a test that may compare how much memory is in use."""
    if "memory_used" in _text_of(request.path):
        gc.collect()


@cache
def _text_of(file: Path) -> str:
    return file.read_text()


def pytest_configure(config: pytest.Config) -> None:
    """The marks that tests may bear (`--strict-markers` refuses all others)."""
    for mark in (
        "host_only(why): it is about the host backend itself; tests/gpu does not run it again on a GPU",
        "exclusive: it takes or measures all of a GPU's memory; it is not run beside others (-n)",
        "deep: it tries more with DAGPU_DEEP=1 (`make deep`); properties with many examples are marked here",
    ):
        config.addinivalue_line("markers", mark)


def pytest_collection(session: pytest.Session) -> None:
    """Let the processes of a run of the whole suite share the work of compiling the tests.

    All collect in the same order. Each here imports the modules from another one on, and what the others have
    compiled by then it finds on the disk. A module that cannot be imported is reported when it is collected.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)  # pytest-xdist's
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(file.relative_to(config.rootpath) for file in config.rootpath.glob("tests/**/test_*.py"))
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the properties with many examples as deep, and try them on a share of their examples, unless all are due.

    Of the tests of a real GPU, which are other uses of the same functions, this changes nothing where they run alone.
    """
    for item in items:
        function = getattr(item, "obj", None)
        if (
            "tests/gpu/" in item.nodeid
            or not isfunction(function)
            or not getattr(function, "is_hypothesis_test", False)
        ):
            continue
        own: settings = getattr(function, _SETTINGS, settings())
        whole: int = getattr(function, _WHOLE, own.max_examples)
        if whole < MANY:
            continue
        item.add_marker(pytest.mark.deep)
        if not DEEP:
            setattr(function, _WHOLE, whole)  # the items of a parametrised test share it
            setattr(function, _SETTINGS, settings(own, max_examples=int(whole * SHARE)))


_SETTINGS = "_hypothesis_internal_use_settings"  # where `given` finds what `@settings` has said
_WHOLE = "_whole_max_examples"
