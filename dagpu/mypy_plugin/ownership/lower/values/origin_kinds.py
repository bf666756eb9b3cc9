"""The kinds of origins: where a value lies, or where the parts of which it is made lie."""

from dataclasses import dataclass
from typing import Final, TypeAlias

from mypy.types import Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin.ownership.control_flow import ANY_ITEM, ONE_ITEM, SAME_ITEM, Place
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
    length: int | None = None
    """The number of items of a list, where it is known."""
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


@dataclass(frozen=True, slots=True)
class Items:
    """A new container of the items of another one."""

    place: Place
    """The place of the other container."""
    type: Type | None
    """The type of its items."""
    step: str = SAME_ITEM
    """`SAME_ITEM`, `SOME_ITEM` for items in another order, `ANY_ITEM` for some of them alone, or `ONE_ITEM` for a
    container that has others, too."""
    part: str = ""
    """The step to the items in the other container, if that is a part of it: `[1:]`."""

    @property
    def source(self) -> str:
        """The step to the items in the other container."""
        return self.part or (ANY_ITEM if self.step == ONE_ITEM else self.step)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A new container whose items are one object: `[t] * 2`."""

    item: "Origin | None"


@dataclass(frozen=True, slots=True)
class Parts:
    """A new object with parts that lie elsewhere: attributes of another object, or the values of a dictionary."""

    parts: tuple[tuple[str, "Origin | None"], ...]
    """The step to each part, with the origin of its value."""
    others: "Origin | None" = None
    """The containers with the other items."""


Origin: TypeAlias = Known | Components | Choice | Items | Repeated | Parts


def items_of(origin: Origin | None) -> list[Origin | None] | None:
    """Return the components of a tuple; None if their number is not known."""
    match origin:
        case Components():
            return list(origin.items)
        case Known():
            t = get_proper_type(origin.type)
            if isinstance(t, TupleType):
                return [part_of(origin, item_step(t, i), item) for i, item in enumerate(t.items)]
            if origin.length is not None and isinstance(t, Instance) and t.args:
                return [part_of(origin, f"[{i}]", t.args[0]) for i in range(origin.length)]
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
    """Return the item of a tuple or list at an index that is not negative."""
    items = items_of(origin)
    if items is not None:
        return items[index] if index < len(items) else None
    if isinstance(origin, Items):
        place = origin.place.inside((f"[{index}]",)) if origin.step == SAME_ITEM else None
        return None if place is None else Known(place, origin.type)
    if isinstance(origin, Known):
        t = get_proper_type(origin.type)
        if isinstance(t, Instance) and t.type.fullname in SEQUENCES and t.args:
            return part_of(origin, f"[{index}]", t.args[0])
    return None
