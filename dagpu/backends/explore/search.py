"""Enumerates all executions of a small plan, up to the order of steps that do not touch the same memory.

Two executions that differ only in the order of independent steps have the same results, so one of each equivalence
class is enough (Mazurkiewicz, Trace theory, 1986). Classes are enumerated with sleep sets (Godefroid, Partial-Order
Methods for the Verification of Concurrent Systems, 1996): after the executions that begin with a step have been seen,
that step "sleeps" in those that begin otherwise, until a step that conflicts with it wakes it. A step without an
unordered conflict is done at once, which makes the search fast:

    a plan that orders every conflict has one class, however many interleavings there are.

The search is a proof that is independent of `verify`. It compares addresses in the arenas, not the names of buffers.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TypeAlias, final

import numpy as np

from dagpu.backends.explore.machine import (
    ALLOCATE,
    BEGIN,
    PUBLISH,
    RECORD,
    RELEASE,
    WAIT,
    Action,
    Choice,
    Listed,
    Machine,
    Places,
    Script,
    Seeded,
    places_of,
    script_of,
)
from dagpu.backends.explore.store import PoisonedStore
from dagpu.backends.host.arrays import Account, HostMemory
from dagpu.backends.host.failures import Outcome
from dagpu.plans.plan import Plan
from dagpu.plans.program import Role

# ---- repeated executions of one plan in different orders, without an interpreter, with results as bits ----------


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
        self._store.reset(self._memory)
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


_State = tuple[int, ...]
"""For each lane, the number of steps done so far; a step is an action that touches memory."""


@final
class Search:
    """The executions of a plan of at most a few hundred steps: finding races takes quadratic time."""

    def __init__(self, plan: Plan) -> None:
        self.script: Script = script_of(plan)
        self._steps = _steps_of(self.script)
        places = places_of(plan)
        self._touched = [[_touched(step.action, places, self.script) for step in lane] for lane in self._steps]

    @cached_property
    def races(self) -> dict[tuple[int, int], frozenset[tuple[int, int]]]:
        """For each step, as (lane, number in its lane), the conflicting steps that are not ordered with it.

        Two steps conflict if both touch the same memory and one of them writes it. A correct plan has no races.
        """
        found: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for lane, steps in enumerate(self._steps):
            for other in range(lane):
                for at in range(len(steps)):
                    for there in range(len(self._steps[other])):
                        if self._conflict((lane, at), (other, there)) and self._unordered(lane, at, other, there):
                            found.setdefault((lane, at), set()).add((other, there))
                            found.setdefault((other, there), set()).add((lane, at))
        return {step: frozenset(partners) for step, partners in found.items()}

    def classes(self) -> Iterator[list[int]]:
        """Iterate over one execution of each class, as the lane of each step, in order."""
        empty = frozenset[int]()
        stack: list[tuple[_State, list[int], frozenset[int]]] = [((0,) * len(self._steps), [], empty)]
        while stack:
            state, lanes, asleep = stack.pop()
            while True:
                ready = self._ready(state)
                safe = next((lane for lane in ready if lane not in asleep and self._is_safe(state, lane)), None)
                if safe is None:
                    break
                state, lanes = _after(state, safe), [*lanes, safe]
            if not ready:
                yield lanes
                continue
            sleeping = set(asleep)
            branches: list[tuple[_State, list[int], frozenset[int]]] = []
            for lane in ready:
                if lane not in sleeping:
                    woken = frozenset(other for other in sleeping if not self._race(state, lane, other))
                    branches.append((_after(state, lane), [*lanes, lane], woken))
                    sleeping.add(lane)
            stack += reversed(branches)

    def interleavings(self, most_states: int = 200_000) -> int | None:
        """Return the number of orders of steps that the plan allows; None if counting takes more than `most_states`."""
        paths: dict[_State, int] = {(0,) * len(self._steps): 1}
        seen = 0
        for _ in range(self.script.steps):
            after: dict[_State, int] = {}
            for state, ways in paths.items():
                for lane in self._ready(state):
                    reached = _after(state, lane)
                    after[reached] = after.get(reached, 0) + ways
            seen += len(after)
            if seen > most_states:
                return None
            paths = after
        return sum(paths.values())

    # ---- order of steps

    def _ready(self, state: _State) -> list[int]:
        """Return the lanes whose next step may be done."""
        return [
            lane
            for lane, at in enumerate(state)
            if at < len(self._steps[lane])
            and all(done >= needed for done, needed in zip(state, self._steps[lane][at].after, strict=True))
        ]

    def _unordered(self, lane: int, at: int, other: int, there: int) -> bool:
        """Return True if the plan allows both orders of two steps of different lanes."""
        return self._steps[lane][at].after[other] <= there and self._steps[other][there].after[lane] <= at

    def _conflict(self, step: tuple[int, int], other: tuple[int, int]) -> bool:
        reads, writes = self._touched[step[0]][step[1]]
        their_reads, their_writes = self._touched[other[0]][other[1]]
        return not (
            writes.isdisjoint(their_writes) and writes.isdisjoint(their_reads) and reads.isdisjoint(their_writes)
        )

    def _is_safe(self, state: _State, lane: int) -> bool:
        """Return True if all steps that race with this lane's next one have been done."""
        return all(there < state[other] for other, there in self.races.get((lane, state[lane]), ()))

    def _race(self, state: _State, lane: int, other: int) -> bool:
        return (other, state[other]) in self.races.get((lane, state[lane]), ())


@final
class _Step:
    """A step: an action that touches memory. Before it, `after[lane]` steps of each lane must have been done."""

    __slots__ = ("action", "after")

    def __init__(self, action: Action, after: tuple[int, ...]) -> None:
        self.action = action
        self.after = after


def _steps_of(script: Script) -> list[list[_Step]]:
    """Return the steps of each lane, with a vector clock for each. An event carries the clock of its record."""
    lanes = len(script.lanes)
    steps: list[list[_Step]] = [[] for _ in range(lanes)]
    known = [[0] * lanes for _ in range(lanes)]
    events: dict[int, list[int]] = {}
    at = [0] * lanes
    moved = True
    while moved:
        moved = False
        for lane, actions in enumerate(script.lanes):
            while at[lane] < len(actions):
                action = actions[at[lane]]
                if action.kind == WAIT:
                    if action.number not in events:
                        break
                    known[lane] = [max(pair) for pair in zip(known[lane], events[action.number], strict=True)]
                elif action.kind == RECORD:
                    events[action.number] = known[lane].copy()
                else:
                    steps[lane].append(_Step(action, tuple(known[lane])))
                    known[lane][lane] += 1
                at[lane] += 1
                moved = True
    return steps


def _touched(action: Action, places: Places, script: Script) -> tuple[frozenset[int], frozenset[int]]:
    """Return the places that an action reads, and those that it writes."""
    none = frozenset[int]()
    kind, instruction = action.kind, action.instruction
    if kind == ALLOCATE:
        return none, none if action.number in script.successor.values() else frozenset(places.of[action.number])
    if kind == RELEASE:
        return none, none if action.number in script.successor else frozenset(places.of[action.number])
    assert instruction is not None
    written = frozenset(place for buffer in instruction.writes for place in places.of[buffer])
    if kind == PUBLISH:
        return none, written
    assert kind == BEGIN
    return written | {place for buffer in instruction.reads for place in places.of[buffer]}, none


def _after(state: _State, lane: int) -> _State:
    return (*state[:lane], state[lane] + 1, *state[lane + 1 :])
