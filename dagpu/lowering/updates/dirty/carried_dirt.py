"""`CarriedDirt`: what may differ in each buffer of a program after changes of parts of sources.

The dirt of the sources is carried forward through the stale instructions: a copy carries it unchanged, a launch turns
it into the tiles that see it, by what its kernel declares (`sees`), and anything else makes its results dirty as a
whole.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias, final

from dagpu.common.layout import Layout
from dagpu.lowering.program import Cell, CopyDtoD, CopyHtoD, Launch, Tiles, View
from dagpu.lowering.updates.dirty.dirt import EVERYTHING, Dirt, Dirty, Window, dirt_of_tiles, tiles_that_see
from dagpu.lowering.updates.staleness import Staleness
from dagpu.ops.kernel_spec import Sight
from dagpu.ops.live.parts import Box

LeafDirt: TypeAlias = Mapping[int, Dirty]
"""The dirt of leaves of which it is known, by buffer. Any other leaf whose bits have changed may differ anywhere."""

_MOST_ROUTES: Final = 64
"""The most sets of changed sources whose dependents are remembered."""


class _Read(NamedTuple):
    """One argument of a launch, and what its tiles see of it."""

    need: tuple[int, int]
    """The buffer, and the instruction that wrote it."""
    layout: Layout | None
    """The layout by which it is read; None for a number."""
    window: Window | None
    """None if each tile may see all of it."""


class _Step(NamedTuple):
    """What the analysis asks of one instruction, read off the program once for all updates."""

    number: int
    outputs: tuple[Tiles, ...] | None
    """The outputs of a launch; None for any other instruction."""
    reads: tuple[_Read, ...]
    """The arguments of a launch."""
    copied: tuple[tuple[int, int], Layout | None, View] | None
    """For a copy that leaves all elements in their places: what it reads, by which layout, and its target."""


@final
class CarriedDirt:
    """Carries dirt through one program."""

    def __init__(self, staleness: Staleness) -> None:
        self._staleness = staleness
        self._steps: dict[int, _Step] = {}
        self._routes: dict[int, tuple[tuple[_Step, ...], tuple[int, ...]]] = {}
        """By bits that have changed: the instructions that depend on them, and the leaves that have them."""

    def of(self, mask: int, leaves: LeafDirt) -> dict[tuple[int, int], Dirty]:
        """Return the dirt of everything that depends on the bits `mask`."""
        steps, changed = self._route(mask)
        dirt: dict[tuple[int, int], Dirty] = {(buffer, -1): leaves.get(buffer, EVERYTHING) for buffer in changed}
        for step in steps:
            if step.outputs is not None:
                self._carry_launch(step, step.outputs, dirt)
            elif step.copied is not None:
                need, source, out = step.copied
                dirt[out.buffer, step.number] = _copied(dirt.get(need), source, out)
            else:
                clean = all(dirt.get(need) is None for need in self._staleness.needs[step.number])
                for buffer in self._staleness.program.instructions[step.number].writes:
                    dirt[buffer, step.number] = None if clean else EVERYTHING
        return dirt

    def _carry_launch(self, step: _Step, outputs: tuple[Tiles, ...], dirt: "dict[tuple[int, int], Dirty]") -> None:
        """Add the dirt of a launch's outputs: all of them have the tiles of one grid."""
        boxes: list[Box] = []
        for read in step.reads:
            found = dirt.get(read.need)
            if found is None:
                continue
            if read.window is None or type(found) is not Dirt or found.layout != read.layout:
                for buffer in self._staleness.program.instructions[step.number].writes:
                    dirt[buffer, step.number] = EVERYTHING
                return
            for box in found.boxes:
                seen = tiles_that_see(box, read.window)
                if seen is not None:
                    boxes.append(seen)
        for each in outputs:
            dirt[each.view.buffer, step.number] = dirt_of_tiles(each, boxes)

    def _route(self, mask: int) -> tuple[tuple[_Step, ...], tuple[int, ...]]:
        """Return the instructions that depend on the bits `mask`, in order, and the leaves that have one of them."""
        found = self._routes.get(mask)
        if found is None:
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            found = self._routes[mask] = (
                tuple([self._step(index) for index in self._staleness.dependents(mask)]),
                tuple([buffer for buffer, bits in self._staleness.bits.items() if bits & mask]),
            )
        return found

    def _step(self, index: int) -> _Step:
        found = self._steps.get(index)
        if found is None:
            instruction = self._staleness.program.instructions[index]
            outputs, reads, copied = None, tuple[_Read, ...](), None
            match instruction:
                case CopyHtoD(out=out) | CopyDtoD(out=out) if len(self._staleness.needs[index]) == 1:
                    layout = instruction.source.layout if type(instruction) is CopyDtoD else None
                    copied = self._staleness.needs[index][0], layout, out
                case Launch():
                    outputs = tuple(instruction.outputs)
                    reads = tuple(self._arguments(index, instruction, outputs))
                case _:
                    pass
            found = self._steps[index] = _Step(index, outputs, reads, copied)
        return found

    def _arguments(self, index: int, launch: Launch, outputs: tuple[Tiles, ...]) -> list[_Read]:
        """Return what a launch finds in its arguments, where that may change."""
        found = []
        for position, argument in enumerate(launch.args):
            view: Any = argument.view if type(argument) is Tiles else argument
            if type(view) is not View and type(view) is not Cell:
                continue
            need = next((need for need in self._staleness.needs[index] if need[0] == view.buffer), None)
            if need is None:
                continue
            sight, window = sight_of(launch, position), None
            if sight is not None:
                window = Window(sight, argument if type(argument) is Tiles else outputs[0])
            found.append(_Read(need, view.layout if type(view) is View else None, window))
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
