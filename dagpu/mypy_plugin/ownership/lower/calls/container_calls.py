"""Lowers what calls do to the items of containers: `ts.pop()` takes one out, and the others have other indices."""

from collections.abc import Iterable
from typing import Final

from mypy.nodes import CallExpr, Context, Decorator, Expression, IntExpr, NameExpr, RefExpr, StrExpr, Var

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import (
    ANY_ITEM,
    ONE_ITEM,
    Change,
    Forget,
    Path,
    Place,
    Read,
    Rearrange,
    Share,
    Store,
)
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.calls.callee import Callee
from dagpu.mypy_plugin.ownership.lower.calls.item_functions import picks_item
from dagpu.mypy_plugin.ownership.lower.lower_functions import remembers
from dagpu.mypy_plugin.ownership.lower.places import function_of, item_place, place_of
from dagpu.mypy_plugin.ownership.lower.values.iteration import element_of
from dagpu.mypy_plugin.ownership.lower.values.new_containers import items_of_value
from dagpu.mypy_plugin.ownership.lower.values.origin_kinds import Choice, Known, Relation
from dagpu.mypy_plugin.ownership.lower.values.own_objects import is_own_object
from dagpu.mypy_plugin.ownership.lower.values.shared_places import share_place
from dagpu.mypy_plugin.typing.type_facts import MOVES

_ADDS_BEHIND: Final = frozenset({"builtins.list.append", "builtins.list.extend"})
"""Methods that add items behind the last one."""
_REMOVES: Final = names.REMOVES | frozenset(
    f"collections.deque.{name}" for name in ("append", "extend", "appendleft", "extendleft")
)
"""Methods that may take items out. A deque of a maximal length drops one for each that it gets."""


def lower_container_call(b: GraphBuilder, e: CallExpr, callee: Callee) -> bool:
    """Lower the effect of a call on the items of its receiver or argument.

    Return True for a method of a container whose whole effect on the items is known.
    """
    container = callee.receiver
    if container is None:
        _take_of_iterable(b, e)
        _take_remembered(b, e)
        return False
    if callee.name == names.FORGETS_RESULTS and isinstance(container, RefExpr):
        if (function := function_of(container.node)) is not None:
            b.emit(Store(e, Place(b.slot(function)), None, 0))
        return True
    if not callee.name.startswith(("builtins.", "collections.", "typing.")):
        return False
    place = place_of(b, container)
    if place is None or not b.kinds.may_own(b.types.get(container)):
        return False
    if (end := names.TAKES_ITEM.get(callee.name)) is not None:
        _pop(b, e, container, place, end)
    elif callee.name in names.TAKES_VALUE:
        item = item_place(b, container, e.args[0]) if e.args else place.inside((ANY_ITEM,))
        if item is not None:
            take(b, e, item, itself=False, follows=bool(e.args), step=() if e.args else ("[1]",))
            if e.args:
                b.emit(Store(e, item, None, 0))
    elif callee.name in names.GIVES_VALUE and e.args:
        if (item := item_place(b, container, e.args[0])) is not None:
            take(b, e, item)
    else:
        return _rearrange(b, e, callee.name, place)
    return True


def is_own_container(b: GraphBuilder, e: Expression, *, returned: bool = True) -> bool:
    """Return True for an object that one local variable of this function alone names: what is put into it stays with
    the function. `returned`: also if the function returns it in the end."""
    variable = e.node if isinstance(e, NameExpr) else None
    return (
        isinstance(variable, Var)
        and b.slot(variable) in b.body.local
        and variable not in b.parameters
        and is_own_object(b.module, b.body, variable, returned=returned)
    )


def share_added(
    b: GraphBuilder, e: Context, added_ones: Iterable[Expression], container: Expression, *, last: bool
) -> None:
    """Share the named handles that have been put into a container with its items: with one, and with the last one."""
    place = place_of(b, container)
    for argument in added_ones:
        added = place_of(b, argument) if isinstance(argument, NameExpr) and b.kind(argument) & MOVES else None
        for step in ("[-1]", ONE_ITEM) if last else (ONE_ITEM,):
            item = None if place is None else place.inside((step,))
            if added is not None and item is not None:
                b.emit(Share(e, item, added))


def _rearrange(b: GraphBuilder, e: CallExpr, method: str, place: Place) -> bool:
    """Lower a method that adds or removes items, or changes their order. Return False for any other method."""
    if method in _ADDS_BEHIND or method in _REMOVES:
        b.emit(Rearrange(e, place, Change.BEHIND if method in _ADDS_BEHIND else Change.REMOVES))
        if method in names.ADDS_ITEMS_OF and e.args:
            share_place(b, place, items_of_value(b, e.args[0], Relation.WITH_OTHERS), e)
    elif method in names.UPDATES and e.args:
        b.emit(Forget(e, place, whole=False))
        share_place(b, place, items_of_value(b, e.args[0]), e)
    elif method == "builtins.list.insert" or method in names.REORDERS:
        b.emit(Rearrange(e, place, Change.REORDERS if method in names.REORDERS else Change.ADDS))
    else:
        return method in names.LOOKS_AT_SELF
    return True


def _pop(b: GraphBuilder, e: CallExpr, container: Expression, place: Place, end: str) -> None:
    """Lower a call that takes an item out of a sequence: at an end, or at an index that is given."""
    item = item_place(b, container, e.args[0]) if e.args else place.inside((end,))
    if item is not None:
        take(b, e, item, itself=False)
    b.emit(Rearrange(e, place, Change.REMOVES))


def take(
    b: GraphBuilder,
    e: CallExpr,
    *items: Place,
    itself: bool = True,
    follows: bool = True,
    reads: bool = True,
    step: Path = (),
) -> None:
    """Give the result of a call a place, of which the part at `step` shares with the place of an item: it is one of
    `items`.

    `itself`: the item stays where it is. `follows`: it has moved if it has moved out of that place before. `reads`: it
    is an error then to use the result.
    """
    result = Place(b.temporary())
    b.emit(Store(e, result, None, 0))
    for item in items:
        b.emit(Share(e, Place(result.slot, step), item, itself=itself, follows=follows))
    b.taken[e] = result
    if reads and e is not b.discarded:
        b.emit(Read(e, result))


def _take_remembered(b: GraphBuilder, e: CallExpr) -> None:
    """Give the result of a function that remembers its results, `weights()`, the place of that result."""
    node = e.callee.node if isinstance(e.callee, RefExpr) else None
    if not isinstance(node, Decorator) or not remembers(node) or not b.kinds.may_own(b.types.get(e)):
        return
    if all(isinstance(argument, IntExpr | StrExpr) for argument in e.args) and not any(e.arg_names):
        values = [repr(argument.value) for argument in e.args if isinstance(argument, IntExpr | StrExpr)]
        take(b, e, Place(b.slot(node.func), (f"({', '.join(values)})",)))


def _take_of_iterable(b: GraphBuilder, e: CallExpr) -> None:
    """Give the result of `max(ts)`, `next(iter(ts))` or `reduce(better, ts)` a place, which shares with one item."""
    if not isinstance(e.callee, RefExpr) or not e.args or not b.kinds.may_own(b.types.get(e)):
        return
    positional = [argument for argument, name in zip(e.args, e.arg_names, strict=True) if name is None]
    if e.callee.fullname in names.REDUCES and picks_item(b, e):
        positional = positional[1:]
    elif e.callee.fullname not in names.GIVES_ITEM:
        return
    named = [place_of(b, argument) for argument in positional] if len(positional) > 1 else []
    element = element_of(b, positional[0]) if len(positional) == 1 else None
    if isinstance(element, Choice):
        named = [option.place for option in element.options if isinstance(option, Known)]
    if any(named):
        take(b, e, *(place for place in named if place is not None), follows=False)
    elif isinstance(element, Known) and element.place.path and element.place.path[-1] == ANY_ITEM:
        begins = e.callee.fullname == "builtins.next" and is_call_of(positional[0], "builtins.iter")
        step = "[0]" if begins else ONE_ITEM
        take(b, e, Place(element.place.slot, (*element.place.path[:-1], step)), follows=False)


def is_call_of(e: Expression, name: str) -> bool:
    """Return True for a call of the function or class of this full name."""
    return isinstance(e, CallExpr) and isinstance(e.callee, NameExpr) and e.callee.fullname == name
