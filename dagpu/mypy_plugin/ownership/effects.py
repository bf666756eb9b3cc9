"""Derives the effect of a function on its parameters from its body."""

from collections.abc import Iterator
from typing import Final

from mypy.nodes import FuncItem, NameExpr

from dagpu.mypy_plugin.ownership.closure_facts import moved_at_end
from dagpu.mypy_plugin.ownership.control_flow import (
    SPENDABLE,
    BasicBlock,
    Body,
    Build,
    Escape,
    Forget,
    Keep,
    Lend,
    Move,
    Place,
    Read,
    Rearrange,
    Run,
    Slot,
    Store,
    Yield,
)
from dagpu.mypy_plugin.ownership.graph_builder import is_global
from dagpu.mypy_plugin.ownership.module_facts import Effect, ModuleFacts, Part
from dagpu.mypy_plugin.ownership.solving.fixpoint import derived_moves, entry_states
from dagpu.mypy_plugin.typing.type_facts import MOVES

_INTO_RESULT: Final = "being returned"
_STAYS: Final = (_INTO_RESULT, "being entered")
"""The words of moves of an attribute that an object keeps: a method that returns one may be called again."""
_RETURNED: Final = "returned from"


def derive_effect(module: ModuleFacts, body: Body) -> Effect:
    """Derive the effect of a function on its parameters from its body."""
    effect = module.derived.get(body)
    if effect is None:
        effect = module.derived[body] = _Derivation(module, body).effect()
    return effect


class _Derivation:
    def __init__(self, module: ModuleFacts, body: Body) -> None:
        node = body.node
        assert isinstance(node, FuncItem)
        self.body = body
        self.named = {body.slots[argument.variable]: argument.variable.name for argument in node.arguments}
        """The names of the parameters, by slot, and the full names of variables of the module."""
        self.shared = {
            slot: root.fullname
            for root, slot in body.slots.items()
            if slot not in body.local and is_global(root) and module.variable(root.fullname) is root
        }
        self.named |= self.shared
        self.takes = {
            argument.variable.name
            for argument in node.arguments
            if argument.kind.is_star() or not module.kinds.kind_of(argument.variable.type) & MOVES
        }
        self.untyped = frozenset(self.takes)
        self.empties: set[str] = set()
        self.runs: set[str] = set()
        self.keeps: set[tuple[str, str]] = set()
        self.assigned: set[str] = set()
        self.lends = False
        self.lent: set[tuple[Part, bool]] = set()
        self.stored: set[Place] = set()
        self.moved: set[str] = set()
        self.result: set[str] = set()
        """The parameters that move into the result."""
        self.consumed: set[str] = set()
        """Those that move elsewhere."""
        self.calls: dict[str, list[BasicBlock]] = {}
        """The blocks that call a parameter, one for each call."""
        self.made_of: dict[Slot, set[str]] = {slot: {name} for slot, name in self.named.items()}
        """The parameters of which the value in a slot is made."""

    def effect(self) -> Effect:
        for move in derived_moves(self.body):
            self._record_move(move)
        for block in self.body.blocks:
            for i in block.instructions:
                self._record(i, block)
                if isinstance(i, Store | Forget | Rearrange) and i.place.slot in self.named:
                    self.assigned.add(self.named[i.place.slot])
        at_exit = self._moved_at_exit()
        self.takes.difference_update(part.parameter for part, _ in at_exit if not part.path)
        parts = self._moved_parts() if self.empties or not self.takes.isdisjoint(self.shared.values()) else set()
        return Effect(
            frozenset(self.takes),
            frozenset(self.named.values()) - self.takes,
            frozenset(self.runs),
            frozenset(self.empties),
            tuple(sorted(parts - set(at_exit))),
            at_exit,
            tuple(dict.fromkeys(self._used_parts())),
            tuple(sorted(self._lent_parts())) if self.lends else (),
            self._given_part(),
            self._part_in(self.body.yielded),
            tuple(sorted(self.keeps)),
            frozenset(self.named.values()) - self.assigned,
            tuple(sorted((part, exclusive) for part, exclusive in self.lent if not self._is_stored(part))),
            frozenset(name for name in self._moved_untyped() if not self._is_stored(Part(name, ()))),
            frozenset(name for name, blocks in self.calls.items() if _may_run_twice(blocks)),
            bool(self.shared),
            frozenset(self.result - self.consumed),
        )

    def _record(self, i: object, block: BasicBlock) -> None:
        made_of = self.made_of
        match i:
            case Move():
                self._record_move(i)
            case Read() if i.into is not None:
                made_of[i.into] = made_of.get(i.place.slot, set())
            case Build() if i.into is not None and i.keeps & SPENDABLE:
                made_of[i.into] = set().union(*(made_of.get(part, ()) for part in i.parts))
            case Store():
                self.stored.add(i.place)
                if not i.place.path and i.part is not None:
                    made_of[i.place.slot] = made_of.get(i.part, set())
            case Forget() if isinstance(i.node, NameExpr):  # an assignment to a variable of any type
                self.stored.add(i.place)
            case Keep() if i.slot in self.named:
                holder = self.named[i.slot]
                kept = set[str]().union(*(made_of.get(part, ()) for part in i.parts))
                self.keeps.update((name, holder) for name in kept if name != holder)
            case Run():
                self.runs |= made_of.get(i.part, set())
                for name in made_of.get(i.part, ()) if i.calls else ():
                    self.calls.setdefault(name, []).append(block)
            case Lend():
                self.lends = self.lends or self._is_part(i.place)
                part = self._part(i.place)
                if part is not None and not i.captured and all(step[0] == "." for step in part.path):
                    self.lent.add((part, i.exclusive))
            case _:
                pass

    def _record_move(self, move: Move) -> None:
        if move.place.slot in self.named:
            name = self.named[move.place.slot]
            (self.empties if move.place.path else self.takes).add(name)
            (self.result if move.how == _INTO_RESULT and not move.place.path else self.consumed).add(name)
            if not move.place.path and not move.binds:
                self.moved.add(self.named[move.place.slot])

    def _is_stored(self, part: Part) -> bool:
        """Return True for a part of a parameter that the body assigns: what it does there, it does to another value."""
        stored = ((self.named.get(place.slot), place.path) for place in self.stored)
        return any(name == part.parameter and part.path[: len(path)] == path for name, path in stored)

    def _moved_untyped(self) -> set[str]:
        """Return the parameters that the body moves although their types say nothing of moves."""
        typed = set(self.named.values()) - self.untyped
        return (self.moved | {root.name for root in self.body.given_away}) - typed

    # ---- attributes of parameters

    def _part(self, place: Place) -> Part | None:
        """Return a place as a part of a parameter; None for a place in something else."""
        name = self.named.get(place.slot)
        return None if name is None else Part(name, place.path)

    def _is_part(self, place: Place) -> bool:
        """Return True for an attribute of a parameter, and for a variable of the module."""
        if place.slot not in self.named or not all(step[0] == "." for step in place.path):
            return False
        return bool(place.path) or place.slot in self.shared

    def _moved_parts(self) -> set[tuple[Part, str]]:
        """Return the attributes of parameters that have moved where the body ends, and not only to another name."""
        return {
            (Part(self.named[self.body.slots[root]], path), how)
            for (root, path), how, binds in moved_at_end(self.body)
            if self._is_part(Place(self.body.slots[root], path)) and not binds and not how.startswith(_STAYS)
        }

    def _moved_at_exit(self) -> tuple[tuple[Part, str], ...]:
        """Return what a context manager moves after its `yield`: parameters, and attributes of them."""
        if not getattr(self.body.node, "is_decorated", False):
            return ()
        before: set[Place] = set()
        yields = False
        for block, state in entry_states(self.body, [-1] * len(self.body.blocks)):
            for i in block.instructions:
                if isinstance(i, Yield):
                    yields = True
                    before.update(move.place for moves in state.moved.values() for move in moves)
                state.step(i)
        if not yields:
            return ()
        after: set[tuple[Part, str]] = set()
        for (root, path), how, binds in moved_at_end(self.body):
            place = Place(self.body.slots[root], path)
            part = self._part(place)
            if part is not None and place not in before and not binds and all(step[0] == "." for step in path):
                after.add((part, how))
        return tuple(sorted(after))

    def _used_parts(self) -> Iterator[Part]:
        """Iterate over the attributes of parameters that the first block uses, before it assigns a part of them."""
        assigned: set[Slot] = set()
        for i in self.body.blocks[0].instructions:
            match i:
                case Store() | Forget() | Rearrange():
                    assigned.add(i.place.slot)
                case Read() | Move() | Lend():
                    if i.place.slot not in assigned and self._is_part(i.place):
                        yield Part(self.named[i.place.slot], i.place.path)
                case _:
                    pass

    def _lent_parts(self) -> set[tuple[Part, bool]]:
        """Return the attributes of parameters that the result of a body borrows."""
        found: set[tuple[Part, bool]] = set()
        for block, state in entry_states(self.body, [-1] * len(self.body.blocks)):
            for i in block.instructions:
                if isinstance(i, Escape) and i.how == _RETURNED:
                    loans = [fact for fact in state.held.get(i.part, ()) if type(fact) is Lend and not fact.captured]
                    for place, exclusive in ((loan.place, loan.exclusive) for loan in loans):
                        if self._is_part(place):
                            found.add((Part(self.named[place.slot], place.path), exclusive))
                state.step(i)
        return found

    def _given_part(self) -> Part | None:
        """Return the parameter, or the part of one, that each `return` of a body returns; None if there is none."""
        return self._part_in(self.body.returned)

    def _part_in(self, places: set[Place | None]) -> Part | None:
        place = next(iter(places)) if len(places) == 1 else None
        return None if place is None else self._part(place)


def _may_run_twice(blocks: list[BasicBlock]) -> bool:
    """Return True if one path runs two of these blocks, or one of them twice."""
    wanted = set(blocks)
    todo = [follower for block in wanted for follower in block.next]
    seen: set[int] = set()
    while todo and len(wanted) == len(blocks):
        block = todo.pop()
        if block in wanted:
            return True
        if id(block) not in seen:
            seen.add(id(block))
            todo += block.next
    return len(wanted) < len(blocks)
