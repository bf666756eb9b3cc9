"""The outcome of one run of a plan: failed instructions, those skipped because of them, and a run without memory. All
backends share it."""

import threading
from collections.abc import Callable, Sequence
from typing import final

from dagpu.backends.protocol import Failure
from dagpu.common.errors import OutOfMemoryError
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.program import Instruction


@final
class Outcome:
    """The outcome of one run. Failures spread by data flow.

    A failed instruction poisons the buffers that it writes. An instruction that reads or writes a poisoned buffer is
    skipped and poisons the buffers that it writes. So the set of failures never depends on timing. After a cancellation
    each instruction that is skipped, or stops before its end, does so too.

    Invariant: an instruction has failed or the run is cancelled  =>  abnormal
    """

    __slots__ = ("_failures", "_further", "_lock", "_poisoned", "_untold", "abnormal", "cancelled")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._poisoned: set[int] = set()
        self._failures: list[Failure] = []
        self._further: tuple[Callable[[], None], ...] = ()
        self._untold = False
        self.cancelled = False
        self.abnormal = False
        """True after a failure or a cancellation. While it is False, a step needs no other check."""

    def cancel(self) -> None:
        """Skip instructions that have not begun. Takes no lock, because a signal handler may call it at any point."""
        self.abnormal = True
        self.cancelled = True
        for further in self._further:
            further()

    def also_cancel(self, further: Callable[[], None]) -> None:
        """Call `further` when this outcome is cancelled, or at once if it is already.

        `further` must not take a lock, and may be called twice.
        """
        self._further = (*self._further, further)
        if self.cancelled:
            further()

    def skips(self, instruction: Instruction) -> bool:
        """Return True if the instruction is cancelled, or reads or writes a poisoned buffer."""
        with self._lock:
            poisoned = self._poisoned
            is_clean = poisoned.isdisjoint(instruction.reads) and poisoned.isdisjoint(instruction.writes)
            if is_clean and not self.cancelled:
                return False
            poisoned.update(instruction.writes)
            return True

    def stop(self, instruction: Instruction) -> None:
        """Record that a cancelled run may have stopped amid an instruction."""
        with self._lock:
            self._poisoned.update(instruction.writes)

    def lose_track(self) -> None:
        """Record that nobody knows which instructions were completed: the device is lost, or has refused a whole
        graph."""
        self._untold = True

    def spoilt(self) -> frozenset[int] | None:
        """Return the buffers that instructions did not complete; None if that is not known. See `Run.spoilt`."""
        with self._lock:
            return None if self._untold else frozenset(self._poisoned)

    def fail(self, instruction: Instruction, error: BaseException, buffers: Sequence[int] | None = None) -> None:
        """Record the failure of an instruction, and poison the buffers that it writes (or `buffers`).

        All dependent instructions see the failure: those that follow in the same lane, and those that wait for a later
        Record of it.
        """
        with self._lock:
            self._failures.append(Failure(instruction, error))
            self._poisoned.update(instruction.writes if buffers is None else buffers)
            self.abnormal = True

    def failures(self) -> list[Failure]:
        """Return the failures, and drop them.

        A run that kept its errors would be in a reference cycle with them: their tracebacks refer to the caller that
        waited for the run, and so to the run's memory.
        """
        with self._lock:
            found, self._failures = self._failures, []
        return found

    def errors(self) -> list[BaseException]:
        """Return the errors so far, without dropping them."""
        return [failure.error for failure in self._failures]

    def sort(self, plan: Plan) -> None:
        """Put the failures into the order of the plan's steps."""
        if len(self._failures) > 1:
            number = {id(step.instruction): i for i, step in enumerate(plan.steps) if isinstance(step, Execute)}
            self._failures.sort(key=lambda failure: number[id(failure.instruction)])


def out_of_memory(problem: str, code: int = 0) -> OutOfMemoryError:
    """Return the error of a run for which there is too little memory.

    `problem` is a sentence without its full stop. `code` is the driver's CUresult, 0 without one.
    """
    return OutOfMemoryError(
        f"{problem}. Drop handles that are no longer needed, or cut the work into smaller pieces.", code
    )


def no_room(where: str, nbytes: int) -> str:
    """Return the first part of the problem: the number of bytes that do not fit, and the memory that is too small."""
    return f"{where}: no room for {nbytes:,} bytes ({nbytes / 2**30:.2f} GiB)"
