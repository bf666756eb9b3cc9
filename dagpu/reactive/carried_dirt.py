"""`CarriedDirt`: what may differ in each buffer of a program after changes of parts of sources.

The dirt of the sources is carried forward through the stale instructions: a copy carries it unchanged, a launch turns
it into the tiles that see it, by what its kernel declares (`sees`), and anything else makes its results dirty as a
whole.

Parts are boxes. A tile sees along each axis an interval, which moves with the tile; so the tiles that see a box are a
box of tiles, exactly. All of this is arithmetic of a few whole numbers, because it is done anew for each update.
"""

from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from dagpu.common.layout import Layout
from dagpu.ops.array_parts import Box, slices_of
from dagpu.ops.kernel_spec import Sight
from dagpu.plans.program import Cell, CopyDtoD, CopyHtoD, Launch, Tiles, Value, View
from dagpu.reactive.claims import EVERYTHING, Dirt, Dirty, LeafDirt
from dagpu.reactive.staleness import Recent, Staleness

if TYPE_CHECKING:
    from numpy.typing import NDArray


# ---- boxes

MOST_BOXES: Final = 256
"""The most boxes of one array. A change in more places counts as one of everything."""


def dirt_of_boxes(layout: Layout, boxes: Sequence[Box]) -> Dirty:
    """Return the dirt of an array of which these parts have changed."""
    found = _outermost([box for box in boxes if all(begin < end for begin, end in box)])
    if not found:
        return None
    return Dirt(layout, found) if len(found) <= MOST_BOXES else EVERYTHING


def dirt_of_tiles(tiles: Tiles, boxes: Sequence[Box]) -> Dirty:
    """Return the dirt of an output of which these boxes of tiles may differ."""
    found = _outermost(boxes)
    if not found:
        return None
    if len(found) > MOST_BOXES:
        return EVERYTHING
    return Dirt(tiles.view.layout, (), found, tiles)


@final
class Window:
    """What one tile of an output sees of an input, in the numbers by which boxes become boxes of tiles."""

    __slots__ = ("axes", "grid")

    def __init__(self, sight: Sight, tiles: Tiles) -> None:
        self.grid: Final = tuple([(0, count) for count in tiles.grid])
        """All tiles of the output."""
        self.axes: Final = tuple(
            [
                (axis, part[0], part[1], part[2], tiles.tile[part[0]], tiles.view.layout.shape[part[0]])
                for axis, part in enumerate(sight.axes)
                if part is not None
            ]
        )
        """For each axis of the input along which tiles differ: its number, that of the output's axis, the elements seen
        before and behind the tile's own place, the tile's extent, and the output's."""


def tiles_that_see(box: Box, window: Window) -> Box | None:
    """Return the box of an output's tiles that see a box of an input; None if there are none."""
    found = list(window.grid)
    for place, axis, before, after, step, extent in window.axes:
        begin, end = box[place]
        if begin - after >= extent:  # behind all that the last tile sees
            return None
        first, last = found[axis]
        lowest, highest = (begin - after) // step, -(-(end + before) // step)
        first, last = max(first, lowest), min(last, highest)
        if first >= last:
            return None
        found[axis] = first, last
    return tuple(found)


def numbers_of(boxes: Sequence[Box], every: "NDArray[np.int32]") -> "NDArray[np.int32]":
    """Return the numbers of the tiles in these boxes, in C order, each once. `every` has the number of each tile."""
    if len(boxes) == 1:
        return every[slices_of(boxes[0])].ravel()
    inside = np.zeros(every.shape, np.bool_)
    for box in boxes:
        inside[slices_of(box)] = True
    return every[inside]


def volume(boxes: Sequence[Box]) -> int:
    """Return the number of elements, or tiles, of some boxes together, which counts what lies in two of them twice."""
    found = 0
    for box in boxes:
        size = 1
        for first, end in box:
            size *= end - first
        found += size
    return found


def _outermost(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """Return the boxes that do not lie in others."""
    if len(boxes) < 2:
        return tuple(boxes)
    different = list(dict.fromkeys(boxes))
    if len(different) < 2:
        return tuple(different)
    return tuple(
        [box for box in different if not any(other is not box and _lies_in(box, other) for other in different)]
    )


def _lies_in(box: Box, other: Box) -> bool:
    return all(starmap(_is_within, zip(box, other, strict=True)))


def _is_within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


# ---- instructions

_MOST_ROUTES: Final = 64
"""The most sets of changed sources whose dependents are remembered."""


class _Read(NamedTuple):
    """One argument of a launch, and what its tiles see of it."""

    value: Value
    layout: Layout | None
    """The layout by which it is read; None for a number."""
    window: Window | None
    """None if each tile may see all of it."""


class _Step(NamedTuple):
    """What the analysis asks of one instruction, read off the program once for all updates."""

    uses: list[Value]
    makes: range
    outputs: tuple[tuple[Value, Tiles], ...] | None
    """The outputs of a launch that have tiles; None for any other instruction."""
    reads: tuple[_Read, ...]
    """The arguments of a launch."""
    copied: tuple[Layout | None, View] | None
    """For a copy that leaves all elements in their places: by which layout it reads, and its target."""


@final
class CarriedDirt:
    """Carries dirt through one program."""

    def __init__(self, staleness: Staleness) -> None:
        self._staleness = staleness
        self._steps: dict[int, _Step] = {}
        self._routes: Recent[int, tuple[tuple[_Step, ...], tuple[int, ...]]] = Recent(_MOST_ROUTES)
        """By bits that have changed: the instructions that depend on them, and the leaves that have them."""

    def of(self, mask: int, leaves: LeafDirt) -> dict[Value, Dirty]:
        """Return the dirt of each value that depends on the bits `mask`."""
        steps, changed = self._route(mask)
        dirt: dict[Value, Dirty] = {buffer: leaves.get(buffer, EVERYTHING) for buffer in changed}
        for step in steps:
            if step.outputs is not None:
                self._carry_launch(step, step.outputs, dirt)
            elif step.copied is not None:
                source, out = step.copied
                dirt[step.makes[0]] = _copied(dirt.get(step.uses[0]), source, out)
            else:
                clean = all(dirt.get(value) is None for value in step.uses)
                dirt.update(dict.fromkeys(step.makes, None if clean else EVERYTHING))
        return dirt

    def _carry_launch(self, step: _Step, outputs: tuple[tuple[Value, Tiles], ...], dirt: "dict[Value, Dirty]") -> None:
        """Add the dirt of a launch's outputs: all of them have the tiles of one grid."""
        boxes: list[Box] = []
        for read in step.reads:
            found = dirt.get(read.value)
            if found is None:
                continue
            if read.window is None or type(found) is not Dirt or found.layout != read.layout:
                dirt.update(dict.fromkeys(step.makes, EVERYTHING))
                return
            for box in found.boxes:
                seen = tiles_that_see(box, read.window)
                if seen is not None:
                    boxes.append(seen)
        dirt.update({value: dirt_of_tiles(tiles, boxes) for value, tiles in outputs})

    def _route(self, mask: int) -> tuple[tuple[_Step, ...], tuple[int, ...]]:
        """Return the instructions that depend on the bits `mask`, in order, and the leaves that have one of them."""
        found = self._routes.use(mask)
        if found is None:
            staleness = self._staleness
            steps = [self._step(index) for index, deps in enumerate(staleness.deps) if deps & mask]
            leaves = [buffer for buffer, bits in staleness.bits.items() if bits & mask]
            found = self._routes.keep(mask, (tuple(steps), tuple(leaves)))
        return found

    def _step(self, index: int) -> _Step:
        found = self._steps.get(index)
        if found is None:
            program, accesses = self._staleness.program, self._staleness.program.accesses
            instruction, uses, makes = program.instructions[index], accesses.uses[index], accesses.makes(index)
            outputs, reads, copied = None, tuple[_Read, ...](), None
            match instruction:
                case CopyHtoD(out=out) | CopyDtoD(out=out) if len(uses) == 1:
                    copied = instruction.source.layout if type(instruction) is CopyDtoD else None, out
                case Launch():
                    made = dict(zip(instruction.writes, makes, strict=True))
                    outputs = tuple([(made[each.buffer], each) for each in instruction.outputs])
                    reads = tuple(self._arguments(index, instruction, [tiles for _, tiles in outputs]))
                case _:
                    pass
            found = self._steps[index] = _Step(uses, makes, outputs, reads, copied)
        return found

    def _arguments(self, index: int, launch: Launch, outputs: Sequence[Tiles]) -> list[_Read]:
        """Return what a launch finds in its arguments, where that may change."""
        found, accesses = [], self._staleness.program.accesses
        used = {accesses.buffer[value]: value for value in accesses.uses[index]}
        for position, argument in enumerate(launch.args):
            view: Any = argument.view if type(argument) is Tiles else argument
            if type(view) is not View and type(view) is not Cell:
                continue
            if view.buffer not in used:
                continue
            sight, window = sight_of(launch, position), None
            if sight is not None:
                window = Window(sight, argument if type(argument) is Tiles else outputs[0])
            found.append(_Read(used[view.buffer], view.layout if type(view) is View else None, window))
        return found


def sight_of(launch: Launch, position: int) -> Sight | None:
    """Return what a tile sees of an argument; None for everything, or if the launch has a grid of its own. A tile of an
    output sees itself."""
    kernel, argument = launch.kernel, launch.args[position]
    if kernel.sees is None or kernel.grid is not None:
        return None
    if type(argument) is Tiles:
        return Sight(tuple([(axis, 0, 0) for axis in range(len(argument.tile))]), "")
    return kernel.sees[position]


def _copied(dirt: Dirty, source: object, out: View) -> Dirty:
    """Return the dirt of a copy. `source` is the layout that is read of a buffer; None for an array of the host."""
    if type(dirt) is not Dirt:
        return dirt
    if (source is not None and dirt.layout != source) or dirt.layout.shape != out.layout.shape:
        return EVERYTHING
    return Dirt(out.layout, dirt.boxes)
