"""The kernel parameters of a plan's launches, and their relocations: addresses, and numbers in cells, that change from
run to run.

Each address is counted from a *base*: the start of a device's arena, of a buffer with a block of its own, of the run's
bounds reports, or of an array on its way to or from the host. `LaunchParameters` store the bases and numbers that they
were written for. They are rewritten only where one has changed, which is rare.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, NamedTuple, final

NOWHERE: Final = -1
"""The base of parameters that have not been written yet. It differs from every address."""

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

    __slots__ = ("bases", "numbers", "relocations", "texts")

    def __init__(self, texts: Sequence[bytearray], relocations: Relocations) -> None:
        self.relocations = relocations
        self.texts = texts
        """The packed parameters of each launch. Their addresses do not change."""
        self.bases = [NOWHERE] * len(relocations.addresses)
        self.numbers = [_NO_NUMBER] * len(relocations.numbers)

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
                    for launch, at, distance in addresses[source]:
                        _write_address(texts[launch], at, base + distance)
                    mine[source] = base  # last: an interrupt must not leave a base that looks written and is not
        if self.numbers:
            for index, (cell, relocations) in enumerate(self.relocations.numbers.items()):
                number = memory[cell]
                if number is not self.numbers[index]:  # not by value: 0.0 equals -0.0
                    before: object = None
                    text = b""
                    for launch, at, convert in relocations:
                        if convert is not before:  # the launches of one kernel share it
                            before, text = convert, convert(number)
                        texts[launch][at : at + len(text)] = text
                    changed.append(len(mine) + index)
                    self.numbers[index] = number
        return changed

    def copy(self) -> "LaunchParameters":
        """Return a copy for a run that is submitted at the same time. The copy is not written for any base: another
        thread may be writing this object meanwhile."""
        return LaunchParameters([bytearray(text) for text in self.texts], self.relocations)
