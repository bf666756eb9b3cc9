"""Finds the lists whose length a function's text shows: an item counted from the end has then the same step as one
counted from the front, and the list is taken apart like a tuple.

Such a variable is assigned once, a display or a comprehension over `range(3)`, and each other use of it is one of those
listed here, which leave the length as it is.
"""

from collections import Counter
from typing import Final

from mypy.nodes import (
    ARG_STAR,
    AssignmentStmt,
    CallExpr,
    DelStmt,
    Expression,
    ForStmt,
    FuncDef,
    FuncItem,
    GeneratorExpr,
    IndexExpr,
    IntExpr,
    ListComprehension,
    ListExpr,
    MatchStmt,
    MemberExpr,
    MypyFile,
    NameExpr,
    OperatorAssignmentStmt,
    OpExpr,
    ReturnStmt,
    SliceExpr,
    StarExpr,
    Statement,
    TupleExpr,
    Var,
)

from dagpu.mypy_plugin.ownership.lower.statements.suites import statements_in
from dagpu.mypy_plugin.ownership.module_facts import ModuleFacts

_READERS: Final = frozenset(
    f"builtins.{name}"
    for name in ("len", "list", "tuple", "enumerate", "zip", "reversed", "iter", "sorted", "map", "print", "sum", "any")
)
"""Functions that leave the length of their arguments as it is."""


def fixed_lists(module: ModuleFacts, node: FuncItem | MypyFile) -> dict[Var, int]:
    """Return the variables of a function that hold a list of one known length, with this length.

    mypy has a type for each name that it has checked, so the names among the expressions with a type are all uses.
    """
    if not isinstance(node, FuncDef):
        return {}
    lengths: dict[Var, int] = {}
    statements = list(statements_in(node.body.body))
    for s in statements:
        if isinstance(s, AssignmentStmt) and len(s.lvalues) == 1:
            target, length = s.lvalues[0], _length_of(s.rvalue)
            if isinstance(target, NameExpr) and isinstance(target.node, Var) and length is not None:
                lengths[target.node] = length
    if not lengths:
        return {}
    uses = _Uses(module)
    for s in statements:
        uses.record(s)
    names = [e for e in module.types if isinstance(e, NameExpr) and e.node in lengths]
    others = Counter(e.node for e in names if e not in uses.harmless)
    return {variable: length for variable, length in lengths.items() if others[variable] == 1}  # its assignment


class _Uses:
    """The names that are used where nothing changes the length of a list."""

    def __init__(self, module: ModuleFacts) -> None:
        self.harmless: set[Expression] = set()
        for e in module.types:
            match e:
                case IndexExpr():
                    self.harmless.add(e.base)
                case GeneratorExpr():
                    self.harmless.update(e.sequences)
                case CallExpr():
                    self._record_call(e)
                case ListExpr() | TupleExpr():
                    self.harmless.update(item.expr for item in e.items if isinstance(item, StarExpr))
                case OpExpr() if e.op == "+":
                    self.harmless.update((e.left, e.right))
                case _:
                    pass

    def _record_call(self, e: CallExpr) -> None:
        if isinstance(e.callee, NameExpr) and e.callee.fullname in _READERS:
            self.harmless.update(e.args)
        if isinstance(e.callee, MemberExpr) and e.callee.name == "extend":
            self.harmless.update(e.args)
        self.harmless.update(a for a, kind in zip(e.args, e.arg_kinds, strict=True) if kind == ARG_STAR)

    def record(self, s: Statement) -> None:
        """Record the names that a statement itself uses."""
        match s:
            case ForStmt():
                self.harmless.add(s.expr)
            case ReturnStmt() if s.expr is not None:
                self.harmless.add(s.expr)
            case MatchStmt():
                self.harmless.add(s.subject)
            case AssignmentStmt():
                if len(s.lvalues) == 1 and isinstance(s.lvalues[0], TupleExpr | ListExpr):
                    self.harmless.add(s.rvalue)
                for target in s.lvalues:
                    self._record_target(target)
            case OperatorAssignmentStmt():
                self._record_target(s.lvalue)
            case DelStmt():
                for target in s.expr.items if isinstance(s.expr, TupleExpr) else [s.expr]:
                    if isinstance(target, IndexExpr):
                        self.harmless.discard(target.base)
            case _:
                pass

    def _record_target(self, target: Expression) -> None:
        """Record the list of an assigned item; an assignment to a slice changes the length."""
        match target:
            case TupleExpr() | ListExpr():
                for item in target.items:
                    self._record_target(item)
            case IndexExpr() if isinstance(target.index, SliceExpr):
                self.harmless.discard(target.base)
            case IndexExpr():
                self.harmless.add(target.base)
            case _:
                pass


def _length_of(e: Expression) -> int | None:
    """Return the length of a display without stars, or of a comprehension over `range` of a literal."""
    match e:
        case ListExpr():
            return None if any(isinstance(item, StarExpr) for item in e.items) else len(e.items)
        case ListComprehension():
            inner = e.generator
            sequence = inner.sequences[0]
            if len(inner.sequences) > 1 or inner.condlists[0] or not isinstance(sequence, CallExpr):
                return None
            callee, arguments = sequence.callee, sequence.args
            known = isinstance(callee, NameExpr) and callee.fullname == "builtins.range" and len(arguments) == 1
            return arguments[0].value if known and isinstance(arguments[0], IntExpr) else None
        case _:
            return None
