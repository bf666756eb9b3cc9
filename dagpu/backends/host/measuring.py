"""Measures the instructions of runs for a trace (`dagpu.trace`).

A backend looks up the `RunRecorder` once for each run. If one is set, the backend reports to the run's `MeasuredRun`
when each instruction began and ended. Without one, nothing is measured.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeAlias, final

from dagpu.common.errors import DagpuError
from dagpu.plans.cost_model import DEFAULT_COSTS, MEASURED
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.prediction import Prediction
from dagpu.plans.program import Instruction, Launch

Perform: TypeAlias = Callable[[Instruction, list[object]], None]
"""Executes an instruction on the memory of the plan's buffers."""

Mark: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Returns a context manager; a profiler shows its `with` block under the given name."""


@final
class MeasuredRun:
    """The measurements of one run of a plan. Several threads may add to it concurrently."""

    __slots__ = ("_costs", "_index", "_spans", "ended", "forecast", "mark", "streams")

    def __init__(self, plan: Plan, predicted: Prediction, streams: Sequence[int], mark: Mark | None) -> None:
        self.forecast = predicted
        self.streams = streams
        """For each lane, the recorder's number of its stream. Two lanes may share a stream."""
        self.mark = mark
        self._index = {id(s.instruction): at for at, s in enumerate(s for s in plan.steps if type(s) is Execute)}
        self._costs: KernelTimes | None = KernelTimes(plan)
        self._spans: list[tuple[int, float, float]] = []
        self.ended = False

    def add(self, instruction: Instruction, begin: float, end: float) -> None:
        """Add the time of an instruction or a part of it, from `begin` to `end` in seconds of `time.perf_counter`."""
        self._spans.append((self._index[id(instruction)], begin, end))

    def name_of(self, instruction: Instruction) -> str:
        """Return the name that profilers show: the name of the kernel, or of the kind of instruction."""
        return self.forecast.pieces[self._index[id(instruction)]].name

    def around(self, perform: Perform) -> Perform:
        """Return `perform` with each call measured. The instruction must end before the call returns."""

        def measured(instruction: Instruction, memory: list[object]) -> None:
            begin = time.perf_counter()
            if self.mark is None:
                perform(instruction, memory)
            else:
                with self.mark(self.name_of(instruction)):
                    perform(instruction, memory)
            self.add(instruction, begin, time.perf_counter())

        return measured

    def end(self) -> None:
        """End the measurement of the run, and drop the user's instructions. Nothing is added after that. The table of
        costs gets the times of the kernels."""
        costs = self._costs
        if costs is not None:
            for instruction, span in zip(costs.instructions(), self.spans(), strict=True):
                if span is not None:
                    costs.add(instruction, span[1] - span[0])
            costs.end()
        self._index, self._costs = {}, None
        self.ended = True

    def spans(self) -> list[tuple[float, float] | None]:
        """Return the begin and end of each piece of the forecast; None for a piece that failed or was skipped."""
        found: list[tuple[float, float] | None] = [None] * len(self.forecast.pieces)
        for index, begin, end in self._spans:
            before = found[index]
            found[index] = (begin, end) if before is None else (min(before[0], begin), max(before[1], end))
        return found


@final
class KernelTimes:
    """The times of the kernels of one run, for the table of costs. Several threads may add to it concurrently."""

    __slots__ = ("_found", "_plan")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._found: list[tuple[Launch, float]] = []

    def instructions(self) -> list[Instruction]:
        """Return the instructions of the plan, in its order."""
        return [step.instruction for step in self._plan.steps if type(step) is Execute]

    def add(self, instruction: Instruction, seconds: float) -> None:
        """Add the time of an instruction, which is left out unless it is a launch."""
        if type(instruction) is Launch:
            self._found.append((instruction, seconds))

    def around(self, perform: Perform) -> Perform:
        """Return `perform` with each launch measured."""

        def measured(instruction: Instruction, memory: list[object]) -> None:
            begin = time.perf_counter()
            perform(instruction, memory)
            self.add(instruction, time.perf_counter() - begin)

        return measured

    def end(self) -> None:
        """Put the times into the table. Must be called once, at the end of the run."""
        plan, model = self._plan, DEFAULT_COSTS
        for launch, seconds in self._found:
            MEASURED.add(plan.devices[launch.device], launch.kernel, model.size(launch, plan), seconds)


FEEDS: Final = "feeds"
"""What a timeline shows the tracks of feeds under."""


@final
class SpanTrack:
    """Named times of one part of the program, such as a feed or a device of another process, which a timeline shows
    beside the devices of this one."""

    __slots__ = ("name", "process", "spans")

    def __init__(self, name: str, process: str) -> None:
        self.name = name
        self.process = process
        """What the timeline shows it under."""
        self.spans: list[tuple[str, float, float]] = []
        """Name, begin and end of each span, in seconds of `time.perf_counter`. Spans may overlap."""

    def add(self, name: str, begin: float, end: float) -> None:
        """Add a span from `begin` to `end`, in seconds of `time.perf_counter`."""
        self.spans.append((name, begin, end))

    def ended(self) -> "SpanTrack":
        """Return a copy, to which no task adds later spans."""
        copy = SpanTrack(self.name, self.process)
        copy.spans = self.spans.copy()
        return copy

    def lanes(self) -> list[list[tuple[str, float, float]]]:
        """Return the spans in as few lists as possible, so that no two spans of one list overlap."""
        found: list[list[tuple[str, float, float]]] = []
        for span in sorted(self.spans, key=lambda each: each[1:]):
            free = next((lane for lane in found if lane[-1][2] <= span[1]), None)
            if free is None:
                found.append([span])
            else:
                free.append(span)
        return found


class RunRecorder(Protocol):
    """Measures runs: creates a `MeasuredRun` for each run that begins."""

    def begin(self, plan: Plan, streams: Sequence[object]) -> MeasuredRun | None:
        """Return the measurement of a run that begins, its lanes on these streams; None if recording has ended."""
        ...

    def track(self, name: str, process: str = FEEDS) -> SpanTrack:
        """Return a track of this name: a new one for a feed, the one of that name for another process."""
        ...


recorder_variable: Final[ContextVar[RunRecorder | None]] = ContextVar("dagpu_recorder", default=None)
current_recorder = recorder_variable.get
"""Returns the recorder that measures the runs of this task; None if none is set."""
set_recorder = recorder_variable.set
"""Sets the recorder that measures the runs of this task and of tasks that it starts from now on."""
reset_recorder = recorder_variable.reset


class TrackMaker(Protocol):
    """Returns the track of a name, under a process of a timeline."""

    def __call__(self, name: str, process: str = ...) -> SpanTrack: ...


def track_maker() -> TrackMaker | None:
    """Return the function that makes tracks of the recorder of this task; None if no recorder is set."""
    recorder = recorder_variable.get()
    return None if recorder is None else recorder.track


# ---- NVTX ranges, which show the names of instructions in Nsight Systems ----------------------------------------


def nvtx_ranges() -> Mark:
    """Return a function that returns an NVTX range for a name, in the domain `dagpu`.

    Raises:
        DagpuError: the package nvtx is missing.
    """
    try:
        nvtx: Any = importlib.import_module("nvtx")
    except ImportError as error:
        raise DagpuError(
            f"trace(nvtx=True) needs NVIDIA's package nvtx, which cannot be imported ({error}). Install it with "
            "'pip install nvtx', or leave nvtx=True out."
        ) from None

    def annotate(name: str) -> AbstractContextManager[object]:
        found: AbstractContextManager[object] = nvtx.annotate(message=name, domain="dagpu")
        return found

    return annotate
