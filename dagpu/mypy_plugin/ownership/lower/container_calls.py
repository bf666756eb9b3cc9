"""Lowers what calls do to the items of containers and to parts of their arguments: use, move, lend or give them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mypy.nodes import CallExpr, Context, Decorator, Expression, IntExpr, NameExpr, RefExpr, StrExpr, Var

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import (
    ANY_ITEM,
    ONE_ITEM,
    Change,
    Forget,
    Lend,
    Move,
    Path,
    Place,
    Read,
    Rearrange,
    Share,
    Slot,
    Store,
)
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.callee import Callee, picks_item
from dagpu.mypy_plugin.ownership.lower.lower_functions import remembers
from dagpu.mypy_plugin.ownership.lower.new_containers import element_of, items_of_value
from dagpu.mypy_plugin.ownership.lower.origins import Choice, Known, Relation, share_place
from dagpu.mypy_plugin.ownership.lower.own_objects import is_own_object
from dagpu.mypy_plugin.ownership.lower.places import function_of, item_place, place_of
from dagpu.mypy_plugin.ownership.module_facts import Effect, Part
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


# ---- parts of arguments


class Arguments:
    """The arguments of a call, or the object whose property, item or `with` block is asked for."""

    def __init__(
        self, b: GraphBuilder, node: Context, effect: Effect, given: Mapping[str, Expression], places: dict[str, Place]
    ) -> None:
        """`given` are expressions that are passed, by parameter, `places` those of other arguments."""
        self._b = b
        self._node = node
        self._effect = effect
        self._given = given
        self._places = places

    def place(self, part: Part) -> Place | None:
        """Return the place of a part of an argument."""
        name, path = part
        place = self._places.get(name)
        if place is None and (value := self._given.get(name)) is not None:
            place = place_of(self._b, value)
        elif place is None and (variable := self._b.module.variable(name)) is not None:
            place = Place(self._b.slot(variable))
        return None if place is None else place.inside(path)

    def use_parts(self) -> None:
        """Read the attributes that the function uses: `box.size()` uses `box.first`."""
        for part in self._effect.uses:
            if (place := self.place(part)) is not None:
                self._b.emit(Read(self._node, place))

    def borrow_parts(self) -> None:
        """Lend, for the time of the call, what the function lends: no other loan may be alive of what it writes, and
        none for writing of what it reads."""
        for part, exclusive in self._effect.borrows:
            if not part.path and part.parameter not in self._effect.spares:
                continue
            if (place := self.place(part)) is not None:
                self._b.emit(Lend(self._node, place, self._b.temporary(), exclusive))

    def move_parts(self) -> list[Slot]:
        """Record the attributes that the function has moved: `box.drain()` moves `box.first`.

        Return the slots of those that its result borrows.
        """
        for move in self.moves():
            self._b.emit(move)
        lent: list[Slot] = []
        for part, exclusive in self._effect.lends:
            if (place := self.place(part)) is not None:
                into = self._b.temporary()
                lent.append(into)
                self._b.emit(Lend(self._node, place, into, exclusive))
        return lent

    def give_part(self, e: CallExpr) -> None:
        """Give the result of a call the place of the part that the function returns."""
        part = self._effect.gives
        if part is None or (not part.path and self._is_moved(part.parameter)):
            return
        if (place := self.place(part)) is not None:
            take(self._b, e, place, follows=part not in self._effect.uses, reads=False)

    def _is_moved(self, parameter: str) -> bool:
        value = self._given.get(parameter)
        return value is not None and bool(self._b.kind(value) & MOVES)

    def moves(self) -> list[Move]:
        """Return the moves of the attributes that the function has moved where it ends."""
        return self._moves(self._effect.parts, silent=True)

    def moves_at_exit(self) -> list[Move]:
        """Return the moves at the end of the block of a context manager."""
        return self._moves(self._effect.at_exit, silent=False)

    def _moves(self, parts: Iterable[tuple[Part, str]], *, silent: bool) -> list[Move]:
        found: list[Move] = []
        for part, how in parts:
            if (place := self.place(part)) is not None:
                found.append(Move(self._node, place, self._b.temporary(), how, silent))
        return found

    def keep(self, given: Sequence[tuple[Expression, Slot]]) -> None:
        """Record the arguments that others keep. `given` are those that hold facts."""
        for name, holder in self._effect.keeps:
            value, place = self._given.get(name), self.place(Part(holder, ()))
            held = [pair for pair in given if pair[0] is value]
            if place is not None and held:
                self._b.add_to_container(self._node, place.slot, held, "put where it outlives")
