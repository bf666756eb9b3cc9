"""Propagates known shapes through the statements of a function, path by path.

A value is known at a point if it holds on every path to that point. Two simplifications keep the analysis to one pass:

- In the body of a loop, the values are those of the first round. After the loop, the variables that its body binds are
  unknown.
- A branch whose condition depends on a known value (`if n % 4:` where n is 10) may be dead code. Errors in it are not
  reported. If such a branch leaves the block, all variables are unknown from there on.
"""

from collections.abc import Mapping
from typing import final

from mypy.nodes import (
    AssertStmt,
    AssignmentStmt,
    Block,
    BreakStmt,
    CallExpr,
    ClassDef,
    ContinueStmt,
    Decorator,
    DelStmt,
    Expression,
    ExpressionStmt,
    ForStmt,
    FuncDef,
    FuncItem,
    IfStmt,
    MatchStmt,
    MypyFile,
    OperatorAssignmentStmt,
    RaiseStmt,
    RefExpr,
    ReturnStmt,
    Statement,
    SymbolNode,
    TryStmt,
    TupleExpr,
    WhileStmt,
    WithStmt,
)
from mypy.patterns import AsPattern, MappingPattern, Pattern, StarredPattern
from mypy.types import Type, UninhabitedType, get_proper_type

from dagpu.mypy_plugin.shape_eval import Evaluator, Judge
from dagpu.mypy_plugin.shape_values import Value, joined, of_type

_EXPECTED = frozenset(
    ("PartitionError", "KernelArgumentError", "ShapeError", "OwnershipError", "DagpuError", "ValueError", "TypeError")
)
"""Exceptions raised for a wrong tile or argument. A program that handles one expects such a mistake."""

_EXPECTING = frozenset(("raises", "suppress", "assertRaises", "assertRaisesRegex", "RaisesGroup"))
"""Context managers that expect an exception."""


def follow(target: FuncDef | MypyFile, types: Mapping[Expression, Type], judge: Judge) -> None:
    """Report to `judge` all calls in a function with its nested functions, or in a module outside its functions."""
    flow = _Flow(types, judge, nested=isinstance(target, FuncDef))
    if isinstance(target, FuncDef):
        flow.function(target)
    else:
        flow.statements(target.defs)


@final
class _Flow:
    """Visits statements. Each method for a statement returns True if the statement after it is reached."""

    def __init__(self, types: Mapping[Expression, Type], judge: Judge, *, nested: bool) -> None:
        self._types = types
        self._nested = nested
        self._on = Evaluator(types.get, judge, in_function=nested)

    def function(self, function: FuncItem) -> None:
        """Visit the body of a function. It may run at any time, so the variables of enclosing scopes are unknown."""
        around, self._on.known = self._on.known, {}
        start = len(self._on.bound)
        for argument in function.arguments:
            self._on.bind_name(argument.variable, of_type(argument.variable.type))
        self.block(function.body)
        self._on.known = around
        nonlocals = [node for node in self._on.bound[start:] if node in around]
        self._on.shared.update(nonlocals)
        around.update(dict.fromkeys(nonlocals))

    def block(self, block: Block | None) -> bool:
        """Visit a block, if there is one. Return True if its end is reached."""
        if block is None:
            return True
        return not block.is_unreachable and self.statements(block.body)

    def statements(self, statements: list[Statement]) -> bool:
        """Visit statements in order, until one is not reached. Return True if the end is reached."""
        return all(map(self._statement, statements))

    def _statement(self, statement: Statement) -> bool:
        match statement:
            case ExpressionStmt():
                self._on.visit(statement.expr)
                return not self._never_returns(statement.expr)
            case AssignmentStmt():
                value = self._on.visit(statement.rvalue)
                for place in statement.lvalues:
                    self._on.bind(place, value)
            case ReturnStmt():
                self._on.visit(statement.expr)
                return False
            case IfStmt():
                return self._if(statement)
            case ForStmt() | WhileStmt():
                return self._loop(statement)
            case WithStmt():
                return self._with(statement)
            case TryStmt():
                return self._try(statement)
            case MatchStmt():
                return self._match(statement)
            case _:
                return self._rarer(statement)
        return True

    def _rarer(self, statement: Statement) -> bool:
        match statement:
            case OperatorAssignmentStmt():
                self._on.visit(statement.rvalue)
                self._on.bind(statement.lvalue, None)
            case RaiseStmt():
                self._on.visit_all([statement.expr, statement.from_expr])
                return False
            case BreakStmt() | ContinueStmt():
                return False
            case AssertStmt():
                self._on.visit_all([statement.expr, statement.msg])
            case DelStmt():
                self._on.bind(statement.expr, None)
            case Decorator():
                self._on.visit_all(statement.decorators)
                return self._rarer(statement.func)
            case FuncDef() if self._nested:
                self._on.visit_all(argument.initializer for argument in statement.arguments)
                self.function(statement)
            case ClassDef():
                self._on.visit_all(statement.decorators)
                self.block(statement.defs)
            case Block():
                return self.block(statement)
            case _:
                pass
        return True

    def _never_returns(self, expression: Expression) -> bool:
        return isinstance(expression, CallExpr) and isinstance(
            get_proper_type(self._types.get(expression)), UninhabitedType
        )

    # ---- branches

    def _branches(self, blocks: list[Block | None], decided: bool) -> bool:
        """Visit alternative blocks, and merge their results. `decided`: the choice depends on a known value."""
        before = self._on.known
        ends: list[dict[SymbolNode, Value]] = []
        with self._on.silent(decided):
            for block in blocks:
                self._on.known = dict(before)
                if self.block(block):
                    ends.append(self._on.known)
        self._on.known = _merged(ends)
        if decided and len(ends) < len(blocks):
            self._on.known = dict.fromkeys(self._on.known)
        return bool(ends)

    def _if(self, statement: IfStmt) -> bool:
        decided = [self._on.decides(test) for test in statement.expr]
        return self._branches([*statement.body, statement.else_body], any(decided))

    def _match(self, statement: MatchStmt) -> bool:
        decided = self._on.decides(statement.subject)
        for pattern in statement.patterns:
            for node in _captured(pattern):
                self._on.bind_name(node, None)
        guards = [self._on.decides(guard) for guard in statement.guards]
        return self._branches([*statement.bodies, None], decided or any(guards))

    # ---- loops

    def _loop(self, statement: ForStmt | WhileStmt) -> bool:
        start = len(self._on.bound)
        decided = False
        if isinstance(statement, ForStmt):
            self._on.visit(statement.expr)
            self._on.bind(statement.index, None)
        else:
            decided = self._on.decides(statement.expr)
        before = dict(self._on.known)
        with self._on.silent(decided):
            self.block(statement.body)
        self._on.known = before | dict.fromkeys(self._on.bound[start:])
        return self.block(statement.else_body)

    # ---- statements that may be left half-way

    def _with(self, statement: WithStmt) -> bool:
        for manager, place in zip(statement.expr, statement.target, strict=True):
            self._on.visit(manager)
            if place is not None:
                self._on.bind(place, None)
        expecting = any(map(_expects, statement.expr))
        before = dict(self._on.known)
        with self._on.silent(expecting):
            reached = self.block(statement.body)
        # The manager may swallow an exception, so the body may have been left at any point.
        self._on.known = _merged([before, self._on.known])
        return reached or expecting

    def _try(self, statement: TryStmt) -> bool:
        start, before = len(self._on.bound), dict(self._on.known)
        with self._on.silent(any(map(_reckons, statement.types))):
            reached = self.block(statement.body)
        left = before | dict.fromkeys(self._on.bound[start:])
        ends: list[dict[SymbolNode, Value]] = []
        if reached and self.block(statement.else_body):
            ends.append(self._on.known)
        for name, handler in zip(statement.vars, statement.handlers, strict=True):
            self._on.known = dict(left)
            if name is not None:
                self._on.bind(name, None)
            if self.block(handler):
                ends.append(self._on.known)
        if statement.finally_body is not None:
            self._on.known = before | dict.fromkeys(self._on.bound[start:])
            start = len(self._on.bound)
            if not self.block(statement.finally_body):
                return False
            ends = [end | dict.fromkeys(self._on.bound[start:]) for end in ends]
        self._on.known = _merged(ends)
        return bool(ends)


def _merged(ends: list[dict[SymbolNode, Value]]) -> dict[SymbolNode, Value]:
    """Join the variables of several paths. A variable that only some of them bind keeps their value: on the other
    paths, using it would be an error."""
    if not ends:
        return {}
    merged = dict(ends[0])
    for end in ends[1:]:
        for node, value in end.items():
            merged[node] = joined(merged[node], value) if node in merged else value
    return merged


def _captured(pattern: Pattern) -> list[SymbolNode]:
    """Return the variables that a pattern binds."""
    places = []
    match pattern:
        case AsPattern():
            places = [pattern.name]
        case StarredPattern():
            places = [pattern.capture]
        case MappingPattern():
            places = [pattern.rest]
        case _:
            pass
    inner: list[Pattern] = []
    for attribute in ("pattern", "patterns", "values", "positionals", "keyword_values"):
        found = getattr(pattern, attribute, None)
        inner += found if isinstance(found, list) else [found] if isinstance(found, Pattern) else []
    nodes = [place.node for place in places if place is not None and place.node is not None]
    return nodes + [node for part in inner for node in _captured(part)]


def _expects(manager: Expression) -> bool:
    """Return True for a context manager that expects an exception, such as `pytest.raises(...)`."""
    return isinstance(manager, CallExpr) and getattr(manager.callee, "name", "") in _EXPECTING


def _reckons(caught: Expression | None) -> bool:
    """Return True if an `except` clause names an exception for a wrong tile or argument."""
    if isinstance(caught, TupleExpr):
        return any(map(_reckons, caught.items))
    return isinstance(caught, RefExpr) and getattr(caught, "name", "") in _EXPECTED
