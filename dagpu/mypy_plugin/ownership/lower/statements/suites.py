"""The suites of compound statements, and the single targets of assignments."""

from collections.abc import Iterator

from mypy.nodes import (
    Block,
    ClassDef,
    Decorator,
    Expression,
    ForStmt,
    FuncDef,
    IfStmt,
    ListExpr,
    MatchStmt,
    StarExpr,
    Statement,
    TryStmt,
    TupleExpr,
    WhileStmt,
    WithStmt,
)


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
