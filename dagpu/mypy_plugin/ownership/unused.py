"""The rule on unused ops and flows: one that a statement builds and drops is never run or opened."""

from mypy.nodes import (
    AwaitExpr,
    CallExpr,
    ConditionalExpr,
    Expression,
    IndexExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    NameExpr,
    OpExpr,
    RefExpr,
    TupleExpr,
)

from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.typing.type_facts import CONTAINS_FLOWS, CONTAINS_OPS, FLOW, OP, method_name


def drops_op(b: GraphBuilder, e: Expression) -> bool:
    """Return True if an expression statement builds an op or a flow and drops it, so that it can never run."""
    if not b.kind(e) & (OP | CONTAINS_OPS | FLOW | CONTAINS_FLOWS):
        return False
    match e:
        case NameExpr() | MemberExpr() | IndexExpr():
            return bool(b.kind(e) & (OP | FLOW))
        case CallExpr() | AwaitExpr():
            return e in b.types and not _takes_out(b, e)
        case ConditionalExpr():
            return drops_op(b, e.if_expr) or drops_op(b, e.else_expr)
        case OpExpr() if e.op in ("and", "or"):
            return drops_op(b, e.right)
        case ListComprehension():
            return drops_op(b, e.generator.left_expr)
        case TupleExpr() | ListExpr():
            return any(drops_op(b, item) for item in e.items)
        case _:
            return False


def _takes_out(b: GraphBuilder, e: Expression) -> bool:
    """Return True if a call takes an existing op out of a container: `ops.pop()`, `queue.get()`, `next(ops)`."""
    if not isinstance(e, CallExpr):
        return False
    callee = e.callee
    if isinstance(callee, MemberExpr) and callee.expr in b.types:
        full = method_name(b.types.get(callee.expr), callee.name) or ""
        return full.startswith(("builtins.", "typing.", "collections.", "queue.", "trio."))
    return isinstance(callee, RefExpr) and (callee.fullname or "").startswith(("builtins.", "typing."))
