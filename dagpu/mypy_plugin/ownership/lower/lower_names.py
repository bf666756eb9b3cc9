"""Lowers names, attributes and items: reads of handles, and moves."""

from mypy.nodes import Expression, IndexExpr, MemberExpr, NameExpr, Var

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.closure_facts import pass_closure_on
from dagpu.mypy_plugin.ownership.control_flow import (
    EVERYTHING,
    FEED,
    AskFeed,
    Build,
    Move,
    Place,
    Read,
    Slot,
)
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder, expression
from dagpu.mypy_plugin.ownership.lower.calls.argument_parts import Arguments
from dagpu.mypy_plugin.ownership.lower.calls.operator_calls import lower_operator
from dagpu.mypy_plugin.ownership.lower.lower_functions import property_effect
from dagpu.mypy_plugin.ownership.lower.places import BINDS, function_of, place_of
from dagpu.mypy_plugin.ownership.module_facts import Closure, Effect
from dagpu.mypy_plugin.typing.type_facts import HANDLE, MOVES, method_name


def move_or_read(b: GraphBuilder, e: Expression, place: Place, kind: int, by_value: bool) -> Slot | None:
    """Move the handle out of a place, or read it, and return the slot with its facts."""
    if by_value and kind & MOVES:
        into = b.temporary()
        b.emit(Move(e, place, into, b.how, binds=b.how.startswith(BINDS)))
        return into
    keeps = kind & EVERYTHING
    looked = b.temporary() if keeps else None
    b.emit(Read(e, place, looked, keeps))
    if looked is not None and b.read_by_generator is not None:
        b.read_by_generator.append(looked)
    return looked


@expression(NameExpr)
def _name(b: GraphBuilder, e: NameExpr, by_value: bool) -> Slot | None:
    root = e.node
    if isinstance(root, Var):
        if (closure := b.closures.get(root)) is not None:
            return _closure(b, closure, e, by_value)
        kind = b.kind(e)
        if kind or root in b.module.adopted:
            return move_or_read(b, e, Place(b.slot(root)), kind, by_value)
        b.body.unfollowed.add(root)
        return None
    function = function_of(root)
    if function is not None and (closure := b.closures.get(function)) is not None:
        return _closure(b, closure, e, by_value)
    return None


def _closure(b: GraphBuilder, closure: Closure, e: NameExpr, by_value: bool) -> Slot | None:
    """Lower the name of a closure: it is passed on, or to something of a type that says nothing about it."""
    if by_value:
        return pass_closure_on(b, closure, e)
    b.body.opaque.update(root for root, _ in closure.uses)
    return None


@expression(MemberExpr)
def _member(b: GraphBuilder, e: MemberExpr, by_value: bool) -> Slot | None:
    kind = b.kind(e)
    if b.kind(e.expr) == FEED and method_name(b.types.get(e.expr), e.name) in names.OUTLASTS_FEED:
        if place_of(b, e.expr) is None:
            b.read(e.expr)
        return None
    if (found := property_effect(b, e)) is not None:
        return _property(b, e, *found, by_value)
    if kind:
        place = place_of(b, e)
        if place is not None:
            return move_or_read(b, e, place, kind, by_value)
        if b.kind(e.expr) & HANDLE and (how := names.MOVES_SELF.get(method_name(b.types.get(e.expr), e.name) or "")):
            b.how = how  # `f = t.share` counts as a move at the binding, because the call comes later
            moved, into = b.value(e.expr), b.temporary()
            b.emit(Build(e, into, () if moved is None else (moved,), EVERYTHING, owner=True, function=True))
            return into
    return build_part(b, e, b.read(e.expr), kind)


def _property(b: GraphBuilder, e: MemberExpr, itself: str, effect: Effect, by_value: bool) -> Slot | None:
    """Lower a property, whose function has an effect on the object: it uses, moves, lends or returns attributes."""
    kind, held, place = b.kind(e), b.read(e.expr), place_of(b, e.expr)
    parts = [] if held is None else [held]
    if place is not None:
        whole = Arguments(b, e, effect, {}, {itself: place})
        whole.use_parts()
        parts += whole.move_parts()
        given = None if effect.gives is None else whole.place(effect.gives)
        if given is not None and kind:
            return move_or_read(b, e, given, kind, by_value)
    keeps = kind & EVERYTHING
    into = b.temporary() if keeps else None
    b.emit(Build(e, into, tuple(parts), keeps))
    return into


@expression(IndexExpr)
def _index(b: GraphBuilder, e: IndexExpr, by_value: bool) -> Slot | None:
    if e.analyzed is not None:
        return None  # a type application: `trio.open_memory_channel[int]`
    kind = b.kind(e)
    if kind:
        place = place_of(b, e)
        if place is not None:
            return move_or_read(b, e, place, kind, by_value)
    found = lower_operator(b, e, e.base, "__getitem__", [e.index])
    if found is not False:
        return found
    base = b.read(e.base)
    b.read(e.index)
    b.may_raise()
    return build_part(b, e, base, kind)


def build_part(b: GraphBuilder, e: Expression, base: Slot | None, kind: int) -> Slot | None:
    """Build a part of a value. It holds the facts of the value that the part's type can hold."""
    keeps = kind & EVERYTHING
    if base is None:
        return None
    into = b.temporary() if keeps else None
    b.emit(Build(e, into, (base,), keeps))
    return into


def ask_feed(b: GraphBuilder, e: Expression) -> Slot | None:
    """Read an expression, and ask it for values if it is a feed. Return the slot with the facts of its values."""
    held = b.read(e)
    if b.kind(e) != FEED:
        return held
    if held is not None:
        b.emit(AskFeed(e, Place(held)))
    return None
