"""A captured graph on the host: a plan with its own memory, the counterpart of a CUDA graph."""

from collections.abc import Sequence
from typing import final

from dagpu.backends.common.failures import Outcome
from dagpu.backends.common.run_errors import error_of_graph
from dagpu.backends.common.worker_threads import WorkerStream, enqueue
from dagpu.backends.host.arrays import HostMemory
from dagpu.backends.host.host_run import Batch, HostRun
from dagpu.backends.protocol import Bindings
from dagpu.ops.initializers import fresh_seed
from dagpu.plans.plan import Plan, Step


@final
class HostGraph:
    """A frozen plan; see `dagpu.backends.protocol.Prepared.freeze`.

    The worker thread that executes a `GraphLaunch` launches the graph and waits for it. So the graph's lanes have their
    own streams: in a stream of the device's pool, their work could be queued behind that waiting thread.
    """

    __slots__ = ("_arenas", "_drawn", "_memory", "_plan", "_work")

    def __init__(
        self, plan: Plan, bindings: Bindings, arenas: Sequence[HostMemory], work: dict[WorkerStream, Sequence[Step]]
    ) -> None:
        self._plan = plan
        self._memory = list(bindings.memory)
        self._drawn = plan.seed_cells
        self._arenas = arenas
        self._work = work

    def launch(self, outcome: Outcome) -> None:
        """Run the plan to its end. If `outcome` is cancelled, skip instructions that have not begun.

        Only one launch may run at a time. An error of an instruction is raised, several errors as a group.
        """
        bindings = Bindings([None] * len(self._memory))
        bindings.memory = list(self._memory)
        for cell in self._drawn:
            bindings.memory[cell] = fresh_seed()
        run = HostRun(self._plan, bindings, self._arenas, len(self._work))
        enqueue({stream: Batch(run, steps) for stream, steps in self._work.items()})
        outcome.also_cancel(run.cancel)
        run.wait()
        error = error_of_graph(run.failures())
        if error is not None:
            raise error
