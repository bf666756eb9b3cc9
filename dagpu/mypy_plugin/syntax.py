"""What the syntax alone says: conditions that are true on their face, the suites of statements, targets."""

from collections.abc import Iterator, Sequence

from mypy.nodes import (
    ARG_POS,
    Block,
    CallExpr,
    ClassDef,
    Decorator,
    DictExpr,
    Expression,
    ForStmt,
    FuncDef,
    IfStmt,
    IntExpr,
    ListExpr,
    MatchStmt,
    NameExpr,
    OpExpr,
    StarExpr,
    Statement,
    StrExpr,
    TryStmt,
    TupleExpr,
    UnaryExpr,
    WhileStmt,
    WithStmt,
)
from mypy.patterns import AsPattern, ClassPattern, MappingPattern, OrPattern, Pattern, SequencePattern, StarredPattern

# ---- conditions whose truth is written out: `while True`, `assert False`, `assert 0`


def is_always_true(e: Expression) -> bool:
    """Return True for an expression that is true on its face."""
    return _truth(e) is True


def is_always_false(e: Expression) -> bool:
    """Return True for an expression that is false on its face."""
    return _truth(e) is False


def _truth(e: Expression) -> bool | None:
    match e:
        case NameExpr():
            return {"builtins.True": True, "builtins.False": False, "builtins.None": False}.get(e.fullname)
        case IntExpr() | StrExpr():
            return bool(e.value)
        case TupleExpr() | ListExpr() | DictExpr() if not e.items:
            return False
        case UnaryExpr() if e.op == "not":
            inner = _truth(e.expr)
            return None if inner is None else not inner
        case OpExpr() if e.op in ("and", "or"):
            decisive = e.op == "or"
            sides = _truth(e.left), _truth(e.right)
            return decisive if decisive in sides else sides[0] if sides[0] is sides[1] else None
        case _:
            return None


# ---- calls


def arguments_of(e: CallExpr, parameters: Sequence[str | None], first: int = 0) -> dict[str, Expression]:
    """Return what a call passes, from an argument on, by parameter: in the order of these, or by name. For which
    parameters a starred argument is, and those behind it, is not known."""
    order = iter(parameters)
    given: dict[str, Expression] = {}
    for value, kind, name in list(zip(e.args, e.arg_kinds, e.arg_names, strict=True))[first:]:
        if kind.is_star():
            order = iter(())
        parameter = next(order, None) if kind is ARG_POS else name
        if parameter is not None:
            given[parameter] = value
    return given


# ---- suites and targets


def suites_of(s: Statement) -> list[Block]:
    """Return the suites of a compound statement; each may define functions."""
    match s:
        case IfStmt():
            found = [*s.body, s.else_body]
        case TryStmt():
            found = [s.body, *s.handlers, s.else_body, s.finally_body]
        case ForStmt() | WhileStmt():
            found = [s.body, s.else_body]
        case WithStmt():
            found = [s.body]
        case MatchStmt():
            found = [*s.bodies]
        case _:
            found = []
    return [suite for suite in found if suite is not None]


def statements_in(suite: list[Statement], *, functions: bool = True) -> Iterator[Statement]:
    """Iterate over the statements of a suite, those of the suites, classes and functions in it among them.

    `functions`: False to leave the bodies of functions out.
    """
    for s in suite:
        yield s
        function = s.func if isinstance(s, Decorator) else s
        if functions and isinstance(function, FuncDef):
            yield from statements_in(function.body.body)
        for inner in [s.defs] if isinstance(s, ClassDef) else suites_of(s):
            yield from statements_in(inner.body, functions=functions)


def targets(target: Expression) -> Iterator[Expression]:
    """Iterate over the single targets in a tuple, list or starred target."""
    match target:
        case TupleExpr() | ListExpr():
            for item in target.items:
                yield from targets(item)
        case StarExpr():
            yield from targets(target.expr)
        case _:
            yield target


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
