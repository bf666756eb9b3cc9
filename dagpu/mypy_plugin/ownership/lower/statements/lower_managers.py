"""Lowers `with` and `try`: handlers, `finally` suites, and the blocks in which flows are open."""

from mypy.nodes import Expression, TryStmt, WithStmt
from mypy.types import AnyType, CallableType, Instance, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import FEED, AskFeed, CloseFeed, OpenFeed, Place, Read
from dagpu.mypy_plugin.ownership.frames import FeedBlock, Finally
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder, statement
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.ownership.lower.statements.lower_assignments import assign, declare
from dagpu.mypy_plugin.ownership.rules import expected_errors
from dagpu.mypy_plugin.typing.type_facts import FLOW, MOVES


@statement(WithStmt)
def _with(b: GraphBuilder, s: WithStmt) -> None:
    b.module.deliberate.record_with(s.expr, s.body)
    outer, after = b.handler, b.block()
    swallows = any(_swallows(b, e, s.is_async) for e in s.expr)
    block = FeedBlock([])
    exits: list[Read | CloseFeed | AskFeed] = []
    for e, target in zip(s.expr, s.target, strict=True):
        b.how = "being entered"
        held = b.value(e)
        if target is not None:
            if s.is_async and b.kind(e) & FLOW:
                close = _open_feed(b, target)
                held = close.loan.into
                block.closes.append(close)
                exits.append(close)
            assign(b, target, held, s)
            place = place_of(b, target)
            if place is not None and not b.kind(target) & MOVES and b.kind(target) != FEED:
                exits.append(Read(s, place, None, 0))
                if _is_nursery(b, target):
                    exits.append(AskFeed(s, place))
    handler = outer
    if swallows or (block.closes and outer is not None):
        handler = b.block()
        handler.instructions += block.closes
        if swallows:
            handler.next.append(after)
        if outer is not None:
            handler.next.append(outer)
        b.split()
    with b.handled_by(handler), b.inside(block):
        b.suite(s.body)
        if any(map(expected_errors.requires_error, s.expr)):
            b.unreachable()  # only the expected exception leaves the suite
    for leaving in reversed(exits):
        b.emit(leaving)
    b.fall_into(after)


def _open_feed(b: GraphBuilder, target: Expression) -> CloseFeed:
    """Lend an open flow to its feed, and return the end of that loan."""
    place, into = Place(b.temporary()), b.temporary()
    loan = OpenFeed(target, place, into, exclusive=False, reads_only=True)
    left = OpenFeed(target, place, into, exclusive=False, reads_only=True, closed=True)
    b.emit(loan)
    return CloseFeed(target, loan, left)


def _is_nursery(b: GraphBuilder, e: Expression) -> bool:
    t = get_proper_type(b.types.get(e))
    return isinstance(t, Instance) and t.type.fullname == names.NURSERY


def _swallows(b: GraphBuilder, e: Expression, is_async: bool) -> bool:
    """Return True if a context manager may swallow an exception. mypy's rule: its `__exit__` returns a bool.

    A nursery is an exception to the rule: it swallows only its own cancellation.
    """
    t = get_proper_type(b.types.get(e))
    if not isinstance(t, Instance) or t.type.fullname in names.NURSERIES:
        return False
    method = t.type.get_method("__aexit__" if is_async else "__exit__")
    signature = get_proper_type(method.type) if method is not None else None
    if not isinstance(signature, CallableType):
        return False
    result = get_proper_type(signature.ret_type)
    if is_async and isinstance(result, Instance) and result.type.fullname == "typing.Coroutine":
        result = get_proper_type(result.args[2])
    return not isinstance(result, AnyType) and isinstance(result, Instance) and result.type.fullname == "builtins.bool"


@statement(TryStmt)
def _try(b: GraphBuilder, s: TryStmt) -> None:
    b.module.deliberate.record_try(s.types, s.body)
    outer, end = b.handler, b.block()
    inner = outer
    if s.finally_body is not None:
        inner = b.block()
        here, b.current = b.current, inner
        b.suite(s.finally_body)
        b.throw()
        b.current = here
        frame = Finally(s.finally_body, outer)
        b.frames.append(frame)
    handlers = b.block()
    with b.handled_by(handlers if s.handlers else inner):
        b.split()
        b.suite(s.body)
    with b.handled_by(inner):
        b.suite(s.else_body)
        b.jump(end)
        for caught, variable, suite in zip(s.types, s.vars, s.handlers, strict=True):
            b.current = handlers
            b.split()
            if caught is not None:
                b.read(caught)
            if variable is not None:
                declare(b, variable)
            b.suite(suite)
            b.jump(end)
    if inner is not None:
        handlers.next.append(inner)
    b.current = end
    if s.finally_body is not None:
        b.frames.pop()
        b.suite(s.finally_body)
