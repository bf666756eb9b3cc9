"""The suites of compound statements."""

from collections.abc import Iterator

from mypy.nodes import Block, ForStmt, FuncDef, IfStmt, MatchStmt, Statement, TryStmt, WhileStmt, WithStmt


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


def statements_in(suite: list[Statement]) -> Iterator[Statement]:
    """Iterate over the statements of a suite, those of the suites and functions in it among them."""
    for s in suite:
        yield s
        if isinstance(s, FuncDef):
            yield from statements_in(s.body.body)
        for inner in suites_of(s):
            yield from statements_in(inner.body)
