"""Lowers `match`: the variables that patterns bind, and a test for cases that cover the subject's whole type."""

from collections.abc import Iterator

from mypy.nodes import MatchStmt, NameExpr, TypeInfo
from mypy.patterns import (
    AsPattern,
    ClassPattern,
    MappingPattern,
    OrPattern,
    Pattern,
    SequencePattern,
    SingletonPattern,
    StarredPattern,
    ValuePattern,
)
from mypy.typeops import try_expanding_sum_type_to_union
from mypy.types import Instance, LiteralType, NoneType, ProperType, UnionType, get_proper_type

from dagpu.mypy_plugin.ownership.control_flow import Move, Place
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder, statement
from dagpu.mypy_plugin.ownership.lower.calls.operator_calls import lower_condition
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.ownership.lower.statements.lower_assignments import assign, declare
from dagpu.mypy_plugin.ownership.lower.values.origin_kinds import Known
from dagpu.mypy_plugin.ownership.lower.values.origins import origin_of
from dagpu.mypy_plugin.ownership.lower.values.shared_places import share_captures
from dagpu.mypy_plugin.typing.type_facts import MOVES


@statement(MatchStmt)
def _match(b: GraphBuilder, s: MatchStmt) -> None:
    held = b.read(s.subject)
    origin = origin_of(b, s.subject, moves=False)
    subject, end = place_of(b, s.subject), b.block()
    if subject is None and b.kind(s.subject) & MOVES:
        subject = Place(b.temporary())  # of the value of a call, which each case names anew
        origin = Known(subject, b.types.get(s.subject))
    left = _alternatives(b, s)
    for pattern, guard, suite in zip(s.patterns, s.guards, s.bodies, strict=True):
        if suite.is_unreachable:
            continue
        arm, otherwise = b.block(), b.block()
        b.jump(arm)
        if guard is None:
            left = [t for t in left if not _covers(b, pattern, t)]
        if left:
            b.jump(otherwise)
        b.current = arm
        whole = pattern.name if isinstance(pattern, AsPattern) else None
        for variable in captures(pattern):
            declare(b, variable, element=variable is not whole)
            assign(b, variable, held, s)
        if whole is None or guard is not None or not b.kind(whole) & MOVES:
            share_captures(b, pattern, origin)
        if guard is not None:
            lower_condition(b, guard)
            b.jump(otherwise)
            b.split()
        if subject is not None and whole is not None and b.kind(whole) & MOVES:
            how = f'being assigned to "{whole.name}"'
            b.emit(Move(whole, subject, b.temporary(), how, silent=guard is not None, binds=True))
        b.suite(suite)
        b.jump(end)
        b.current = otherwise
    b.fall_into(end)


def captures(pattern: Pattern) -> Iterator[NameExpr]:
    """Iterate over the variables that a pattern binds."""
    match pattern:
        case AsPattern():
            if pattern.pattern is not None:
                yield from captures(pattern.pattern)
            if pattern.name is not None:
                yield pattern.name
        case OrPattern() | SequencePattern():
            for inner in pattern.patterns:
                yield from captures(inner)
        case StarredPattern():
            if pattern.capture is not None:
                yield pattern.capture
        case MappingPattern():
            for inner in pattern.values:
                yield from captures(inner)
            if pattern.rest is not None:
                yield pattern.rest
        case ClassPattern():
            for inner in (*pattern.positionals, *pattern.keyword_values):
                yield from captures(inner)
        case _:
            pass


# ---- exhaustive cases


def _alternatives(b: GraphBuilder, s: MatchStmt) -> list[ProperType]:
    """Return the alternatives of the subject's type: the items of a union, the members of an enumeration."""
    t = b.types.get(s.subject)
    if t is None:
        return [NoneType()]
    expanded = get_proper_type(try_expanding_sum_type_to_union(get_proper_type(t), None))
    items = expanded.items if isinstance(expanded, UnionType) else [expanded]
    return [get_proper_type(item) for item in items]


def _covers(b: GraphBuilder, pattern: Pattern, t: ProperType) -> bool:
    """Return True if a pattern is certain to match all values of a type."""
    match pattern:
        case AsPattern():
            return pattern.pattern is None or _covers(b, pattern.pattern, t)
        case OrPattern():
            return any(_covers(b, inner, t) for inner in pattern.patterns)
        case ClassPattern() if not (pattern.positionals or pattern.keyword_values):
            node = pattern.class_ref.node
            instance = t.fallback if isinstance(t, LiteralType) else t
            return (
                isinstance(node, TypeInfo) and isinstance(instance, Instance) and instance.type.has_base(node.fullname)
            )
        case SingletonPattern():
            if pattern.value is None:
                return isinstance(t, NoneType)
            return isinstance(t, LiteralType) and t.value is pattern.value
        case ValuePattern():
            value = get_proper_type(b.types.get(pattern.expr))
            if isinstance(value, Instance) and value.last_known_value is not None:
                value = value.last_known_value
            return isinstance(t, LiteralType) and t == value
        case _:
            return False
