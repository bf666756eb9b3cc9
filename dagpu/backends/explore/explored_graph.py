"""A captured graph on an `explore` device: a plan with its own memory, launched by `GraphLaunch` instructions."""

from typing import final

from dagpu.backends.common.failures import Outcome
from dagpu.backends.common.run_errors import error_of_graph
from dagpu.backends.explore.exploration import current
from dagpu.backends.explore.machine import Machine
from dagpu.backends.explore.script import Script
from dagpu.backends.explore.store import PoisonedStore
from dagpu.ops.initializers import fresh_seed


@final
class ExploredGraph:
    """A frozen plan; see `dagpu.backends.protocol.Prepared.freeze`.

    Each launch has its own order of steps, like a run.
    """

    __slots__ = ("_drawn", "_memory", "_script", "_store")

    def __init__(self, script: Script, store: PoisonedStore, memory: list[object]) -> None:
        self._script = script
        self._store = store
        self._memory = memory
        """The list of buffers that the store works on."""
        self._drawn = script.plan.seed_cells

    def launch(self, outcome: Outcome) -> None:
        """Execute the plan to its end. If `outcome` is cancelled, skip instructions that have not begun.

        Only one launch may run at a time. An error of an instruction is raised, several errors as a group.
        """
        self._store.reset()
        for cell in self._drawn:
            self._memory[cell] = fresh_seed()
        mine = Outcome()
        outcome.also_cancel(mine.cancel)
        machine = Machine(self._script, self._store, mine, current().choose_within_step(len(self._script.lanes)))
        machine.run()
        stuck = machine.stuck()
        if stuck is not None:
            raise stuck
        mine.sort(self._script.plan)
        error = error_of_graph(mine.failures())
        if error is not None:
            raise error
