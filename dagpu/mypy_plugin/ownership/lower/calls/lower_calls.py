"""Lowers calls: the receiver and the arguments are evaluated, then the call has its effects on them."""

from typing import Final

from mypy.nodes import (
    AssertTypeExpr,
    AwaitExpr,
    CallExpr,
    CastExpr,
    Expression,
    FuncDef,
    LambdaExpr,
    MemberExpr,
    NameExpr,
    RefExpr,
    TypeInfo,
    Var,
)

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.closure_facts import call_closure
from dagpu.mypy_plugin.ownership.control_flow import ANY_FORM, FEED, AskFeed, BasicBlock, Lend, Place, Run, Slot, Store
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder, expression
from dagpu.mypy_plugin.ownership.lower.calls.after_effects import forget_moves, parts_of_arguments, record_kept
from dagpu.mypy_plugin.ownership.lower.calls.call_results import build_result, never_returns
from dagpu.mypy_plugin.ownership.lower.calls.callee import (
    Callee,
    by_value_flags,
    callee_of,
    describe_call,
    give_away,
    is_untyped,
)
from dagpu.mypy_plugin.ownership.lower.calls.container_calls import is_own_container, lower_container_call, share_added
from dagpu.mypy_plugin.ownership.lower.calls.item_functions import iterables_emptied
from dagpu.mypy_plugin.ownership.lower.calls.operands import Operands
from dagpu.mypy_plugin.ownership.lower.calls.operator_calls import ASKS, asked_items, lower_operator
from dagpu.mypy_plugin.ownership.lower.lower_names import ask_feed, build_part
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.typing.type_facts import HANDLE, OP

_MOVES_SELF: Final = frozenset(name.rpartition(".")[2] for name in names.MOVES_SELF)


@expression(CallExpr)
def _call(b: GraphBuilder, e: CallExpr, by_value: bool) -> Slot | None:
    if e.analyzed is not None:  # a cast, a NewType, ...
        return b.evaluate(e.analyzed, by_value)
    if b.module.expects_errors:
        b.module.deliberate.record_call(e)
    callee = callee_of(b, e)
    operands = Operands(b)
    operands.keeps = _only_keeps(e, callee)
    own = callee.name in names.ADDS_TO_SELF and callee.receiver is not None and is_own_container(b, callee.receiver)
    parts: list[Slot | None] = []
    if callee.receiver is not None:
        parts.append(_evaluate_receiver(b, e, callee, callee.receiver, operands))
    elif callee.closure is None:
        parts.append(_read_function(b, e.callee))
    arguments = _evaluate_arguments(b, e, callee, operands, own=own)
    affected = parts_of_arguments(b, e, callee)
    if affected is not None:
        affected.use_parts()
    if callee.leaves_unmoved and callee.name not in names.NEVER_RAISES:
        b.may_raise()  # before the moves
    operands.emit_moves()
    if affected is not None:
        affected.borrow_parts()
    if callee.closure is not None:
        parts.append(call_closure(b, callee.closure, e))
    record_kept(b, e, callee, arguments, affected)
    _record_uses(b, e, callee, arguments)
    if not callee.leaves_unmoved:
        forget_moves(b, e, callee, lower_container_call(b, e, callee))
        if own and callee.receiver is not None:
            share_added(b, e, e.args, callee.receiver, last=callee.name.endswith(".append"))
        if affected is not None:
            parts += affected.move_parts()
            affected.give_part(e)
            b.at_exit[e] = affected.moves_at_exit()
        b.may_raise()
    held = [slot for slot in (*parts, *arguments) if slot is not None]
    return build_result(b, e, callee, held, arguments, operands.owns)


def _record_uses(b: GraphBuilder, e: CallExpr, callee: Callee, arguments: list[Slot | None]) -> None:
    """Record the uses of arguments that have rules of their own: of a feed, and of contents that are not there."""
    for argument, slot in zip(e.args, arguments, strict=True) if callee.name in names.ASKS_FEED else ():
        if slot is not None and b.kind(argument) == FEED:
            b.emit(AskFeed(e, Place(slot)))
    if e.args and (method := ASKS.get(callee.name)) is not None:
        lower_operator(b, e, e.args[0], method)
    if e.args:
        b.body.conditions += asked_items(b, callee.name, e.args)
    if e.args and b.kind(e.args[0]) & (HANDLE | OP):
        if callee.name in names.ASKS_TRUTH:
            b.body.conditions.append(e.args[0])
        elif _makes_array(callee):
            b.body.read_on_host.append(e.args[0])


def _only_keeps(e: CallExpr, callee: Callee) -> bool:
    """Return True for a call that only gives its arguments another owner: it makes an object, or fills a container."""
    if callee.name in names.ADDS_TO_SELF or callee.name == names.FROM_KEYS:
        return True
    return isinstance(e.callee, RefExpr) and isinstance(e.callee.node, TypeInfo) and callee.name not in names.MAPS


def _makes_array(callee: Callee) -> bool:
    return callee.name.startswith("numpy.") and callee.name.rpartition(".")[2] in names.ARRAY_MAKERS


# ---- the receiver and the arguments


def _read_function(b: GraphBuilder, e: Expression) -> Slot | None:
    """Evaluate the function that is called. What has been bound to it is used up, and a feed in it is asked."""
    held = b.read(e)
    if held is not None:
        b.emit(Run(e, held, calls=True))
        b.emit(AskFeed(e, Place(held)))
    return held


def _evaluate_receiver(
    b: GraphBuilder, e: CallExpr, callee: Callee, receiver: Expression, operands: Operands
) -> Slot | None:
    """Evaluate the receiver of a method call: move it, lend it or read it."""
    if isinstance(e.callee, MemberExpr) and e.callee.name in _MOVES_SELF and is_untyped(b, receiver):
        give_away(b, receiver)
    if (how := names.MOVES_SELF.get(callee.name)) is not None:
        b.how = how
        return operands.evaluate(receiver, True, always=True)
    exclusive = names.LENDS_SELF.get(callee.name)
    if exclusive is None or not b.kind(receiver) & HANDLE:
        return ask_feed(b, receiver) if callee.name.startswith(f"{names.FEED}.") else b.read(receiver)
    place = place_of(b, receiver)
    if place is None:
        b.read(receiver)
        place = place_of(b, receiver)  # of what a call has given
    if place is None:
        place = Place(b.temporary())
        b.emit(Store(e, place, None, 0))  # another one in each round of a loop
        if _is_fresh(b, receiver):
            b.body.local.add(place.slot)
    into = b.temporary()
    b.emit(Lend(e, place, into, exclusive))
    if b.read_by_generator is not None:
        b.read_by_generator.append(into)
    return into


def _is_fresh(b: GraphBuilder, e: Expression) -> bool:
    """Return True if an unnamed handle has no other owner. A container's methods may return a handle that it keeps."""
    if isinstance(e, CallExpr) and e.analyzed is None:
        return not callee_of(b, e).name.startswith(("builtins.", "typing.", "collections."))
    return isinstance(e, AwaitExpr)


def _evaluate_arguments(
    b: GraphBuilder, e: CallExpr, callee: Callee, operands: Operands, *, own: bool
) -> list[Slot | None]:
    """Evaluate the arguments. Return the slot with the facts of each. `own`: for a container of this function alone, in
    which a named handle may still be used by its name."""
    outer, b.in_then = b.in_then, callee.name == names.THEN
    arguments: list[Slot | None] = []
    for i, taken in enumerate(by_value_flags(b, e, callee)):
        b.how = describe_call(callee)
        if i in callee.borrows and not taken:
            arguments.append(_lend_for_later(b, e.args[i]))
            continue
        adopts = i == 0 and callee.name == names.ADOPT and getattr(e.args[0], "node", None) in b.module.adopted
        often = callee.name in names.CALLS_OFTEN or i in callee.repeats
        again = _begin_of_repetition(b, e.args[i]) if often else None
        operands.accepts = callee.accepts.get(i, ANY_FORM)
        stays = own and isinstance(e.args[i], NameExpr)
        arguments.append(operands.evaluate(e.args[i], (taken and not stays) or adopts, always=adopts))
        if again is not None:
            b.jump(again)
            b.split()
        if taken and e.arg_kinds[i].is_star():
            operands.move_items(e.args[i])
    b.in_then = outer
    for iterable in iterables_emptied(b, e, callee) if callee.name in names.CALLS_OFTEN else ():
        operands.move_items(iterable)
    return arguments


def _lend_for_later(b: GraphBuilder, e: Expression) -> Slot | None:
    """Lend a handle to a generator or a task that only reads it. The handle must not move in the meantime."""
    held = b.read(e)
    place = place_of(b, e)
    if place is None:
        return held
    into = b.temporary()
    b.emit(Lend(e, place, into, exclusive=False, captured=True, reads_only=True))
    return into


def _begin_of_repetition(b: GraphBuilder, e: Expression) -> BasicBlock | None:
    """Begin a loop around the argument of a call that calls it several times, if that is a closure."""
    root = e.node if isinstance(e, NameExpr) else None
    if isinstance(e, LambdaExpr) or (isinstance(root, Var | FuncDef) and root in b.closures):
        return b.split()
    return None


# ---- expressions around calls


@expression(AwaitExpr)
def _await(b: GraphBuilder, e: AwaitExpr, by_value: bool) -> Slot | None:
    held = b.value(e.expr)
    b.may_raise()
    if held is not None and b.kind(e.expr) & OP:
        b.emit(Run(e, held))
    if never_returns(b, e):
        b.throw()
    return build_part(b, e, held, b.kind(e) & ~FEED)  # the work that was given a feed has ended


@expression(CastExpr)
def _cast(b: GraphBuilder, e: CastExpr, by_value: bool) -> Slot | None:
    return b.evaluate(e.expr, by_value)


@expression(AssertTypeExpr)
def _assert_type(b: GraphBuilder, e: AssertTypeExpr, by_value: bool) -> Slot | None:
    return b.evaluate(e.expr, by_value)
