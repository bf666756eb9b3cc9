"""Effects of nested functions and lambdas on the variables of the enclosing scopes.

Python looks a captured variable up when the closure runs, so a definition has no effect. A call has the effects of the
body at once. A closure that is passed on may run at any later time: handles that it moves count as moved, and handles
that it reads are lent to the holder of the closure.
"""

from collections.abc import Iterator

from mypy.nodes import Context, FuncItem, Var

from dagpu.mypy_plugin.ownership.control_flow import (
    EVERYTHING,
    SPENDABLE,
    Body,
    Build,
    Escape,
    Forget,
    Lend,
    Move,
    Place,
    Read,
    Slot,
    Store,
    Touch,
)
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.module_facts import Closure, Outside
from dagpu.mypy_plugin.ownership.solving.fixpoint import derived_moves, entry_states
from dagpu.mypy_plugin.typing.type_facts import MOVES, TypeFacts


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
    all_live = [-1] * len(body.blocks)
    for block, state in entry_states(body, all_live):
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


def pass_closure_on(b: GraphBuilder, closure: Closure, node: Context) -> Slot | None:
    """Pass a closure on, to be called later. Return a slot that holds its captures; None if it has none."""
    return _emit_captures(b, closure, node, later=True)


def call_closure(b: GraphBuilder, closure: Closure, node: Context) -> Slot | None:
    """Call a closure here. Return a slot with the facts of enclosing places that its result may hold, or None."""
    return _emit_captures(b, closure, node, later=False)


def _emit_captures(b: GraphBuilder, closure: Closure, node: Context, *, later: bool) -> Slot | None:
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
