"""Emits what places share: the variables of assignments, loops and patterns with the places in which the value lies.

After `a, b = pair` the first component is `a`, `pair[0]` and `pair[-2]`; after `for t in ts` each round's `t` is one of
the items of `ts`. A handle that moves out of one of these places has moved out of the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mypy.nodes import Context, Expression, IndexExpr, ListExpr, MemberExpr, NameExpr, StarExpr, TupleExpr
from mypy.patterns import AsPattern, ClassPattern, MappingPattern, OrPattern, Pattern, SequencePattern, StarredPattern
from mypy.types import Instance, ProperType, TupleType, Type, get_proper_type

from dagpu.mypy_plugin.ownership.control_flow import ANY_ITEM, ONE_ITEM, SAME_ITEM, Place, Share
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.origins import (
    Choice,
    Components,
    Items,
    Known,
    Origin,
    Parts,
    Relation,
    item_at,
    items_of,
    part_of,
)
from dagpu.mypy_plugin.ownership.lower.places import item_step, match_arguments, place_of, step_of
from dagpu.mypy_plugin.typing.type_facts import attribute_type

_RELATED: Final = {
    Relation.SAME: ((SAME_ITEM, SAME_ITEM),),
    Relation.REORDERED: ((ANY_ITEM, ONE_ITEM), (ONE_ITEM, ANY_ITEM)),
    Relation.WITH_OTHERS: ((ONE_ITEM, ANY_ITEM),),
}
"""The steps to items of a new container, each with that to the items of the other one with which it shares."""


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
    _Sharer(b, index, links=False).target(index, before)
    _Sharer(b, index, follows=False).target(index, origin)


def share(b: GraphBuilder, target: Expression, origin: Origin | None, node: Context) -> None:
    """Share the variables of an assigned target with the places in which the value lies."""
    _Sharer(b, node).target(target, origin)


def share_place(b: GraphBuilder, place: Place, origin: Origin | None, node: Context) -> None:
    """Share a place with the places in which the value lies that has been put there."""
    _Sharer(b, node).place(place, origin)


@dataclass(slots=True)
class _Sharer:
    """Emits what the targets of one assignment share. The flags are those of `Share`."""

    b: GraphBuilder
    node: Context
    links: bool = True
    follows: bool = True

    def target(self, target: Expression, origin: Origin | None) -> None:
        if origin is None:
            return
        match target:
            case TupleExpr() | ListExpr():
                for single, part in _distributed(target.items, origin):
                    self.target(single, part)
            case StarExpr():
                self.target(target.expr, origin)
            case NameExpr() | MemberExpr() | IndexExpr():
                if (place := place_of(self.b, target)) is not None:
                    self.place(place, origin, self.b.types.get(target))
            case _:
                pass

    def place(self, place: Place, origin: Origin | None, t: Type | None = None) -> None:
        """Share a place. `t` is the type of its value."""
        match origin:
            case Known():
                if origin.place != place:
                    self._emit(place, origin.place, itself=origin.itself or not self.links, again=origin.again)
            case Components():
                for i, item in enumerate(origin.items):
                    for step in _steps_to(get_proper_type(t), i, len(origin.items) if origin.whole else 0):
                        self._part(place, step, item)
            case Items():
                for mine, theirs in _RELATED[origin.relation]:
                    part, of = place.inside((mine,)), origin.place.inside((theirs,))
                    if part is not None and of is not None:
                        self._emit(part, of, alone=mine != SAME_ITEM)
            case Parts():
                self.place(place, origin.others, t)
                for step, item in origin.parts:
                    self._part(place, step, item)
            case Choice():
                for option in origin.options:
                    self.place(place, option, t)
            case _:
                pass

    def _part(self, whole: Place, step: str, origin: Origin | None) -> None:
        if origin is not None and (part := whole.inside((step,))) is not None:
            self.place(part, origin)

    def _emit(
        self, place: Place, other: Place, *, itself: bool = True, again: bool = False, alone: bool = False
    ) -> None:
        self.b.emit(Share(self.node, place, other, self.links, itself, self.follows or again, alone))


def _distributed(targets: list[Expression], origin: Origin) -> Iterable[tuple[Expression, Origin | None]]:
    star = next((i for i, target in enumerate(targets) if isinstance(target, StarExpr)), len(targets))
    items = items_of(origin)
    for i, target in enumerate(targets):
        if i < star:
            yield target, item_at(origin, i)
        elif i == star:
            yield target, _between(items, star, len(targets) - star - 1)
        else:
            yield target, item_at(origin, i - len(targets))


def _between(items: Sequence[Origin | None] | None, before: int, behind: int) -> Components | None:
    """Return the items that a starred target or pattern gets, if all are known."""
    return None if items is None else Components(tuple(items[before : len(items) - behind]))


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
            if pattern.capture is not None:
                share(b, pattern.capture, _between(items, star, len(patterns) - star - 1), pattern)
        elif i < star:
            share_captures(b, pattern, item_at(origin, i))
        else:
            share_captures(b, pattern, item_at(origin, i - len(patterns)))
