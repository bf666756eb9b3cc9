"""Finds the places that share a value: the components of a tuple under all of their names.

After `a, b = pair` the first component is `a`, `pair[0]` and `pair[-2]`; after `for t in ts` each round's `t` is one of
the items of `ts`. A handle that moves out of one of these places has moved out of the others.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from mypy.nodes import (
    AssignmentExpr,
    CallExpr,
    CastExpr,
    Context,
    Expression,
    IndexExpr,
    ListExpr,
    MemberExpr,
    NameExpr,
    SliceExpr,
    StarExpr,
    TupleExpr,
)
from mypy.patterns import (
    AsPattern,
    ClassPattern,
    MappingPattern,
    OrPattern,
    Pattern,
    SequencePattern,
    StarredPattern,
)
from mypy.types import Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin.ownership.control_flow import ANY_ITEM, Place, Share
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.lower_places import (
    has_variable_index,
    integer_of,
    item_step,
    length_of,
    match_arguments,
    place_of,
    step_of,
)
from dagpu.mypy_plugin.typing.type_facts import MOVES, attribute_type, method_name


@dataclass(frozen=True, slots=True)
class Known:
    """A value that lies in a place."""

    place: Place
    type: Type | None
    itself: bool = True
    """False for a handle that has moved out of the place on the way."""
    length: int | None = None
    """The number of items of a list, where it is known."""


@dataclass(frozen=True, slots=True)
class Components:
    """A tuple of values."""

    items: tuple["Origin | None", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, another one in each round of a loop."""

    options: tuple["Origin | None", ...]
    evaluated: bool = False
    """True for the items of a display, whose evaluation has read them."""


Origin: TypeAlias = Known | Components | Choice

_CONTAINERS: Final = frozenset({"builtins.list", "builtins.tuple", "builtins.set", "builtins.frozenset"})
_PASSES_ITEMS: Final = frozenset({f"builtins.{name}" for name in ("reversed", "iter", "list", "tuple", "sorted")})


def origin_of(b: GraphBuilder, e: Expression, *, moves: bool) -> Origin | None:
    """Return the places in which the value of an expression lies. `moves`: a named handle has moved out of its place.

    Return None for a value without handles, and for one that lies nowhere else.
    """
    match e:
        case NameExpr() | MemberExpr():
            return _origin_of_place(b, e, moves)
        case IndexExpr() if isinstance(e.index, SliceExpr):
            return _slice_of(b, e, e.index, moves)
        case IndexExpr():
            return _origin_of_place(b, e, moves)
        case TupleExpr() | ListExpr():
            items: list[Origin | None] = []
            for item in e.items:
                if not isinstance(item, StarExpr):
                    items.append(origin_of(b, item, moves=moves))
                    continue
                inner = items_of(origin_of(b, item.expr, moves=False))
                if inner is None:
                    break  # of unknown length: the items after it have unknown places
                items += inner
            return Components(tuple(items)) if any(items) else None
        case AssignmentExpr():
            return origin_of(b, e.target, moves=False)
        case CastExpr():
            return origin_of(b, e.expr, moves=moves)
        case _:
            return None


def _origin_of_place(b: GraphBuilder, e: Expression, moves: bool) -> Known | None:
    t = b.types.get(e)
    if not b.kinds.may_own(t):
        return None
    place = place_of(b, e)
    if place is None:
        return None
    moved = moves and b.kind(e) & MOVES and not has_variable_index(place)
    return Known(place, t, not moved, length_of(b, e))


def origin_of_target(b: GraphBuilder, target: Expression, value: Type | None) -> Origin | None:
    """Return the places of an assigned target. mypy has no type for an assigned item: it is that of the value."""
    if not isinstance(target, IndexExpr):
        return origin_of(b, target, moves=False)
    place, t = place_of(b, target), b.types.get(target, value)
    return Known(place, t) if place is not None and b.kinds.may_own(t) else None


def _slice_of(b: GraphBuilder, e: IndexExpr, index: SliceExpr, moves: bool) -> Origin | None:
    items = items_of(origin_of(b, e.base, moves=moves))
    ends = [None if end is None else integer_of(b, end) for end in (index.begin_index, index.end_index, index.stride)]
    given = [end is not None for end in (index.begin_index, index.end_index, index.stride)]
    if items is None or any(wanted and end is None for wanted, end in zip(given, ends, strict=True)) or ends[2] == 0:
        return None
    return Components(tuple(items[slice(*ends)]))


def items_of(origin: Origin | None) -> list[Origin | None] | None:
    """Return the components of a tuple; None if their number is not known."""
    match origin:
        case Components():
            return list(origin.items)
        case Known():
            t = get_proper_type(origin.type)
            if isinstance(t, TupleType):
                return [_part(origin, item_step(t, i), item) for i, item in enumerate(t.items)]
            if origin.length is not None and isinstance(t, Instance) and t.args:
                return [_part(origin, f"[{i}]", t.args[0]) for i in range(origin.length)]
            return None
        case Choice():
            found = [items_of(option) for option in origin.options]
            known = [items for items in found if items is not None]
            if not known or len({len(items) for items in known}) > 1:
                return None
            return [Choice(tuple(alternatives)) for alternatives in zip(*known, strict=True)]
        case _:
            return None


def _part(origin: Known, step: str, t: Type | None) -> Known | None:
    place = origin.place.inside((step,))
    return None if place is None else Known(place, t)


def _item_at(origin: Origin | None, index: int) -> Origin | None:
    """Return the item of a tuple or list at an index that is not negative."""
    items = items_of(origin)
    if items is not None:
        return items[index] if index < len(items) else None
    if isinstance(origin, Known):
        t = get_proper_type(origin.type)
        if isinstance(t, Instance) and t.type.fullname in ("builtins.list", "builtins.tuple") and t.args:
            return _part(origin, f"[{index}]", t.args[0])
    return None


# ---- iteration


def element_of(b: GraphBuilder, e: Expression) -> Origin | None:
    """Return the places of the items over which a loop or a comprehension goes."""
    if isinstance(e, CallExpr):
        return _element_of_call(b, e)
    origin = origin_of(b, e, moves=False)
    t = get_proper_type(origin.type) if isinstance(origin, Known) else None
    if isinstance(origin, Known) and isinstance(t, Instance) and t.type.fullname in _CONTAINERS and t.args:
        return _part(origin, ANY_ITEM, t.args[0])
    items = items_of(origin)
    return Choice(tuple(items), isinstance(origin, Components)) if items is not None and any(items) else None


def _element_of_call(b: GraphBuilder, e: CallExpr) -> Origin | None:
    callee = e.callee
    if isinstance(callee, MemberExpr):
        name = method_name(b.types.get(callee.expr), callee.name)
        origin = _origin_of_place(b, callee.expr, moves=False)
        t = get_proper_type(b.types.get(callee.expr))
        if origin is None or not isinstance(t, Instance) or t.type.fullname != "builtins.dict":
            return None
        value = _part(origin, ANY_ITEM, t.args[1])
        if name == "builtins.dict.values":
            return value
        return Components((None, value)) if name == "builtins.dict.items" else None
    if not isinstance(callee, NameExpr) or not e.args:
        return None
    if callee.fullname == "builtins.enumerate":
        return Components((None, element_of(b, e.args[0])))
    if callee.fullname == "builtins.zip":
        return Components(tuple([element_of(b, argument) for argument in e.args]))
    return element_of(b, e.args[0]) if callee.fullname in _PASSES_ITEMS else None


def remember(b: GraphBuilder, node: Context, origin: Origin | None) -> Origin | None:
    """Record before a loop what has moved out of the places over which it goes, and return the places of that record.

    In the loop each round gets another item: what one round moves has not moved for the next.
    """
    match origin:
        case Known():
            copy = Place(b.temporary())
            b.emit(Share(node, copy, origin.place, links=False))
            return replace(origin, place=copy)
        case Components():
            return Components(tuple([remember(b, node, item) for item in origin.items]))
        case Choice() if not origin.evaluated:
            return Choice(tuple([remember(b, node, option) for option in origin.options]))
        case _:
            return None


def share_element(b: GraphBuilder, index: Expression, origin: Origin | None, before: Origin | None) -> None:
    """Share the variables of a loop with the items that they may be."""
    _share_target(b, index, before, lambda place, known: Share(index, place, known.place, links=False))
    _share_target(
        b, index, origin, lambda place, known: Share(index, place, known.place, itself=known.itself, follows=False)
    )


# ---- targets of assignments, and patterns

_Make: TypeAlias = Callable[[Place, Known], Share]


def share(b: GraphBuilder, target: Expression, origin: Origin | None, node: Context) -> None:
    """Share the variables of an assigned target with the places in which the value lies."""
    _share_target(b, target, origin, lambda place, known: Share(node, place, known.place, itself=known.itself))


def _share_target(b: GraphBuilder, target: Expression, origin: Origin | None, make: _Make) -> None:
    if origin is None:
        return
    match target:
        case TupleExpr() | ListExpr():
            for single, part in _distributed(target.items, origin):
                _share_target(b, single, part, make)
        case StarExpr():
            _share_target(b, target.expr, origin, make)
        case NameExpr() | MemberExpr() | IndexExpr():
            if (place := place_of(b, target)) is not None:
                _share_place(b, place, origin, make, b.types.get(target))
        case _:
            pass


def _distributed(targets: list[Expression], origin: Origin) -> Iterable[tuple[Expression, Origin | None]]:
    star = next((i for i, target in enumerate(targets) if isinstance(target, StarExpr)), len(targets))
    items = items_of(origin)
    for i, target in enumerate(targets):
        if i < star:
            yield target, _item_at(origin, i)
        elif items is not None and i == star:
            yield target, Components(tuple(items[star : len(items) - (len(targets) - star - 1)]))
        elif items is not None:
            yield target, items[len(items) - len(targets) + i]


def _share_place(b: GraphBuilder, place: Place, origin: Origin | None, make: _Make, t: Type | None) -> None:
    match origin:
        case Known():
            if origin.place != place:
                b.emit(make(place, origin))
        case Components():
            tuple_type = get_proper_type(t)
            for i, item in enumerate(origin.items):
                inner = item_step(tuple_type, i) if isinstance(tuple_type, TupleType) else f"[{i}]"
                if item is not None and (part := place.inside((inner,))) is not None:
                    _share_place(b, part, item, make, None)
        case Choice():
            for option in origin.options:
                _share_place(b, place, option, make, t)
        case _:
            pass


def share_captures(b: GraphBuilder, pattern: Pattern, origin: Origin | None) -> None:
    """Share the variables that a pattern binds with the parts of the subject that they name."""
    if origin is None:
        return
    match pattern:
        case AsPattern():
            if pattern.pattern is not None:
                share_captures(b, pattern.pattern, origin)
            if pattern.name is not None:
                share(b, pattern.name, origin, pattern)
        case OrPattern():
            for inner in pattern.patterns:
                share_captures(b, inner, origin)
        case SequencePattern():
            _share_sequence(b, pattern.patterns, origin)
        case ClassPattern() if isinstance(origin, Known):
            named = match_arguments(origin.type)
            for name, inner in [
                *zip(named, pattern.positionals, strict=False),
                *zip(pattern.keyword_keys, pattern.keyword_values, strict=True),
            ]:
                share_captures(b, inner, _part(origin, f".{name}", attribute_type(origin.type, name)))
        case MappingPattern() if isinstance(origin, Known):
            t = get_proper_type(origin.type)
            for key, inner in zip(pattern.keys, pattern.values, strict=True):
                step = step_of(b, key, None)
                if step is not None and isinstance(t, Instance) and t.type.fullname == "builtins.dict":
                    share_captures(b, inner, _part(origin, step, t.args[1]))
        case _:
            pass


def _share_sequence(b: GraphBuilder, patterns: Sequence[Pattern], origin: Origin) -> None:
    items = items_of(origin)
    star = next((i for i, pattern in enumerate(patterns) if isinstance(pattern, StarredPattern)), len(patterns))
    for i, pattern in enumerate(patterns):
        if isinstance(pattern, StarredPattern):
            if items is not None and pattern.capture is not None:
                rest = Components(tuple(items[star : len(items) - (len(patterns) - star - 1)]))
                share(b, pattern.capture, rest, pattern)
        elif i < star:
            share_captures(b, pattern, _item_at(origin, i))
        elif items is not None:
            share_captures(b, pattern, items[len(items) - len(patterns) + i])
