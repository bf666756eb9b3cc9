"""Finds the places in which the value of an expression lies: a component of a tuple has one under each of its names."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from mypy.nodes import (
    AssignmentExpr,
    CastExpr,
    Expression,
    IndexExpr,
    MemberExpr,
    NameExpr,
)
from mypy.types import Type

from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.ownership.lower.values.origin_kinds import Known, Origin
from dagpu.mypy_plugin.typing.type_facts import MOVES

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
