"""Propagates known shapes through the statements of a function, path by path.

A value is known at a point if it holds on every path to that point. Two simplifications keep the analysis to one pass:

- In the body of a loop, the values are those of the first round. After the loop, the variables that its body binds are
  unknown.
- A branch whose condition depends on a known value (`if n % 4:` where n is 10) may be dead code. Errors in it are not
  reported. If such a branch leaves the block, all variables are unknown from there on.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import final

from mypy.nodes import (
    AssertStmt,
    AssignmentExpr,
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
    IndexExpr,
    IntExpr,
    MatchStmt,
    MemberExpr,
    MypyFile,
    NameExpr,
    OperatorAssignmentStmt,
    OpExpr,
    RaiseStmt,
    RefExpr,
    ReturnStmt,
    Statement,
    SymbolNode,
    TempNode,
    TryStmt,
    TupleExpr,
    UnaryExpr,
    WhileStmt,
    WithStmt,
)
from mypy.patterns import AsPattern, MappingPattern, Pattern, StarredPattern
from mypy.types import Type, UninhabitedType, get_proper_type

from dagpu.mypy_plugin.shapes.shape_evaluation import CallChecker, Evaluator
from dagpu.mypy_plugin.shapes.shape_values import Number, Several, Value, joined, value_of_type
from dagpu.mypy_plugin.syntax import is_always_false, statements_in, targets

_EXPECTED_ERRORS = frozenset(
    (
        *("PartitionError", "KernelArgumentError", "ShapeError", "OwnershipError", "SourceError"),
        *("DagpuError", "ValueError", "TypeError"),
    )
)
"""Exceptions raised for a wrong tile, argument or part. A program that handles one expects such a mistake."""

_ERROR_CONTEXTS = frozenset(("raises", "suppress", "assertRaises", "assertRaisesRegex", "RaisesGroup"))
"""Context managers that expect an exception."""


def constants_of(tree: MypyFile, types: Mapping[Expression, Type]) -> dict[SymbolNode, Value]:
    """Return the constants of a module: variables that it binds once, outside of functions, to numbers and tuples of
    numbers."""
    evaluator = Evaluator(types.get, in_function=False)
    for statement in statements_in(tree.defs, functions=False):
        if isinstance(statement, AssignmentStmt) and not isinstance(statement.rvalue, TempNode):
            for place in statement.lvalues:
                if not isinstance(place, MemberExpr | IndexExpr):
                    evaluator.bind(place, _constant(evaluator, statement.rvalue))
    known = {node: value for node, value in evaluator.known.items() if value is not None}
    if not known:
        return {}
    bound = Counter(node for statement in statements_in(tree.defs) for node in _bound_by(statement))
    bound.update(e.target.node for e in types if isinstance(e, AssignmentExpr) and e.target.node is not None)
    return {node: value for node, value in known.items() if bound[node] == 1}


def _bound_by(statement: Statement) -> Iterator[SymbolNode]:
    """Iterate over the variables that a statement itself binds."""
    match statement:
        case AssignmentStmt() if isinstance(statement.rvalue, TempNode):  # a declaration: `x: int`
            return
        case AssignmentStmt():
            places: list[Expression | None] = [*statement.lvalues]
        case OperatorAssignmentStmt():
            places = [statement.lvalue]
        case ForStmt():
            places = [statement.index]
        case WithStmt():
            places = [*statement.target]
        case TryStmt():
            places = [*statement.vars]
        case DelStmt():
            places = [statement.expr]
        case MatchStmt():
            places = []
            for pattern in statement.patterns:
                yield from _captured(pattern)
        case _:
            return
    for place in places:
        for target in () if place is None else targets(place):
            if isinstance(target, NameExpr) and target.node is not None:
                yield target.node


def _constant(evaluator: Evaluator, e: Expression) -> Value:
    """Return the value of an expression of numbers, tuples and names of constants; None for any other."""
    match e:
        case IntExpr() | NameExpr():
            value = evaluator.visit(e)
            return value if isinstance(value, Number | Several) else None
        case TupleExpr():
            return Several(tuple([_constant(evaluator, item) for item in e.items]))
        case OpExpr():
            left, right = _constant(evaluator, e.left), _constant(evaluator, e.right)
            return evaluator.visit(e) if isinstance(left, Number) and isinstance(right, Number) else None
        case UnaryExpr():
            return evaluator.visit(e) if isinstance(_constant(evaluator, e.expr), Number) else None
        case _:
            return None


def follow(
    target: FuncDef | MypyFile,
    types: Mapping[Expression, Type],
    call_checker: CallChecker,
    constants: Mapping[SymbolNode, Value],
) -> None:
    """Report the calls in a function and its nested functions, or in a module outside its functions, to a checker."""
    flow = _Flow(types, call_checker, constants, nested=isinstance(target, FuncDef))
    if isinstance(target, FuncDef):
        flow.visit_function(target)
    else:
        flow.visit_statements(target.defs)


@final
class _Flow:
    """Visits statements. Each method for a statement returns True if the statement after it is reached."""

    def __init__(
        self,
        types: Mapping[Expression, Type],
        call_checker: CallChecker,
        constants: Mapping[SymbolNode, Value],
        *,
        nested: bool,
    ) -> None:
        self._types = types
        self._nested = nested
        self._evaluator = Evaluator(types.get, call_checker, constants, in_function=nested)

    def visit_function(self, function: FuncItem) -> None:
        """Visit the body of a function. It may run at any time, so the variables of enclosing scopes are unknown."""
        around, self._evaluator.known = self._evaluator.known, {}
        start = len(self._evaluator.bound)
        for argument in function.arguments:
            self._evaluator.bind_name(argument.variable, value_of_type(argument.variable.type))
        self.visit_block(function.body)
        self._evaluator.known = around
        nonlocals = [node for node in self._evaluator.bound[start:] if node in around]
        self._evaluator.shared.update(nonlocals)
        around.update(dict.fromkeys(nonlocals))

    def visit_block(self, block: Block | None) -> bool:
        """Visit a block, if there is one. Return True if its end is reached."""
        if block is None:
            return True
        return not block.is_unreachable and self.visit_statements(block.body)

    def visit_statements(self, statements: list[Statement]) -> bool:
        """Visit statements in order, until one is not reached. Return True if the end is reached."""
        return all(map(self._visit_statement, statements))

    def _visit_statement(self, statement: Statement) -> bool:
        match statement:
            case ExpressionStmt():
                self._evaluator.visit(statement.expr)
                return not self._never_returns(statement.expr)
            case AssignmentStmt():
                value = self._evaluator.visit(statement.rvalue)
                for place in statement.lvalues:
                    self._evaluator.bind(place, value)
            case ReturnStmt():
                self._evaluator.visit(statement.expr)
                return False
            case IfStmt():
                return self._visit_if(statement)
            case ForStmt() | WhileStmt():
                return self._visit_loop(statement)
            case WithStmt():
                return self._visit_with(statement)
            case TryStmt():
                return self._visit_try(statement)
            case MatchStmt():
                return self._visit_match(statement)
            case _:
                return self._visit_rarer(statement)
        return True

    def _visit_rarer(self, statement: Statement) -> bool:
        match statement:
            case OperatorAssignmentStmt():
                self._evaluator.visit(statement.rvalue)
                self._evaluator.bind(statement.lvalue, None)
            case RaiseStmt():
                self._evaluator.visit_all([statement.expr, statement.from_expr])
                return False
            case BreakStmt() | ContinueStmt():
                return False
            case AssertStmt():
                self._evaluator.visit_all([statement.expr, statement.msg])
                return not is_always_false(statement.expr)
            case DelStmt():
                self._evaluator.bind(statement.expr, None)
            case Decorator():
                self._evaluator.declare(statement)
                return self._visit_rarer(statement.func)
            case FuncDef() if self._nested:
                self._evaluator.visit_all(argument.initializer for argument in statement.arguments)
                self.visit_function(statement)
            case ClassDef():
                self._evaluator.visit_all(statement.decorators)
                self.visit_block(statement.defs)
            case Block():
                return self.visit_block(statement)
            case _:
                pass
        return True

    def _never_returns(self, expression: Expression) -> bool:
        return isinstance(expression, CallExpr) and isinstance(
            get_proper_type(self._types.get(expression)), UninhabitedType
        )

    # ---- branches

    def _visit_branches(self, blocks: list[Block | None], decided: bool) -> bool:
        """Visit alternative blocks, and merge their results. `decided`: the choice depends on a known value."""
        before = self._evaluator.known
        ends: list[dict[SymbolNode, Value]] = []
        with self._evaluator.silent(decided):
            for block in blocks:
                self._evaluator.known = dict(before)
                if self.visit_block(block):
                    ends.append(self._evaluator.known)
        self._evaluator.known = _merged(ends)
        if decided and len(ends) < len(blocks):
            self._evaluator.known = dict.fromkeys(self._evaluator.known)
        return bool(ends)

    def _visit_if(self, statement: IfStmt) -> bool:
        decided = [self._evaluator.decides(test) for test in statement.expr]
        return self._visit_branches([*statement.body, statement.else_body], any(decided))

    def _visit_match(self, statement: MatchStmt) -> bool:
        decided = self._evaluator.decides(statement.subject)
        for pattern in statement.patterns:
            for node in _captured(pattern):
                self._evaluator.bind_name(node, None)
        guards = [self._evaluator.decides(guard) for guard in statement.guards]
        return self._visit_branches([*statement.bodies, None], decided or any(guards))

    # ---- loops

    def _visit_loop(self, statement: ForStmt | WhileStmt) -> bool:
        start = len(self._evaluator.bound)
        decided = False
        if isinstance(statement, ForStmt):
            self._evaluator.visit(statement.expr)
            self._evaluator.bind(statement.index, None)
        else:
            decided = self._evaluator.decides(statement.expr)
        before = dict(self._evaluator.known)
        with self._evaluator.silent(decided):
            self.visit_block(statement.body)
        self._evaluator.known = before | dict.fromkeys(self._evaluator.bound[start:])
        return self.visit_block(statement.else_body)

    # ---- statements that may be left half-way

    def _visit_with(self, statement: WithStmt) -> bool:
        for manager, place in zip(statement.expr, statement.target, strict=True):
            self._evaluator.visit(manager)
            if place is not None:
                self._evaluator.bind(place, None)
        expecting = any(map(_expects_error, statement.expr))
        before = dict(self._evaluator.known)
        with self._evaluator.silent(expecting):
            reached = self.visit_block(statement.body)
        # The manager may swallow an exception, so the body may have been left at any point.
        self._evaluator.known = _merged([before, self._evaluator.known])
        return reached or expecting

    def _visit_try(self, statement: TryStmt) -> bool:
        start, before = len(self._evaluator.bound), dict(self._evaluator.known)
        with self._evaluator.silent(any(map(_catches_expected, statement.types))):
            reached = self.visit_block(statement.body)
        left = before | dict.fromkeys(self._evaluator.bound[start:])
        ends: list[dict[SymbolNode, Value]] = []
        if reached and self.visit_block(statement.else_body):
            ends.append(self._evaluator.known)
        for name, handler in zip(statement.vars, statement.handlers, strict=True):
            self._evaluator.known = dict(left)
            if name is not None:
                self._evaluator.bind(name, None)
            if self.visit_block(handler):
                ends.append(self._evaluator.known)
        if statement.finally_body is not None:
            self._evaluator.known = before | dict.fromkeys(self._evaluator.bound[start:])
            start = len(self._evaluator.bound)
            if not self.visit_block(statement.finally_body):
                return False
            ends = [end | dict.fromkeys(self._evaluator.bound[start:]) for end in ends]
        self._evaluator.known = _merged(ends)
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


def _expects_error(manager: Expression) -> bool:
    """Return True for a context manager that expects an exception, such as `pytest.raises(...)`."""
    return isinstance(manager, CallExpr) and getattr(manager.callee, "name", "") in _ERROR_CONTEXTS


def _catches_expected(caught: Expression | None) -> bool:
    """Return True if an `except` clause names an exception for a wrong tile or argument."""
    if isinstance(caught, TupleExpr):
        return any(map(_catches_expected, caught.items))
    return isinstance(caught, RefExpr) and getattr(caught, "name", "") in _EXPECTED_ERRORS
