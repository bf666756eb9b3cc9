"""The kernel parameters of a plan's launches, and their relocations: addresses, and numbers in cells, that change from
run to run.

Each address is counted from a *base*: the start of a device's arena, of a buffer with a block of its own, of the run's
bounds reports, or of an array on its way to or from the host. `LaunchParameters` store the bases and numbers that they
were written for. They are rewritten only where one has changed, which is rare.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

NOWHERE: Final = -1
"""The base of parameters that have not been written yet. It differs from every address."""

MANY: Final = 16
"""The number of addresses from one base from which on NumPy writes them: its call takes as long as 16 single writes."""

_ALIGNMENT: Final = 16
"""Bytes: the parameters of each launch in a packed copy start at a multiple of this."""

Bytes: TypeAlias = bytearray | memoryview
"""Writable memory at a fixed address."""

_write_address: Final = Struct("<Q").pack_into
_NO_NUMBER: Final = object()


@final
class BaseOffset(NamedTuple):
    """A place in memory: a base, and the distance from it in bytes."""

    base: int
    offset: int


@final
@dataclass(slots=True)
class Relocations:
    """The places in a plan's launch parameters that change from run to run. All `LaunchParameters` of the plan share
    them.

    The *sources* of changes are the bases, followed by the cells with numbers.
    """

    addresses: list[list[tuple[int, int, int]]]
    """For each base: number of the launch, byte in its parameters, distance from the base."""
    numbers: dict[int, list[tuple[int, int, Callable[[Any], bytes]]]] = field(default_factory=dict)
    """For each cell: number of the launch, byte in its parameters, function that converts the cell's value to bytes."""

    def launches(self) -> list[set[int]]:
        """Return for each source the launches whose parameters depend on it."""
        found = [{launch for launch, _, _ in places} for places in self.addresses]
        return found + [{launch for launch, _, _ in places} for places in self.numbers.values()]


@final
class LaunchParameters:
    """The kernel parameters of all launches of a plan, written for certain bases and numbers."""

    __slots__ = ("_cells", "_columns", "_number_columns", "_words", "bases", "numbers", "relocations", "texts")

    def __init__(
        self, texts: Sequence[Bytes], relocations: Relocations, words: NDArray[np.int64] | None = None
    ) -> None:
        self._words = words
        """All of `texts` as one array, in which each starts at a multiple of `_ALIGNMENT` bytes; None if they are not
        packed."""
        self._columns: dict[int, tuple[NDArray[np.intp], NDArray[np.int64]] | None] = {}
        """For a base with many addresses their places in `_words`, and their distances from the base; None if one of
        them is not at a whole word."""
        self._number_columns: dict[int, tuple[NDArray[np.intp], NDArray[Any], Callable[[Any], bytes]] | None] = {}
        """For a cell with a number in many launches its places, counted in elements of the number's size; `_words` as
        such elements; and the conversion. None if the launches convert it in several ways, or one is not at a whole
        element."""
        self.relocations = relocations
        self.texts = texts
        """The packed parameters of each launch. Their addresses do not change."""
        self.bases = [NOWHERE] * len(relocations.addresses)
        self.numbers = [_NO_NUMBER] * len(relocations.numbers)
        self._cells = [(cell, index, places) for index, (cell, places) in enumerate(relocations.numbers.items())]
        """For each number its cell, its index in `numbers`, and its places."""

    def relocate(self, bases: Sequence[int], memory: Sequence[object]) -> list[int]:
        """Write the parameters for these bases, and for the numbers in the cells of this memory.

        Return the sources that have changed.
        """
        changed, mine, texts = [], self.bases, self.texts
        if bases != mine:
            addresses = self.relocations.addresses
            for source, base in enumerate(bases):
                if base != mine[source]:
                    changed.append(source)
                    places = addresses[source]
                    if self._words is None or len(places) < MANY or not self._write_column(source, base):
                        for launch, at, distance in places:
                            _write_address(texts[launch], at, base + distance)
                    mine[source] = base  # last: an interrupt must not leave a base that looks written and is not
        numbers = self.numbers
        for cell, index, relocations in self._cells:
            number = memory[cell]
            if number is not numbers[index]:  # not by value: 0.0 equals -0.0
                many = self._words is not None and len(relocations) >= MANY
                if not many or not self._write_number_column(cell, number):
                    before: object = None
                    text = b""
                    for launch, at, convert in relocations:
                        if convert is not before:  # the launches of one kernel share it
                            before, text = convert, convert(number)
                        texts[launch][at : at + len(text)] = text
                changed.append(len(mine) + index)
                numbers[index] = number
        return changed

    def copy(self) -> "LaunchParameters":
        """Return a copy for a run that is submitted at the same time. The copy is not written for any base: another
        thread may be writing this object meanwhile."""
        starts = _starts(self.texts)
        words = np.zeros(max(starts.pop() // 8, 1), np.int64)
        memory = words.data.cast("B")
        texts = [memory[start : start + len(text)] for start, text in zip(starts, self.texts, strict=True)]
        for copied, text in zip(texts, self.texts, strict=True):
            copied[:] = text
        return LaunchParameters(texts, self.relocations, words)

    def _write_column(self, source: int, base: int) -> bool:
        """Write all addresses that are counted from a base by one assignment. Return False if that is not possible."""
        assert self._words is not None
        if source not in self._columns:
            starts, places = _starts(self.texts), self.relocations.addresses[source]
            whole = all(at % 8 == 0 for _, at, _ in places)
            self._columns[source] = (
                None
                if not whole
                else (
                    np.array([(starts[launch] + at) // 8 for launch, at, _ in places], np.intp),
                    np.array([distance for _, _, distance in places], np.int64),
                )
            )
        column = self._columns[source]
        if column is None:
            return False
        index, distances = column
        self._words[index] = distances + base
        return True

    def _write_number_column(self, cell: int, number: object) -> bool:
        """Write the number of a cell into all launches by one assignment. Return False if that is not possible."""
        assert self._words is not None
        if cell not in self._number_columns:
            starts, places = _starts(self.texts), self.relocations.numbers[cell]
            convert = places[0][2]
            size = len(convert(number))
            whole = size in (1, 2, 4, 8) and all(each is convert and at % size == 0 for _, at, each in places)
            self._number_columns[cell] = (
                None
                if not whole
                else (
                    np.array([(starts[launch] + at) // size for launch, at, _ in places], np.intp),
                    self._words.view(f"u{size}"),
                    convert,
                )
            )
        column = self._number_columns[cell]
        if column is None:
            return False
        index, elements, convert = column
        elements[index] = np.frombuffer(convert(number), elements.dtype)
        return True


def _starts(texts: Sequence[Bytes]) -> list[int]:
    """Return the first byte of each text where they are packed, and the bytes of all."""
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + -(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return starts
