"""Lowers calls: the receiver and the arguments are evaluated, then the call has its effects on them, and a result."""

from typing import Final

from mypy.nodes import (
    AssertTypeExpr,
    AwaitExpr,
    CallExpr,
    CastExpr,
    Expression,
    FuncDef,
    FuncItem,
    LambdaExpr,
    MemberExpr,
    NameExpr,
    RefExpr,
    StarExpr,
    TypeInfo,
    Var,
)
from mypy.types import TupleType, UninhabitedType, get_proper_type

from dagpu.mypy_plugin import messages, names
from dagpu.mypy_plugin.analysis.builder import GraphBuilder, expression
from dagpu.mypy_plugin.analysis.callees import (
    Callee,
    Passed,
    callee_of,
    describe_call,
    function_of,
    give_away,
    is_untyped,
    iterables_emptied,
    pass_arguments,
)
from dagpu.mypy_plugin.analysis.effects import use_closure
from dagpu.mypy_plugin.analysis.expressions import ask_feed, build_part
from dagpu.mypy_plugin.analysis.graph import (
    ANY_GLOBAL,
    EVERYTHING,
    FEED,
    LOANS,
    SPENDABLE,
    AskFeed,
    BasicBlock,
    Build,
    Change,
    Escape,
    Forget,
    Lend,
    Place,
    Rearrange,
    Run,
    Slot,
    Store,
)
from dagpu.mypy_plugin.analysis.handle_operators import lend_handle
from dagpu.mypy_plugin.analysis.operands import (
    Arguments,
    Operands,
    asked_items,
    is_own_container,
    lower_container_call,
    lower_question,
    share_added,
)
from dagpu.mypy_plugin.analysis.places import place_of
from dagpu.mypy_plugin.typing.type_facts import FREE, HANDLE, MOVES, OP, method_name, signatures

_OF_FEED: Final = f"{names.FEED}."
"""The start of the full names of the methods of a feed."""

# ---- the result


def _build_result(
    b: GraphBuilder, e: CallExpr, callee: Callee, parts: list[Slot], passed: list[Passed], owns: bool
) -> Slot | None:
    kind = b.kind(e)
    if callee.name in names.RUNS and parts:
        b.emit(Run(e, parts[0]))
    if callee.name == names.SPAWN and passed:
        passed[-1].runs = True
    for one in passed:
        if one.held is not None and one.runs:
            b.emit(Run(e, one.held))
    for one in passed:
        if one.held is not None and one.repeats:
            b.emit(Run(e, one.held, calls=True))
            b.emit(Run(e, one.held, calls=True))
    result: Slot | None = None
    keeps = kind & EVERYTHING
    captures = _has_captures(b, callee, passed)
    if kind & FREE and not captures and callee.name not in (names.VALUE, names.PIPELINE_CALL):
        keeps &= ~LOANS
    if callee.name.startswith(_OF_FEED):
        keeps &= ~FEED  # a value does not depend on the feed that gave it
    function = callee.name == names.PARTIAL and _takes_handle(b, e.args[0])
    builds = callee.is_ours or function
    if callee.name in names.RUN_AGAIN or not builds:
        keeps &= ~SPENDABLE
    owner = owns and builds and bool(keeps & SPENDABLE)
    followed = not captures or callee.name == names.THEN
    single = callee.is_ours and bool(kind & OP) and followed and callee.name not in names.USED_AGAIN
    if parts or owner or single:
        result = b.temporary() if keeps else None
        b.emit(Build(e, result, tuple(parts), keeps, owner, single, function))
    if never_returns(b, e):
        b.throw()
    return result


def _takes_handle(b: GraphBuilder, function: Expression) -> bool:
    """Return True if a parameter of a function is an owned handle: `object`, as of `print`, only looks at one."""
    return any(b.kinds.kind_of(t) & MOVES for one in signatures(b.types.get(function)) for t in one.arg_types)


def never_returns(b: GraphBuilder, e: Expression) -> bool:
    """Return True for a call, or an `await`, that mypy knows to end in an exception."""
    t = b.types.get(e)
    return t is not None and isinstance(get_proper_type(t), UninhabitedType)


def _has_captures(b: GraphBuilder, callee: Callee, passed: list[Passed]) -> bool:
    """Return True if an argument is a closure with captures. The op then holds them, whatever its type says.

    Record the named functions that are passed to dagpu as continuations.
    """
    captures = False
    for one in passed:
        function = function_of(one.value.node) if isinstance(one.value, NameExpr) else None
        if function is not None and callee.is_ours:
            b.module.continuations.add(function)
        if isinstance(one.value, LambdaExpr):
            b.module.continuations.add(one.value)
        captures |= one.held is not None and (function is not None or isinstance(one.value, LambdaExpr))
    return captures


# ---- the effects on the arguments


def _parts_of_arguments(b: GraphBuilder, e: CallExpr, callee: Callee) -> Arguments | None:
    """Return the arguments of a call that has an effect on parts of them; None for any other call."""
    if callee.effect is None or not callee.effect.concerns_parts:
        return None
    places: dict[str, Place] = {}
    if callee.made:
        made = places[callee.made] = b.taken[e] = Place(b.temporary())
        b.emit(Store(e, made, None, 0))
    if callee.inherited and isinstance(b.body.node, FuncItem) and b.body.node.arguments:
        places[callee.inherited] = Place(b.slot(b.body.node.arguments[0].variable))
    return Arguments(b, e, callee.effect, callee.given, places)


def _record_kept(
    b: GraphBuilder, e: CallExpr, callee: Callee, passed: list[Passed], affected: Arguments | None
) -> None:
    """Record that containers, channels and tasks keep the arguments of a call; `clear` empties a container."""
    if callee.name in names.EMPTIES_SELF and callee.receiver is not None:
        place = place_of(b, callee.receiver)
        if place is not None and not place.path:
            b.emit(Build(e, place.slot, (), EVERYTHING))
        if place is not None:
            b.emit(Rearrange(e, place, Change.REMOVES))
        return
    given = [(one.value, one.held) for one in passed if one.held is not None]
    if not given:
        return
    if affected is not None:
        affected.keep(given)
    if callee.name in names.ADDS_TO_SELF and callee.receiver is not None:
        _add_arguments(b, e, callee.receiver, given, "put where it outlives")
    elif callee.name in names.SYSTEM_TASKS:
        for argument, held in given:
            b.emit(Escape(argument, held, "given to a task that may outlive"))
    elif callee.name in names.STARTS_TASK and callee.receiver is not None:
        _add_arguments(b, e, callee.receiver, given, "given to a task that may outlive")
    elif callee.name == names.SETS_ATTRIBUTE and e.args:
        _add_arguments(b, e, e.args[0], given, "stored in an attribute that outlives")


def _add_arguments(
    b: GraphBuilder, e: CallExpr, container: Expression, given: list[tuple[Expression, Slot]], how: str
) -> None:
    place = place_of(b, _holder_of(b, container))
    if place is not None:
        b.add_to_container(e, place.slot, given, how)
    elif isinstance(container, RefExpr) and isinstance(container.node, TypeInfo):
        for value, held in given:
            b.emit(Escape(value, held, how))


def _holder_of(b: GraphBuilder, e: Expression) -> Expression:
    """Return the dictionary that a container is a value of, `groups` of `groups.setdefault(key, [])`; else itself."""
    while isinstance(e, CallExpr) and isinstance(e.callee, MemberExpr):
        if method_name(b.types.get(e.callee.expr), e.callee.name) not in names.GIVES_VALUE:
            break
        e = e.callee.expr
    return e


def _forget_moves(b: GraphBuilder, e: CallExpr, callee: Callee, receiver_known: bool) -> None:
    """Discard moves that the callee may have undone.

    Any callee may assign to attributes of the objects that it gets. A function of this module may assign to globals.
    `receiver_known`: what happens to the items of the receiver has been lowered.
    """
    if not callee.name or callee.name.startswith(f"{b.module.name}."):
        b.emit(Forget(e, Place(ANY_GLOBAL), whole=True))
    if (callee.name.startswith(names.LEAVE_OBJECTS) and callee.receiver is None) or callee.name in names.MAPS:
        return
    seen = [argument for argument, kind in zip(e.args, e.arg_kinds, strict=True) if not kind.is_star()]
    if callee.receiver is not None and not receiver_known:
        seen.append(callee.receiver)
    left = [] if callee.effect is None else [callee.given.get(name) for name in callee.effect.leaves]
    for argument in seen:
        if (
            isinstance(argument, NameExpr | MemberExpr)
            and argument not in left
            and not (b.kind(argument) & (HANDLE | OP) or isinstance(get_proper_type(b.types.get(argument)), TupleType))
        ):
            place = place_of(b, argument)
            if place is not None:
                b.emit(Forget(e, place, whole=False))


# ---- the call

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
    passed = _evaluate_arguments(b, e, callee, operands, own=own)
    affected = _parts_of_arguments(b, e, callee)
    if affected is not None:
        affected.use_parts()
    if callee.leaves_unmoved and callee.name not in names.NEVER_RAISES:
        b.may_raise()  # before the moves
    operands.emit_moves()
    if affected is not None:
        affected.borrow_parts()
    if callee.closure is not None:
        parts.append(use_closure(b, callee.closure, e, later=False))
    _record_kept(b, e, callee, passed, affected)
    _record_uses(b, e, callee, passed)
    parts.append(lower_question(b, e, callee.name))
    if not callee.leaves_unmoved:
        _forget_moves(b, e, callee, lower_container_call(b, e, callee))
        if own and callee.receiver is not None:
            share_added(b, e, e.args, callee.receiver, last=callee.name.endswith(".append"))
        if affected is not None:
            parts += affected.move_parts()
            affected.give_part(e)
            b.at_exit[e] = affected.moves_at_exit()
        b.may_raise()
    held = [slot for slot in (*parts, *[one.held for one in passed]) if slot is not None]
    return _build_result(b, e, callee, held, passed, operands.owns)


def _record_uses(b: GraphBuilder, e: CallExpr, callee: Callee, passed: list[Passed]) -> None:
    """Record the uses of arguments that have rules of their own: of a feed, and of contents that are not there."""
    for one in passed if callee.name in names.ASKS_FEED else ():
        if one.held is not None and b.kind(one.value) == FEED:
            b.emit(AskFeed(e, Place(one.held)))
    asked = asked_items(b, callee.name, e.args) if e.args else []
    if e.args and b.kind(e.args[0]) & (HANDLE | OP):
        if callee.name in names.ASKS_TRUTH:
            asked.append(e.args[0])
        elif _makes_array(callee):
            b.refuse(e.args[0], messages.NOT_READY, messages.read_on_host(b.is_op(e.args[0])))
    for argument in asked:
        b.refuse(argument, messages.NOT_READY, messages.taken_as_condition(b.is_op(argument)))


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
        return ask_feed(b, receiver) if callee.name.startswith(_OF_FEED) else b.read(receiver)
    return lend_handle(b, e, receiver, exclusive=exclusive)


def _evaluate_arguments(b: GraphBuilder, e: CallExpr, callee: Callee, operands: Operands, *, own: bool) -> list[Passed]:
    """Evaluate the arguments, and return what the call does with them. `own`: for a container of this function alone,
    in which a named handle may still be used by its name."""
    outer, b.in_then = b.in_then, callee.name == names.THEN
    how = describe_call(callee) if e.args else ""
    passed = pass_arguments(b, e, callee)
    for i, one in enumerate(passed):
        b.how = how
        if one.borrowed and not one.taken:
            one.held = _lend_for_later(b, one.value)
            continue
        adopts = i == 0 and callee.name == names.ADOPT and getattr(one.value, "node", None) in b.module.adopted
        often = callee.name in names.CALLS_OFTEN or one.repeats
        again = _begin_of_repetition(b, one.value) if often else None
        operands.accepts = one.accepts
        stays = own and isinstance(one.value, NameExpr)
        one.held = operands.evaluate(one.value, (one.taken and not stays) or adopts, always=adopts)
        if again is not None:
            b.jump(again)
            b.split()
        if one.taken and e.arg_kinds[i].is_star():
            operands.move_items(one.value)
    b.in_then = outer
    for iterable in iterables_emptied(b, e, callee) if callee.name in names.CALLS_OFTEN else ():
        operands.move_items(iterable)
    return passed


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
    if (place := b.taken.get(e.expr)) is not None and not b.kind(e.expr) & OP:
        b.taken[e] = place
    return build_part(b, e, held, b.kind(e) & ~FEED)  # the work that was given a feed has ended


@expression(CastExpr, AssertTypeExpr, StarExpr)
def _cast(b: GraphBuilder, e: CastExpr | AssertTypeExpr | StarExpr, by_value: bool) -> Slot | None:
    return b.evaluate(e.expr, by_value)
