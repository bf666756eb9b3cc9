"""What became of one run of a plan: what failed, and what is skipped for it. Shared by the backends."""

import threading
from collections.abc import Callable, Sequence
from typing import final

from dagpu.backends.protocol import Failure
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import Instruction


@final
class Outcome:
    """Failures spread by data flow: what a failed instruction should have written is poisoned, and an instruction that
    reads or writes that is skipped and poisons what it would have written. So which fail never depends on timing.

    Invariant: anything has failed or been cancelled  =>  abnormal
    """

    __slots__ = ("_failures", "_further", "_lock", "_poisoned", "abnormal", "cancelled")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._poisoned: set[int] = set()
        self._failures: list[Failure] = []
        self._further: tuple[Callable[[], None], ...] = ()
        self.cancelled = False
        self.abnormal = False
        """All that a step has to look at as long as nothing has gone wrong."""

    def cancel(self) -> None:
        """Skip what has not begun. Takes no lock: a signal handler calls it, in the middle of anything."""
        self.abnormal = True
        self.cancelled = True
        for further in self._further:
            further()

    def also_cancel(self, further: Callable[[], None]) -> None:
        """Have `further` called when this is cancelled; at once if it is already. It takes no lock and may be called
        twice."""
        self._further = (*self._further, further)
        if self.cancelled:
            further()

    def skips(self, instruction: Instruction) -> bool:
        """Is this instruction cancelled, or does it touch what a failed one should have written?"""
        with self._lock:
            if self.cancelled:
                return True
            poisoned = self._poisoned
            if poisoned.isdisjoint(instruction.reads) and poisoned.isdisjoint(instruction.writes):
                return False
            poisoned.update(instruction.writes)
            return True

    def fail(self, instruction: Instruction, error: BaseException, buffers: Sequence[int] | None = None) -> None:
        """An instruction has failed, and with it what it writes (or `buffers`).

        Seen by all that depends on it: by what waits for a Record that comes after this, or follows in this lane.
        """
        with self._lock:
            self._failures.append(Failure(instruction, error))
            self._poisoned.update(instruction.writes if buffers is None else buffers)
            self.abnormal = True

    def failures(self) -> list[Failure]:
        """What has failed; it is handed over. A run that kept its errors would be kept by them: their tracebacks lead
        to whoever waited for it, and so to all its memory."""
        with self._lock:
            found, self._failures = self._failures, []
        return found

    def errors(self) -> list[BaseException]:
        """The errors so far, which stay here."""
        return [failure.error for failure in self._failures]

    def sort(self, plan: Plan) -> None:
        """Put the failures into the order of the plan's steps."""
        if len(self._failures) > 1:
            number = {id(step.instruction): i for i, step in enumerate(plan.steps) if isinstance(step, Execute)}
            self._failures.sort(key=lambda failure: number[id(failure.instruction)])
