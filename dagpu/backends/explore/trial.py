"""One plan, executed again and again in different orders, without an interpreter: what it gives, as bits."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias, final

import numpy as np

from dagpu.backends.explore.choice import Choice, Listed, Seeded
from dagpu.backends.explore.machine import Machine
from dagpu.backends.explore.script import RECORD, script_of
from dagpu.backends.explore.store import PoisonedStore
from dagpu.backends.host.arrays import Account, HostMemory
from dagpu.backends.outcome import Outcome
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Role

Bits: TypeAlias = tuple[object, ...]
"""What is left after an execution: of each output, and of each input that is written, its bytes or its value."""


@final
class Trial:
    """A plan with its inputs, whose contents before each execution are those that they have now."""

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
            own = self._memory[number] = HostMemory(Account(), len(held.block))  # the caller's stays as it is
            self._before.append((own, held.block.copy()))
        outputs = [n for n, buffer in enumerate(plan.buffers) if buffer.role is Role.OUTPUT]
        self._results = (*outputs, *changed)
        self._store = PoisonedStore(self.script, self._memory, [Account() for _ in plan.devices])

    def seeded(self, seed: int) -> Bits:
        """Execute in the order of a seed."""
        return self.run(Seeded(seed, len(self.script.lanes)))

    def listed(self, lanes: Iterable[int]) -> Bits:
        """Execute in the order of `lanes`, one for each step; where it ends, the lowest lane that may goes on."""
        return self.run(Listed(lanes))

    def in_plan_order(self) -> Bits:
        """Execute step by step as the plan has them: the order in which nothing overlaps."""
        lanes = enumerate(self.script.lanes)
        order = sorted((a.step, a.kind, lane) for lane, actions in lanes for a in actions if a.kind < RECORD)
        return self.run(Listed(lane for _, _, lane in order))

    def run(self, choose: Choice) -> Bits:
        """Execute once.

        Raises:
            PlanError: some lane can never go on.
            BaseException: what the first instruction that failed has raised.
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
