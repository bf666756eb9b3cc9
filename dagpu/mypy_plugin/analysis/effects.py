"""The effects of calling a function: of a nested one on variables of the enclosing scopes, of any on its parameters.

Python looks a captured variable up when the closure runs, so a definition has no effect. A call has the effects of the
body at once. A closure that is passed on may run at any later time: handles that it moves count as moved, and handles
that it reads are lent to the holder of the closure.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from mypy.nodes import Context, FuncItem, NameExpr, Var

from dagpu.mypy_plugin.analysis.builder import GraphBuilder, is_global
from dagpu.mypy_plugin.analysis.graph import (
    EVERYTHING,
    SPENDABLE,
    BlockLoan,
    Body,
    Build,
    Escape,
    Forget,
    Keep,
    Lend,
    Move,
    OpenFeed,
    Path,
    Place,
    Read,
    Rearrange,
    Run,
    Slot,
    Store,
    Touch,
    Yield,
)
from dagpu.mypy_plugin.analysis.module_facts import Closure, Effect, ModuleFacts, Outside, Part
from dagpu.mypy_plugin.analysis.ownership import derived_moves, entry_states
from dagpu.mypy_plugin.analysis.solver import OnAnyWay, at_entry_of, visits
from dagpu.mypy_plugin.typing.type_facts import MOVES, TypeFacts

# ---- closures


def summarise(node: FuncItem, body: Body) -> Closure:
    """Summarise the effects of a lowered body on places of the enclosing scopes.

    For a place that the body reassigns, a use counts only in the entry block, before the assignment. A move counts
    only if the place may still be moved where the body ends.
    """
    closure = Closure(node, body, {}, {}, {}, set(), {})
    free = {slot for root, slot in body.slots.items() if slot not in body.local}
    if not free:
        return closure
    first: set[Outside] = set()
    for block in body.blocks:
        for i in block.instructions:
            match i:
                case Read() | Move() | Lend() | Touch() | Store() | Forget():
                    if i.place.slot in free:
                        _record_use(closure, body, i)
                case _:
                    pass
            if block.index == 0:
                first.update(place for place in closure.uses if place not in closure.assigns)
    for move in derived_moves(body):
        if move.place.slot in free:
            _record_use(closure, body, move)
    if not closure.assigns.isdisjoint(closure.moves):
        closure.moved_at_end.update((place, how) for place, how, _ in moved_at_end(body) if place in closure.assigns)
    for place in closure.assigns:
        if place not in first:
            closure.uses.pop(place, None)
        closure.lends.pop(place, None)
        closure.moves.pop(place, None)
    closure.returns.update(_ops_in_result(body, free))
    return closure


def _ops_in_result(body: Body, free: set[Slot]) -> Iterator[Outside]:
    """Iterate over the enclosing variables with ops that the result of a body is made of."""
    made_of: dict[Slot, set[Slot]] = {}
    for block in body.blocks:
        for i in block.instructions:
            match i:
                case Read() if i.into is not None and not i.place.path and i.keeps & SPENDABLE:
                    made_of[i.into] = {i.place.slot} if i.place.slot in free else made_of.get(i.place.slot, set())
                case Build() if i.into is not None and i.single:
                    made_of[i.into] = set().union(*(made_of.get(part, ()) for part in i.parts))
                case Store() if not i.place.path and i.part is not None:
                    made_of[i.place.slot] = made_of.get(i.part, set())
                case Escape():
                    for slot in made_of.get(i.part, ()):
                        root = body.roots[slot]
                        if root is not None:
                            yield root, ()
                case _:
                    pass


def moved_at_end(body: Body) -> Iterator[tuple[Outside, str, bool]]:
    """Iterate over the named places that may be moved where the body ends, with the words for the move.

    The flag is true for a move that only gives the handle another name.
    """
    for block, state in entry_states(body):
        for i in block.instructions:
            state.step(i)
        if not block.next:
            for moves in state.moved.values():
                for move in moves:
                    root = body.roots[move.place.slot]
                    if root is not None:
                        yield (root, move.place.path), move.how, move.binds


def _record_use(closure: Closure, body: Body, i: Read | Move | Lend | Touch | Store | Forget) -> None:
    root = body.roots[i.place.slot]
    assert root is not None, "an enclosing place has a name"
    place = (root, i.place.path)
    match i:
        case Store():
            closure.assigns.add(place)
        case Forget():
            if i.whole:
                closure.assigns.add(place)
        case Touch():
            closure.uses.setdefault(place, i.inside)
            if i.later:
                closure.keeps.add(place)
        case Move():
            closure.uses.setdefault(place, i.node)
            closure.moves.setdefault(place, i.how)
        case Lend():
            closure.uses.setdefault(place, i.node)
            closure.lends[place] = closure.lends.get(place, False) or i.exclusive
        case Read():
            closure.uses.setdefault(place, i.node)


def use_closure(b: GraphBuilder, closure: Closure, node: Context, *, later: bool) -> Slot | None:
    """Call a closure here, or pass it on, to be called later. Return a slot with the facts of enclosing places that its
    result, or the closure itself, may hold; None if there are none."""
    at_any_time = later or closure.node.is_generator or closure.node.is_coroutine
    parts: list[Slot] = []
    for outside, inside in closure.uses.items():
        place = _place_of(b, outside)
        b.emit(Touch(node, place, inside, closure.node, at_any_time or outside in closure.keeps))
        if outside in closure.assigns:
            continue
        into = b.temporary()
        parts.append(into)
        if outside in closure.moves:
            b.emit(Move(node, place, into, closure.moves[outside]))
        elif outside in closure.lends and (b.in_then or not later):
            b.emit(Lend(node, place, into, closure.lends[outside], captured=later))
        elif later and (outside in closure.lends or _is_owned(b.kinds, outside)):
            b.emit(Lend(node, place, into, exclusive=False, captured=True, reads_only=True))
        else:
            b.emit(Read(node, place, into, EVERYTHING))
            if b.in_then and closure.returns and outside not in closure.returns:  # no part of the op that `then` builds
                parts[-1] = b.temporary()
                b.emit(Build(node, parts[-1], (into,), EVERYTHING))
    if closure.home is b.body:
        parts += closure.defaults
    for outside in closure.assigns:
        place = _place_of(b, outside)
        b.emit(Forget(node, place, whole=True))
        if outside in closure.moved_at_end:
            b.emit(Move(node, place, b.temporary(), closure.moved_at_end[outside], silent=True))
    if not parts:
        return None
    held = b.temporary()
    owner = later and bool(closure.moves)
    b.emit(Build(node, held, tuple(parts), EVERYTHING, owner, single=b.in_then and bool(closure.returns)))
    return held


def _place_of(b: GraphBuilder, outside: Outside) -> Place:
    root, path = outside
    return Place(b.slot(root), path)


def _is_owned(kinds: TypeFacts, outside: Outside) -> bool:
    root, path = outside
    return bool(path) or (isinstance(root, Var) and bool(kinds.kind_of(root.type) & MOVES))


# ---- functions

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


_OfPlace: TypeAlias = Move | Store | Forget | Rearrange


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
        self.untyped = frozenset(
            argument.variable.name
            for argument in node.arguments
            if argument.kind.is_star() or not module.kinds.kind_of(argument.variable.type) & MOVES
        )
        """The parameters whose types say nothing of moves."""
        self.moves = [m for m in (*derived_moves(body), *body.all_of(Move)) if m.place.slot in self.named]
        self.loans = [*body.all_of(Lend), *body.all_of(BlockLoan), *body.all_of(OpenFeed)]
        assigned = (i for i in body.all_of(Forget) if isinstance(i.node, NameExpr))  # a variable of any type
        self.stored = {i.place for i in body.all_of(Store)} | {i.place for i in assigned}
        self.runs: set[str] = set()
        self.keeps: set[tuple[str, str]] = set()
        self.calls: dict[int, list[str]] = {}
        """The parameters that blocks call, by the index of the block."""

    def effect(self) -> Effect:
        body, every = self.body, frozenset(self.named.values())
        self._follow_values()
        whole = [move for move in self.moves if not move.place.path]
        empties = self._names_of(move for move in self.moves if move.place.path)
        consumed = self._names_of(move for move in whole if move.how != _INTO_RESULT) | empties
        at_exit = self._moved_at_exit()
        takes = (self.untyped | self._names_of(whole)) - {part.parameter for part, _ in at_exit if not part.path}
        parts = self._moved_parts() if empties or not takes.isdisjoint(self.shared.values()) else set()
        assigns: list[_OfPlace] = [*body.all_of(Store), *body.all_of(Forget), *body.all_of(Rearrange)]
        moved = self._names_of(move for move in whole if not move.binds) | {root.name for root in body.given_away}
        return Effect(
            takes,
            every - takes,
            frozenset(self.runs),
            empties,
            tuple(sorted(parts - set(at_exit))),
            at_exit,
            tuple(dict.fromkeys(self._used_parts())),
            tuple(sorted(self._lent_parts())) if any(self._is_part(loan.place) for loan in self.loans) else (),
            self._part_in(body.returned),
            tuple(sorted(self._iterated_parts())),
            tuple(sorted(self.keeps)),
            every - self._names_of(assigns),
            tuple(sorted(set(self._borrowed_parts()))),
            frozenset(name for name in moved - (every - self.untyped) if not self._is_stored(Part(name, ()))),
            self._called_again(),
            bool(self.shared),
            self._names_of(whole) - consumed,
        )

    def _names_of(self, instructions: Iterable[_OfPlace]) -> frozenset[str]:
        """Return the parameters that instructions are about."""
        return frozenset(self.named[i.place.slot] for i in instructions if i.place.slot in self.named)

    def _borrowed_parts(self) -> Iterator[tuple[Part, bool]]:
        """Iterate over the parameters, and the attributes of them, that the function lends for a time."""
        for loan in self.loans:
            part = self._part(loan.place)
            if part is not None and not loan.captured and _is_attribute(part.path) and not self._is_stored(part):
                yield part, loan.exclusive

    def _follow_values(self) -> None:
        """Find the parameters that are run, called and kept: of which the values are made for which that is done."""
        made_of: dict[Slot, set[str]] = {slot: {name} for slot, name in self.named.items()}
        for block in self.body.blocks:
            for i in block.instructions:
                match i:
                    case Read() if i.into is not None:
                        made_of[i.into] = made_of.get(i.place.slot, set())
                    case Build() if i.into is not None and i.keeps & SPENDABLE:
                        made_of[i.into] = set().union(*(made_of.get(part, ()) for part in i.parts))
                    case Store() if not i.place.path and i.part is not None:
                        made_of[i.place.slot] = made_of.get(i.part, set())
                    case Keep() if i.slot in self.named:
                        holder = self.named[i.slot]
                        kept = set[str]().union(*(made_of.get(part, ()) for part in i.parts))
                        self.keeps.update((name, holder) for name in kept if name != holder)
                    case Run():
                        run = made_of.get(i.part, set())
                        self.runs |= run
                        if run and i.calls:
                            self.calls.setdefault(block.index, []).extend(run)
                    case _:
                        pass

    def _called_again(self) -> frozenset[str]:
        """Return the parameters that one way through the body calls twice."""
        again: set[str] = set()
        start = at_entry_of(self.body, OnAnyWay(frozenset[str]()))
        for block, called in visits(self.body.blocks, start) if self.calls else ():
            for name in self.calls.get(block.index, ()):
                again.update([name] if name in called.items else [])
                called.items |= {name}
        return frozenset(again)

    def _is_stored(self, part: Part) -> bool:
        """Return True for a part of a parameter that the body assigns: what it does there, it does to another value."""
        stored = ((self.named.get(place.slot), place.path) for place in self.stored)
        return any(name == part.parameter and part.path[: len(path)] == path for name, path in stored)

    # ---- attributes of parameters

    def _part(self, place: Place) -> Part | None:
        """Return a place as a part of a parameter; None for a place in something else."""
        name = self.named.get(place.slot)
        return None if name is None else Part(name, place.path)

    def _is_part(self, place: Place) -> bool:
        """Return True for an attribute of a parameter, and for a variable of the module."""
        named = bool(place.path) or place.slot in self.shared
        return named and place.slot in self.named and _is_attribute(place.path)

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
        for block, state in entry_states(self.body):
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
            if part is not None and place not in before and not binds and _is_attribute(path):
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
        for block, state in entry_states(self.body):
            for i in block.instructions:
                if isinstance(i, Escape) and i.how == _RETURNED:
                    loans = [fact for fact in state.held.get(i.part, ()) if type(fact) is Lend and not fact.captured]
                    for place, exclusive in ((loan.place, loan.exclusive) for loan in loans):
                        if self._is_part(place):
                            found.add((Part(self.named[place.slot], place.path), exclusive))
                state.step(i)
        return found

    def _iterated_parts(self) -> Iterator[Part]:
        """Iterate over the parts of parameters that a generator or an iterator gives one by one."""
        for part in map(self._part, self.body.yielded):
            if part is not None and not (_is_attribute(part.path) and self._is_stored(part)):
                yield part

    def _part_in(self, places: set[Place | None]) -> Part | None:
        """Return the parameter, or the part of one, that all of these places are; None if there is none."""
        place = next(iter(places)) if len(places) == 1 else None
        return None if place is None else self._part(place)


def _is_attribute(path: Path) -> bool:
    """Return True for a path of attributes alone, without items."""
    return all(step[0] == "." for step in path)
