"""Lowers what a function of this module does to parts of its arguments: it uses, moves, lends or returns them."""

from collections.abc import Iterable, Mapping, Sequence

from mypy.nodes import CallExpr, Context, Expression

from dagpu.mypy_plugin.ownership.control_flow import Lend, Move, Place, Read, Slot
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.calls.container_calls import take
from dagpu.mypy_plugin.ownership.lower.places import place_of
from dagpu.mypy_plugin.ownership.module_facts import Effect, Part
from dagpu.mypy_plugin.typing.type_facts import MOVES


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
