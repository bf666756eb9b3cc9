"""Measures a part on a worker, and each of its instructions, for the trace of the process that runs the op."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias, final

from dagpu.backends.common.measuring import FEEDS, MeasuredRun, SpanTrack, reset_recorder, set_recorder
from dagpu.lowering.plan import Plan
from dagpu.lowering.report.prediction import forecast

Span: TypeAlias = tuple[str, str, float, float]
"""The name of a track, the name of a span, and its begin and end, in seconds of this process's `time.perf_counter`."""
PARTS_TRACK: Final = "parts"
"""The name of the track with the parts of a worker. The others have the names of its devices."""


@final
class _PartRecorder:
    """Keeps the measurements of a part. Implements `dagpu.backends.common.measuring.RunRecorder`."""

    def __init__(self) -> None:
        self._runs: list[MeasuredRun] = []
        self._devices: list[Sequence[str]] = []

    def begin(self, plan: Plan, streams: Sequence[object]) -> MeasuredRun:
        """Begin to measure a run of a plan."""
        measured = MeasuredRun(plan, forecast(plan, None), range(len(streams)), None)
        self._runs.append(measured)
        self._devices.append([plan.devices[lane.device] for lane in plan.lanes])
        return measured

    def track(self, name: str, process: str = FEEDS) -> SpanTrack:
        """Return a track that is not kept: a part has no feeds."""
        return SpanTrack(name, process)

    def spans(self) -> Iterator[Span]:
        """Yield the times of the instructions that have ended."""
        for run, devices in zip(self._runs, self._devices, strict=True):
            for piece, span in zip(run.forecast.pieces, run.spans(), strict=True):
                if span is not None:
                    yield devices[piece.lane], piece.name, *span


@contextmanager
def part_spans(name: str) -> Iterator[list[Span]]:
    """Measure the runs of this thread in the block, as one part. The list is filled when the block ends."""
    recorder, found = _PartRecorder(), list[Span]()
    token, begin = set_recorder(recorder), time.perf_counter()
    try:
        yield found
    finally:
        reset_recorder(token)
        found.append((PARTS_TRACK, name, begin, time.perf_counter()))
        found += recorder.spans()
