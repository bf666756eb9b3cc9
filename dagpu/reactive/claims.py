"""What is claimed about the updates of a program, as data.

Planners make it, and proofs check it. So both have it from here, and a proof needs nothing of what a planner computes.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

from dagpu.common.frozen import frozen, plain
from dagpu.common.layout import Layout
from dagpu.ops.array_parts import Box
from dagpu.plans.program import Program, Tiles, Value

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Change(NamedTuple):
    """What an update is for: the key of its plan."""

    mask: int
    """The bits that have changed."""
    wait: int = 0
    """The bits of cutoffs that are not decided yet: what depends on them is left for a later part of the update."""
    only: int = 0
    """If not 0, the bits that earlier parts left out: what depends on none of them is made already."""
    lost: frozenset[int] = frozenset()
    """The targets that hold nothing, or not what they should."""
    given: frozenset[int] = frozenset()
    """The targets that another run has made for the new inputs."""
    compare: int = 0
    """The bits of the cutoffs that the update decides: it compares their tensors with those that they let through
    last."""
    left: frozenset[int] = frozenset()
    """The lost targets that nothing needs so far: they may stay lost."""


@final
@plain
class Subprogram:
    """Some instructions of a program as a program, whose buffers are numbered anew."""

    program: Program
    chosen: tuple[int, ...]
    """The indices of the instructions in the whole program."""
    inputs: tuple[tuple[int, int], ...]
    """For each buffer that the subprogram only reads: its number in the whole program, and here."""
    outputs: tuple[tuple[int, int], ...]
    """For each target that the subprogram makes: its number in the whole program, and here."""


# ---- what may differ


@final
@frozen
class Everything:
    """The dirt of contents that may differ anywhere."""


EVERYTHING: Final = Everything()


@final
class Dirt:
    """The parts of an array that may differ: at least one, none of them empty."""

    __slots__ = ("_boxes", "layout", "of", "tiles")

    def __init__(
        self, layout: Layout, boxes: tuple[Box, ...], tiles: tuple[Box, ...] = (), of: Tiles | None = None
    ) -> None:
        """With `of`, the boxes of elements are those of the boxes of tiles, computed when they are asked for."""
        self.layout: Final = layout
        """The view of the buffer that the boxes are parts of."""
        self._boxes = boxes
        self.tiles: Final = tiles
        """For an output of a launch the same parts as boxes of its tiles, by their indices."""
        self.of: Final = of
        """The output whose tiles these are; None if the boxes were given."""

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Parts, in elements."""
        if not self._boxes and self.of is not None:
            self._boxes = tuple([_elements_of(box, self.of) for box in self.tiles])
        return self._boxes


def _elements_of(tiles: Box, output: Tiles) -> Box:
    """Return the box of elements that a box of an output's tiles has."""
    return tuple(
        [
            (first * step, min(end * step, extent))
            for (first, end), step, extent in zip(tiles, output.tile, output.view.layout.shape, strict=True)
        ]
    )


Dirty: TypeAlias = Dirt | Everything | None
"""What may differ of some contents; None for contents that stay the same."""

LeafDirt: TypeAlias = Mapping[int, Dirty]
"""The dirt of leaves of which it is known, by buffer. Any other leaf whose bits have changed may differ anywhere."""


@final
class TileUpdate(NamedTuple):
    """What an update runs."""

    chosen: tuple[int, ...]
    """The instructions, in the order of the program."""
    lists: "dict[int, NDArray[np.int32]]"
    """The numbers of the tiles of each launch that does not run as a whole."""
    dirt: dict[Value, Dirty]
    """What may differ of each value."""


# ---- cutoffs that an update decides

ALWAYS: Final = 0
"""The guard of what runs in any case."""


def runs(guard: int, differing: int) -> bool:
    """Return true if what has this guard runs when the tensors of the cutoffs `differing` differ."""
    return guard == ALWAYS or bool(guard & differing)


@final
@plain
class Comparison:
    """The numbers of one comparison, in the program with comparisons."""

    bit: int
    """The bit of the cutoff."""
    buffer: int
    """The buffer that the cutoff compares."""
    passed: int | None
    """The buffer of the tensor that it lets through, for what comes after it; None if nothing does."""
    last: int
    """The buffer of the tensor that the cutoff let through last. The host binds it in each run."""
    flags: int
    """The buffer of the flags, of which one is set if the bits differ. The host binds it in each run, and reads it."""
    flags_layout: Layout
    device: int
    """The number of the device that compares."""
    chosen: int
    """The launch."""


@final
@plain
class ConditionalUpdate:
    """The program of an update that decides cutoffs, and what each outcome means."""

    mask: int
    """The bits that have changed."""
    subprogram: Subprogram
    guards: tuple[int, ...]
    """The guard of each of the instructions `subprogram.chosen`: the `If`s are not among them."""
    made: tuple[tuple[int, int, int], ...]
    """For each target that the program makes: its number in the whole program, its number here, and its guard."""
    comparing: tuple[tuple[int, int, int], ...]
    """For each cutoff that the program may decide its bit, the buffer that it compares, and the guard of the
    comparison, in the order of the program."""

    @property
    def cutoffs(self) -> int:
        """The bits of the cutoffs that the program may decide."""
        return sum([bit for bit, _, _ in self.comparing])

    def compared(self, differing: int) -> int:
        """Return the bits of the cutoffs whose tensors are compared if those of the cutoffs `differing` differ."""
        return sum([bit for bit, _, guard in self.comparing if runs(guard, differing)])

    def count(self, differing: int) -> int:
        """Return the number of instructions of the op that run if the tensors of the cutoffs `differing` differ."""
        return sum([runs(guard, differing) for guard in self.guards]) - self.compared(differing).bit_count()

    def outcomes(self) -> Iterator[int]:
        """Yield each set of cutoffs whose tensors may differ: only what is compared differs."""
        found = [0]
        for bit, _, guard in self.comparing:
            found += [differing | bit for differing in found if runs(guard, differing)]
        yield from found
