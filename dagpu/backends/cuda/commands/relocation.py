"""The kernel parameters of a plan's launches. What in them changes from run to run: addresses, and numbers in cells.

Each address is counted from a *base*: the start of a device's arena, of a buffer that has a block of its own, of the
run's bounds reports, of an array on its way to or from the host. `LaunchParameters` remember the bases and numbers that
they were written for, and write anew only where one has changed: mostly nowhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, NamedTuple, final

NOWHERE: Final = -1
"""No base: what was written for it is written anew."""

_write_address: Final = Struct("<Q").pack_into
_NO_NUMBER: Final = object()


@final
class BaseOffset(NamedTuple):
    """Where something lies: so many bytes from a base."""

    base: int
    offset: int


@final
@dataclass(slots=True)
class Relocations:
    """Where the parameters of a plan change. Written once, then shared by all its `LaunchParameters`.

    Bases, and after them the cells with numbers, are what a change comes from: its *sources*, by number.
    """

    addresses: list[list[tuple[int, int, int]]]
    """For each base: number of the launch, byte in its parameters, distance from the base."""
    numbers: dict[int, list[tuple[int, int, Callable[[Any], bytes]]]] = field(default_factory=dict)
    """For each cell: number of the launch, byte in its parameters, what makes bytes of the cell's value."""

    def launches(self) -> list[set[int]]:
        """For each source, the launches whose parameters it is in."""
        found = [{launch for launch, _, _ in places} for places in self.addresses]
        return found + [{launch for launch, _, _ in places} for places in self.numbers.values()]


@final
class LaunchParameters:
    """Those of all launches of a plan, written for certain bases and numbers."""

    __slots__ = ("bases", "numbers", "patches", "texts")

    def __init__(self, texts: Sequence[bytearray], patches: Relocations) -> None:
        self.patches = patches
        self.texts = texts
        """Of each launch. They stay where they are."""
        self.bases = [NOWHERE] * len(patches.addresses)
        self.numbers = [_NO_NUMBER] * len(patches.numbers)

    def aim(self, bases: Sequence[int], memory: Sequence[object]) -> list[int]:
        """Write them for these bases, and for the numbers that are in the cells of this memory.

        Gives back the sources that have changed.
        """
        changed, mine, texts = [], self.bases, self.texts
        if bases != mine:
            addresses = self.patches.addresses
            for source, base in enumerate(bases):
                if base != mine[source]:
                    changed.append(source)
                    for launch, at, distance in addresses[source]:
                        _write_address(texts[launch], at, base + distance)
                    mine[source] = base  # last: whoever interrupts this leaves nothing that looks written and is not
        if self.numbers:
            for index, (cell, patches) in enumerate(self.patches.numbers.items()):
                number = memory[cell]
                if number is not self.numbers[index]:  # not by value: 0.0 equals -0.0
                    for launch, at, convert in patches:
                        text = convert(number)
                        texts[launch][at : at + len(text)] = text
                    changed.append(len(mine) + index)
                    self.numbers[index] = number
        return changed

    def copy(self) -> "LaunchParameters":
        """Others, for a run that is submitted at the same time. They aim at nothing yet: while they are made, another
        thread may be aiming these."""
        return LaunchParameters([bytearray(text) for text in self.texts], self.patches)
