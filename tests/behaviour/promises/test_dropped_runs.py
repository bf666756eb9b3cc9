"""Runs that no task awaits any more."""

import threading
from typing import Any

import pytest
import trio
import trio.testing

from dagpu import DeviceOp, memcpy, ones, zeros
from dagpu.testing import storage_of
from tests.behaviour.promises.interrupting import PATIENCE, at_first, began, tiles
from tests.behaviour.promises.interrupting import cancelled as cancelled


@pytest.mark.parametrize("updated", [False, True])
def test_a_run_that_is_dropped_is_drained(cancelled: threading.Event, updated: bool) -> None:
    """An interrupt in the user's own frame drops a run in progress.

    The run is cancelled and waited for, its locks are released, and the task goes on.
    """
    y: Any = zeros((4,)).sync()
    new = ones((4,)).sync()
    op: DeviceOp[Any, Any, Any] = tiles(y.borrow_mut().partition((1,)), 1)
    graph = op.graph() if updated else None
    began.clear()

    def wait() -> None:
        assert cancelled.wait(PATIENCE)

    at_first.append(wait)

    async def main() -> None:
        if graph is not None:
            graph.update(memcpy(y.borrow_mut(), new))
        run = (op if graph is None else graph.launch()).__await__()
        run.send(None)
        run.close()
        assert cancelled.is_set()
        assert (storage_of(y).lock.readers, storage_of(y).lock.writer) == (0, None)
        await trio.lowlevel.checkpoint()
        await tiles(y.borrow_mut().partition((1,)), 2)

    trio.run(main)
    assert began[-4:] == [2, 2, 2, 2]
    assert len(began) <= 5
