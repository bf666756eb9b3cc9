"""Tests that `make test` leaves to `make deep`, since one run of the suite has no time for them."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest

from tests.conftest import DEEP

_Test = TypeVar("_Test", bound=Callable[..., Any])
MARKS: Final = (pytest.mark.deep, pytest.mark.skipif(not DEEP, reason="make deep has the time for it"))


def only_deep(test: _Test) -> _Test:
    """Run a test with `make deep` only."""
    for mark in MARKS:
        test = mark(test)
    return test
