"""Where a value lies, or the parts of which it is made, and what places share it: a component of a tuple has several.

After `a, b = pair` the first component is `a`, `pair[0]` and `pair[-2]`; after `for t in ts` each round's `t` is one of
the items of `ts`. A handle that moves out of one of these places has moved out of the others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, TypeAlias, TypeVar

from mypy.nodes import (
    AssignmentExpr,
    CastExpr,
    Context,
    Expression,
    IndexExpr,
    ListExpr,
    MemberExpr,
    NameExpr,
    StarExpr,
    TupleExpr,
)
from mypy.patterns import AsPattern, ClassPattern, MappingPattern, OrPattern, Pattern, SequencePattern, StarredPattern
from mypy.types import Instance, ProperType, TupleType, Type, get_proper_type

from dagpu.mypy_plugin.analysis.builder import GraphBuilder
from dagpu.mypy_plugin.analysis.graph import ANY_ITEM, ONE_ITEM, SAME_ITEM, Place, Share
from dagpu.mypy_plugin.analysis.places import item_step, match_arguments, place_of, step_of
from dagpu.mypy_plugin.typing.type_facts import MOVES, attribute_type

# ---- the kinds of origins

SEQUENCES: Final = frozenset({"builtins.list", "builtins.tuple", "collections.deque"})
"""Classes whose objects have an item at each index."""


@dataclass(repr=False, slots=True)
class Known:
    """A value that lies in a place."""

    place: Place
    type: Type | None
    itself: bool = True
    """False for a handle that has moved out of the place on the way."""
    again: bool = False
    """True for an item that several rounds of a loop may get."""


@dataclass(repr=False, slots=True)
class Components:
    """A tuple of values."""

    items: tuple["Origin | None", ...]
    whole: bool = True
    """False if further items follow, whose number is not known."""


@dataclass(repr=False, slots=True)
class Choice:
    """One of several values, another one in each round of a loop."""

    options: tuple["Origin | None", ...]
    evaluated: bool = False
    """True for the items of a display, whose evaluation has read them."""


class Relation(Enum):
    """How the items of a new container are those of another one."""

    SAME = auto()
    """At the same indices."""
    REORDERED = auto()
    """All of them, in another order."""
    WITH_OTHERS = auto()
    """All of them, with others."""


@dataclass(repr=False, slots=True)
class Items:
    """A new container of the items of another one."""

    place: Place
    """The place of the other container."""
    type: Type | None
    """The type of its items."""
    relation: Relation = Relation.SAME


@dataclass(repr=False, slots=True)
class Parts:
    """A new object with parts that lie elsewhere: attributes of another object, or the values of a dictionary."""

    parts: tuple[tuple[str, "Origin | None"], ...]
    """The step to each part, with the origin of its value."""
    others: "Origin | None" = None
    """The containers with the other items."""


Origin: TypeAlias = Known | Components | Choice | Items | Parts


def items_of(origin: Origin | None) -> list[Origin | None] | None:
    """Return the components of a tuple; None if their number is not known."""
    match origin:
        case Components():
            return list(origin.items)
        case Known():
            t = get_proper_type(origin.type)
            if isinstance(t, TupleType):
                return [part_of(origin, item_step(t, i), item) for i, item in enumerate(t.items)]
            return None
        case Choice():
            found = [items_of(option) for option in origin.options]
            known = [items for items in found if items is not None]
            if not known or len({len(items) for items in known}) > 1:
                return None
            return [Choice(tuple(alternatives)) for alternatives in zip(*known, strict=True)]
        case _:
            return None


def part_of(origin: Known, step: str, t: Type | None) -> Known | None:
    """Return the part of a value that a step leads to; None if it lies too deep to be tracked."""
    place = origin.place.inside((step,))
    return None if place is None else Known(place, t)


def item_at(origin: Origin | None, index: int) -> Origin | None:
    """Return the item of a tuple or list at an index, counted from either end."""
    items = items_of(origin)
    if items is not None:
        return items[index] if -len(items) <= index < len(items) else None
    if isinstance(origin, Items):
        place = origin.place.inside((f"[{index}]",)) if origin.relation is Relation.SAME else None
        return None if place is None else Known(place, origin.type)
    if isinstance(origin, Known):
        t = get_proper_type(origin.type)
        if isinstance(t, Instance) and t.type.fullname in SEQUENCES and t.args:
            return part_of(origin, f"[{index}]", t.args[0])
    return None


# ---- the origin of an expression

FindOrigin: TypeAlias = Callable[[GraphBuilder, Any, bool], "Origin | None"]
_F = TypeVar("_F", bound=FindOrigin)
_T = TypeVar("_T")

ORIGINS: Final[dict[type[Expression], FindOrigin]] = {}
"""The function that finds the origin of each expression class. Values of missing classes lie nowhere else."""


def origin_finder(*kinds: type[Expression]) -> Callable[[_F], _F]:
    """Register the function that finds the origin of expressions of some classes. Its flag is that of `origin_of`."""

    def register(find: _F) -> _F:
        ORIGINS.update(dict.fromkeys(kinds, find))
        return find

    return register


def origin_of(b: GraphBuilder, e: Expression, *, moves: bool) -> Origin | None:
    """Return the places in which the value of an expression lies. `moves`: a named handle has moved out of its place.

    Return None for a value without handles, and for one that lies nowhere else.
    """
    if (taken := b.taken.get(e)) is not None:
        return Known(taken, b.types.get(e))
    find = ORIGINS.get(type(e))
    return None if find is None else find(b, e, moves)


@origin_finder(AssignmentExpr)
def _of_walrus(b: GraphBuilder, e: AssignmentExpr, moves: bool) -> Origin | None:
    return origin_of(b, e.target, moves=False)


@origin_finder(CastExpr)
def _of_cast(b: GraphBuilder, e: CastExpr, moves: bool) -> Origin | None:
    return origin_of(b, e.expr, moves=moves)


@origin_finder(NameExpr, MemberExpr)
def origin_of_place(b: GraphBuilder, e: Expression, moves: bool) -> Known | None:
    """Return the place that an expression names, if its value may own a handle."""
    t = b.types.get(e)
    if not b.kinds.may_own(t):
        return None
    place = place_of(b, e)
    if place is None:
        return None
    return Known(place, t, not (moves and b.kind(e) & MOVES))


def origin_of_target(b: GraphBuilder, target: Expression, value: Type | None) -> Origin | None:
    """Return the places of an assigned target. mypy has no type for an assigned item: it is that of the value."""
    if not isinstance(target, IndexExpr):
        return origin_of(b, target, moves=False)
    place, t = place_of(b, target), b.types.get(target, value)
    return Known(place, t) if place is not None and b.kinds.may_own(t) else None


# ---- places that share a value

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
                for single, part in _distributed(target.items, origin, StarExpr):
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


def _distributed(targets: Sequence[_T], origin: Origin, starred: type[object]) -> Iterator[tuple[_T, Origin | None]]:
    """Iterate over targets or patterns, each with the item that it gets; a starred one gets all between the others."""
    items, end = items_of(origin), len(targets)
    star = next((i for i, target in enumerate(targets) if isinstance(target, starred)), end)
    for i, target in enumerate(targets):
        if i != star:
            yield target, item_at(origin, i if i < star else i - end)
        else:
            yield target, None if items is None else Components(tuple(items[star : len(items) - (end - star - 1)]))


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
        case StarredPattern() if pattern.capture is not None:
            share(b, pattern.capture, origin, pattern)
        case OrPattern():
            for inner in pattern.patterns:
                share_captures(b, inner, origin)
        case SequencePattern() | ClassPattern() | MappingPattern():
            for matched, part in _parts_matched(b, pattern, origin):
                share_captures(b, matched, part)
        case _:
            pass


def _parts_matched(
    b: GraphBuilder, pattern: SequencePattern | ClassPattern | MappingPattern, origin: Origin
) -> Iterator[tuple[Pattern, Origin | None]]:
    """Iterate over the patterns in a pattern, each with the part of the subject that it is matched with."""
    if isinstance(pattern, SequencePattern):
        yield from _distributed(pattern.patterns, origin, StarredPattern)
    if not isinstance(origin, Known):
        return
    if isinstance(pattern, ClassPattern):
        by_place = zip(match_arguments(origin.type), pattern.positionals, strict=False)
        for name, inner in (*by_place, *zip(pattern.keyword_keys, pattern.keyword_values, strict=True)):
            yield inner, part_of(origin, f".{name}", attribute_type(origin.type, name))
    t = get_proper_type(origin.type)
    if isinstance(pattern, MappingPattern) and isinstance(t, Instance) and t.type.fullname == "builtins.dict":
        for key, inner in zip(pattern.keys, pattern.values, strict=True):
            if (step := step_of(b, key, None)) is not None:
                yield inner, part_of(origin, step, t.args[1])
