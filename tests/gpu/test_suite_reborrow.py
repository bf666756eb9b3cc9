"""The tests of tests/test_reborrow.py again, on the GPU."""

from collections.abc import Iterator

import pytest

from dagpu import use_device
from tests.test_reborrow import *  # noqa: F403  # every test there is


@pytest.fixture(autouse=True, name="somewhere")
def on_the_gpu() -> Iterator[None]:
    """In the place of the devices that those tests are run on elsewhere."""
    with use_device("cuda:0"):
        yield
