"""The spans of traced runs: fetches them from the workers, and tells them in the time of this process."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dagpu.backends.common.measuring import SpanTrack
from dagpu.cluster.worker import dask_tasks

_PINGS: Final = 5
"""The number of questions for the time of a worker. The quickest answer counts."""


def offset_of(answers: Sequence[tuple[float, float, float]]) -> float:
    """Return how far a worker's clock is ahead of this process's, in seconds.

    The time on the worker is taken to be that of the middle between question and answer, for the quickest answer: the
    error is at most half of the time that it took.

    Args:
        answers: for each question, the time here before it, the time on the worker, and the time here after it.
    """
    before, there, after = min(answers, key=lambda answer: answer[2] - answer[0])
    return there - (before + after) / 2


async def add_spans(
    client: Any, run: str, addresses: Mapping[str, str], track: Callable[[str, str], SpanTrack]
) -> None:
    """Add the spans of a run on the workers that are alive to a trace.

    Args:
        addresses: the address of each worker.
        track: returns the track of a name and a worker.
    """
    names = {address: worker for worker, address in addresses.items()}
    found = await client.run(dask_tasks.take_spans, run, workers=list(names), on_error="ignore")
    with_spans = [address for address, spans in found.items() if spans]
    offsets = await asyncio.gather(*[_offset(client, address) for address in with_spans])
    for address, offset in zip(with_spans, offsets, strict=True):
        for name, label, begin, end in found[address]:
            track(name, names[address]).add(label, begin - offset, end - offset)


async def _offset(client: Any, address: str) -> float:
    answers: list[tuple[float, float, float]] = []
    for _ in range(_PINGS):
        before = time.perf_counter()
        there = (await client.run(time.perf_counter, workers=[address]))[address]
        answers.append((before, there, time.perf_counter()))
    return offset_of(answers)
