"""Holds what the tiles of a launch look at against what its kernel declares (`sees`).

The host body of each tile runs once as it is, and again with everything poisoned that the tile may not see: with NaN
and with very large and small numbers, or with other bits. If the tile comes out different, the element that it looked
at is found by halves. This needs nothing of the body but that it gives the same result twice.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.common.checks.tile_sight import index_of_tile, sight_error
from dagpu.backends.host.arrays import Account, ArenaRange, HostMemory, writable_array
from dagpu.backends.host.tiles import listed
from dagpu.common.layout import Layout
from dagpu.ops.kernel_spec import Sight
from dagpu.plans.program import Launch, View

RunTiles: TypeAlias = Callable[[list[object], list[int]], None]
"""Calls the host body of a launch for the tiles with these numbers, on this memory."""

_UNCOUNTED: Final = Account()
"""Account of temporary copies, which live only during the check."""


def check_sight(launch: Launch, memory: list[object], numbers: list[int], run: RunTiles) -> None:
    """Check the tiles with these numbers, of a kernel that declares what a tile sees. No contents of `memory` change.

    If the body raises an error, the check reports nothing: the run will raise it too.

    Raises:
        KernelBoundsError: a tile looks at more.
    """
    check = _Check(launch, memory, run)
    for number in numbers:
        check.tile(number)


@final
class _Check:
    """The check of one launch."""

    def __init__(self, launch: Launch, memory: list[object], run: RunTiles) -> None:
        self._launch = launch
        self._run = run
        self._before = memory
        self._memory = list(memory)
        """The memory in which outputs are copies, and inputs are for the time of a poisoned run."""
        self._outputs = launch.outputs
        for buffer in launch.writes:
            self._memory[buffer] = _copied(memory[buffer])

    def tile(self, number: int) -> None:
        """Check one tile."""
        launch = self._launch
        right = self._result(number)
        assert launch.kernel.sees is not None
        for position, sight in enumerate(launch.kernel.sees):
            view = launch.args[position]
            if sight is None or right is None or type(view) is not View or not view.layout.size:
                continue
            hidden = self._hidden(position, number)
            for poison in _poisons(writable_array(self._before[view.buffer], view.layout)):
                if not hidden.size or self._poisoned(view, hidden, poison, number) == right:
                    continue
                index = self._found(view, hidden, poison, number, right)
                raise sight_error(launch, position, index, index_of_tile(number, launch.grid))

    def _found(
        self, view: View, hidden: "NDArray[np.intp]", poison: "NDArray[Any]", number: int, right: bytes
    ) -> tuple[int, ...]:
        """Return the index of an element that changes the tile, one of these. All together change it."""
        while len(hidden) > 1:
            half = len(hidden) // 2
            first, second = hidden[:half], hidden[half:]
            if self._poisoned(view, first, poison, number) != right:
                hidden = first
            elif self._poisoned(view, second, poison, number) != right:
                hidden = second
            else:
                break  # only several together change it
        return tuple([int(each) for each in np.unravel_index(int(hidden[0]), view.layout.shape)])

    def _hidden(self, position: int, number: int) -> "NDArray[np.intp]":
        """Return the numbers of the elements that the tile may not see, by no argument of the launch."""
        launch, view = self._launch, self._launch.args[position]
        assert launch.kernel.sees is not None
        held = self._before[view.buffer]
        assert isinstance(held, HostMemory | ArenaRange)
        visible = np.zeros(len(held.block), np.uint8)
        for other, argument in enumerate(launch.args):
            if type(argument) is View and argument.buffer == view.buffer:
                sight = launch.kernel.sees[other]
                marks = _first_bytes(visible, argument.layout)
                marks[... if sight is None else self._seen(sight, argument.layout, number)] = 1
        return np.flatnonzero(_first_bytes(visible, view.layout) == 0)

    def _seen(self, sight: Sight, layout: Layout, number: int) -> tuple[slice, ...]:
        """Return the part of an input that a tile sees."""
        first = self._outputs[0]
        at = listed(first, self._launch.grid, [number])[0].at
        parts = []
        for part, extent in zip(sight.axes, layout.shape, strict=True):
            if part is None:
                parts.append(slice(None))
                continue
            out, before, after = part
            parts.append(slice(min(max(at[out].start - before, 0), extent), min(at[out].stop + after, extent)))
        return tuple(parts)

    def _poisoned(self, view: View, hidden: "NDArray[np.intp]", poison: "NDArray[Any]", number: int) -> bytes | None:
        """Return what the tile becomes with these elements of an input poisoned; None if the body raises an error."""
        held = self._memory[view.buffer]
        self._memory[view.buffer] = copy = _copied(held)
        index = np.unravel_index(hidden, view.layout.shape)
        writable_array(copy, view.layout)[index] = poison[index]
        try:
            return self._result(number)
        finally:
            self._memory[view.buffer] = held

    def _result(self, number: int) -> bytes | None:
        """Run the body for one tile, and return what it writes there; None if it raises an error."""
        places = [listed(each, self._launch.grid, [number])[0].at for each in self._outputs]
        arrays = [writable_array(self._memory[each.view.buffer], each.view.layout) for each in self._outputs]
        for each, array, at in zip(self._outputs, arrays, places, strict=True):
            array[at] = writable_array(self._before[each.view.buffer], each.view.layout)[at]
        with suppress(Exception), np.errstate(all="ignore"):
            self._run(self._memory, [number])
            return b"".join([array[at].tobytes() for array, at in zip(arrays, places, strict=True)])
        return None


def _copied(held: object) -> HostMemory:
    assert isinstance(held, HostMemory | ArenaRange), f"{held!r} is not memory of the host"
    copy = HostMemory(_UNCOUNTED, len(held.block))
    copy.block[:] = held.block
    return copy


def _first_bytes(block: "NDArray[np.uint8]", layout: Layout) -> "NDArray[np.uint8]":
    """Return a view of the first byte of each element of an array in a block."""
    return np.ndarray(layout.shape, np.uint8, block, layout.offset, layout.strides)


def _poisons(array: "NDArray[Any]") -> Iterator["NDArray[Any]"]:
    """Yield arrays of numbers in place of these."""
    dtype = array.dtype
    if dtype.kind == "b":
        yield ~array
    elif dtype.kind in "iu":
        yield ~array
        for number in (np.iinfo(dtype).max, np.iinfo(dtype).min):
            yield np.full(array.shape, number, dtype)
    else:
        most = 65504.0 if dtype.itemsize == 2 else float(np.finfo(dtype).max)
        for value in (np.nan, most, -most):
            yield np.full(array.shape, value, dtype)
