"""Devices with the libraries that functions of `dagpu.array` call."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from dagpu import device
from tests.simulated.each_device import where as where
from tests.simulated.libraries import libraries
from tests.simulated.machine import Machine


@pytest.fixture(name="with_libraries")
def libraries_on_each_device(where: Any) -> Iterator[Any]:
    """Each kind of device, with its libraries; gives the stand-ins of a simulated GPU."""
    if isinstance(where, Machine):
        with libraries(where) as simulated:
            yield simulated
        return
    skip_without_libraries()
    yield None


def skip_without_libraries() -> None:
    """Skip a test on a GPU without NVIDIA's libraries."""
    if device().kind == "cuda" and find_spec("nvmath") is None:
        pytest.skip("nvmath-python is not installed")
