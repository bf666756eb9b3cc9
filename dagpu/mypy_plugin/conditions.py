"""Conditions whose truth is written out: `while True`, `assert False`, `assert 0`."""

from mypy.nodes import DictExpr, Expression, IntExpr, ListExpr, NameExpr, OpExpr, StrExpr, TupleExpr, UnaryExpr


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
