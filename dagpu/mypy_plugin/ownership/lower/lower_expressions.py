"""Lowers expressions other than names and calls: displays, operators, lambdas."""

from collections.abc import Iterable

from mypy.nodes import (
    AssignmentExpr,
    ComparisonExpr,
    ConditionalExpr,
    DictExpr,
    Expression,
    IntExpr,
    LambdaExpr,
    ListExpr,
    MemberExpr,
    NameExpr,
    OpExpr,
    RevealExpr,
    SetExpr,
    SliceExpr,
    StarExpr,
    TupleExpr,
    UnaryExpr,
    Var,
    YieldExpr,
    YieldFromExpr,
)
from mypy.operators import unary_op_methods

from dagpu.mypy_plugin.ownership.closure_facts import pass_closure_on
from dagpu.mypy_plugin.ownership.control_flow import EVERYTHING, LOANS, Build, Escape, Slot, Yield
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder, expression
from dagpu.mypy_plugin.ownership.lower.calls.operands import Operands
from dagpu.mypy_plugin.ownership.lower.calls.operator_calls import (
    lower_binary,
    lower_condition,
    lower_operator,
    lower_truth,
)
from dagpu.mypy_plugin.ownership.lower.lower_functions import closure_of
from dagpu.mypy_plugin.ownership.lower.statements.lower_assignments import assign
from dagpu.mypy_plugin.ownership.lower.values.iteration import element_of
from dagpu.mypy_plugin.ownership.lower.values.origin_kinds import Known
from dagpu.mypy_plugin.ownership.lower.values.origins import origin_of
from dagpu.mypy_plugin.ownership.lower.values.shared_places import share
from dagpu.mypy_plugin.typing.type_facts import HANDLE, MOVES, OP


def _display(b: GraphBuilder, e: Expression, items: Iterable[Expression], by_value: bool) -> Slot | None:
    how, operands, parts = b.how, Operands(b), []
    for item in items:
        b.how = how
        parts.append(operands.evaluate(item, by_value))
    operands.emit_moves()
    held = tuple(part for part in parts if part is not None)
    if not held:
        return None
    into = b.temporary()
    b.emit(Build(e, into, held, EVERYTHING, operands.owns))
    return into


@expression(TupleExpr)
def _tuple(b: GraphBuilder, e: TupleExpr, by_value: bool) -> Slot | None:
    return _display(b, e, e.items, by_value)


@expression(ListExpr)
def _list(b: GraphBuilder, e: ListExpr, by_value: bool) -> Slot | None:
    return _display(b, e, e.items, by_value)


@expression(SetExpr)
def _set(b: GraphBuilder, e: SetExpr, by_value: bool) -> Slot | None:
    return _display(b, e, e.items, by_value)


@expression(DictExpr)
def _dict(b: GraphBuilder, e: DictExpr, by_value: bool) -> Slot | None:
    items = (item for pair in e.items for item in pair if item is not None)
    return _display(b, e, items, by_value)


@expression(StarExpr)
def _star(b: GraphBuilder, e: StarExpr, by_value: bool) -> Slot | None:
    return b.evaluate(e.expr, by_value)


@expression(UnaryExpr)
def _unary(b: GraphBuilder, e: UnaryExpr, by_value: bool) -> Slot | None:
    if e.op == "not":
        lower_condition(b, e.expr)
        return None
    found = lower_operator(b, e, e.expr, unary_op_methods.get(e.op, ""))
    if found is False:
        b.read(e.expr)
    return found or None


@expression(ComparisonExpr)
def _comparison(b: GraphBuilder, e: ComparisonExpr, by_value: bool) -> Slot | None:
    if len(e.operators) == 1 or all(isinstance(one, NameExpr | MemberExpr | IntExpr) for one in e.operands):
        pairs = zip(e.operands, e.operators, e.operands[1:], strict=False)
        if [pair for pair in pairs if lower_binary(b, e, *pair) is not False]:
            return None
    by_identity = all(operator in ("is", "is not") for operator in e.operators)
    for operand in e.operands:
        if not (by_identity and isinstance(operand, NameExpr) and b.kind(operand) & HANDLE):  # it asks the variable
            b.read(operand)
    return None


@expression(SliceExpr)
def _slice(b: GraphBuilder, e: SliceExpr, by_value: bool) -> Slot | None:
    for part in (e.begin_index, e.end_index, e.stride):
        if part is not None:
            b.read(part)
    return None


@expression(RevealExpr)
def _reveal(b: GraphBuilder, e: RevealExpr, by_value: bool) -> Slot | None:
    return None if e.expr is None else b.evaluate(e.expr, by_value)


@expression(AssignmentExpr)
def _walrus(b: GraphBuilder, e: AssignmentExpr, by_value: bool) -> Slot | None:
    how, b.how = b.how, f'being assigned to "{e.target.name}"'
    held = b.value(e.value)
    origin = origin_of(b, e.value, moves=True)
    assign(b, e.target, held, e, e.value)
    share(b, e.target, origin, e)
    b.how = how
    return None if e is b.discarded else b.evaluate(e.target, by_value)


@expression(YieldExpr)
def _yield(b: GraphBuilder, e: YieldExpr, by_value: bool) -> Slot | None:
    if e.expr is not None:
        b.how = "being yielded"
        b.body.yielded.add(
            b.iterated.get(e.expr.node) if isinstance(e.expr, NameExpr) and isinstance(e.expr.node, Var) else None
        )
        held = b.value(e.expr)
        if held is not None and not getattr(b.body.node, "is_decorated", False):  # @asynccontextmanager, a fixture
            b.emit(Escape(e.expr, held, "yielded from", feeds_only=True))
    b.emit(Yield(e))
    b.may_raise()
    return None


@expression(YieldFromExpr)
def _yield_from(b: GraphBuilder, e: YieldFromExpr, by_value: bool) -> Slot | None:
    b.how = "being yielded"
    element = element_of(b, e.expr)
    b.body.yielded.add(element.place if isinstance(element, Known) else None)
    b.value(e.expr)
    b.emit(Yield(e))
    b.may_raise()
    return None


@expression(LambdaExpr)
def _lambda(b: GraphBuilder, e: LambdaExpr, by_value: bool) -> Slot | None:
    closure = b.lambdas[e] = closure_of(b, e)
    return pass_closure_on(b, closure, e)


# ---- expressions that branch


def build_alternative(
    b: GraphBuilder, e: Expression, into: Slot, held: Slot | None, others: tuple[Slot, ...] = ()
) -> bool:
    """Build one of the possible values of `into`. Return True if it holds any facts."""
    if held is not None:
        b.emit(Build(e, into, (held, *others), EVERYTHING))
    return held is not None


@expression(OpExpr)
def _operator(b: GraphBuilder, e: OpExpr, by_value: bool) -> Slot | None:
    if e.op not in ("and", "or"):
        found = lower_binary(b, e, e.left, e.op, e.right)
        if found is not False:
            return found
        how = b.how
        by_value = by_value and b.kinds.may_own(b.types.get(e))  # the sum of two lists holds the items of both
        left = b.evaluate(e.left, by_value)
        b.how = how
        right = b.evaluate(e.right, by_value)
        parts = tuple(held for held in (left, right) if held is not None)
        return _build_joined(b, e, parts)
    how, into = b.how, b.temporary()
    if b.kind(e.left) & (HANDLE | OP):
        b.body.conditions.append(e.left)
    elif isinstance(e.left, NameExpr | MemberExpr):
        lower_truth(b, e.left)
    left = b.evaluate(e.left, by_value and b.kind(e) & MOVES != 0)
    holds = build_alternative(b, e, into, left)
    right_side, end = b.block(), b.block()
    b.jump(right_side)
    b.jump(end)
    b.current, b.how = right_side, how
    if not e.right_unreachable:
        right = b.evaluate(e.right, by_value)
        holds = build_alternative(b, e, into, right) or holds
        b.jump(end)
    b.current = end
    return into if holds else None


def _build_joined(b: GraphBuilder, e: Expression, parts: tuple[Slot, ...]) -> Slot | None:
    if not parts:
        return None
    keeps = b.kind(e) & LOANS
    into = b.temporary() if keeps else None
    b.emit(Build(e, into, parts, keeps))
    return into


@expression(ConditionalExpr)
def _conditional(b: GraphBuilder, e: ConditionalExpr, by_value: bool) -> Slot | None:
    how, into, holds = b.how, b.temporary(), False
    lower_condition(b, e.cond)
    yes, no, end = b.block(), b.block(), b.block()
    b.jump(yes)
    b.jump(no)
    for branch, value in ((yes, e.if_expr), (no, e.else_expr)):
        b.current, b.how = branch, how
        if value not in b.types and e in b.types:
            continue  # mypy did not check it: the condition never selects it
        holds = build_alternative(b, e, into, b.evaluate(value, by_value)) or holds
        b.jump(end)
    b.current = end
    return into if holds else None
