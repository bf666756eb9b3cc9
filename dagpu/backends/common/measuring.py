"""Measuring runs: what a backend does for a trace (`dagpu.trace`), which is nothing while there is none.

A backend looks for a `RunRecorder` once for each run. Where there is one, it tells the run's `MeasuredRun` when each
instruction began and ended.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Protocol, TypeAlias, final

from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import Instruction
from dagpu.lowering.report.prediction import Prediction

Perform: TypeAlias = Callable[[Instruction, list[object]], None]
"""Carries out an instruction, on what the plan's buffers are bound to."""

Mark: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Gives a `with` block that a profiler sees under this name."""


@final
class MeasuredRun:
    """One run of a plan, measured. Threads may add to it at once."""

    __slots__ = ("_index", "_spans", "ended", "forecast", "mark", "streams")

    def __init__(self, plan: Plan, predicted: Prediction, streams: Sequence[int], mark: Mark | None) -> None:
        self.forecast = predicted
        self.streams = streams
        """The recorder's number for what runs each lane; two lanes may be one stream."""
        self.mark = mark
        self._index = {id(s.instruction): at for at, s in enumerate(s for s in plan.steps if type(s) is Execute)}
        self._spans: list[tuple[int, float, float]] = []
        self.ended = False

    def add(self, instruction: Instruction, begin: float, end: float) -> None:
        """The instruction, or a part of it, ran from `begin` to `end`: seconds, as `time.perf_counter` counts them."""
        self._spans.append((self._index[id(instruction)], begin, end))

    def name_of(self, instruction: Instruction) -> str:
        """What profilers are told: the kernel's name, or what the instruction is."""
        return self.forecast.pieces[self._index[id(instruction)]].name

    def around(self, perform: Perform) -> Perform:
        """The same, measured. For instructions that are over when the call is."""

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
        """The run is over, and nothing will be added: forget the user's instructions."""
        self._index = {}
        self.ended = True

    def spans(self) -> list[tuple[float, float] | None]:
        """Of each piece of the forecast when it began and ended; None for what failed or was skipped."""
        found: list[tuple[float, float] | None] = [None] * len(self.forecast.pieces)
        for index, begin, end in self._spans:
            before = found[index]
            found[index] = (begin, end) if before is None else (min(before[0], begin), max(before[1], end))
        return found


class RunRecorder(Protocol):
    """What measures runs."""

    def begin(self, plan: Plan, streams: Sequence[object]) -> MeasuredRun | None:
        """A run begins, its lanes on these streams. None where it is not wanted any more."""
        ...


_recorder: ContextVar[RunRecorder | None] = ContextVar("dagpu_recorder", default=None)
set_recorder = _recorder.set
"""Have runs of this task and of those that it starts from now on measured."""
reset_recorder = _recorder.reset


def recording(plan: Plan, streams: Sequence[object]) -> MeasuredRun | None:
    """The recording of a run that is about to begin, its lanes on these streams; None where nobody measures."""
    recorder = _recorder.get()
    return None if recorder is None else recorder.begin(plan, streams)
