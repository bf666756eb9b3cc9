"""The data-flow state at one point of a body: handles that have moved, loans with their holders, and ops that have run.

The three sets are joined by union: a handle counts as moved if it has moved on one path.
"""

import heapq
from collections.abc import Iterator
from typing import TypeAlias, TypeVar

from dagpu.mypy_plugin.ownership.control_flow import (
    EVERYTHING,
    EXCLUSIVE,
    FEED,
    SHARED,
    SPENDABLE,
    AskFeed,
    BasicBlock,
    Body,
    Build,
    CloseFeed,
    Escape,
    Forget,
    Instruction,
    Keep,
    Lend,
    Move,
    OpenFeed,
    Path,
    Read,
    Run,
    Slot,
    Store,
    Touch,
)

_K = TypeVar("_K")
_V = TypeVar("_V")

Held: TypeAlias = frozenset[Lend | Build]
"""Facts that a slot holds: loans, and ops that own the handles moved into them."""
NOTHING: Held = frozenset()


class Dataflow:
    """The facts at one point of a body."""

    __slots__ = ("held", "lent", "moved", "spent")

    def __init__(self, lent: frozenset[Slot]) -> None:
        self.lent = lent
        """Slots that are borrowed anywhere in the body."""
        self.moved: dict[Slot, frozenset[Move]] = {}
        self.held: dict[Slot, Held] = {}
        self.spent: dict[Build, frozenset[Run]] = {}

    def pruned(self, live: int) -> "Dataflow":
        """Return a copy with the facts about these live slots; `live` has one bit for each slot."""
        state = Dataflow(self.lent)
        if self.moved:
            state.moved = {slot: moves for slot, moves in self.moved.items() if live >> slot & 1}
        if self.held:
            state.held = {slot: facts for slot, facts in self.held.items() if live >> slot & 1}
        if self.spent:
            kept = NOTHING.union(*state.held.values())
            state.spent = {op: runs for op, runs in self.spent.items() if op in kept}
        return state

    def join(self, other: "Dataflow") -> bool:
        """Add the facts of another path. Return True if one of them was new."""
        return (
            _join_facts(self.moved, other.moved)
            | _join_facts(self.held, other.held)
            | _join_facts(self.spent, other.spent)
        )

    def step(self, i: Instruction) -> None:
        """Apply the effect of one instruction to this state."""
        match i:
            case Read():
                if i.into is not None:
                    self._set_held(i.into, self.held.get(i.place.slot, NOTHING), i.keeps)
            case Build():
                self._build(i)
            case Move():
                self._move(i)
            case Lend():
                self.held[i.into] = self.held.get(i.place.slot, NOTHING) | {i}
            case Store():
                self._store(i)
            case Keep():
                facts = self.held.get(i.slot, NOTHING).union(*(self.held.get(part, NOTHING) for part in i.parts))
                if facts:
                    self.held[i.slot] = facts
            case Forget():
                self._forget(i.place.slot, i.place.path, i.whole)
            case Run():
                self._run(i)
            case CloseFeed():
                self._close_feed(i)
            case Escape() | Touch() | AskFeed():
                pass

    def _set_held(self, slot: Slot, facts: Held, keeps: int) -> None:
        if facts and keeps != EVERYTHING:
            facts = frozenset(fact for fact in facts if _bit_of(fact) & keeps)
        if facts:
            self.held[slot] = facts
        else:
            self.held.pop(slot, None)

    def _build(self, i: Build) -> None:
        if i.into is None:
            return
        held = self.held
        facts = NOTHING
        for part in i.parts:
            facts |= held.get(part, NOTHING)
        if i.owner:
            facts |= {i}
            self.spent.pop(i, None)
        self._set_held(i.into, facts, i.keeps)

    def _move(self, i: Move) -> None:
        slot, path = i.place
        facts = self.held.get(slot, NOTHING)
        if facts:
            self.held[i.into] = facts
            if not path:
                del self.held[slot]
        before = self.moved.get(slot)
        if before is None or not path:
            self.moved[slot] = frozenset((i,))
        else:
            self.moved[slot] = frozenset(m for m in before if m.place.path[: len(path)] != path) | {i}

    def _store(self, i: Store) -> None:
        slot, path = i.place
        if slot in self.lent:
            for holder, facts in list(self.held.items()):  # loans of the old value are not loans of the new one
                left = frozenset(
                    fact
                    for fact in facts
                    if not (isinstance(fact, Lend) and fact.place.slot == slot and fact.place.path[: len(path)] == path)
                )
                if len(left) != len(facts):
                    self.held[holder] = left
        self._forget(slot, path, whole=True)
        if not path:
            self._set_held(slot, NOTHING if i.part is None else self.held.get(i.part, NOTHING), i.keeps)

    def _run(self, i: Run) -> None:
        for op in self.held.get(i.part, NOTHING):
            if isinstance(op, Build):
                self.spent[op] = frozenset((i,))

    def _close_feed(self, i: CloseFeed) -> None:
        for holder, facts in self.held.items():
            if i.loan in facts:
                self.held[holder] = facts - {i.loan} | {i.left}

    def _forget(self, slot: Slot, path: Path, whole: bool) -> None:
        moves = self.moved.get(slot)
        if moves is None:
            return
        n = len(path)
        left = frozenset(m for m in moves if m.place.path[:n] != path or (not whole and len(m.place.path) == n))
        if left:
            self.moved[slot] = left
        else:
            del self.moved[slot]


def _bit_of(fact: Lend | Build) -> int:
    if isinstance(fact, Build):
        return SPENDABLE
    if isinstance(fact, OpenFeed):
        return FEED
    return EXCLUSIVE if fact.exclusive else SHARED


def _join_facts(mine: dict[_K, frozenset[_V]], theirs: dict[_K, frozenset[_V]]) -> bool:
    new = False
    for key, facts in theirs.items():
        before = mine.get(key)
        if before is None:
            mine[key] = facts
            new = True
        elif not facts <= before:
            mine[key] = before | facts
            new = True
    return new


def entry_states(body: Body, live: list[int]) -> Iterator[tuple[BasicBlock, Dataflow]]:
    """Iterate over the blocks, each with the state at its entry, which the caller must `step` through the block."""
    lent = frozenset(i.place.slot for block in body.blocks for i in block.instructions if isinstance(i, Lend))
    states: list[Dataflow | None] = [None] * len(body.blocks)
    states[0] = Dataflow(lent)
    if any(follower.index <= block.index for block in body.blocks for follower in block.next):
        _solve(body, live, states)
        for block in body.blocks:
            state = states[block.index]
            assert state is not None, "every block is reachable"
            yield block, state
        return
    for block in body.blocks:
        state = states[block.index]
        assert state is not None, "a predecessor has been visited"
        yield block, state
        for follower in block.next:
            _join_into(state, follower, live, states)


def _join_into(state: Dataflow, to: BasicBlock, live: list[int], states: list[Dataflow | None]) -> bool:
    """Join the state at the end of a block into the entry state of a successor. Return True if that one changed."""
    coming = state.pruned(live[to.index])
    known = states[to.index]
    if known is None:
        states[to.index] = coming
        return True
    return known.join(coming)


def _solve(body: Body, live: list[int], states: list[Dataflow | None]) -> None:
    """Compute the least fixed point of the entry states; needed for bodies with loops."""
    todo, waiting = [0], {0}
    while todo:
        index = heapq.heappop(todo)
        waiting.discard(index)
        block, begin = body.blocks[index], states[index]
        assert begin is not None
        state = begin.pruned(-1)
        for i in block.instructions:
            state.step(i)
        for follower in block.next:
            if _join_into(state, follower, live, states) and follower.index not in waiting:
                waiting.add(follower.index)
                heapq.heappush(todo, follower.index)
