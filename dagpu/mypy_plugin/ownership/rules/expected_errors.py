"""Deliberate mistakes: code that expects the run-time error of a mistake makes the mistake on purpose.

The suites of `with pytest.raises(MovedError):`, `with suppress(BorrowError):` and `try: ... except MovedError:` may
contain such code. Without this rule, a test of a refused mistake would need an ignore on each line.
"""

from collections.abc import Iterable
from typing import Final

from mypy.errorcodes import ErrorCode
from mypy.nodes import Block, CallExpr, Expression, MemberExpr, NameExpr, RefExpr, TupleExpr

from dagpu.mypy_plugin import codes, names

_NOTHING: Final[frozenset[str]] = frozenset()
_BUILDING: Final = frozenset({codes.UNUSED_OP.code})
"""The code that is deliberate wherever any error is expected, because building the op may raise that error."""


class ExpectedErrors:
    """The lines of a module on which mistakes are deliberate, with the codes of these mistakes."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, frozenset[str]]] = []

    def covers(self, line: int, code: ErrorCode) -> bool:
        """Return True if a mistake of this code on this line is deliberate."""
        return any(first <= line <= last and code.code in meant for first, last, meant in self._spans)

    def record_with(self, managers: Iterable[Expression], suite: Block) -> None:
        """Record the errors that the context managers of a `with` statement expect in its suite."""
        for e in managers:
            if isinstance(e, CallExpr):
                meant = _NOTHING.union(*map(_codes_named_by, e.args))
                self._record(suite, meant | _BUILDING if requires_error(e) else meant)

    def record_call(self, e: CallExpr) -> None:
        """Record the errors that a call is told to expect: `raises(MovedError, lambda: t.shape)`."""
        meant = _NOTHING.union(*map(_codes_named_by, e.args))
        if meant:
            self._spans.append((e.line, e.end_line or e.line, meant))

    def record_try(self, caught: Iterable[Expression | None], suite: Block) -> None:
        """Record the errors that the handlers of a `try` statement catch in its suite."""
        meant = _NOTHING.union(*map(_codes_named_by, caught))
        self._record(suite, meant | _BUILDING if meant else meant)

    def _record(self, suite: Block, meant: frozenset[str]) -> None:
        if meant and suite.body:
            self._spans.append((suite.body[0].line, max(s.end_line or s.line for s in suite.body), meant))


def requires_error(manager: Expression) -> bool:
    """Return True for a context manager that requires its suite to raise, such as `pytest.raises(ValueError)`."""
    if not isinstance(manager, CallExpr) or not isinstance(manager.callee, NameExpr | MemberExpr):
        return False
    return manager.callee.name in ("raises", "assertRaises", "assertRaisesRegex")


def _codes_named_by(e: Expression | None) -> frozenset[str]:
    """Return the codes of the run-time errors that an expression names: `MovedError`, `(MovedError, BorrowError)`."""
    if isinstance(e, TupleExpr):
        return _NOTHING.union(*map(_codes_named_by, e.items))
    if isinstance(e, RefExpr) and e.fullname.startswith("dagpu."):
        return names.RUNTIME_ERRORS.get(e.fullname.rpartition(".")[2], _NOTHING)
    return _NOTHING
