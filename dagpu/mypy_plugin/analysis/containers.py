"""Finds the places of items: those that a loop goes over, and those of a container made of others, as `[a, *ts]`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from mypy.nodes import (
    CallExpr,
    DictExpr,
    DictionaryComprehension,
    Expression,
    FuncDef,
    GeneratorExpr,
    IndexExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    NameExpr,
    OpExpr,
    RefExpr,
    SetComprehension,
    SliceExpr,
    StarExpr,
    TupleExpr,
    Var,
)
from mypy.types import Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.analysis.builder import GraphBuilder
from dagpu.mypy_plugin.analysis.callees import effect_of, function_named, method_effect
from dagpu.mypy_plugin.analysis.graph import ANY_ITEM, Place
from dagpu.mypy_plugin.analysis.module_facts import Part
from dagpu.mypy_plugin.analysis.origins import (
    Choice,
    Components,
    Items,
    Known,
    Origin,
    Parts,
    Relation,
    items_of,
    origin_finder,
    origin_of,
    origin_of_place,
    part_of,
)
from dagpu.mypy_plugin.analysis.places import integer_of, place_of, step_of
from dagpu.mypy_plugin.syntax import arguments_of
from dagpu.mypy_plugin.typing.type_facts import instance_of, method_name

# ---- the items over which a loop, a comprehension or a function goes

_ITERABLES: Final = names.CONTAINERS - {"builtins.dict"}


def element_of(b: GraphBuilder, e: Expression) -> Origin | None:
    """Return the places of the items of an iterable."""
    if isinstance(e, CallExpr):
        return element_of_call(b, e)
    origin = origin_of(b, e, moves=False)
    for begin, following in (("__iter__", "__next__"), ("__aiter__", "__anext__")):
        if isinstance(origin, Known) and (found := method_effect(b, origin.type, begin)) is not None:
            itself, effect = found
            items = effect.iterates
            if effect.gives == (itself, ()) and (found := method_effect(b, origin.type, following)) is not None:
                itself, effect = found
                items = () if effect.gives is None else (effect.gives,)
            return _items_in({itself: origin.place}, items, b.types.get(e))
    return element_of_value(origin)


def places_in(origin: Origin | None) -> set[Place]:
    """Return the places of which an item is one."""
    if isinstance(origin, Choice):
        return set().union(*map(places_in, origin.options))
    return {origin.place} if isinstance(origin, Known) else set()


def _items_in(places: Mapping[str, Place | None], iterates: Iterable[Part], t: Type | None) -> Origin | None:
    """Return the places of the items that a function goes over, in what is passed for its parameters."""
    found: list[Known] = []
    for name, path in iterates:
        place = places.get(name)
        if place is not None and (item := place.inside(path)) is not None:
            found.append(Known(item, t))
    return Choice(tuple(found)) if len(found) > 1 else found[0] if found else None


def element_of_value(origin: Origin | None) -> Origin | None:
    """Return the places of the items of a value."""
    if isinstance(origin, Items):
        place = origin.place.inside((ANY_ITEM,))
        return None if place is None else Known(place, origin.type)
    t = get_proper_type(origin.type) if isinstance(origin, Known) else None
    if isinstance(origin, Known) and isinstance(t, Instance) and t.type.fullname in _ITERABLES and t.args:
        return part_of(origin, ANY_ITEM, t.args[0])
    items = items_of(origin)
    if items is None and isinstance(origin, Choice):
        items = [element_of_value(option) for option in origin.options]
    return Choice(tuple(items), isinstance(origin, Components)) if items is not None and any(items) else None


def element_of_call(b: GraphBuilder, e: CallExpr) -> Origin | None:
    """Return the places of the items that the result of a call goes over."""
    callee = e.callee
    if isinstance(callee, RefExpr) and (find := _ITERATORS.get(callee.fullname)) is not None:
        return find(b, e.args) if e.args else None
    if (function := function_named(b, callee)) in b.module.own:
        return _element_of_generator(b, e, function)
    if not isinstance(callee, MemberExpr):
        return None
    name = method_name(b.types.get(callee.expr), callee.name)
    origin = origin_of_place(b, callee.expr, moves=False)
    t = get_proper_type(b.types.get(callee.expr))
    if origin is None or not isinstance(t, Instance) or t.type.fullname != "builtins.dict":
        return element_of_value(origin_of(b, e, moves=False))
    value = part_of(origin, ANY_ITEM, t.args[1])
    if name == "builtins.dict.values":
        return value
    return Components((None, value)) if name == "builtins.dict.items" else None


def _element_of_generator(b: GraphBuilder, e: CallExpr, function: FuncDef) -> Origin | None:
    """Return the place of the items that a function of this module goes over, in one of its arguments."""
    effect = effect_of(b, function)
    if effect is None or not effect.iterates or any(e.arg_names):
        return None
    parameters = [argument.variable.name for argument in function.arguments]
    if isinstance(e.callee, MemberExpr) and not function.is_static and function.info:
        given = {parameters[0]: e.callee.expr}
    else:
        given = arguments_of(e, parameters)
    return _items_in({name: place_of(b, value) for name, value in given.items()}, effect.iterates, b.types.get(e))


# ---- iterators: what they go over, by name

_Find: TypeAlias = Callable[[GraphBuilder, list[Expression]], "Origin | None"]


def _elements(b: GraphBuilder, given: list[Expression]) -> tuple[Origin | None, ...]:
    return tuple([element_of(b, argument) for argument in given])


def _nested(origin: Origin | None) -> Origin | None:
    if isinstance(origin, Choice):
        return Choice(tuple([element_of_value(option) for option in origin.options]))
    return element_of_value(origin)


def again(origin: Origin | None) -> Origin | None:
    """Return the origin of an item that several rounds may get."""
    match origin:
        case Known():
            return replace(origin, again=True)
        case Choice():
            return Choice(tuple([again(option) for option in origin.options]), origin.evaluated)
        case _:
            return origin


_FIRST: Final = _ITERABLES | {
    *(f"builtins.{name}" for name in ("reversed", "iter", "sorted")),
    *(f"itertools.{name}" for name in ("islice", "compress")),
}
"""Functions whose results go over the items of their first argument."""
_COMBINES: Final = tuple(f"itertools.{n}" for n in ("combinations", "combinations_with_replacement", "permutations"))

_ITERATORS: Final[dict[str, _Find]] = {
    **dict.fromkeys(_FIRST, lambda b, given: element_of(b, given[0])),
    **dict.fromkeys(names.TESTS, lambda b, given: element_of(b, given[-1])),
    "builtins.enumerate": lambda b, given: Components((None, element_of(b, given[0]))),
    "builtins.zip": lambda b, given: Components(_elements(b, given)),
    "itertools.zip_longest": lambda b, given: Components(_elements(b, given)),
    "itertools.chain": lambda b, given: Choice(_elements(b, given)),
    "itertools.chain.from_iterable": lambda b, given: _nested(element_of(b, given[0])),
    # the second one of two neighbours is the first one of the next round
    "itertools.pairwise": lambda b, given: Components((element_of(b, given[0]),), whole=False),
    "itertools.cycle": lambda b, given: again(element_of(b, given[0])),
    "itertools.product": lambda b, given: Components(tuple(map(again, _elements(b, given)))),
    # the place of the first one of several items; the others are other ones, of the same iterable
    **dict.fromkeys(_COMBINES, lambda b, given: Components((again(element_of(b, given[0])),), whole=False)),
    "itertools.repeat": lambda b, given: again(origin_of(b, given[0], moves=False)),
}
"""For each function: the places of the items of its result, which are those of its arguments."""


# ---- the items of a new container

_REORDERS: Final = frozenset(f"builtins.{name}" for name in ("reversed", "sorted", "set", "frozenset"))
"""Functions that give the items of their argument in another order."""


# ---- displays


@origin_finder(TupleExpr, ListExpr)
def _of_display(b: GraphBuilder, e: TupleExpr | ListExpr, moves: bool) -> Origin | None:
    starred = [item.expr for item in e.items if isinstance(item, StarExpr)]
    if len(starred) == len(e.items) == 1:
        return items_of_value(b, starred[0])
    items: list[Origin | None] = []
    for item in e.items:
        if not isinstance(item, StarExpr):
            items.append(origin_of(b, item, moves=moves))
            continue
        inner = items_of(origin_of(b, item.expr, moves=False))
        if inner is None:
            return _with_some(b, Components(tuple(items), whole=False), starred)
        items += inner
    return Components(tuple(items)) if any(items) else None


def _with_some(b: GraphBuilder, known: Components | None, others: list[Expression]) -> Origin | None:
    """Return the origin of a container with the items of other ones, of unknown length, at unknown indices."""
    found = [items_of_value(b, other, Relation.WITH_OTHERS) for other in others]
    options = [option for option in (known, *found) if option is not None]
    return Choice(tuple(options)) if options else None


@origin_finder(DictExpr)
def _of_dict(b: GraphBuilder, e: DictExpr, moves: bool) -> Origin | None:
    if not b.kinds.may_own(b.types.get(e)):
        return None
    others: list[Origin | None] = []
    parts: dict[str, Origin | None] = {}
    for key, value in e.items:
        if key is None:
            parts.clear()  # which it may replace
            others.append(items_of_value(b, value, Relation.SAME if len(e.items) == 1 else Relation.WITH_OTHERS))
        elif (step := step_of(b, key, None)) is not None:
            parts[step] = origin_of(b, value, moves=moves)
    known = tuple([other for other in others if other is not None])
    return Parts(tuple(parts.items()), Choice(known) if known else None) if known or any(parts.values()) else None


# ---- operators


@origin_finder(OpExpr)
def _of_operator(b: GraphBuilder, e: OpExpr, moves: bool) -> Origin | None:
    if not b.kinds.may_own(b.types.get(e)):
        return None
    if e.op == "*":
        return _repeated(b, e)
    if e.op not in ("+", "|"):
        return None
    if e.op == "|":
        merged = (items_of_value(b, e.left, Relation.WITH_OTHERS), items_of_value(b, e.right))
        return Choice(merged) if any(merged) else None
    sides = [origin_of(b, side, moves=moves) for side in (e.left, e.right)]
    left, right = map(items_of, sides)
    if left is not None and right is not None:
        return Components((*left, *right)) if any((*left, *right)) else None
    return _with_some(b, None, [e.left, e.right])


def _repeated(b: GraphBuilder, e: OpExpr) -> Origin | None:
    """Return the origin of `[t] * 2`: two items which are one object."""
    display, times = (e.left, e.right) if isinstance(e.left, ListExpr | TupleExpr) else (e.right, e.left)
    if not isinstance(display, ListExpr | TupleExpr) or len(display.items) != 1 or integer_of(b, times) in (0, 1):
        return None
    item = again(origin_of(b, display.items[0], moves=False))
    return None if item is None or isinstance(display.items[0], StarExpr) else Components((item, item), whole=False)


# ---- slices


@origin_finder(IndexExpr)
def _of_index(b: GraphBuilder, e: IndexExpr, moves: bool) -> Origin | None:
    if not isinstance(e.index, SliceExpr):
        return origin_of_place(b, e, moves)
    ends = (e.index.begin_index, e.index.end_index, e.index.stride)
    if ends == (None, None, None):
        return items_of_value(b, e.base)
    origin = origin_of(b, e.base, moves=moves)
    items, numbers = items_of(origin), [None if end is None else integer_of(b, end) for end in ends]
    if any(end is not None and number is None for end, number in zip(ends, numbers, strict=True)) or numbers[2] == 0:
        return None
    if items is not None:
        return Components(tuple(items[slice(*numbers)]))
    return items_of_value(b, e.base, Relation.REORDERED) if numbers[:2] == [None, None] else None


# ---- calls


@origin_finder(CallExpr)
def _of_call(b: GraphBuilder, e: CallExpr, moves: bool) -> Origin | None:
    if not e.args and not isinstance(e.callee, MemberExpr):
        return None
    if not b.kinds.may_own(b.types.get(e)):
        return None
    name = e.callee.fullname if isinstance(e.callee, RefExpr) else ""
    if name in names.CONTAINERS or name in _REORDERS:
        return _copy_by_function(b, e, name)
    if name in names.COPIES_OBJECT:
        return _copy_of_object(b, e.args[0], e)
    if isinstance(e.callee, MemberExpr):
        method = method_name(b.types.get(e.callee.expr), e.callee.name) or ""
        if method in names.COPIES_SELF:
            return items_of_value(b, e.callee.expr)
        if e.callee.name == names.REPLACES_SELF:
            return _copy_of_object(b, e.callee.expr, e)
    return None


def _copy_by_function(b: GraphBuilder, e: CallExpr, name: str) -> Origin | None:
    given = e.args[0]
    if name == "builtins.dict" and isinstance(given, CallExpr):
        pairs = element_of_call(b, given)
        return (
            _container_of(pairs.items[-1], Relation.REORDERED)
            if isinstance(pairs, Components) and pairs.items
            else None
        )
    return items_of_value(b, given, Relation.REORDERED if name in _REORDERS else Relation.SAME)


def _copy_of_object(b: GraphBuilder, copied: Expression, e: CallExpr) -> Origin | None:
    """Return the origin of an object that has the attributes of another one, but for those that are given by name."""
    origin, t = origin_of(b, copied, moves=False), instance_of(b.types.get(copied))
    if not isinstance(origin, Known) or t is None:
        return None
    if t.type.fullname in names.CONTAINERS:
        return items_of_value(b, copied)
    found: list[tuple[str, Known]] = []
    for attribute, symbol in {name: one for base in reversed(t.type.mro) for name, one in base.names.items()}.items():
        if isinstance(symbol.node, Var) and attribute not in e.arg_names and b.kinds.may_own(symbol.node.type):
            part = part_of(origin, f".{attribute}", symbol.node.type)
            found += [(f".{attribute}", part)] if part is not None else []
    return Parts(tuple(found)) if found else None


# ---- comprehensions


@origin_finder(ListComprehension, SetComprehension)
def _of_comprehension(b: GraphBuilder, e: ListComprehension | SetComprehension, moves: bool) -> Origin | None:
    return _copy_by_comprehension(b, e, e.generator, e.generator.left_expr)


@origin_finder(DictionaryComprehension)
def _of_dict_comprehension(b: GraphBuilder, e: DictionaryComprehension, moves: bool) -> Origin | None:
    return _copy_by_comprehension(b, e, e, e.value)


def _copy_by_comprehension(
    b: GraphBuilder, whole: Expression, e: GeneratorExpr | DictionaryComprehension, result: Expression
) -> Origin | None:
    """Return the origin of the items that a comprehension takes over from another container, as `[t for t in ts]`."""
    if len(e.sequences) > 1 or e.condlists[0] or not isinstance(result, NameExpr):
        return None
    if not b.kinds.may_own(b.types.get(whole)):
        return None
    index, sequence = e.indices[0], e.sequences[0]
    relation = Relation.REORDERED if isinstance(e, DictionaryComprehension) else Relation.SAME
    if isinstance(index, NameExpr):
        return items_of_value(b, sequence, relation) if index.node is result.node else None
    element = element_of(b, sequence)
    if not isinstance(index, TupleExpr) or not isinstance(element, Components):
        return None
    for one, part in zip(index.items, element.items, strict=False):
        if isinstance(one, NameExpr) and one.node is result.node:
            return _container_of(part, relation)
    return None


# ---- the items of another container


def items_of_value(b: GraphBuilder, e: Expression, relation: Relation = Relation.SAME) -> Origin | None:
    """Return the origin of a new container of the items of an expression, in this relation to them."""
    origin = origin_of(b, e, moves=False)
    same = relation is Relation.SAME
    match origin:
        case None if isinstance(e, CallExpr):
            return _container_of(element_of_call(b, e), Relation.REORDERED if same else relation)
        case Known():
            t = get_proper_type(origin.type)
            if isinstance(t, TupleType):
                return Components(tuple(items_of(origin) or [])) if same else None
            return Items(origin.place, t.args[-1] if isinstance(t, Instance) and t.args else None, relation)
        case Items() if same or origin.relation is Relation.SAME:
            return replace(origin, relation=origin.relation if same else relation)
        case Items():
            return None if relation is not origin.relation else origin
        case _:
            return origin if same else None


def _container_of(item: Origin | None, relation: Relation) -> Origin | None:
    """Return the origin of a new container of the items of which `item` is any."""
    if isinstance(item, Known) and item.place.path and item.place.path[-1] == ANY_ITEM:
        return Items(Place(item.place.slot, item.place.path[:-1]), item.type, relation)
    return None
