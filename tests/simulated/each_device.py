"""Each kind of device that needs no GPU, for tests that are to hold on all of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import pytest

from dagpu import use_device
from tests.simulated.cuda import installed

PLACES: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "here": nullcontext,
    "explore": lambda: use_device("explore:0"),
    "simulated GPU": lambda: installed(0, 1),
}
"""The default device, which is a GPU in tests/gpu, and two that each test makes for itself."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=[] if name == "here" else pytest.mark.host_only("a device of its own"))
        for name in PLACES
    ]
)
def where(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each kind of device; gives the simulated machine where there is one."""
    with PLACES[request.param]() as found:
        yield found
