"""The guard of a plan: the table of an earlier run, read for another one.

A key says which plan serves a run; a guard says only whether it is the plan of one earlier run, in a tenth of the time.
Both are one table: the rows that the walk of the key has made (dagpu.tracing.value_kinds). The key of
another run is equal if its rows are, and the guard compares the same facts with another run's values, without making
rows. So it accepts a run exactly if its key is equal, its handles are alive, and its numbers fit. On the way it does
for each leaf what `Signature.bind` does. If it refuses, the key decides, and the run has had no effect.

A pipeline's guard reads the arguments of a call. A plain op's guard reads an op that a loop builds again in each round.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, final

from dagpu.common.frozen import plain
from dagpu.handles import HandleState
from dagpu.handles.handle_state import Lock
from dagpu.tracing.flattened import Flattened, Row

Moved: TypeAlias = tuple[int, Any, HandleState]
"""A handle that moves into the run, with the index of its leaf before it, and its state as it was read after it."""

Reading: TypeAlias = tuple[list[Any], list[Any], list[Lock], list[Lock], list[Moved]]
"""What a direct call has read of its inputs, which is all that a run with the plan needs: the memory and the values of
the program's buffers, with None where nothing is bound; the leaves in the order of the key; the locks that the run
takes for writing, and those for reading; and the handles that move. A class would take as long to make as a handle to
read."""


@final
@plain
class LeafBinding:
    """The use of one leaf in a program."""

    buffer: int = -1
    """The buffer of a handle's memory, or the cell of an array; -1 if the program does not use it."""
    lock: bool | None = None
    """True if a handle's memory is locked for writing, false for reading, None if it is not locked."""
    moves: bool = False
    """True if a handle moves into the run."""
    numbers: tuple[tuple[int, Callable[[float], object]], ...] = ()
    """For each use of a number its cell, and the check that returns the value of the cell."""


_UNUSED: Final = LeafBinding()


class Leaves(Protocol):
    """A kind of leaves: how a guard reads all of its rows."""

    def read(self, rows: Any, values: Sequence[Any], found: Reading) -> bool:
        """Read the leaves at the places that the rows name, and bind them. Return false if a row refuses one."""
        ...


class Accepts(Protocol):
    """A kind of values that only a function can compare."""

    def accepts(self, value: Any, fact: Any, /) -> bool:
        """Return true for a value with this fact."""
        ...


@final
class Guard:
    """The rows of one run, as conditions that are read in a loop for each form: the functions of Python that a loop
    calls would take as long as all that it compares. Make it with `guard_call` or `guard_op`; the kinds of the rows
    fill it.

    The values of a run are numbered by their places. First is what the run is given; each container and each node adds
    its items at the end of the list.
    """

    __slots__ = (
        "_named", "_rows", "_shift", "again", "alike", "bindings", "buffers",
        "checks", "different", "equal", "flat", "inner", "is_plain", "leaf_places", "leaf_rows", "places", "same",
    )  # fmt: skip

    def __init__(
        self, rows: Sequence[Row], named: Mapping[int, object], bindings: Sequence[LeafBinding], buffers: int
    ) -> None:
        """`buffers` is the number of the program's buffers and cells."""
        self._rows = rows
        self._named = named
        """The objects whose ids are in the rows."""
        self.buffers = buffers + 1
        """One more than the program has: what it does not use is bound to the last one."""
        self.bindings = bindings
        self._shift = 0
        self.flat = -1
        """The number of the arguments, if they alone are the values; else -1."""
        self.inner: list[tuple[int, type[Any], int, Callable[[Any], Any] | None, object, int]] = []
        """The containers and nodes: the place; the type; the number of values once its items are among them; the
        function that returns these, None for a tuple or list itself; and the place in the code that has built a node,
        with an ellipsis for any."""
        self.equal: list[tuple[int, type[Any], object]] = []
        """The values that are equal to another of their type exactly if no program can tell them apart."""
        self.same: list[tuple[int, object]] = []
        """The values that are compared by identity."""
        self.checks: list[tuple[int, Accepts, object]] = []
        """The values that their kind compares."""
        self.again: list[tuple[int, int]] = []
        """The values that are an earlier one."""
        self.different: set[int] = set()
        """Arrays, and handles to one memory: no two of these are one object."""
        self.alike: dict[object, list[int]] = {}
        """The nodes of one kind and place. No two of these are one node: an op that is used twice has no key."""
        self.places: list[int] = []
        """The places of the leaves, by their indices."""
        self.leaf_rows: dict[Leaves, Any] = {}
        """For each kind of leaves its rows."""
        self.leaf_places: list[int] | None = None
        """The places of the leaves; None if all values are leaves in this order."""
        self.is_plain = False
        """True if nothing but leaves has a condition."""

    def named(self, token: int) -> Any:
        """Return the object whose id is in a row."""
        return self._named[token]

    def at(self, place: int) -> int:
        """Return the index among the values that a place of the table has."""
        return place - self._shift

    def add_leaf(self, leaf: int, place: int) -> LeafBinding:
        """Add a leaf, and return its use in the program."""
        assert leaf == len(self.places)
        self.places.append(self.at(place))
        return self.bindings[leaf] if leaf < len(self.bindings) else _UNUSED

    def fill(self, values: dict[int, Any], shift: int, flat: int = -1) -> bool:
        """Fill the guard from its rows. `values` has those that the run is given, by their places; the first has the
        place `shift`, and there are `flat` of them if nothing is in them. Return false if only keys can tell."""
        self._shift, self.flat = shift, flat
        for row in self._rows:
            kind, place = row[:2]
            if place not in values or not kind.guard(row, values[place], self):
                return False
            kind.open(row, values)
        self.different.update(*[places for places in self.alike.values() if len(places) > 1])
        self.leaf_places = None if flat >= 0 and self.places == list(range(flat)) else self.places
        self.is_plain = not (self.equal or self.same or self.checks or self.again or len(self.different) > 1)
        return True

    def read(self, first: Any, named: Any = ()) -> Reading | None:
        """Read another run: the arguments and the keyword arguments of a call, or an op. Return None if it has another
        key; if a handle has been moved or has no memory; or if a number does not fit."""
        if self.flat >= 0:
            if named or len(first) != self.flat:
                return None
            values = first
        else:
            values = [first, named]
            if not self._find(values):
                return None
        if not self.is_plain and not self._accepts(values):
            return None
        places = self.leaf_places
        leaves = list(values) if places is None else [values[at] for at in places]
        found: Reading = [None] * self.buffers, leaves, [], [], []
        for kind, rows in self.leaf_rows.items():
            if not kind.read(rows, values, found):
                return None
        return found

    def _find(self, values: list[Any]) -> bool:
        """Add the items of all containers and nodes to the values. Return false if one of these is another."""
        for at, kind, end, items, code, offset in self.inner:
            value = values[at]
            if type(value) is not kind:
                return False
            if code is not ...:
                origin = value.origin
                if origin is None or code is None:
                    if origin is not code:
                        return False
                elif origin[0] is not code or origin[1] != offset:
                    return False
            if items is not None:
                value = items(value)
                if value is None:
                    return False
            values += value
            if len(values) != end:
                return False
        return True

    def _accepts(self, values: Sequence[Any]) -> bool:
        """Return false if a value is another, or if two values are one object that were two, or the reverse."""
        for at, wanted in self.same:
            if values[at] is not wanted:
                return False
        for at, kind, wanted in self.equal:
            value = values[at]
            if type(value) is not kind or value != wanted:
                return False
        for at, how, wanted in self.checks:
            if not how.accepts(values[at], wanted):
                return False
        for at, before in self.again:
            if values[at] is not values[before]:
                return False
        return len({id(values[at]) for at in self.different}) == len(self.different)

    def __str__(self) -> str:
        return "\n".join(
            [f"{place}: {kind}({', '.join(map(self._told, facts))})" for kind, place, *facts in self._rows]
        )

    def _told(self, fact: object) -> str:
        if isinstance(fact, int) and fact in self._named:
            fact = self._named[fact]
        return fact.__qualname__ if isinstance(fact, type) else repr(fact)


def guard_call(
    arguments: tuple[Any, ...],
    named: tuple[Any, ...],
    inputs: Flattened,
    bindings: Sequence[LeafBinding],
    buffers: int = 0,
) -> Guard | None:
    """Return the guard of the calls of a pipeline that have the key of this one, which has the table `inputs`.
    `bindings` has the use of each leaf in a program of this number of `buffers`.

    Return None if there is none: the key has something that only keys can compare, such as a source.
    """
    _, (_, _, place, *_), *rows = inputs.key.rows
    guard = Guard(rows, inputs.named, bindings, buffers)
    first, *inner = [row for row in rows if row[0].opens]
    if [row[1] for row in inner] == [place + 1] and not named:
        start = first[2]
        rows.remove(first)
        rows.remove(inner[0])
        return guard if guard.fill(dict(enumerate(arguments, start)), start, len(arguments)) else None
    return guard if guard.fill({place: arguments, place + 1: named}, place) else None


def guard_op(op: Any, inputs: Flattened, bindings: Sequence[LeafBinding], buffers: int = 0) -> Guard | None:
    """Return the guard of the ops that have the key of this one, with the table `inputs`; None if there is none. See
    `guard_call`."""
    guard = Guard(inputs.key.rows, inputs.named, bindings, buffers)
    return guard if guard.fill({0: op}, 0) else None
