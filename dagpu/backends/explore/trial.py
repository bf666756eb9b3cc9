"""Repeated executions of one plan in different orders, without an interpreter, with results as bits."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias, final

import numpy as np

from dagpu.backends.common.failures import Outcome
from dagpu.backends.explore.choice import Choice, Listed, Seeded
from dagpu.backends.explore.machine import Machine
from dagpu.backends.explore.script import RECORD, script_of
from dagpu.backends.explore.store import PoisonedStore
from dagpu.backends.host.arrays import Account, HostMemory
from dagpu.plans.plan import Plan
from dagpu.plans.program import Role

Bits: TypeAlias = tuple[object, ...]
"""The result of an execution: the bytes or the value of each output, and of each input that is written."""


@final
class Trial:
    """A plan with its inputs. Each execution starts from the contents that the inputs had at construction."""

    __slots__ = ("_before", "_memory", "_results", "_store", "order", "script")

    def __init__(self, plan: Plan, inputs: Mapping[int, object]) -> None:
        self.script = script_of(plan)
        self.order = b""
        """The lane of each step of the last execution, modulo 256."""
        self._memory: list[object] = [None] * len(plan.buffers)
        for number, held in inputs.items():
            self._memory[number] = held
        actions = [action for lane in self.script.lanes for action in lane]
        written = {buffer for a in actions if a.instruction is not None for buffer in a.instruction.writes}
        changed = [n for n, buffer in enumerate(plan.buffers) if buffer.role is Role.INPUT and n in written]
        self._before = []
        for number in changed:
            held = self._memory[number]
            assert isinstance(held, HostMemory), f"input {number} is written, but bound to {held!r}"
            own = self._memory[number] = HostMemory(Account(), len(held.block))  # the caller's memory is not changed
            self._before.append((own, held.block.copy()))
        outputs = [n for n, buffer in enumerate(plan.buffers) if buffer.role is Role.OUTPUT]
        self._results = (*outputs, *changed)
        self._store = PoisonedStore(self.script, self._memory, [Account() for _ in plan.devices])

    def seeded(self, seed: int) -> Bits:
        """Execute in the order of a seed."""
        return self.run(Seeded(seed, len(self.script.lanes), [lane.device for lane in self.script.plan.lanes]))

    def listed(self, lanes: Iterable[int]) -> Bits:
        """Execute in the order of `lanes`, one for each step; after its end, the lowest ready lane is chosen."""
        return self.run(Listed(lanes))

    def in_plan_order(self) -> Bits:
        """Execute the steps in the order of the plan, without overlap."""
        lanes = enumerate(self.script.lanes)
        order = sorted((a.step, a.kind, lane) for lane, actions in lanes for a in actions if a.kind < RECORD)
        return self.run(Listed(lane for _, _, lane in order))

    def run(self, choose: Choice) -> Bits:
        """Execute once.

        Raises:
            PlanError: a lane waits forever.
            BaseException: the error of the first instruction that failed.
        """
        self._store.reset()
        for own, before in self._before:
            own.block[:] = before
        outcome = Outcome()
        machine = Machine(self.script, self._store, outcome, choose)
        self.order = machine.run()
        stuck = machine.stuck()
        if stuck is not None:
            raise stuck
        if outcome.abnormal:
            outcome.sort(self.script.plan)
            raise outcome.failures()[0].error
        memory = self._memory
        return tuple([_bits(memory[number]) for number in self._results])


def _bits(held: object) -> object:
    if isinstance(held, HostMemory):
        return held.block.tobytes()
    if isinstance(held, np.ndarray):
        return held.shape, held.dtype, held.tobytes()
    return held
