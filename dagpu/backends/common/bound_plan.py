"""A captured graph of a backend without CUDA graphs: a plan with memory of its own, which `GraphLaunch`es start."""

from collections.abc import Callable, Sequence
from typing import Protocol, final

from dagpu.backends.common.failures import Outcome
from dagpu.backends.protocol import Failure
from dagpu.ops.initializers import fresh_seed
from dagpu.plans.plan import Plan


class Launched(Protocol):
    """What a launch needs of the run that it has started; see `dagpu.backends.protocol.Run`."""

    def cancel(self) -> None: ...

    def wait(self) -> object: ...

    def failures(self) -> list[Failure]: ...


@final
class BoundPlan:
    """A frozen plan; see `dagpu.backends.protocol.Prepared.freeze`."""

    __slots__ = ("_drawn", "_memory", "_start")

    def __init__(self, plan: Plan, memory: list[object], start: Callable[[list[object]], Launched]) -> None:
        """`memory` is what the plan is bound to. `start` starts a run on a copy of it."""
        self._drawn = plan.seed_cells
        self._memory = memory
        self._start = start

    def launch(self, outcome: Outcome) -> None:
        """Run the plan to its end. If `outcome` is cancelled, skip instructions that have not begun.

        Only one launch may run at a time. An error of an instruction is raised, several errors as a group.
        """
        memory = self._memory.copy()
        for cell in self._drawn:
            memory[cell] = fresh_seed()
        run = self._start(memory)
        outcome.also_cancel(run.cancel)
        run.wait()
        error = _error_of(run.failures())
        if error is not None:
            raise error


def _error_of(failures: Sequence[Failure]) -> BaseException | None:
    """Return the error of a launch: the error of its only failure, or a group of several; None without one."""
    errors = [failure.error for failure in failures]
    if len(errors) > 1:
        return BaseExceptionGroup(f"{len(errors)} ops of one graph failed", errors)
    return errors[0] if errors else None
