"""The effects of a call on what its arguments hold, on the moves that are known, and on parts of the arguments."""

from mypy.nodes import CallExpr, Expression, FuncItem, MemberExpr, NameExpr, RefExpr, TypeInfo
from mypy.types import TupleType, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import (
    ANY_GLOBAL,
    EVERYTHING,
    Build,
    Change,
    Escape,
    Forget,
    Place,
    Rearrange,
    Slot,
    Store,
)
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.calls.argument_parts import Arguments
from dagpu.mypy_plugin.ownership.lower.calls.callee import Callee
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.typing.type_facts import HANDLE, OP, method_name


def parts_of_arguments(b: GraphBuilder, e: CallExpr, callee: Callee) -> Arguments | None:
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


def record_kept(
    b: GraphBuilder, e: CallExpr, callee: Callee, arguments: list[Slot | None], affected: Arguments | None
) -> None:
    """Record that containers, channels and tasks keep the arguments of a call; `clear` empties a container."""
    if callee.name in names.EMPTIES_SELF and callee.receiver is not None:
        place = place_of(b, callee.receiver)
        if place is not None and not place.path:
            b.emit(Build(e, place.slot, (), EVERYTHING))
        if place is not None:
            b.emit(Rearrange(e, place, Change.REMOVES))
        return
    given = [(argument, held) for argument, held in zip(e.args, arguments, strict=True) if held is not None]
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


def forget_moves(b: GraphBuilder, e: CallExpr, callee: Callee, receiver_known: bool) -> None:
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
