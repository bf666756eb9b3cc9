"""Finds the places in which the value of an expression lies: a component of a tuple has one under each of its names."""

from dataclasses import replace
from typing import Final

from mypy.nodes import (
    AssignmentExpr,
    CallExpr,
    CastExpr,
    DictionaryComprehension,
    Expression,
    GeneratorExpr,
    IndexExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    NameExpr,
    SetComprehension,
    SliceExpr,
    StarExpr,
    TupleExpr,
    Var,
)
from mypy.types import Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import ANY_ITEM, SAME_ITEM, SOME_ITEM, Place
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.places import has_variable_index, integer_of, length_of, place_of
from dagpu.mypy_plugin.ownership.lower.values.origin_kinds import (
    Attributes,
    Choice,
    Components,
    Items,
    Known,
    Origin,
    items_of,
    part_of,
)
from dagpu.mypy_plugin.typing.type_facts import MOVES, method_name

_ITERABLES: Final = names.CONTAINERS - {"builtins.dict"}
_PASSES_ITEMS: Final = _ITERABLES | {f"builtins.{name}" for name in ("reversed", "iter", "sorted", "filter")}
_REARRANGES: Final = {
    **dict.fromkeys((f"builtins.{name}" for name in ("reversed", "sorted", "set", "frozenset")), SOME_ITEM),
    "builtins.filter": ANY_ITEM,
}
"""Functions that give the items of their argument in another order, or some of them."""


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
            return _origin_of_display(b, e, moves)
        case AssignmentExpr():
            return origin_of(b, e.target, moves=False)
        case CastExpr():
            return origin_of(b, e.expr, moves=moves)
        case CallExpr():
            taken = b.taken.get(e)
            return copy_of(b, e) if taken is None else Known(taken, b.types.get(e))
        case ListComprehension() | DictionaryComprehension() | SetComprehension():
            return copy_of(b, e)
        case _:
            return None


def _origin_of_display(b: GraphBuilder, e: TupleExpr | ListExpr, moves: bool) -> Origin | None:
    if e.items and all(isinstance(item, StarExpr) for item in e.items):
        step = SOME_ITEM if len(e.items) > 1 else SAME_ITEM
        copies = [_items_of_value(b, item.expr, step) for item in e.items if isinstance(item, StarExpr)]
        if len(copies) == 1 or not any(isinstance(copy, Components) for copy in copies):
            return copies[0] if len(copies) == 1 else Choice(tuple(copies)) if any(copies) else None
    items: list[Origin | None] = []
    for item in e.items:
        if not isinstance(item, StarExpr):
            items.append(origin_of(b, item, moves=moves))
            continue
        inner = items_of(origin_of(b, item.expr, moves=False))
        if inner is None:
            break  # of unknown length: the items after it have unknown places
        items += inner
    else:
        return Components(tuple(items)) if any(items) else None
    return Components(tuple(items), whole=False) if any(items) else None


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
    if index.begin_index is None and index.end_index is None and index.stride is None:
        return _items_of_value(b, e.base)
    items = items_of(origin_of(b, e.base, moves=moves))
    ends = [None if end is None else integer_of(b, end) for end in (index.begin_index, index.end_index, index.stride)]
    given = [end is not None for end in (index.begin_index, index.end_index, index.stride)]
    if items is None or any(wanted and end is None for wanted, end in zip(given, ends, strict=True)) or ends[2] == 0:
        return None
    return Components(tuple(items[slice(*ends)]))


# ---- iteration


def element_of(b: GraphBuilder, e: Expression) -> Origin | None:
    """Return the places of the items over which a loop or a comprehension goes."""
    if isinstance(e, CallExpr):
        return _element_of_call(b, e)
    return _element_of_value(origin_of(b, e, moves=False))


def _element_of_value(origin: Origin | None) -> Origin | None:
    if isinstance(origin, Items):
        place = origin.place.inside((ANY_ITEM,))
        return None if place is None else Known(place, origin.type)
    t = get_proper_type(origin.type) if isinstance(origin, Known) else None
    if isinstance(origin, Known) and isinstance(t, Instance) and t.type.fullname in _ITERABLES and t.args:
        return part_of(origin, ANY_ITEM, t.args[0])
    items = items_of(origin)
    return Choice(tuple(items), isinstance(origin, Components)) if items is not None and any(items) else None


def _element_of_call(b: GraphBuilder, e: CallExpr) -> Origin | None:
    callee = e.callee
    if isinstance(callee, MemberExpr):
        name = method_name(b.types.get(callee.expr), callee.name)
        origin = _origin_of_place(b, callee.expr, moves=False)
        t = get_proper_type(b.types.get(callee.expr))
        if origin is None or not isinstance(t, Instance) or t.type.fullname != "builtins.dict":
            return _element_of_value(copy_of(b, e))
        value = part_of(origin, ANY_ITEM, t.args[1])
        if name == "builtins.dict.values":
            return value
        return Components((None, value)) if name == "builtins.dict.items" else None
    if not isinstance(callee, NameExpr) or not e.args:
        return None
    if callee.fullname == "builtins.enumerate":
        return Components((None, element_of(b, e.args[0])))
    if callee.fullname == "builtins.zip":
        return Components(tuple([element_of(b, argument) for argument in e.args]))
    return element_of(b, _iterable_in(e, callee.fullname)) if callee.fullname in _PASSES_ITEMS else None


# ---- containers that are made of the items of others


def copy_of(b: GraphBuilder, e: Expression) -> Origin | None:
    """Return the origin of a container that an expression makes of the items of another one: `list(ts)`."""
    if not b.kinds.may_own(b.types.get(e)):
        return None
    match e:
        case CallExpr(callee=MemberExpr() as method):
            name = method_name(b.types.get(method.expr), method.name) or ""
            if name in names.COPIES_SELF:
                return _items_of_value(b, method.expr)
            return _copy_of_object(b, e, method.fullname) if e.args else None
        case CallExpr(callee=NameExpr() as function) if e.args:
            return _copy_by_function(b, e, function.fullname)
        case ListComprehension():
            return _copy_by_comprehension(b, e.generator, e.generator.left_expr)
        case SetComprehension():
            return _copy_by_comprehension(b, e.generator, e.generator.left_expr)
        case DictionaryComprehension():
            return _copy_by_comprehension(b, e, e.value)
        case _:
            return None


def _copy_by_function(b: GraphBuilder, e: CallExpr, name: str) -> Origin | None:
    if name not in names.CONTAINERS and name not in _REARRANGES:
        return _copy_of_object(b, e, name)
    given = _iterable_in(e, name)
    if name == "builtins.dict" and isinstance(given, CallExpr):
        pairs = _element_of_call(b, given)
        return _container_of(pairs.items[-1], SOME_ITEM) if isinstance(pairs, Components) and pairs.items else None
    return _items_of_value(b, given, _REARRANGES.get(name, SAME_ITEM))


def _iterable_in(e: CallExpr, name: str) -> Expression:
    """Return the argument of a function that has the items: the first one, or for `filter` the last one."""
    return e.args[-1] if name == "builtins.filter" else e.args[0]


def _copy_of_object(b: GraphBuilder, e: CallExpr, name: str) -> Origin | None:
    """Return the origin of an object that has the attributes of another one, but for those that are given by name."""
    if name not in names.COPIES_OBJECT:
        return None
    origin, t = origin_of(b, e.args[0], moves=False), get_proper_type(b.types.get(e.args[0]))
    if not isinstance(origin, Known) or not isinstance(t, Instance):
        return None
    if t.type.fullname in names.CONTAINERS:
        return _items_of_value(b, e.args[0])
    found: list[tuple[str, Known]] = []
    for attribute, symbol in t.type.names.items():
        if isinstance(symbol.node, Var) and attribute not in e.arg_names and b.kinds.may_own(symbol.node.type):
            part = part_of(origin, f".{attribute}", symbol.node.type)
            found += [(f".{attribute}", part)] if part is not None else []
    return Attributes(tuple(found)) if found else None


def _copy_by_comprehension(
    b: GraphBuilder, e: GeneratorExpr | DictionaryComprehension, result: Expression
) -> Origin | None:
    """Return the origin of the items that a comprehension takes over from another container, as `[t for t in ts]`."""
    if len(e.sequences) > 1 or not isinstance(result, NameExpr):
        return None
    index, sequence = e.indices[0], e.sequences[0]
    step = ANY_ITEM if e.condlists[0] else SOME_ITEM if isinstance(e, DictionaryComprehension) else SAME_ITEM
    if isinstance(index, NameExpr):
        return _items_of_value(b, sequence, step) if index.node is result.node else None
    element = element_of(b, sequence)
    if not isinstance(index, TupleExpr) or not isinstance(element, Components):
        return None
    for one, part in zip(index.items, element.items, strict=False):
        if isinstance(one, NameExpr) and one.node is result.node:
            return _container_of(part, step)
    return None


def _items_of_value(b: GraphBuilder, e: Expression, step: str = SAME_ITEM) -> Origin | None:
    """Return the origin of a new container of the items of an expression, in this relation to them."""
    origin = origin_of(b, e, moves=False)
    match origin:
        case None if isinstance(e, CallExpr):
            return _container_of(_element_of_call(b, e), SOME_ITEM if step == SAME_ITEM else step)
        case Known():
            t = get_proper_type(origin.type)
            if isinstance(t, TupleType):
                return Components(tuple(items_of(origin) or [])) if step == SAME_ITEM else None
            items = Items(origin.place, t.args[-1] if isinstance(t, Instance) and t.args else None, step)
            known = items_of(origin) if step == SAME_ITEM else None
            return items if known is None else Choice((Components(tuple(known)), items))
        case Items():
            return replace(origin, step=origin.step if step == SAME_ITEM or origin.step == ANY_ITEM else step)
        case _:
            return origin if step == SAME_ITEM else None


def _container_of(item: Origin | None, step: str) -> Origin | None:
    """Return the origin of a new container of the items of which `item` is any."""
    if isinstance(item, Known) and item.place.path and item.place.path[-1] == ANY_ITEM:
        return Items(Place(item.place.slot, item.place.path[:-1]), item.type, step)
    return None
