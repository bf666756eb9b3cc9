"""Lowers what a function of the module does to attributes of its arguments: it uses, moves, lends or returns them."""

from mypy.nodes import CallExpr

from dagpu.mypy_plugin.ownership.control_flow import Lend, Move, Path, Place, Read, Slot
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.calls.callee import Callee
from dagpu.mypy_plugin.ownership.lower.calls.container_calls import take
from dagpu.mypy_plugin.ownership.lower.places import place_of


def _part_of_argument(b: GraphBuilder, callee: Callee, name: str, path: Path) -> Place | None:
    value = callee.given.get(name)
    place = None if value is None else place_of(b, value)
    return None if place is None else place.inside(path)


def use_parts(b: GraphBuilder, e: CallExpr, callee: Callee) -> None:
    """Read the attributes that the callee uses: `box.size()` uses `box.first`."""
    for name, path in callee.effect.uses if callee.effect is not None else ():
        if (place := _part_of_argument(b, callee, name, path)) is not None:
            b.emit(Read(e, place))


def move_parts(b: GraphBuilder, e: CallExpr, callee: Callee) -> list[Slot]:
    """Record the attributes that the callee has moved: `box.drain()` moves `box.first`.

    Return the slots of those that its result borrows.
    """
    effect = callee.effect
    if effect is None:
        return []
    for name, path, how in effect.parts:
        if (place := _part_of_argument(b, callee, name, path)) is not None:
            b.emit(Move(e, place, b.temporary(), how, silent=True))
    if effect.gives is not None and (place := _part_of_argument(b, callee, *effect.gives)) is not None:
        take(b, e, place, follows=effect.gives not in effect.uses, reads=False)
    lent: list[Slot] = []
    for name, path, exclusive in effect.lends:
        if (place := _part_of_argument(b, callee, name, path)) is not None:
            into = b.temporary()
            lent.append(into)
            b.emit(Lend(e, place, into, exclusive))
    return lent
