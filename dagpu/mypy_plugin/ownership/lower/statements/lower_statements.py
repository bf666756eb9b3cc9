"""Lowers statements: definitions, branches, loops, `with`, `try`, and the statements that leave a block."""

from mypy.nodes import (
    AssertStmt,
    Block,
    BreakStmt,
    CallExpr,
    ClassDef,
    ContinueStmt,
    Decorator,
    Expression,
    ExpressionStmt,
    ForStmt,
    FuncDef,
    GlobalDecl,
    IfStmt,
    IndexExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    NonlocalDecl,
    OpExpr,
    OverloadedFuncDef,
    RaiseStmt,
    ReturnStmt,
    UnaryExpr,
    Var,
    WhileStmt,
)

from dagpu.mypy_plugin.conditions import is_always_false, is_always_true
from dagpu.mypy_plugin.ownership.control_flow import BasicBlock, Escape
from dagpu.mypy_plugin.ownership.frames import Loop
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder, statement
from dagpu.mypy_plugin.ownership.lower.calls.operator_calls import lower_condition, lower_iteration
from dagpu.mypy_plugin.ownership.lower.lower_functions import closure_of, is_pipeline
from dagpu.mypy_plugin.ownership.lower.lower_names import ask_feed
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.ownership.lower.statements.lower_assignments import assign, declare
from dagpu.mypy_plugin.ownership.lower.values.iteration import element_of
from dagpu.mypy_plugin.ownership.lower.values.origin_kinds import Known
from dagpu.mypy_plugin.ownership.lower.values.shared_places import remember, share_element
from dagpu.mypy_plugin.ownership.rules.unused import drops_op


@statement(ExpressionStmt)
def _expression(b: GraphBuilder, s: ExpressionStmt) -> None:
    if drops_op(b, s.expr):
        b.body.dropped.append(s.expr)
    b.discarded = s.expr
    b.read(s.expr)


@statement(ReturnStmt)
def _return(b: GraphBuilder, s: ReturnStmt) -> None:
    if s.expr is not None:
        b.how = "being returned"
        _record_result(b, s.expr)
        held = b.value(s.expr)
        if held is not None:
            b.emit(Escape(s.expr, held, "returned from"))
    b.leave(None)


def _record_result(b: GraphBuilder, e: Expression) -> None:
    """Record the place of the result, and of the items that it goes over if it is an iterator."""
    if isinstance(e, NameExpr | MemberExpr | IndexExpr):
        if not is_always_false(e):  # None
            b.body.returned.add(place_of(b, e))
        return
    b.body.returned.add(None)
    if isinstance(e, CallExpr) and isinstance(e.callee, NameExpr) and e.callee.fullname == "builtins.iter":
        element = element_of(b, e)
        b.body.yielded.add(element.place if isinstance(element, Known) else None)


@statement(RaiseStmt)
def _raise(b: GraphBuilder, s: RaiseStmt) -> None:
    for e in (s.expr, s.from_expr):
        if e is not None:
            b.read(e)
    b.throw()


@statement(AssertStmt)
def _assert(b: GraphBuilder, s: AssertStmt) -> None:
    lower_condition(b, s.expr)
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


def _branch(b: GraphBuilder, e: Expression, then: BasicBlock, otherwise: BasicBlock) -> None:
    """Evaluate a condition and go to one of two blocks: behind both sides of an `and` to `then`, else to the other."""
    match e:
        case OpExpr() if e.op in ("and", "or") and not e.right_unreachable:
            right = b.block()
            _branch(b, e.left, *((right, otherwise) if e.op == "and" else (then, right)))
            b.current = right
            _branch(b, e.right, then, otherwise)
        case UnaryExpr() if e.op == "not":
            _branch(b, e.expr, otherwise, then)
        case _:
            lower_condition(b, e)
            b.jump(then)
            b.jump(otherwise)


@statement(IfStmt)
def _if(b: GraphBuilder, s: IfStmt) -> None:
    end = b.block()
    for condition, suite in zip(s.expr, s.body, strict=True):
        then, otherwise = b.block(), b.block()
        _branch(b, condition, then, otherwise)
        b.current = then
        b.suite(suite)
        b.jump(end)
        b.current = otherwise
    b.suite(s.else_body)
    b.fall_into(end)


@statement(WhileStmt)
def _while(b: GraphBuilder, s: WhileStmt) -> None:
    head, end = b.split(), b.block()
    then, otherwise = b.block(), b.block()
    if is_always_true(s.expr):
        b.read(s.expr)
        b.jump(then)
    else:
        _branch(b, s.expr, then, otherwise)
    b.current = then
    with b.inside(Loop(end, head)):
        b.suite(s.body)
    b.jump(head)
    b.current = otherwise
    b.suite(s.else_body)
    b.fall_into(end)


@statement(ForStmt)
def _for(b: GraphBuilder, s: ForStmt) -> None:
    found = lower_iteration(b, s.expr)
    held = ask_feed(b, s.expr) if found is False else found
    origin = element_of(b, s.expr)
    if isinstance(origin, Known) and isinstance(s.index, NameExpr) and isinstance(s.index.node, Var):
        b.iterated[s.index.node] = origin.place
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
