"""Finds the place that an expression names: a variable, an attribute, an item."""

from mypy.nodes import (
    CallExpr,
    Decorator,
    Expression,
    FuncDef,
    IndexExpr,
    IntExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    RefExpr,
    StrExpr,
    SymbolNode,
    UnaryExpr,
    Var,
)
from mypy.types import Instance, LiteralType, TupleType, Type, TypedDictType, get_proper_type

from dagpu.mypy_plugin.ownership.control_flow import Path, Place
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.lower_functions import property_place
from dagpu.mypy_plugin.typing.type_facts import class_variable, is_stored

BINDS = ("being assigned", "being put into", "being made a default", "being yielded")
"""The words of moves after which the handle is as it was, under another name or in a container."""


def function_of(node: SymbolNode | None) -> FuncDef | None:
    """Return the function that a name refers to, without its decorators; None for any other node."""
    if isinstance(node, Decorator):
        return node.func
    return node if isinstance(node, FuncDef) else None


def place_of(b: GraphBuilder, e: Expression) -> Place | None:
    """Return the place that an expression names: a variable, or a path of attributes and constant indices into one."""
    match e:
        case NameExpr():
            return Place(b.slot(e.node)) if isinstance(e.node, Var) else None
        case MemberExpr():
            if isinstance(e.expr, RefExpr) and isinstance(e.expr.node, MypyFile):
                return Place(b.slot(e.node)) if isinstance(e.node, Var) else None
            if (variable := class_variable(b.types.get(e.expr), e.name)) is not None:
                return Place(b.slot(variable))
            if is_stored(b.types.get(e.expr), e.name):
                return _extend_place(b, e.expr, (f".{e.name}",))
            path = property_place(b, e) if b.kind(e) else None
            return None if path is None else _extend_place(b, e.expr, path)
        case IndexExpr():
            return item_place(b, e.base, e.index)
        case CallExpr():
            return b.taken.get(e)
        case _:
            return None


def item_place(b: GraphBuilder, base: Expression, index: Expression) -> Place | None:
    """Return the place of the item at a literal index or key. One at an index that the run computes has none."""
    step = step_of(b, index, b.types.get(base)) if has_stable_items(b, base) else None
    return None if step is None else _extend_place(b, base, (step,))


def _extend_place(b: GraphBuilder, e: Expression, path: Path) -> Place | None:
    base = place_of(b, e)
    return None if base is None else base.inside(path)


def step_of(b: GraphBuilder, index: Expression, base: Type | None) -> str | None:
    """Return the step of a path for a constant index; None for one that is not known.

    A component of a tuple has one step, whether it is counted from the front, from the end, or named.
    """
    if isinstance(index, StrExpr):
        return f"[{index.value!r}]"
    number = integer_of(b, index)
    if number is None:
        return None
    proper = get_proper_type(base)
    if isinstance(proper, TupleType) and -len(proper.items) <= number < len(proper.items):
        return item_step(proper, number % len(proper.items))
    return f"[{number}]"


def integer_of(b: GraphBuilder, e: Expression) -> int | None:
    """Return the number of a literal, or of a variable with a literal type; None for any other expression."""
    match e:
        case IntExpr():
            return e.value
        case UnaryExpr() if e.op == "-" and isinstance(e.expr, IntExpr):
            return -e.expr.value
        case NameExpr() | MemberExpr():
            t = get_proper_type(b.types.get(e))
            if isinstance(t, Instance) and t.last_known_value is not None:
                t = t.last_known_value
            return t.value if isinstance(t, LiteralType) and type(t.value) is int else None
        case _:
            return None


def item_step(t: TupleType, index: int) -> str:
    """Return the step of a path to a component of a tuple: its name in a named tuple, its index in others."""
    if t.partial_fallback.type.is_named_tuple:
        named = match_arguments(t)
        if index < len(named):
            return f".{named[index]}"
    return f"[{index}]"


def match_arguments(t: Type | None) -> list[str]:
    """Return the names of the attributes that positional patterns of a class match, in their order."""
    proper = get_proper_type(t)
    info = proper.partial_fallback.type if isinstance(proper, TupleType) else None
    if isinstance(proper, Instance):
        info = proper.type
    symbol = None if info is None else info.get("__match_args__")
    of_symbol = get_proper_type(symbol.node.type) if symbol is not None and isinstance(symbol.node, Var) else None
    named: list[str] = []
    for item in of_symbol.items if isinstance(of_symbol, TupleType) else []:
        text = get_proper_type(item)
        if isinstance(text, Instance) and text.last_known_value is not None:
            text = text.last_known_value
        if not isinstance(text, LiteralType) or not isinstance(text.value, str):
            return []
        named.append(text.value)
    return named


def has_stable_items(b: GraphBuilder, e: Expression) -> bool:
    """Return True if an index gives the same object each time. It does in tuples, lists and dictionaries."""
    t = get_proper_type(b.types.get(e))
    if isinstance(t, TupleType | TypedDictType):
        return True
    return isinstance(t, Instance) and t.type.fullname in ("builtins.list", "builtins.dict", "builtins.tuple")
