"""Branches that overlap, and the spans that a trace has of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dagpu import Trace, ones, use_device, zip_ops
from tests.programs.arithmetic import axpy
from tests.simulated.cuda import installed
from tests.simulated.runs import assert_nothing_is_held


@contextmanager
def simulated() -> Iterator[None]:
    with installed(seed=5):
        yield


@pytest.fixture(params=["host", "cuda"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[str]:
    """The host, and a simulated GPU; its name is the value."""
    if request.param == "cuda":
        with simulated():
            yield "cuda:0"
            assert_nothing_is_held()
    else:
        with use_device("host:0"):
            yield "host:0"


def branches(count: int = 4) -> Any:
    """Independent chains of three launches, joined on the host."""
    parts = [axpy(ones((2, 2)).partition((2, 2)), float(n), ones((2, 2))).first().unpartition() for n in range(count)]
    return zip_ops(*[part.to_host() for part in parts])


def spans(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X"]


def assert_streams_are_in_order(found: Trace) -> None:
    """In each thread of the timeline one span follows the other."""
    ends: dict[tuple[int, int], float] = {}
    for event in sorted(spans(found.events()), key=lambda event: event["ts"]):
        place = event["pid"], event["tid"]
        assert ends.get(place, 0.0) <= event["ts"] + 1e-3
        ends[place] = event["ts"] + event["dur"]
