"""Lowers `with`: what context managers take and lend, and the blocks in which flows are open."""

from mypy.nodes import CallExpr, Expression, WithStmt
from mypy.types import AnyType, CallableType, Instance, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import (
    EVERYTHING,
    FEED,
    AskFeed,
    BlockLoan,
    Build,
    EndLoan,
    Move,
    OpenFeed,
    Place,
    Read,
    Slot,
)
from dagpu.mypy_plugin.ownership.frames import LoanBlock
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder, statement
from dagpu.mypy_plugin.ownership.lower.calls.argument_parts import Arguments
from dagpu.mypy_plugin.ownership.lower.calls.callee import callee_of
from dagpu.mypy_plugin.ownership.lower.lower_functions import method_effect
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.ownership.lower.statements.lower_assignments import assign
from dagpu.mypy_plugin.ownership.rules import expected_errors
from dagpu.mypy_plugin.typing.type_facts import FLOW, MOVES


@statement(WithStmt)
def _with(b: GraphBuilder, s: WithStmt) -> None:
    b.module.deliberate.record_with(s.expr, s.body)
    outer, after = b.handler, b.block()
    swallows = any(_swallows(b, e, s.is_async) for e in s.expr)
    exits: list[Read | EndLoan | AskFeed | Move] = []
    for e, target in zip(s.expr, s.target, strict=True):
        b.how = "being entered"
        held = _enter(b, e, s.is_async, exits)
        if target is not None:
            if s.is_async and (b.kind(e) & FLOW or _gives_feed(b, e, target)):
                held = _lend_for_block(b, OpenFeed, target, False, exits)
            assign(b, target, held, s)
            place = place_of(b, target)
            if place is not None and not b.kind(target) & MOVES and b.kind(target) != FEED:
                exits.append(Read(s, place, None, 0))
                if _is_nursery(b, target):
                    exits.append(AskFeed(s, place))
    block = LoanBlock([leaving for leaving in exits if isinstance(leaving, EndLoan)])
    handler = outer
    if swallows or (block.ends and outer is not None):
        handler = b.block()
        handler.instructions += block.ends
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


def _enter(b: GraphBuilder, e: Expression, is_async: bool, exits: list[Read | EndLoan | AskFeed | Move]) -> Slot | None:
    """Evaluate a context manager and enter it. What it lends it lends until the end of the block."""
    held = b.value(e)
    exits += b.at_exit.pop(e, [])
    place, t = place_of(b, e), b.types.get(e)
    lent: list[Slot] = []
    for name in ("__aenter__", "__aexit__") if is_async else ("__enter__", "__exit__"):
        found = None if place is None else method_effect(b, t, name)
        if found is not None and place is not None:
            manager = Arguments(b, e, found[1], {}, {found[0]: place})
            if name in ("__enter__", "__aenter__"):
                manager.use_parts()
                lent += manager.move_parts()
            else:
                exits += manager.moves()
    if isinstance(e, CallExpr) and (exclusive := names.LENDS_FOR_BLOCK.get(callee_of(b, e).name)) is not None:
        lent.append(_lend_for_block(b, BlockLoan, e, exclusive, exits))
    if lent:
        entered = b.temporary()
        b.emit(Build(e, entered, tuple(lent) if held is None else (held, *lent), EVERYTHING))
        held = entered
    if held is not None:
        exits.append(Read(e, Place(held), None, 0))
    return held


def _lend_for_block(
    b: GraphBuilder,
    lend: type[BlockLoan],
    node: Expression,
    exclusive: bool,
    exits: list[Read | EndLoan | AskFeed | Move],
) -> Slot:
    """Lend until the end of a block, and return the slot that holds the loan."""
    place, into = Place(b.temporary()), b.temporary()
    loan, left = (lend(node, place, into, exclusive, reads_only=True, closed=closed) for closed in (False, True))
    b.emit(loan)
    exits.append(EndLoan(node, loan, left))
    return into


def _gives_feed(b: GraphBuilder, e: Expression, target: Expression) -> bool:
    """Return True for a context manager made of a generator that yields a feed of its own."""
    t = get_proper_type(b.types.get(e))
    return b.kind(target) == FEED and isinstance(t, Instance) and t.type.fullname in names.ENDS_WITH_BLOCK


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
