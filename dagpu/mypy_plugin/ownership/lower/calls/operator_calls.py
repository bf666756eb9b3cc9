"""Lowers operators of classes of the user's, which are calls of methods: `a + b` calls `a.__add__(b)`."""

from collections.abc import Sequence
from typing import Final

from mypy.nodes import (
    Context,
    Expression,
    FuncDef,
    GeneratorExpr,
    ListComprehension,
    ListExpr,
    RefExpr,
    SetComprehension,
    SetExpr,
    TupleExpr,
)
from mypy.operators import op_methods, reverse_op_methods
from mypy.types import CallableType, Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import ANY_GLOBAL, EVERYTHING, Build, Forget, Place, Slot
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.calls.argument_parts import Arguments
from dagpu.mypy_plugin.ownership.lower.calls.operands import Operands
from dagpu.mypy_plugin.ownership.lower.lower_functions import effect_in, method_of
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.typing.type_facts import HANDLE, MOVES, OP

ASKS: Final = {
    f"builtins.{name}": f"__{name}__"
    for name in (
        *("len", "bool", "abs", "iter", "next", "reversed"),
        *("str", "repr", "int", "float", "complex", "hash", "round"),
    )
} | dict.fromkeys(
    (f"builtins.{name}" for name in ("list", "tuple", "set", "frozenset", "sorted", "sum", "any", "all", "enumerate")),
    "__iter__",
)
"""Functions that call a method of their first argument."""


def lower_binary(b: GraphBuilder, e: Context, left: Expression, operator: str, right: Expression) -> Slot | bool | None:
    """Lower an operator with two operands as the call of a method, as `lower_operator` does."""
    if operator in ("in", "not in"):
        return lower_operator(b, e, right, "__contains__", [left])
    method = op_methods.get(operator, "")
    found = lower_operator(b, e, left, method, [right])
    if found is False and method == "__ne__":  # object's own asks __eq__
        method = "__eq__"
        found = lower_operator(b, e, left, method, [right])
    return found if found is not False else lower_operator(b, e, right, reverse_op_methods.get(method, ""), [left])


def lower_operator(
    b: GraphBuilder, e: Context, receiver: Expression, method: str, given: Sequence[Expression] = ()
) -> Slot | bool | None:
    """Lower the call of a method that a class of this module defines, and return the slot with the facts of its result.

    Return False, with nothing lowered, if the object's class defines no such method.
    """
    function = method_of(b, b.types.get(receiver), method)
    signature = None if function is None else get_proper_type(function.type)
    if function is None or not isinstance(signature, CallableType) or len(signature.arg_types) < len(given) + 1:
        return False
    effect = effect_in(b.module, function)
    named = [argument.variable.name for argument in function.arguments]
    operands, parts = Operands(b), [b.read(receiver)]
    for name, formal, argument in zip(named[1:], signature.arg_types[1:], given, strict=False):
        kind = b.kind(argument)
        b.how = f"{method}()"
        operands.accepts = b.kinds.accepted(formal)
        spared = effect is not None and name in effect.spares and bool(kind & MOVES)
        taken = not spared and b.kinds.takes(formal, kind, signature.ret_type)
        moves = effect is not None and name in effect.moves and bool(kind & MOVES)
        parts.append(operands.evaluate(argument, taken or moves))
    place = place_of(b, receiver)
    if effect is None:
        operands.emit_moves()
    else:
        known = Arguments(b, e, effect, dict(zip(named[1:], given, strict=False)), _itself(function, place))
        known.use_parts()
        operands.emit_moves()
        known.borrow_parts()
        known.keep([(one, held) for one, held in zip(given, parts[1:], strict=True) if held is not None])
        b.emit(Forget(e, Place(ANY_GLOBAL), whole=True))
        if place is not None and named[0] not in effect.leaves:
            b.emit(Forget(e, place, whole=False))
        parts += known.move_parts()
    b.may_raise()
    keeps = b.kind(e) & EVERYTHING if isinstance(e, Expression) else EVERYTHING
    into = b.temporary() if keeps else None
    b.emit(Build(e, into, tuple(held for held in parts if held is not None), keeps))
    return into


def _itself(function: FuncDef, place: Place | None) -> dict[str, Place]:
    return {} if place is None else {function.arguments[0].variable.name: place}


def lower_iteration(b: GraphBuilder, e: Expression) -> Slot | bool | None:
    """Lower the call of `__iter__`, and the first of `__next__` of an object that is its own iterator.

    Return False, with nothing lowered, for an object of no class of this module.
    """
    found = lower_operator(b, e, e, "__iter__")
    if found is not False and lower_operator(b, e, e, "__next__") is not False:
        return None
    return found


def lower_condition(b: GraphBuilder, e: Expression) -> None:
    """Lower an expression that is asked whether it is true. A handle and an op have no answer."""
    if b.kind(e) & (HANDLE | OP):
        b.body.conditions.append(e)
    if not lower_truth(b, e):
        b.read(e)


def lower_truth(b: GraphBuilder, e: Expression) -> bool:
    """Lower the method by which an object of the user's says whether it is true. Return False if it has none."""
    return any(lower_operator(b, e, e, method) is not False for method in ("__bool__", "__len__"))


def asked_items(b: GraphBuilder, name: str, arguments: Sequence[Expression]) -> list[Expression]:
    """Return the arguments of `any(ts)`, `filter(None, ts)` and their like whose items are asked whether they are true,
    and are handles or ops: these have no answer."""
    if name in names.ASKS_ITEMS:
        iterables = arguments[:1]
    elif name in names.TESTS and isinstance(arguments[0], RefExpr):
        iterables = arguments[1:] if arguments[0].fullname in ("builtins.None", names.BOOL) else []
    else:
        return []
    return [e for e in iterables if any(b.kinds.kind_of(item) & (HANDLE | OP) for item in _item_types(b, e))]


def _item_types(b: GraphBuilder, e: Expression) -> Sequence[Type]:
    if isinstance(e, ListExpr | TupleExpr | SetExpr):
        return [t for item in e.items if (t := b.types.get(item)) is not None]
    if isinstance(e, ListComprehension | SetComprehension):
        e = e.generator
    if isinstance(e, GeneratorExpr):
        one = b.types.get(e.left_expr)
        return () if one is None else (one,)
    t = get_proper_type(b.types.get(e))
    if isinstance(t, TupleType):
        return t.items
    return t.args[:1] if isinstance(t, Instance) else ()
