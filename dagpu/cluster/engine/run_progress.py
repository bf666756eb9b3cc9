"""`Progress`: how far the runs of a cluster are."""

import asyncio
from typing import TYPE_CHECKING, final

from dagpu.common.frozen import plain

if TYPE_CHECKING:
    from dagpu.cluster.engine.dask_engine import DaskEngine


@final
@plain
class Progress:
    """How far the runs are that are under way."""

    done: int
    """Parts that are done."""
    running: int
    """Parts that are submitted and not done."""
    total: int
    """All parts."""
    redone: int
    """Parts that were begun again, because a worker was lost."""
    lost_workers: tuple[str, ...]
    """The addresses of the workers that were lost since the cluster was opened."""


async def next_progress(engine: "DaskEngine", last: Progress | None) -> tuple[bool, Progress]:
    """Return the progress once it differs from `last`."""
    event = asyncio.Event()
    engine.listeners.add(event)
    try:
        while True:
            now = _progress_of(engine)
            if now != last or engine.closed:
                return now != last, now
            await event.wait()
            event.clear()
    finally:
        engine.listeners.discard(event)


def _progress_of(engine: "DaskEngine") -> Progress:
    states = engine.states
    done = sum([len(state.done) for state in states])
    return Progress(
        done,
        sum([len(state.submitted) for state in states]) - done,
        sum([len(state.tasks) for state in states]),
        sum([state.redone for state in states]),
        tuple(engine.lost_workers),
    )
