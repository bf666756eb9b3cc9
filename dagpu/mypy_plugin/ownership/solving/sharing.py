"""The places that share a value at one point of a body, and the places that are left where items change their indices.

A pair of places shares a value with all its parts, unless both end in `SAME_ITEM` or `SOME_ITEM`. Then the places are
two containers of the same items: `us = list(ts)`. To assign an item of one of these changes nothing in the other. A
place that ends in `EACH_ITEM` is paired with itself: the items of this container are one object.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from dagpu.mypy_plugin.ownership.control_flow import (
    ANY_ITEM,
    EACH_ITEM,
    MANY,
    ONE_ITEM,
    SAME_ITEM,
    SOME_ITEM,
    Path,
    Place,
    Shift,
    Slot,
    covers,
)

Pairs: TypeAlias = frozenset[tuple[Path, Place]]
"""Paths into one slot, each with another place that has the same value."""

_OF_ITEMS: Final = (SAME_ITEM, SOME_ITEM)
_UNKNOWN: Final = (ANY_ITEM, ONE_ITEM, EACH_ITEM, *_OF_ITEMS)
_HIGHEST: Final = 4
"""The highest index that is followed where items change their indices."""


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
        if a == b and a.path[-1:] != (EACH_ITEM,):
            return
        steps = {place.path[-1] for place in (a, b) if pairs_items(place.path)}
        if len(steps) == 2:
            a, b = (Place(place.slot, (*place.path[:-1], SOME_ITEM)) for place in (a, b))
        for one, other in ((a, b), (b, a)):
            self.pairs[one.slot] = self.pairs.get(one.slot, frozenset()) | {(one.path, other)}

    def is_repeated(self, item: Place) -> bool:
        """Return True for an item of a container whose items are one object."""
        return bool(item.path) and any(
            path[-1:] == (EACH_ITEM,) and path[:-1] == item.path[:-1] for path, _ in self.pairs.get(item.slot, ())
        )

    def unlink(self, slot: Slot, path: Path) -> None:
        """Record that a place has another value now: it shares nothing, and neither do its parts."""
        for own, other in self.pairs.get(slot, ()):
            if own[: len(path)] == path or may_be_item(own, path):
                self._remove(Place(slot, own), other)

    def forget_step(self, step: str) -> None:
        """Forget all places with this step, the index of an item that a variable has had."""
        for slot, pairs in list(self.pairs.items()):
            self._set(slot, frozenset(pair for pair in pairs if step not in pair[0] and step not in pair[1].path))

    def shift(self, i: Shift, container: Place) -> None:
        """Give the items of a container the indices that they have after a shift."""
        n = len(container.path)
        inside = [
            (path, other)
            for path, other in self.pairs.get(container.slot, ())
            if len(path) > n and path[:n] == container.path and path[n][0] == "["
        ]
        ends = ("[0]" if i.front < 0 else "", "[-1]" if i.back < 0 else "")
        gone = {other for path, other in inside if path[n] in ends}
        for path, other in inside:
            step = None if other in gone else _shifted_pair(i, path[n])
            if step == path[n]:
                continue
            self._remove(Place(container.slot, path), other)
            if step is not None:
                to = Place(other.slot, (*other.path[:-1], step)) if pairs_items(other.path) else other
                self.link(Place(container.slot, (*path[:n], step, *path[n + 1 :])), to)

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
    return bool(path) and path[-1] in _OF_ITEMS


def counterpart(path: Path, paired: Path, other: Place) -> Place | None:
    """Return the place that has the value at `path`, if `other` shares the value at `paired`; None if there is none."""
    n = len(paired)
    step = ANY_ITEM
    if paired[-1:] == (EACH_ITEM,):
        if path[: n - 1] != paired[:-1] or len(path) < n or path[n - 1][0] != "[" or pairs_items(path[:n]):
            return None
        other = Place(other.slot, (*other.path[:-1], ANY_ITEM))
    elif path[:n] != paired:
        if path[: n - 1] != paired[:-1] or len(path) < n:
            return None
        if (path[n - 1] == ANY_ITEM and paired[-1] == ONE_ITEM) or (paired[-1] == ANY_ITEM and _is_one(other.path)):
            return other.inside(path[n:]) if path[n - 1][0] == "[" else None
        if not pairs_items(paired):
            return None
        if path[n - 1][0] != "[":
            return None
        step = path[n - 1]
        if paired[-1] == SOME_ITEM and step != ANY_ITEM:
            step = SOME_ITEM if step in _OF_ITEMS else ONE_ITEM
    elif pairs_items(paired):
        step = paired[-1]
    if pairs_items(other.path):
        other = Place(other.slot, (*other.path[:-1], step))
    return other.inside(path[n:])


def _is_one(path: Path) -> bool:
    """Return True for the path to an item of a container that has the items of others, too."""
    return path[-1:] == (ONE_ITEM,)


def shifted(i: Shift, step: str) -> str | None:
    """Return the step to a moved item after a shift; None for one that is taken out, or whose index is not known."""
    if i.reorders:
        return step if step in (ANY_ITEM, ONE_ITEM) or step[0] != "[" else ONE_ITEM
    takes_out = i.front < 0 or i.back < 0
    if step == ANY_ITEM:  # at least the first one, of those that were there before
        return None if takes_out or i.front >= MANY else f"[{i.front}]" if i.front or i.back else step
    if step == ONE_ITEM:
        return None if takes_out or i.front >= MANY else step
    if step[1].isidentifier() or ":" in step:
        return None if takes_out or i.front else step
    if not step[1:-1].lstrip("-").isdecimal():
        return step
    index = int(step[1:-1])
    after = index + i.front if index >= 0 else index - i.back
    return f"[{after}]" if (after >= 0) == (index >= 0) and abs(after) <= _HIGHEST else None


def _shifted_pair(i: Shift, step: str) -> str | None:
    """Return the step to an item that is shared, after a shift."""
    if step == EACH_ITEM:
        return None if i.front > 0 or i.back > 0 else step
    if step not in (*_OF_ITEMS, ANY_ITEM, ONE_ITEM):
        return None if i.reorders else shifted(i, step)
    if i.reorders:
        return SOME_ITEM if step in _OF_ITEMS else step
    if i.front < 0 or i.back < 0 or i.front >= MANY:
        return None
    return ANY_ITEM if step in _OF_ITEMS else step


def may_be_item(moved: Path, stored: Path) -> bool:
    """Return True if an item that is assigned may be the one that has moved: it was any of them, counted from the other
    end, or has a variable for an index."""
    n = len(stored)
    if not n or len(moved) < n or moved[: n - 1] != stored[:-1] or moved[n - 1][0] != "[" or stored[-1][0] != "[":
        return False
    steps = moved[n - 1], stored[-1]
    if any(
        step in (ANY_ITEM, ONE_ITEM, EACH_ITEM, *_OF_ITEMS) or step[1].isidentifier() or ":" in step for step in steps
    ):
        return True
    return (steps[0][1] == "-") != (steps[1][1] == "-")
