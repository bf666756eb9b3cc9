"""Where a value lies, or the parts of which it is made: a component of a tuple has a place under each of its names."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeAlias, TypeVar

from mypy.nodes import AssignmentExpr, CastExpr, Expression, IndexExpr, MemberExpr, NameExpr
from mypy.types import Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin.ownership.control_flow import Place
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.places import item_step, place_of
from dagpu.mypy_plugin.typing.type_facts import MOVES

# ---- the kinds of origins

SEQUENCES: Final = frozenset({"builtins.list", "builtins.tuple", "collections.deque"})
"""Classes whose objects have an item at each index."""


@dataclass(frozen=True, slots=True)
class Known:
    """A value that lies in a place."""

    place: Place
    type: Type | None
    itself: bool = True
    """False for a handle that has moved out of the place on the way."""
    again: bool = False
    """True for an item that several rounds of a loop may get."""


@dataclass(frozen=True, slots=True)
class Components:
    """A tuple of values."""

    items: tuple["Origin | None", ...]
    whole: bool = True
    """False if further items follow, whose number is not known."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Items:
    """A new container of the items of another one."""

    place: Place
    """The place of the other container."""
    type: Type | None
    """The type of its items."""
    relation: Relation = Relation.SAME


@dataclass(frozen=True, slots=True)
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

_E = TypeVar("_E", bound=Expression)
FindOrigin: TypeAlias = Callable[[GraphBuilder, _E, bool], Origin | None]

ORIGINS: Final[dict[type[Expression], Callable[[GraphBuilder, Any, bool], Origin | None]]] = {}
"""The function that finds the origin of each expression class. Values of missing classes lie nowhere else."""


def origin_finder(kind: type[_E]) -> Callable[[FindOrigin[_E]], FindOrigin[_E]]:
    """Register the function that finds the origin of an expression class. Its flag is that of `origin_of`."""

    def register(find: FindOrigin[_E]) -> FindOrigin[_E]:
        ORIGINS[kind] = find
        return find

    return register


def origin_of(b: GraphBuilder, e: Expression, *, moves: bool) -> Origin | None:
    """Return the places in which the value of an expression lies. `moves`: a named handle has moved out of its place.

    Return None for a value without handles, and for one that lies nowhere else.
    """
    find = ORIGINS.get(type(e))
    return None if find is None else find(b, e, moves)


@origin_finder(NameExpr)
def _of_name(b: GraphBuilder, e: NameExpr, moves: bool) -> Known | None:
    return origin_of_place(b, e, moves)


@origin_finder(MemberExpr)
def _of_attribute(b: GraphBuilder, e: MemberExpr, moves: bool) -> Known | None:
    return origin_of_place(b, e, moves)


@origin_finder(AssignmentExpr)
def _of_walrus(b: GraphBuilder, e: AssignmentExpr, moves: bool) -> Origin | None:
    return origin_of(b, e.target, moves=False)


@origin_finder(CastExpr)
def _of_cast(b: GraphBuilder, e: CastExpr, moves: bool) -> Origin | None:
    return origin_of(b, e.expr, moves=moves)


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
