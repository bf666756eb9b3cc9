"""Emits what places share: the variables of assignments, loops and patterns with the places in which the value lies.

After `a, b = pair` the first component is `a`, `pair[0]` and `pair[-2]`; after `for t in ts` each round's `t` is one of
the items of `ts`. A handle that moves out of one of these places has moved out of the others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from mypy.nodes import Context, Expression, IndexExpr, ListExpr, MemberExpr, NameExpr, StarExpr, TupleExpr
from mypy.patterns import (
    AsPattern,
    ClassPattern,
    MappingPattern,
    OrPattern,
    Pattern,
    SequencePattern,
    StarredPattern,
)
from mypy.types import Instance, ProperType, TupleType, Type, get_proper_type

from dagpu.mypy_plugin.ownership.control_flow import ANY_ITEM, Place, Share
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.places import item_step, match_arguments, place_of, step_of
from dagpu.mypy_plugin.ownership.lower.values.origin_kinds import (
    Attributes,
    Choice,
    Components,
    Items,
    Known,
    Origin,
    item_at,
    items_of,
    part_of,
)
from dagpu.mypy_plugin.typing.type_facts import attribute_type


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
            yield target, item_at(origin, i)
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
            for i, item in enumerate(origin.items):
                for step in _steps_to(get_proper_type(t), i, len(origin.items) if origin.whole else 0):
                    if item is not None and (part := place.inside((step,))) is not None:
                        _share_place(b, part, item, make, None)
        case Items():
            part, of = place.inside((origin.step,)), origin.place.inside((origin.step,))
            if part is not None and of is not None:
                made = make(part, Known(of, origin.type))
                made.alone = origin.step == ANY_ITEM
                b.emit(made)
        case Attributes():
            for step, known in origin.parts:
                if (part := place.inside((step,))) is not None:
                    b.emit(make(part, known))
        case Choice():
            for option in origin.options:
                _share_place(b, place, option, make, t)
        case _:
            pass


def _steps_to(t: ProperType | None, index: int, length: int) -> Iterator[str]:
    """Iterate over the steps to an item: that of a tuple's component, or those from both ends of a list of a length."""
    if isinstance(t, TupleType):
        yield item_step(t, index)
        return
    yield f"[{index}]"
    if length:
        yield f"[{index - length}]"


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
                share_captures(b, inner, part_of(origin, f".{name}", attribute_type(origin.type, name)))
        case MappingPattern() if isinstance(origin, Known):
            t = get_proper_type(origin.type)
            for key, inner in zip(pattern.keys, pattern.values, strict=True):
                step = step_of(b, key, None)
                if step is not None and isinstance(t, Instance) and t.type.fullname == "builtins.dict":
                    share_captures(b, inner, part_of(origin, step, t.args[1]))
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
            share_captures(b, pattern, item_at(origin, i))
        elif items is not None:
            share_captures(b, pattern, items[len(items) - len(patterns) + i])
