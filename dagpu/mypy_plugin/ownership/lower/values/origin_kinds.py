"""The kinds of origins: where a value lies, or where the parts of which it is made lie."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from mypy.types import Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin.ownership.control_flow import Place
from dagpu.mypy_plugin.ownership.lower.places import item_step

SEQUENCES: Final = frozenset({"builtins.list", "builtins.tuple", "collections.deque"})
"""Classes whose objects have an item at each index."""


@dataclass(frozen=True, slots=True)
class Known:
    """A value that lies in a place."""

    place: Place
    type: Type | None
    itself: bool = True
    """False for a handle that has moved out of the place on the way."""
    again: bool = False
    """True for an item that several rounds of a loop may get."""


@dataclass(frozen=True, slots=True)
class Components:
    """A tuple of values."""

    items: tuple["Origin | None", ...]
    whole: bool = True
    """False if further items follow, whose number is not known."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, another one in each round of a loop."""

    options: tuple["Origin | None", ...]
    evaluated: bool = False
    """True for the items of a display, whose evaluation has read them."""


class Relation(Enum):
    """How the items of a new container are those of another one."""

    SAME = auto()
    """At the same indices."""
    REORDERED = auto()
    """All of them, in another order."""
    WITH_OTHERS = auto()
    """All of them, with others."""


@dataclass(frozen=True, slots=True)
class Items:
    """A new container of the items of another one."""

    place: Place
    """The place of the other container."""
    type: Type | None
    """The type of its items."""
    relation: Relation = Relation.SAME


@dataclass(frozen=True, slots=True)
class Parts:
    """A new object with parts that lie elsewhere: attributes of another object, or the values of a dictionary."""

    parts: tuple[tuple[str, "Origin | None"], ...]
    """The step to each part, with the origin of its value."""
    others: "Origin | None" = None
    """The containers with the other items."""


Origin: TypeAlias = Known | Components | Choice | Items | Parts


def items_of(origin: Origin | None) -> list[Origin | None] | None:
    """Return the components of a tuple; None if their number is not known."""
    match origin:
        case Components():
            return list(origin.items)
        case Known():
            t = get_proper_type(origin.type)
            if isinstance(t, TupleType):
                return [part_of(origin, item_step(t, i), item) for i, item in enumerate(t.items)]
            return None
        case Choice():
            found = [items_of(option) for option in origin.options]
            known = [items for items in found if items is not None]
            if not known or len({len(items) for items in known}) > 1:
                return None
            return [Choice(tuple(alternatives)) for alternatives in zip(*known, strict=True)]
        case _:
            return None


def part_of(origin: Known, step: str, t: Type | None) -> Known | None:
    """Return the part of a value that a step leads to; None if it lies too deep to be tracked."""
    place = origin.place.inside((step,))
    return None if place is None else Known(place, t)


def item_at(origin: Origin | None, index: int) -> Origin | None:
    """Return the item of a tuple or list at an index, counted from either end."""
    items = items_of(origin)
    if items is not None:
        return items[index] if -len(items) <= index < len(items) else None
    if isinstance(origin, Items):
        place = origin.place.inside((f"[{index}]",)) if origin.relation is Relation.SAME else None
        return None if place is None else Known(place, origin.type)
    if isinstance(origin, Known):
        t = get_proper_type(origin.type)
        if isinstance(t, Instance) and t.type.fullname in SEQUENCES and t.args:
            return part_of(origin, f"[{index}]", t.args[0])
    return None
