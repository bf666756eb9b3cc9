"""Lowers statements: definitions, branches, loops, `with`, `try`, and the statements that leave a block."""

from mypy.nodes import (
    AssertStmt,
    Block,
    BreakStmt,
    ClassDef,
    ContinueStmt,
    Decorator,
    Expression,
    ExpressionStmt,
    ForStmt,
    FuncDef,
    GlobalDecl,
    IfStmt,
    MypyFile,
    NonlocalDecl,
    OverloadedFuncDef,
    RaiseStmt,
    ReturnStmt,
    TryStmt,
    Var,
    WhileStmt,
    WithStmt,
)
from mypy.types import AnyType, CallableType, Instance, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.conditions import is_always_false, is_always_true
from dagpu.mypy_plugin.ownership.control_flow import FEED, AskFeed, CloseFeed, Escape, OpenFeed, Place, Read
from dagpu.mypy_plugin.ownership.graph_builder import FeedBlock, Finally, GraphBuilder, Loop, statement
from dagpu.mypy_plugin.ownership.lower.lower_assignments import assign, declare
from dagpu.mypy_plugin.ownership.lower.lower_functions import closure_of, is_pipeline
from dagpu.mypy_plugin.ownership.lower.lower_places import ask_feed, place_of
from dagpu.mypy_plugin.ownership.lower.shared_places import element_of, remember, share_element
from dagpu.mypy_plugin.ownership.rules import expected_errors
from dagpu.mypy_plugin.ownership.rules.unused import drops_op
from dagpu.mypy_plugin.typing.type_facts import FLOW, MOVES


@statement(ExpressionStmt)
def _expression(b: GraphBuilder, s: ExpressionStmt) -> None:
    if drops_op(b, s.expr):
        b.body.dropped.append(s.expr)
    b.read(s.expr)


@statement(ReturnStmt)
def _return(b: GraphBuilder, s: ReturnStmt) -> None:
    if s.expr is not None:
        b.how = "being returned"
        held = b.value(s.expr)
        if held is not None:
            b.emit(Escape(s.expr, held, "returned from"))
    b.leave(None)


@statement(RaiseStmt)
def _raise(b: GraphBuilder, s: RaiseStmt) -> None:
    for e in (s.expr, s.from_expr):
        if e is not None:
            b.read(e)
    b.throw()


@statement(AssertStmt)
def _assert(b: GraphBuilder, s: AssertStmt) -> None:
    b.read(s.expr)
    b.may_raise()
    if is_always_false(s.expr):
        if s.msg is not None and s.msg in b.types:
            b.read(s.msg)
        b.throw()
    elif s.msg is not None and s.msg in b.types:
        here = b.current
        b.split()
        b.read(s.msg)
        b.throw()
        b.current = b.block()
        here.next.append(b.current)


@statement(GlobalDecl)
def _global(b: GraphBuilder, s: GlobalDecl) -> None:
    b.foreign.update(s.names)


@statement(NonlocalDecl)
def _nonlocal(b: GraphBuilder, s: NonlocalDecl) -> None:
    b.foreign.update(s.names)


@statement(Block)
def _block(b: GraphBuilder, s: Block) -> None:
    b.suite(s)


# ---- definitions


@statement(FuncDef)
def _function(b: GraphBuilder, s: FuncDef) -> None:
    if not isinstance(b.body.node, MypyFile):
        b.closures[s] = closure_of(b, s)


@statement(Decorator)
def _decorated(b: GraphBuilder, s: Decorator) -> None:
    for decorator in s.decorators:
        b.read(decorator)
    if is_pipeline(s):
        b.module.continuations.add(s.func)
    _function(b, s.func)
    if s.decorators and (closure := b.closures.get(s.func)) is not None:
        b.body.opaque.update(root for root, _ in closure.uses)


@statement(OverloadedFuncDef)
def _overloaded(b: GraphBuilder, s: OverloadedFuncDef) -> None:
    if s.impl is not None:
        b.statement(s.impl)


@statement(ClassDef)
def _class(b: GraphBuilder, s: ClassDef) -> None:
    """Lower a class body in place. Its methods are separate bodies without captures: their closures are dropped."""
    closures = dict(b.closures)
    for symbol in s.info.names.values():
        if isinstance(symbol.node, Var):
            b.declare(symbol.node)
    b.suite(s.defs)
    for root in b.closures.keys() - closures.keys():
        b.body.opaque.update(used for used, _ in b.closures[root].uses)
    b.closures = closures


# ---- branches and loops


@statement(IfStmt)
def _if(b: GraphBuilder, s: IfStmt) -> None:
    end = b.block()
    for condition, suite in zip(s.expr, s.body, strict=True):
        b.read(condition)
        then, otherwise = b.block(), b.block()
        b.jump(then)
        b.jump(otherwise)
        b.current = then
        b.suite(suite)
        b.jump(end)
        b.current = otherwise
    b.suite(s.else_body)
    b.fall_into(end)


@statement(WhileStmt)
def _while(b: GraphBuilder, s: WhileStmt) -> None:
    head, end = b.split(), b.block()
    b.read(s.expr)
    otherwise = b.block()
    if not is_always_true(s.expr):
        b.jump(otherwise)
    b.split()
    with b.inside(Loop(end, head)):
        b.suite(s.body)
    b.jump(head)
    b.current = otherwise
    b.suite(s.else_body)
    b.fall_into(end)


@statement(ForStmt)
def _for(b: GraphBuilder, s: ForStmt) -> None:
    held = ask_feed(b, s.expr)
    origin = element_of(b, s.expr)
    before = remember(b, s, origin)
    head, end, otherwise = b.split(), b.block(), b.block()
    b.may_raise()
    b.jump(otherwise)
    b.split()
    declare(b, s.index, element=True)
    assign(b, s.index, held, s)
    share_element(b, s.index, origin, before)
    with b.inside(Loop(end, head)):
        b.suite(s.body)
    b.jump(head)
    b.current = otherwise
    b.suite(s.else_body)
    b.fall_into(end)


@statement(BreakStmt)
def _break(b: GraphBuilder, s: BreakStmt) -> None:
    b.leave(Loop)


@statement(ContinueStmt)
def _continue(b: GraphBuilder, s: ContinueStmt) -> None:
    b.leave(Loop, continued=True)


# ---- with and try


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
