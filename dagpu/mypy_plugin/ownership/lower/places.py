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
from dagpu.mypy_plugin.ownership.lower.lower_functions import method_effect, property_place
from dagpu.mypy_plugin.ownership.lower.values.fixed_lists import fixed_lists
from dagpu.mypy_plugin.ownership.module_facts import Part
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
    """Return the place of the item at an index or a key, if that is constant or a variable."""
    if not has_stable_items(b, base) and (found := method_effect(b, b.types.get(base), "__getitem__")) is not None:
        return _item_by_method(b, base, index, found[1].gives)
    step = step_of(b, index, b.types.get(base), base) if has_stable_items(b, base) else None
    place = None if step is None and not _is_index(b, index) else place_of(b, base)
    if place is None:
        return None
    return place.inside((step,)) if step is not None else _item_at_variable(b, place, index)


def _item_by_method(b: GraphBuilder, base: Expression, index: Expression, given: Part | None) -> Place | None:
    """Return the place of the item that a `__getitem__` returns, which takes it out of an attribute at the index."""
    step = step_of(b, index, None)
    if given is None or step is None:
        return None
    path = tuple([step if one[0] == "[" and one[1].isidentifier() else one for one in given.path])
    return _extend_place(b, base, path)


def _extend_place(b: GraphBuilder, e: Expression, path: Path) -> Place | None:
    base = place_of(b, e)
    return None if base is None else base.inside(path)


def _is_index(b: GraphBuilder, index: Expression) -> bool:
    """Return True for a variable of this body that only this body assigns, with a number or a text."""
    if not isinstance(index, NameExpr) or not isinstance(index.node, Var) or b.slot(index.node) not in b.body.local:
        return False
    if index.name in b.foreign or index.name in b.body.assigned_inside:
        return False
    t = get_proper_type(b.types.get(index))
    return isinstance(t, Instance) and t.type.fullname in ("builtins.int", "builtins.str")


def _item_at_variable(b: GraphBuilder, base: Place, index: Expression) -> Place | None:
    """Return the place of an item at the index that a variable has now. It is another one once that is assigned."""
    if base.slot not in b.body.local or not isinstance(index, NameExpr) or not isinstance(index.node, Var):
        return None
    step = f"[{index.name}]"
    b.body.indices[b.slot(index.node)] = step
    return base.inside((step,))


def has_variable_index(place: Place) -> bool:
    """Return True if a variable is the index of an item on the way to a place."""
    return any(step[0] == "[" and step[1].isidentifier() for step in place.path)


def step_of(b: GraphBuilder, index: Expression, base: Type | None, named: Expression | None = None) -> str | None:
    """Return the step of a path for a constant index; None for one that is not known.

    A component of a tuple has one step, whether it is counted from the front, from the end, or named; an item of a list
    has one if the length of `named`, the list, is known.
    """
    if isinstance(index, StrExpr):
        return f"[{index.value!r}]"
    number = integer_of(b, index)
    if number is None:
        return None
    proper = get_proper_type(base)
    if isinstance(proper, TupleType) and -len(proper.items) <= number < len(proper.items):
        return item_step(proper, number % len(proper.items))
    length = length_of(b, named) if number < 0 and named is not None else None
    return f"[{number if length is None or number < -length else number + length}]"


def length_of(b: GraphBuilder, e: Expression) -> int | None:
    """Return the length of a list, if the text of the function shows it."""
    if not isinstance(e, NameExpr) or not isinstance(e.node, Var):
        return None
    t = get_proper_type(b.types.get(e))
    if not isinstance(t, Instance) or t.type.fullname != "builtins.list":
        return None
    if b.fixed_lists is None:
        b.fixed_lists = fixed_lists(b.module, b.body.node)
    return b.fixed_lists.get(e.node)


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
