"""Evaluates operands in their order, and lowers operators of the user's classes: `a + b` calls `a.__add__(b)`."""

from collections.abc import Sequence
from typing import Final

from mypy.nodes import (
    CallExpr,
    Context,
    Expression,
    FuncDef,
    GeneratorExpr,
    IndexExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    NameExpr,
    RefExpr,
    SetComprehension,
    SetExpr,
    TupleExpr,
)
from mypy.operators import op_methods, reverse_op_methods
from mypy.types import CallableType, Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import (
    ANY_FORM,
    ANY_GLOBAL,
    ANY_ITEM,
    EVERYTHING,
    Build,
    Forget,
    Move,
    Place,
    Slot,
)
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.container_calls import Arguments
from dagpu.mypy_plugin.ownership.lower.lower_functions import effect_in, method_of
from dagpu.mypy_plugin.ownership.lower.places import BINDS, has_stable_items, item_step, place_of
from dagpu.mypy_plugin.typing.type_facts import HANDLE, MOVES, OP

# ---- operands


class Operands:
    """Evaluates operands in order, and moves the handles among them after all operands have been evaluated.

    This is the order at run time: `f(t, t.shape)` reads the shape first, and then the call of `f` moves `t`.
    """

    def __init__(self, b: GraphBuilder) -> None:
        self._b = b
        self._moves: list[Move] = []
        self.keeps = False
        """True if the call only gives the handles another owner: it makes an object, or fills a container."""
        self.accepts = ANY_FORM
        """What the parameter of the next operand accepts; see `Move.accepts`."""
        self.owns = False
        """True if one of the operands is an owned handle that moves."""

    def evaluate(self, e: Expression, by_value: bool, *, always: bool = False) -> Slot | None:
        """Evaluate the next operand. `always`: move it even if its type is not one that moves when passed on."""
        b = self._b
        if not by_value or not (always or b.kind(e) & MOVES):
            return b.evaluate(e, by_value)
        self.owns = True
        if isinstance(e, CallExpr):
            return self._evaluate_call(e)
        place = place_of(b, e) if isinstance(e, NameExpr | MemberExpr | IndexExpr) else None
        binds = self.keeps or b.how.startswith(BINDS)
        if place is None:
            return b.evaluate(e, by_value)
        if place.path:
            b.read(e.base if isinstance(e, IndexExpr) else e.expr if isinstance(e, MemberExpr) else e)
        into = b.temporary()
        self._moves.append(Move(e, place, into, b.how, binds=binds, accepts=self.accepts))
        return into

    def _evaluate_call(self, e: CallExpr) -> Slot | None:
        """Evaluate a call. If its result had a place before, the handle moves out of that one, too."""
        b = self._b
        binds = self.keeps or b.how.startswith(BINDS)
        how = b.how
        held = b.value(e)
        if (place := b.taken.get(e)) is not None:
            self._moves.append(Move(e, place, b.temporary(), how, binds=binds, accepts=self.accepts))
        return held

    def move_items(self, e: Expression) -> None:
        """Move the items of a container that a call takes one by one: `f(*pair)`, `f(**tensors)`, `map(f, [t])`."""
        b = self._b
        if isinstance(e, ListExpr | TupleExpr):
            for single in e.items:
                if b.kind(single) & MOVES and (named := place_of(b, single)) is not None:
                    self._moves.append(Move(single, named, b.temporary(), b.how))
            return
        place, t = place_of(b, e), get_proper_type(b.types.get(e))
        if place is None:
            return
        steps: list[str] = []
        if isinstance(t, TupleType):
            steps = [item_step(t, i) for i, item in enumerate(t.items) if b.kinds.kind_of(item) & MOVES]
        elif isinstance(t, Instance) and t.args and b.kinds.kind_of(t.args[-1]) & MOVES and has_stable_items(b, e):
            steps = [ANY_ITEM]
        for step in steps:
            if (item := place.inside((step,))) is not None:
                self._moves.append(Move(e, item, b.temporary(), b.how, binds=self.keeps))

    def emit_moves(self) -> None:
        """Emit the moves. All operands must have been evaluated."""
        for move in self._moves:
            self._b.emit(move)


# ---- methods that operators call

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
