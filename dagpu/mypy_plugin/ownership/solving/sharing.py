"""The places that share a value at one point of a body.

A pair of places shares a value with all its parts, unless both end in `SAME_ITEM`. Then the places are two containers
of the same items: `us = list(ts)`. To assign an item of one of these changes nothing in the other. `us[?]` and `ts[*]`
are a pair if the items of `ts` are among those of `us`: all that moves out of `us` moves out of `ts`, and what moves
out of `ts` is one of `us`.
"""

from collections.abc import Iterator
from typing import TypeAlias

from dagpu.mypy_plugin.ownership.control_flow import (
    ANY_ITEM,
    ONE_ITEM,
    SAME_ITEM,
    UNKNOWN_ITEMS,
    Path,
    Place,
    Rearrange,
    Slot,
    covers,
)

Pairs: TypeAlias = frozenset[tuple[Path, Place]]
"""Paths into one slot, each with another place that has the same value."""


class Sharing:
    """The pairs of places that share a value."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: dict[Slot, Pairs] = {}

    def others(self, place: Place) -> list[Place]:
        """Return the other places that have the value of a place."""
        found = (counterpart(place.path, path, other) for path, other in self.pairs.get(place.slot, ()))
        return [other for other in found if other is not None]

    def possible_others(self, place: Place) -> list[Place]:
        """Return the other places that may have the value of a place: a loop's variable was one of the items."""
        return [other for path, other in self.pairs.get(place.slot, ()) if covers(path, place.path)]

    def parts(self, whole: Place, new: Place) -> Iterator[tuple[Place, Place]]:
        """Iterate over the parts of a place that share a value, each as the part of `new` that has it, too."""
        for path, other in list(self.pairs.get(whole.slot, ())):
            part = counterpart(path, whole.path, new) if path != whole.path and path[-1:] != (ANY_ITEM,) else None
            if part is not None:
                yield part, other

    def link(self, a: Place, b: Place) -> None:
        """Let two places share a value."""
        if a != b:
            for one, other in ((a, b), (b, a)):
                self.pairs[one.slot] = self.pairs.get(one.slot, frozenset()) | {(one.path, other)}

    def unlink(self, slot: Slot, path: Path) -> None:
        """Record that a place has another value now: it shares nothing, and neither do its parts."""
        for own, other in self.pairs.get(slot, ()):
            if own[: len(path)] == path or may_be_item(own, path):
                self._remove(Place(slot, own), other)

    def rearrange(self, i: Rearrange, container: Place) -> None:
        """Let the items of a container share with others what is known of them afterwards."""
        for path, other in self.pairs.get(container.slot, ()):
            after = i.after(container, path)
            if after != path:
                self._remove(Place(container.slot, path), other)
            if after is not None and after != path:
                to = Place(other.slot, (*other.path[:-1], ANY_ITEM)) if pairs_items(other.path) else other
                self.link(Place(container.slot, after), to)

    def pruned(self, named: int) -> "Sharing":
        """Return a copy with the pairs of these slots; `named` has one bit for each slot."""
        left = Sharing()
        for slot, pairs in self.pairs.items():
            if named >> slot & 1 and (kept := frozenset(pair for pair in pairs if named >> pair[1].slot & 1)):
                left.pairs[slot] = kept
        return left

    def _remove(self, place: Place, other: Place) -> None:
        self._set(place.slot, self.pairs.get(place.slot, frozenset()) - {(place.path, other)})
        self._set(other.slot, self.pairs.get(other.slot, frozenset()) - {(other.path, place)})

    def _set(self, slot: Slot, pairs: Pairs) -> None:
        if pairs:
            self.pairs[slot] = pairs
        else:
            self.pairs.pop(slot, None)


def pairs_items(path: Path) -> bool:
    """Return True if only the items of the container at a path are shared."""
    return path[-1:] == (SAME_ITEM,)


def counterpart(path: Path, paired: Path, other: Place) -> Place | None:
    """Return the place that has the value at `path`, if `other` shares the value at `paired`; None if there is none."""
    n = len(paired)
    if path[:n] == paired:
        return other.inside(path[n:])
    if len(path) < n or path[: n - 1] != paired[:-1] or path[n - 1][0] != "[":
        return None
    if pairs_items(paired):
        if pairs_items(other.path):
            other = Place(other.slot, (*other.path[:-1], path[n - 1]))
        return other.inside(path[n:])
    all_of_them = path[n - 1] == ANY_ITEM and paired[-1] == ONE_ITEM
    one_of_others = paired[-1] == ANY_ITEM and other.path[-1:] == (ONE_ITEM,)
    return other.inside(path[n:]) if all_of_them or one_of_others else None


def may_be_item(moved: Path, stored: Path) -> bool:
    """Return True if an item that is assigned may be the one that has moved: it was any of them, or is counted from the
    other end."""
    n = len(stored)
    if not n or len(moved) < n or moved[: n - 1] != stored[:-1] or moved[n - 1][0] != "[" or stored[-1][0] != "[":
        return False
    steps = moved[n - 1], stored[-1]
    return any(step in UNKNOWN_ITEMS for step in steps) or (steps[0][1] == "-") != (steps[1][1] == "-")
