"""Finds the places of the items over which a loop, a comprehension or a function goes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from mypy.nodes import CallExpr, Expression, FuncDef, MemberExpr, RefExpr
from mypy.types import Instance, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import ANY_ITEM, Place
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.lower_functions import effect_of, function_named, method_effect
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.ownership.lower.values.origin_kinds import (
    Choice,
    Components,
    Items,
    Known,
    Origin,
    items_of,
    part_of,
)
from dagpu.mypy_plugin.ownership.lower.values.origins import origin_of, origin_of_place
from dagpu.mypy_plugin.ownership.module_facts import Part
from dagpu.mypy_plugin.typing.type_facts import method_name

_ITERABLES: Final = names.CONTAINERS - {"builtins.dict"}


def element_of(b: GraphBuilder, e: Expression) -> Origin | None:
    """Return the places of the items of an iterable."""
    if isinstance(e, CallExpr):
        return element_of_call(b, e)
    origin = origin_of(b, e, moves=False)
    if isinstance(origin, Known) and (found := method_effect(b, origin.type, "__iter__")) is not None:
        return _item_in(origin.place, found[1].iterates, found[0], b.types.get(e))
    return element_of_value(origin)


def _item_in(place: Place, iterates: Part | None, parameter: str, t: Type | None) -> Known | None:
    """Return the place of the items that a function goes over, in what is passed for a parameter."""
    if iterates is None or iterates.parameter != parameter:
        return None
    item = place.inside(iterates.path)
    return None if item is None else Known(item, t)


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
    if effect is None or effect.iterates is None:
        return None
    parameters = [argument.variable.name for argument in function.arguments]
    given = dict(zip(parameters, e.args, strict=False))
    value = given.get(effect.iterates.parameter)
    if isinstance(e.callee, MemberExpr) and not function.is_static and function.info:
        value = e.callee.expr if effect.iterates.parameter == parameters[0] else None
    place = None if value is None or any(e.arg_names) else place_of(b, value)
    return None if place is None else _item_in(place, effect.iterates, effect.iterates.parameter, b.types.get(e))


# ---- iterators: what they go over, by name

_Find: TypeAlias = Callable[[GraphBuilder, list[Expression]], Origin | None]


def _first(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    return element_of(b, arguments[0])


def _last(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    return element_of(b, arguments[-1])


def _numbered(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    return Components((None, element_of(b, arguments[0])))


def _side_by_side(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    return Components(tuple([element_of(b, argument) for argument in arguments]))


def _one_behind_the_other(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    return Choice(tuple([element_of(b, argument) for argument in arguments]))


def _nested(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    origin = element_of(b, arguments[0])
    if isinstance(origin, Choice):
        return Choice(tuple([element_of_value(option) for option in origin.options]))
    return element_of_value(origin)


def _neighbours(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    """Return the place of the first one of two neighbours. The second one is the first one of the next round."""
    return Components((element_of(b, arguments[0]),), whole=False)


def _in_several_rounds(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    return again(element_of(b, arguments[0]))


def _combined(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    """Return the place of the first one of several items. The others are other ones, of the same iterable."""
    return Components((_in_several_rounds(b, arguments),), whole=False)


def _multiplied(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    return Components(tuple([again(element_of(b, argument)) for argument in arguments]))


def again(origin: Origin | None) -> Origin | None:
    """Return the origin of an item that several rounds may get."""
    match origin:
        case Known():
            return replace(origin, again=True)
        case Choice():
            return Choice(tuple([again(option) for option in origin.options]), origin.evaluated)
        case _:
            return origin


def _repeated(b: GraphBuilder, arguments: list[Expression]) -> Origin | None:
    """Return the place of an object that each round gets."""
    return again(origin_of(b, arguments[0], moves=False))


_ITERATORS: Final[dict[str, _Find]] = {
    **dict.fromkeys(_ITERABLES, _first),
    **dict.fromkeys((f"builtins.{name}" for name in ("reversed", "iter", "sorted")), _first),
    "builtins.filter": _last,
    "builtins.enumerate": _numbered,
    "builtins.zip": _side_by_side,
    **dict.fromkeys((f"itertools.{name}" for name in ("islice", "compress")), _first),
    **dict.fromkeys((f"itertools.{name}" for name in ("takewhile", "dropwhile", "filterfalse")), _last),
    "itertools.zip_longest": _side_by_side,
    "itertools.chain": _one_behind_the_other,
    "itertools.chain.from_iterable": _nested,
    "itertools.pairwise": _neighbours,
    "itertools.cycle": _in_several_rounds,
    "itertools.product": _multiplied,
    **dict.fromkeys(
        (f"itertools.{name}" for name in ("combinations", "combinations_with_replacement", "permutations")), _combined
    ),
    "itertools.repeat": _repeated,
}
