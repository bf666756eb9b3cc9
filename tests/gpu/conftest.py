"""Tests on a real GPU: the ordinary suite again, and what only a GPU shows. Where there is none they skip, unimported.

`DAGPU_TEST_DEVICE` names another device than `cuda:0`. With `host:1` most of them run without a GPU, which shows that
they are right themselves and that the ordinary suite names no device.
"""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dagpu import Device, NoDeviceError, device
from tests.gpu.suites.again import Suites
from tests.gpu.support.gpu_support import NAME

HERE = Path(__file__).resolve().parent


@cache
def missing() -> str:
    """Why these tests cannot run here; nothing if they can."""
    try:
        device(NAME)
    except NoDeviceError as error:
        return " ".join(str(error).split())
    return ""


class Skipped(pytest.Module):
    """A module of tests that is not even imported."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        pytest.skip(f"no device {NAME}: {missing()}", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """All the modules are skipped here, in one line, or none. The table of suites is collected by its rows."""
    if HERE not in module_path.parents:
        return None
    if missing():
        return Skipped.from_parent(parent, path=module_path)
    return Suites.from_parent(parent, path=module_path) if module_path.name == "test_suites.py" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about the host alone, and beside others what needs the whole GPU."""
    mine = [item for item in items if HERE in item.path.parents]
    left_out = [item for item in mine if item.get_closest_marker("host_only")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        alone = pytest.mark.skip(
            reason="takes or measures all of the GPU: run `pytest tests/gpu -m exclusive` without -n"
        )
        for item in mine:
            if item.get_closest_marker("exclusive"):
                item.add_marker(alone)


@pytest.fixture(autouse=True)
def on_the_gpu() -> Iterator[None]:
    """The GPU is the default device of the test: in its tasks, its threads and its subprocesses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGPU_DEVICE", NAME)
        yield


@pytest.fixture(scope="session")
def gpu() -> Device:
    """The GPU that the test runs on (or what `DAGPU_TEST_DEVICE` has stand in for one)."""
    return device(NAME)


@pytest.fixture(scope="session")
def cuda(gpu: Device) -> Device:
    """The GPU, for a test that nothing can stand in for."""
    if gpu.kind != "cuda":
        pytest.skip(f"{NAME} is no GPU")
    return gpu
