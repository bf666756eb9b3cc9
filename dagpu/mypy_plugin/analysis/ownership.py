"""The data-flow state at each point of a body: what has moved, what is lent to whom, what has run, what is shared.

The sets are joined by union: a handle counts as moved if it has moved on one path. The state at the entry of each block
is the least fixed point of the effects of all blocks.

A pair of places shares a value with all its parts, unless both end in `SAME_ITEM`. Then the places are two containers
of the same items: `us = list(ts)`. To assign an item of one of these changes nothing in the other. `us[?]` and `ts[*]`
are a pair if the items of `ts` are among those of `us`: all that moves out of `us` moves out of `ts`, and what moves
out of `ts` is one of `us`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from dagpu.mypy_plugin.analysis.graph import (
    ANY_ITEM,
    EVERYTHING,
    EXCLUSIVE,
    FEED,
    ONE_ITEM,
    SAME_ITEM,
    SHARED,
    SPENDABLE,
    UNKNOWN_ITEMS,
    BasicBlock,
    BlockLoan,
    Body,
    Build,
    EndLoan,
    Forget,
    Instruction,
    Keep,
    Lend,
    Move,
    OpenFeed,
    Path,
    Place,
    Read,
    Rearrange,
    Run,
    Share,
    Slot,
    Store,
    covers,
)
from dagpu.mypy_plugin.analysis.solver import at_entry_of, visits

# ---- places that share a value

_K = TypeVar("_K")
_V = TypeVar("_V")
Pairs: TypeAlias = frozenset[tuple[Path, Place]]
"""Paths into one slot, each with another place that has the same value."""


class Sharing:
    """The pairs of places that share a value."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: dict[Slot, Pairs] = {}

    def others(self, place: Place) -> list[Place]:
        """Return the other places that have the value of a place."""
        found = (counterpart(place.path, path, other) for path, other in self.pairs.get(place.slot, ()))
        return [other for other in found if other is not None]

    def possible_others(self, place: Place) -> list[Place]:
        """Return the other places that may have the value of a place: a loop's variable was one of the items."""
        return [other for path, other in self.pairs.get(place.slot, ()) if covers(path, place.path)]

    def parts(self, whole: Place, new: Place) -> Iterator[tuple[Place, Place]]:
        """Iterate over the parts of a place that share a value, each as the part of `new` that has it, too."""
        for path, other in list(self.pairs.get(whole.slot, ())):
            part = counterpart(path, whole.path, new) if path != whole.path and path[-1:] != (ANY_ITEM,) else None
            if part is not None:
                yield part, other

    def link(self, a: Place, b: Place) -> None:
        """Let two places share a value."""
        if a != b:
            for one, other in ((a, b), (b, a)):
                self.pairs[one.slot] = self.pairs.get(one.slot, frozenset()) | {(one.path, other)}

    def unlink(self, slot: Slot, path: Path) -> None:
        """Record that a place has another value now: it shares nothing, and neither do its parts."""
        for own, other in self.pairs.get(slot, ()):
            if own[: len(path)] == path or may_be_item(own, path):
                self._remove(Place(slot, own), other)

    def rearrange(self, i: Rearrange, container: Place) -> None:
        """Let the items of a container share with others what is known of them afterwards."""
        for path, other in self.pairs.get(container.slot, ()):
            after = i.after(container, path)
            if after != path:
                self._remove(Place(container.slot, path), other)
            if after is not None and after != path:
                to = Place(other.slot, (*other.path[:-1], ANY_ITEM)) if pairs_items(other.path) else other
                self.link(Place(container.slot, after), to)

    def pruned(self, named: int) -> "Sharing":
        """Return a copy with the pairs of these slots; `named` has one bit for each slot."""
        left = Sharing()
        for slot, pairs in self.pairs.items():
            if named >> slot & 1 and (kept := frozenset(pair for pair in pairs if named >> pair[1].slot & 1)):
                left.pairs[slot] = kept
        return left

    def _remove(self, place: Place, other: Place) -> None:
        for one, paired in ((place, other), (other, place)):
            put(self.pairs, one.slot, self.pairs.get(one.slot, frozenset()) - {(one.path, paired)})


def pairs_items(path: Path) -> bool:
    """Return True if only the items of the container at a path are shared."""
    return path[-1:] == (SAME_ITEM,)


def counterpart(path: Path, paired: Path, other: Place) -> Place | None:
    """Return the place that has the value at `path`, if `other` shares the value at `paired`; None if there is none."""
    n = len(paired)
    if path[:n] == paired:
        return other.inside(path[n:])
    if len(path) < n or path[: n - 1] != paired[:-1] or path[n - 1][0] != "[":
        return None
    if pairs_items(paired):
        if pairs_items(other.path):
            other = Place(other.slot, (*other.path[:-1], path[n - 1]))
        return other.inside(path[n:])
    all_of_them = path[n - 1] == ANY_ITEM and paired[-1] == ONE_ITEM
    one_of_others = paired[-1] == ANY_ITEM and other.path[-1:] == (ONE_ITEM,)
    return other.inside(path[n:]) if all_of_them or one_of_others else None


def may_be_item(moved: Path, stored: Path) -> bool:
    """Return True if an item that is assigned may be the one that has moved: it was any of them, or is counted from the
    other end."""
    n = len(stored)
    if not n or len(moved) < n or moved[: n - 1] != stored[:-1] or moved[n - 1][0] != "[" or stored[-1][0] != "[":
        return False
    steps = moved[n - 1], stored[-1]
    return any(step in UNKNOWN_ITEMS for step in steps) or (steps[0][1] == "-") != (steps[1][1] == "-")


# ---- the state

Held: TypeAlias = frozenset[Lend | Build]
"""Facts that a slot holds: loans, and ops that own the handles moved into them."""
NOTHING: Held = frozenset()


@dataclass(eq=False, repr=False, slots=True)
class WholeBody:
    """Facts about a whole body, which all of its states use."""

    lent: int
    """The slots that are borrowed anywhere in it, one bit for each."""
    derived: dict[tuple[Move, Place], Move] = field(default_factory=dict)
    """The moves out of places that share a handle with the place of a move."""


class Dataflow:
    """The facts at one point of a body."""

    __slots__ = ("held", "moved", "sharing", "spent", "whole")

    def __init__(self, whole: WholeBody) -> None:
        self.whole = whole
        self.sharing = Sharing()
        self.moved: dict[Slot, frozenset[Move]] = {}
        self.held: dict[Slot, Held] = {}
        self.spent: dict[Build, frozenset[Run]] = {}

    def pruned(self, live: int) -> "Dataflow":
        """Return a copy with the facts about these live slots; `live` has one bit for each slot."""
        state = Dataflow(self.whole)
        if self.sharing.pairs:  # a loan of one name is a loan of the others, also if that name is not used
            state.sharing = self.sharing.pruned(live | self.whole.lent)
        if self.moved:
            state.moved = {slot: moves for slot, moves in self.moved.items() if live >> slot & 1}
        if self.held:
            state.held = {slot: facts for slot, facts in self.held.items() if live >> slot & 1}
        if self.spent:
            kept = NOTHING.union(*state.held.values())
            state.spent = {op: runs for op, runs in self.spent.items() if op in kept}
        return state

    def copy(self) -> "Dataflow":
        """Return a copy."""
        return self.pruned(-1)

    def join(self, other: "Dataflow") -> bool:
        """Add the facts of another path. Return True if one of them was new."""
        return (
            _join_facts(self.moved, other.moved)
            | _join_facts(self.held, other.held)
            | _join_facts(self.spent, other.spent)
            | _join_facts(self.sharing.pairs, other.sharing.pairs)
        )

    def step(self, i: Instruction) -> None:
        """Apply the effect of one instruction to this state."""
        apply = self.EFFECTS.get(type(i))
        if apply is not None:
            apply(self, i)

    def _read(self, i: Read) -> None:
        if i.into is not None:
            self._set_held(i.into, self.held.get(i.place.slot, NOTHING), i.keeps)

    def _lend(self, i: Lend) -> None:
        self.held[i.into] = self.held.get(i.place.slot, NOTHING) | {i}

    def _keep(self, i: Keep) -> None:
        facts = self.held.get(i.slot, NOTHING).union(*(self.held.get(part, NOTHING) for part in i.parts))
        if facts:
            self.held[i.slot] = facts

    def _forget_parts(self, i: Forget) -> None:
        self._forget(i.place.slot, i.place.path, i.whole)
        if i.place.slot in self.sharing.pairs:
            for other in self.sharing.others(i.place):
                self._forget(other.slot, other.path, whole=False)

    def _rearrange(self, i: Rearrange) -> None:
        for container in (i.place, *self.sharing.others(i.place)):
            self._rearrange_items(i, container)

    def _rearrange_items(self, i: Rearrange, container: Place) -> None:
        slot = container.slot
        if slot in self.sharing.pairs:
            self.sharing.rearrange(i, container)
        self._end_loans(slot, lambda lent: i.after(container, lent) != lent)
        moves = set[Move]()
        for move in self.moved.get(slot, ()):
            after = i.after(container, move.place.path)
            if after is not None:
                moves.add(move if after == move.place.path else self._derive(move, Place(slot, after)))
        put(self.moved, slot, frozenset(moves))

    def _end_loans(self, slot: Slot, ends: Callable[[Path], bool]) -> None:
        """Forget the loans of those parts of a slot that lead to another value from here on."""
        if not self.whole.lent >> slot & 1:
            return
        for holder, facts in list(self.held.items()):
            left = frozenset(
                fact
                for fact in facts
                if not (isinstance(fact, Lend) and fact.place.slot == slot and ends(fact.place.path))
            )
            if len(left) != len(facts):
                self.held[holder] = left

    def _set_held(self, slot: Slot, facts: Held, keeps: int) -> None:
        if facts and keeps != EVERYTHING:
            facts = frozenset(fact for fact in facts if _bit_of(fact) & keeps)
        put(self.held, slot, facts)

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
        if slot in self.sharing.pairs and not i.binds:
            for other in self.sharing.others(i.place):
                self._add_move(i, other)

    # ---- places that share a value

    def _share(self, i: Share) -> None:
        slot, path = i.other
        if i.follows:
            for move in self.moved.get(slot, ()):
                if not move.binds:
                    moved = _moved_part(move.place.path, path, i.place)
                    if moved is not None:
                        self._add_move(move, moved)
        if i.links:
            sharing = self.sharing
            if i.itself:
                sharing.link(i.place, i.other)
            if i.alone:
                return
            for other in sharing.others(i.other):
                sharing.link(i.place, other)
            for part, other in sharing.parts(i.other, i.place):
                sharing.link(part, other)

    def _add_move(self, move: Move, place: Place) -> None:
        """Record that a move has taken the handle of another place as well."""
        self.moved[place.slot] = self.moved.get(place.slot, frozenset()) | {self._derive(move, place)}

    def _derive(self, move: Move, place: Place) -> Move:
        key = move, place
        derived = self.whole.derived.get(key)
        if derived is None:
            derived = self.whole.derived[key] = replace(move, place=place, silent=True)
        return derived

    # ---- further instructions

    def _store(self, i: Store) -> None:
        slot, path = i.place
        self._end_loans(slot, lambda lent: lent[: len(path)] == path)  # loans of the old value are none of the new one
        self._forget(slot, path, whole=True)
        if slot in self.sharing.pairs:
            if path:  # the other names of the container have another item there, too
                for other in self.sharing.others(Place(slot, path[:-1])):
                    self._forget(other.slot, (*other.path, path[-1]), whole=True)
            self.sharing.unlink(slot, path)
        if not path:
            self._set_held(slot, NOTHING if i.part is None else self.held.get(i.part, NOTHING), i.keeps)

    def _run(self, i: Run) -> None:
        for op in self.held.get(i.part, NOTHING):
            if isinstance(op, Build) and (op.function or not i.calls):
                self.spent[op] = frozenset((i,))

    def _end_loan(self, i: EndLoan) -> None:
        for holder, facts in self.held.items():
            if i.loan in facts:
                self.held[holder] = facts - {i.loan} | {i.left}

    def _forget(self, slot: Slot, path: Path, whole: bool) -> None:
        moves = self.moved.get(slot)
        if moves is None:
            return
        n = len(path)
        left = frozenset(
            m
            for m in moves
            if (m.place.path[:n] != path and not may_be_item(m.place.path, path))
            or (not whole and len(m.place.path) == n)
        )
        put(self.moved, slot, left)

    EFFECTS: ClassVar[dict[type[Instruction], Callable[["Dataflow", Any], None]]] = {
        Read: _read,
        Build: _build,
        Move: _move,
        Share: _share,
        Lend: _lend,
        BlockLoan: _lend,
        OpenFeed: _lend,
        Store: _store,
        Keep: _keep,
        Forget: _forget_parts,
        Rearrange: _rearrange,
        Run: _run,
        EndLoan: _end_loan,
    }
    """The effect of each class of instructions on the facts; the others have none. A table is faster than `match`."""


def _moved_part(moved: Path, shared: Path, place: Place) -> Place | None:
    """Return the part of a place that has moved, if it has the value at a path `shared`, where `moved` has moved."""
    if pairs_items(shared):
        return counterpart(moved, shared, place)
    return place.inside(moved[len(shared) :]) if covers(moved, shared) or covers(shared, moved) else None


def _bit_of(fact: Lend | Build) -> int:
    if isinstance(fact, Build):
        return SPENDABLE
    if isinstance(fact, OpenFeed):
        return FEED
    return EXCLUSIVE if fact.exclusive else SHARED


def put(facts: dict[_K, frozenset[_V]], key: _K, new: frozenset[_V]) -> None:
    """Let these be the facts about something. Nothing stands for no facts."""
    if new:
        facts[key] = new
    else:
        facts.pop(key, None)


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


# ---- the least fixed point


def derived_moves(body: Body) -> Iterable[Move]:
    """Return the moves out of places that share a handle with the place of a move in this body."""
    if Share not in body.classes():
        return ()
    derived: dict[tuple[Move, Place], Move] = {}
    for block, state in entry_states(body):
        for i in block.instructions:
            state.step(i)
        derived = state.whole.derived
    return derived.values()


def entry_states(body: Body, live: list[int] | None = None) -> Iterator[tuple[BasicBlock, Dataflow]]:
    """Iterate over the blocks, each with the state at its entry, which the caller must `step` through the block.

    `live`: the slots that are live at the beginning of each block, about which facts are kept; None for all.
    """
    lent = 0
    for loan in (*body.all_of(Lend), *body.all_of(BlockLoan), *body.all_of(OpenFeed)):
        lent |= 1 << loan.place.slot
    states = at_entry_of(body, Dataflow(WholeBody(lent)))
    found = visits(body.blocks, states, lambda state, to: state.pruned(-1 if live is None else live[to.index]))
    looped: list[BasicBlock] = []
    for block, state in found:
        if block.in_loop:
            looped.append(block)
            for i in block.instructions:
                state.step(i)
        else:
            yield from _complete(looped, states)
            looped.clear()
            yield block, state
    yield from _complete(looped, states)


def _complete(looped: list[BasicBlock], states: list[Dataflow | None]) -> Iterator[tuple[BasicBlock, Dataflow]]:
    """Iterate over the blocks of loops that the solver has left, each once, with the state at its entry."""
    for block in sorted(set(looped), key=lambda block: block.index):
        state = states[block.index]
        assert state is not None, "something has come to it"
        yield block, state
