"""Enumerates all executions of a small plan, up to the order of steps that do not touch the same memory.

Two executions that differ only in the order of independent steps have the same results, so one of each equivalence
class is enough (Mazurkiewicz, Trace theory, 1986). Classes are enumerated with sleep sets (Godefroid, Partial-Order
Methods for the Verification of Concurrent Systems, 1996): after the executions that begin with a step have been seen,
that step "sleeps" in those that begin otherwise, until a step that conflicts with it wakes it. A step without an
unordered conflict is done at once, which makes the search fast:

    a plan that orders every conflict has one class, however many interleavings there are.

The search is a proof that is independent of `verify`. It compares addresses in the arenas, not the names of buffers.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import final

from dagpu.backends.explore.script import (
    ALLOCATE,
    BEGIN,
    PUBLISH,
    RECORD,
    RELEASE,
    WAIT,
    Action,
    Places,
    Script,
    places_of,
    script_of,
)
from dagpu.plans.plan import Plan

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
