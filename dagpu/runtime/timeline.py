"""Measures the runs in a block `with dagpu.trace(path)`: a Chrome trace, and the planned and measured overlap."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Final, final

from dagpu.backends.host.measuring import (
    FEEDS,
    Mark,
    MeasuredRun,
    SpanTrack,
    nvtx_ranges,
    reset_recorder,
    set_recorder,
)
from dagpu.common.places import describe, here, leaves_run
from dagpu.common.wrong_arguments import check_flag, check_path, is_real_number, wrong_argument
from dagpu.ops.svg import text_in_page
from dagpu.plans.cost_model import CostModel
from dagpu.plans.plan import Plan
from dagpu.plans.prediction import PredictedStep, forecast, overlap_of
from dagpu.plans.report import branches_apart
from dagpu.plans.text import counted, duration, table

_MOST_NAMED: Final = 5
_MOST_ROWS: Final = 40


@final
class TracedRun:
    """One measured run of a plan, with its predicted and measured times.

    `predicted` has the times of the cost model. `measured` has the measured times, in seconds from the trace's start.
    `possible` is the best timeline that the plan's order allows, each instruction taking its measured time.
    Instructions that failed, or were skipped after a failure or a cancellation, take no time in `measured` and
    `possible`.
    """

    def __init__(self, recording: MeasuredRun, start: float) -> None:
        spans = recording.spans()
        self.predicted = recording.forecast
        self.streams = recording.streams
        self.skipped = sum(span is None for span in spans)
        begin = min([span[0] for span in spans if span], default=start)
        self.measured = self.predicted.at([(x - start, y - start) for x, y in (s or (begin, begin) for s in spans)])
        cuda = any(name.startswith("cuda") for name in self.predicted.lanes)
        self.possible = self.predicted.timed([piece.seconds for piece in self.measured.pieces], engines=cuda)

    @property
    def begin(self) -> float:
        """The begin of the first instruction, in seconds from the trace's start; 0 without instructions."""
        return min([piece.begin for piece in self.measured.pieces], default=0.0)

    @property
    def seconds(self) -> float:
        """The seconds from the begin of the first instruction to the end of the last."""
        return max([piece.end for piece in self.measured.pieces], default=0.0) - self.begin

    def spans(self) -> list[tuple[float, float]]:
        """Return the begin and end of each instruction, in seconds from the trace's start."""
        return [(piece.begin, piece.end) for piece in self.measured.pieces]

    def row(self, number: int) -> tuple[str, ...]:
        """Return the columns of this run's row in the summary; `number` is its first column."""
        columns = [(forecast.makespan, forecast.overlap) for forecast in (self.predicted, self.possible)]
        columns.append((self.seconds, self.measured.overlap))
        times = [f"{duration(seconds)}, {share:.0%} hidden" for seconds, share in columns]
        return str(number), str(len(self.predicted.pieces) - self.skipped), str(len(self.predicted.lanes)), *times


@final
class Trace:
    """The measurements of a `trace` block, complete when the block has ended.

    `str(trace)` compares, for each run, the predicted times with the measured ones; `save` writes the timeline.
    """

    def __init__(self, mark: Mark | None, costs: CostModel | None) -> None:
        self._mark = mark
        self._costs = costs
        self._start = time.perf_counter()
        self._recordings: list[MeasuredRun] = []
        self._streams: dict[Any, tuple[int, str, int]] = {}
        self._names: list[tuple[int, str, int]] = []
        self._tracks: list[SpanTrack] = []
        self._lock = threading.RLock()
        self._open = True
        self.runs: tuple[TracedRun, ...] = ()
        """The runs that ended within the block, in the order of their begins."""
        self.unfinished = 0
        """The number of runs that began within the block and ended after it. They are not in `runs`."""
        self.tracks: tuple[SpanTrack, ...] = ()
        """The feeds that were opened within the block, with the times of their values, and the items of each `run`; and
        for each worker of a cluster its parts, and the instructions on each of its devices."""

    # ---- for backends -------------------------------------------------------------------------------------------

    def begin(self, plan: Plan, streams: Sequence[object]) -> MeasuredRun | None:
        """Begin to measure a run of `plan` on these streams: `dagpu.backends.host.measuring.Recorder.begin`."""
        predicted = forecast(plan, self._costs)
        with self._lock:
            if not self._open:
                return None
            numbers = [
                self._number(plan.devices[lane.device], stream)
                for lane, stream in zip(plan.lanes, streams, strict=True)
            ]
            recording = MeasuredRun(plan, predicted, numbers, self._mark)
            self._recordings.append(recording)
        return recording

    def _number(self, device: str, stream: object) -> int:
        """Return the number of a stream. The open block keeps streams alive, so no two have the same number."""
        found = self._streams.get(stream)
        if found is None:
            on_device = sum(name == device for _, name, _ in self._names)
            found = self._streams[stream] = len(self._names), device, on_device
            self._names.append(found)
        return found[0]

    def track(self, name: str, process: str = FEEDS) -> SpanTrack:
        """Return a track: `dagpu.backends.host.measuring.RunRecorder.track`."""
        made = SpanTrack(name, process)
        with self._lock:
            known = [each for each in self._tracks if (each.name, each.process) == (name, process)]
            if known and process != FEEDS:
                return known[0]
            if self._open:
                self._tracks.append(made)
        return made

    def end(self) -> None:
        """End the measurements, and build `runs` and `tracks`. Later runs are not measured."""
        with self._lock:
            self._open = False
            recordings, self._recordings, self._streams = self._recordings, [], {}
            self.tracks = tuple([track.ended() for track in self._tracks])
        self.runs = tuple([TracedRun(recording, self._start) for recording in recordings if recording.ended])
        self.unfinished = len(recordings) - len(self.runs)

    # ---- results -----------------------------------------------------------------------------------------------

    @property
    def overlap(self) -> float:
        """The share of the work of all runs that was hidden behind other work.

        0 without overlap, 0.75 with four streams that are always busy.
        """
        return overlap_of(span for run in self.runs for span in run.spans())

    @property
    def planned_overlap(self) -> float:
        """The `overlap` that the plans allow, each run by itself, each instruction taking its measured time."""
        work = [sum([piece.seconds for piece in run.possible.pieces]) for run in self.runs]
        total = sum(work)
        shares = [seconds * run.possible.overlap for seconds, run in zip(work, self.runs, strict=True)]
        return sum(shares) / total if total else 0.0

    def kernel_times(self) -> list[tuple[str, int, float]]:
        """Return kernel name, bytes moved and seconds of each launch that ran. For `CostModel.learn`."""
        pieces = [piece for run in self.runs for piece in run.measured.pieces]
        return [
            (piece.name, piece.moved, piece.seconds) for piece in pieces if piece.kind == "Launch" and piece.seconds
        ]

    @leaves_run
    def assert_overlap(self, at_least: float) -> None:
        """Assert in a test that `overlap` is at least `at_least`.

        Raises:
            AssertionError: the overlap is less. The message names branches that could overlap by the plans, and ran one
                after the other.
        """
        if not is_real_number(at_least):
            cure = "Write 0.5 for a half"
            raise wrong_argument("assert_overlap", here(), "at_least", at_least, "a share, from 0 to 1", cure)
        if not self.runs:
            raise AssertionError("no run ended within the trace, so nothing overlapped: run an op in its block")
        if self.overlap < at_least:
            if self.planned_overlap < at_least:
                raise AssertionError(
                    f"{self.overlap:.0%} of the work was hidden behind other work, and the plans allow no more than "
                    f"{self.planned_overlap:.0%}, less than {at_least:.0%}: op.explain() says why"
                )
            lost = self._missed_overlaps()
            named = "".join([f"\n  {line}" for line in lost[:_MOST_NAMED]]) or " none"
            raise AssertionError(
                f"{self.overlap:.0%} of the work was hidden behind other work, less than {at_least:.0%}; the plans "
                f"allow {self.planned_overlap:.0%}. Side by side in the plan, but not when run:{named}"
            )

    def _missed_overlaps(self) -> list[str]:
        found: list[tuple[float, str]] = []
        for run in self.runs:
            planned = {(pair.first.pieces, pair.second.pieces) for pair in branches_apart(run.possible).apart}
            for pair in branches_apart(run.measured).apart:
                key = pair.first.pieces, pair.second.pieces
                if key not in planned and key[::-1] not in planned:
                    first, second = (run.measured.pieces[index] for index in (key[0][0], key[1][0]))
                    found.append(
                        (pair.lost, f"{_describe_step(first)}, {_describe_step(second)}: {duration(pair.lost)}")
                    )
        return [text for _, text in sorted(found, key=lambda one: -one[0])]

    def __str__(self) -> str:
        heads = ("#", "ran", "lanes", "predicted", "plan allows", "measured")
        rows = [run.row(number) for number, run in enumerate(self.runs[:_MOST_ROWS], 1)]
        count = sum([len(run.predicted.pieces) - run.skipped for run in self.runs])
        allowed = f"the plans allow {self.planned_overlap:.0%}"
        lines = [
            f"Trace: {counted(len(self.runs), 'run')}, {counted(count, 'instruction')}",
            f"Overlap, measured: {self.overlap:.0%} of the work was hidden behind other work, {allowed}",
            *(table(heads, rows) if rows else []),
        ]
        if len(self.runs) > _MOST_ROWS:
            lines.append(f"... {len(self.runs) - _MOST_ROWS:,} more runs")
        for track in self.tracks:
            if track.process != FEEDS:
                work = duration(sum([end - begin for _, begin, end in track.spans]))
                lines.append(f"{track.process} {track.name}: {len(track.spans):,} spans, {work} together")
        if self.unfinished:
            lines.append(f"{counted(self.unfinished, 'run')} had not ended with the block, and are left out")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the summary, for a notebook."""
        return text_in_page(str(self))

    # ---- the timeline -------------------------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """Return the timeline as events of Chrome's trace format.

        There is a process for each device, a thread for each stream, a complete event for each instruction, and a flow
        for each wait. One more process has the feeds, a complete event for each value, on as many threads as values
        overlap; and one for each worker of a cluster has its parts, and the instructions on its devices. Times are
        microseconds from the trace's start, by the clock of this process.
        """
        devices = list(dict.fromkeys(device for _, device, _ in self._names))
        found: list[dict[str, Any]] = []
        for pid, device in enumerate(devices):
            found.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": device}})
        for tid, device, on_device in self._names:
            name = {"name": f"stream {on_device}"}
            found.append({"ph": "M", "name": "thread_name", "pid": devices.index(device), "tid": tid, "args": name})
        pids = [devices.index(device) for _, device, _ in self._names]
        flows = 0
        for number, run in enumerate(self.runs, 1):
            pieces = run.measured.pieces
            ran = {index for index, piece in enumerate(pieces) if piece.end > piece.begin}
            places = [{"pid": pids[run.streams[p.lane]], "tid": run.streams[p.lane]} for p in pieces]
            for index in sorted(ran):
                found.append(_complete_event(run, number, index) | places[index])
                for other in sorted(ran.intersection(pieces[index].waits)):
                    flows += 1
                    flow = {"name": "wait", "cat": "wait", "id": flows}
                    source = pieces[other]
                    leaves = source.end - min(source.seconds / 2, 1e-9)  # within its span, as the format requires
                    found.append({"ph": "s", "ts": leaves * 1e6} | flow | places[other])
                    found.append({"ph": "f", "bp": "e", "ts": pieces[index].begin * 1e6} | flow | places[index])
        found += _track_events(self.tracks, len(devices), len(self._names), self._start)
        return found

    def save(self, path: str | PathLike[str]) -> None:
        """Write the timeline as JSON, for ui.perfetto.dev or chrome://tracing."""
        check_path(path, "save", here())
        whole = {"traceEvents": self.events(), "displayTimeUnit": "ns"}
        Path(path).write_text(json.dumps(whole), encoding="utf-8")


def _complete_event(run: TracedRun, number: int, index: int) -> dict[str, Any]:
    piece = run.measured.pieces[index]
    args = {
        "op": piece.label,
        "origin": describe(piece.origin),
        "run": number,
        "instruction": piece.number,
        "lane": run.predicted.lanes[piece.lane],
        "bytes": piece.nbytes,
        "predicted_us": run.predicted.pieces[index].seconds * 1e6,
    }
    span = {"ts": piece.begin * 1e6, "dur": piece.seconds * 1e6}
    return {"ph": "X", "name": piece.name, "cat": piece.kind, "args": args} | span


def _track_events(tracks: Sequence[SpanTrack], pid: int, tid: int, start: float) -> Iterator[dict[str, Any]]:
    """Yield the events of a thread for each lane of each track, numbered from `tid` on, in processes that are numbered
    from `pid` on."""
    processes = list(dict.fromkeys([track.process for track in tracks]))
    for number, process in enumerate(processes, pid):
        yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": process}}
    lanes = [(track, lane) for track in tracks for lane in track.lanes()]
    for number, (track, lane) in enumerate(lanes, tid):
        place = {"pid": pid + processes.index(track.process), "tid": number}
        yield {"ph": "M", "name": "thread_name", "args": {"name": track.name}} | place
        for label, begin, end in lane:
            span = {"ts": (begin - start) * 1e6, "dur": (end - begin) * 1e6}
            yield {"ph": "X", "name": label, "cat": "feed" if track.process == FEEDS else "part"} | span | place


def _describe_step(piece: PredictedStep) -> str:
    return f"{piece.name} at {describe(piece.origin)}"


@leaves_run
def trace(
    path: str | PathLike[str] | None = None, *, nvtx: bool = False, costs: CostModel | None = None
) -> AbstractContextManager[Trace]:
    """Measure the runs that begin within the block, in this task and in tasks that it starts there.

    On the host a clock is read before and after each instruction. On a GPU an event is recorded before and after each,
    which costs a few microseconds for each instruction. Of two nested blocks the inner one measures.

    Args:
        path: the file for the timeline, written when the block ends, also by an error: JSON for ui.perfetto.dev or
            chrome://tracing. By default no file is written; `Trace.save` writes one later.
        nvtx: true to pass the name of each instruction to NVIDIA's profilers too.
        costs: the cost model that predicts the times of plans; by default `CostModel()`.

    Raises:
        DagpuError: `nvtx` is true, and the package nvtx is not installed.
    """
    origin = here()
    if path is not None:
        check_path(path, "trace", origin)
    if costs is not None and not isinstance(costs, CostModel):
        raise wrong_argument("trace", origin, "costs", costs, "a CostModel", "Write costs=CostModel(), or leave it out")
    marks = nvtx_ranges() if check_flag(nvtx, "trace", origin, "nvtx") else None
    return _measuring(marks, costs, path)


@contextmanager
def _measuring(mark: Mark | None, costs: CostModel | None, path: str | PathLike[str] | None) -> Iterator[Trace]:
    found = Trace(mark, costs)
    token = set_recorder(found)
    try:
        yield found
    finally:
        reset_recorder(token)
        found.end()
        if path is not None:
            found.save(path)
