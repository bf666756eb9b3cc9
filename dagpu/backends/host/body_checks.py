"""The outputs that a host body is given, and checked calls of the bodies of foreign ops: what a body may write, and
what it must write.

An input must be the same after the call. An output lies between canaries, bytes that must not change, and so do the
bytes between the elements of a strided one. A new tensor and scratch memory begin with a pattern: an element of a new
tensor that has kept it, and also keeps the opposite pattern in a second call, has never been written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.backends.host.arrays import Account, ArenaRange, HostMemory, writable_array
from dagpu.common.errors import ForeignError, KernelBoundsError
from dagpu.common.layout import Layout, Shape
from dagpu.common.places import describe
from dagpu.handles.device_handles import UserBody
from dagpu.ops.kernel_spec import IndexBeyond, KernelSpec, Sight
from dagpu.plans.program import Launch, Tiles, View

# ---- memory that shows what a body writes


CANARY: Final = 256
"""Bytes before and after an output or scratch memory that must not change. A multiple of any alignment of a body."""

Bytes: TypeAlias = NDArray[np.uint8]


def is_checked(launch: Launch) -> bool:
    """Return True if the calls of a foreign op are checked."""
    kernel = launch.kernel
    return kernel.checked and isinstance(kernel.library, UserBody)


def ends_of(layout: Layout) -> tuple[int, int]:
    """Return the distances from the first element of a layout to the first byte in memory, and to the end of the last
    byte; both are 0 without elements."""
    if 0 in layout.shape:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(layout.shape, layout.strides, strict=True)]
    return sum([step for step in steps if step < 0]), sum([step for step in steps if step > 0]) + layout.dtype.itemsize


def output_name(kernel: KernelSpec, index: int) -> str:
    """Return the name of an output, by its index among the kernel's parameters, for messages."""
    first = len(kernel.params) - kernel.results
    return f"output {kernel.params[index].name!r}" if index < first else f"new tensor {index - first}"


def refuse_body(launch: Launch, what: str, cure: str) -> ForeignError:
    """Return the error for a body that does something else than its declaration says."""
    return ForeignError(
        f"{launch.kernel.label} (checked), called at {describe(launch.origin)}: its body {what}. {cure}."
    )


def refuse_changed_input(launch: Launch, index: int) -> ForeignError:
    """Return the error for a body that has written to an input, given its index among the parameters."""
    name = launch.kernel.params[index].name
    return refuse_body(launch, f"wrote to input {name!r}", "Declare it Out, or write to a copy")


@final
class GuardedMemory:
    """An image of an output, or of scratch memory, between canaries."""

    def __init__(self, layout: Layout, contents: Bytes | None, *, flipped: bool) -> None:
        """`contents` are the bytes that the memory begins with, from its first byte on; None for a pattern, the
        opposite one if `flipped`."""
        self._layout = layout
        low, high = ends_of(layout)
        self.nbytes = high - low
        """Bytes of the memory, without the canaries."""
        self.first = CANARY - low
        """The place of the first element in the image."""
        self.image: Bytes = (np.arange(self.nbytes + 2 * CANARY) * 37 % 251).astype(np.uint8)
        """The bytes before the call, with the canaries."""
        if flipped:
            np.invert(self.image, out=self.image)
        if contents is not None:
            self.inside(self.image)[...] = contents
        self._is_new = contents is None

    def inside(self, image: Bytes) -> Bytes:
        """Return the part of an image between the canaries."""
        return image[CANARY : CANARY + self.nbytes]

    def elements(self, image: NDArray[Any]) -> NDArray[Any]:
        """Return the bytes of an image's elements: a view with an axis of bytes after those of the layout."""
        layout = self._layout
        shape, strides = (*layout.shape, layout.dtype.itemsize), (*layout.strides, 1)
        return as_strided(image[self.first :], shape, strides)

    def overrun(self, after: Bytes) -> int:
        """Return the number of bytes outside of the elements that a call has changed."""
        changed = after != self.image
        if self.nbytes:
            self.elements(changed)[...] = False
        return int(np.count_nonzero(changed))

    def unwritten(self, after: Bytes) -> NDArray[np.bool_]:
        """Return for each element of a new tensor whether it still has the pattern."""
        if not self._is_new or not self.nbytes:
            return np.zeros(self._layout.shape, bool)
        same: NDArray[np.bool_] = (self.elements(after) == self.elements(self.image)).all(axis=-1)
        return same


def check_outputs(
    launch: Launch, guarded: Sequence[tuple[int, GuardedMemory]], after: Sequence[Bytes]
) -> list[NDArray[np.bool_]]:
    """Check the outputs of a call, each with its index among the parameters, given their images after it. Return for
    each the elements that have kept a pattern.

    Raises:
        ForeignError: the body has written bytes that are no element of an output.
    """
    for (index, memory), image in zip(guarded, after, strict=True):
        if overrun := memory.overrun(image):
            what = f"wrote {overrun} bytes outside of {output_name(launch.kernel, index)}"
            raise refuse_body(launch, what, "Keep to the shape and strides that it is given")
    return [memory.unwritten(image) for (_, memory), image in zip(guarded, after, strict=True)]


def check_written(
    launch: Launch, guarded: Sequence[tuple[int, GuardedMemory]], kept: Sequence[Sequence[NDArray[np.bool_]]]
) -> None:
    """Check that the body writes its outputs, given the elements that have kept the pattern in each of two calls.

    Raises:
        ForeignError: an element has kept both patterns.
    """
    for (index, _), *masks in zip(guarded, *kept, strict=True):
        never = np.logical_and.reduce(masks)
        if count := int(np.count_nonzero(never)):
            what = output_name(launch.kernel, index)
            some = "never wrote" if count == never.size else f"left {count} of {never.size} elements unwritten in"
            raise refuse_body(launch, f"{some} {what}", "Write all of it: out[...] = ..., or out.copy_(...) in PyTorch")


def layout_of(launch: Launch, index: int) -> Layout:
    """Return the layout of a tensor argument, given its index among the parameters."""
    return launch.view(index).layout


# ---- tiles by their numbers, and the errors of launches that looked where they may not --------------------------


def sight_error(launch: Launch, position: int, index: tuple[int, ...], tile: tuple[int, ...]) -> KernelBoundsError:
    """Return the error for a tile that looked at an element of the argument at a position."""
    kernel = launch.kernel
    assert kernel.sees is not None
    sight, name = kernel.sees[position], kernel.params[position].name
    assert sight is not None
    return KernelBoundsError(
        f"{kernel.label} looked at {name}[{', '.join(map(str, index))}] from tile {tile}, and declares "
        f"{sight.declared} of {name}. Declare what it looks at. It is declared at {describe(kernel.origin)}, and was "
        f"launched at {describe(launch.origin)}."
    )


def index_error(launch: Launch, beyond: IndexBeyond) -> KernelBoundsError:
    """Return the error for an index beyond its axis, in the input of indices of a launch."""
    kernel, index, extent = launch.kernel, beyond.index, beyond.extent
    assert kernel.indexed is not None
    if beyond.after is not None:
        return KernelBoundsError(
            f"{kernel.label} at {describe(launch.origin)}: {beyond.starts} has the start {index} after {beyond.after}. "
            "Give starts that ascend, as those of a csr_matrix do."
        )
    if beyond.starts:
        return KernelBoundsError(
            f"{kernel.label} at {describe(launch.origin)}: {beyond.starts} has the start {index}, but there are "
            f"{extent} elements. Give starts from 0 to {extent}."
        )
    allowed = f"Give indices from {-extent} to {extent - 1}" if extent else "Give no indices"
    return KernelBoundsError(
        f"{kernel.label} at {describe(launch.origin)}: {kernel.indexed.name} has the index {index}, but the axis has "
        f"{extent} elements. {allowed}."
    )


def index_of_tile(number: int, grid: Shape) -> Shape:
    """Return the index of the tile with a number, which counts in C order over a grid."""
    where, rest = list[int](), number
    for extent in reversed(grid):
        rest, index = divmod(rest, extent)
        where.append(index)
    return tuple(reversed(where))


# ---- tiles of outputs


_D_co = TypeVar("_D_co", bound=np.generic, covariant=True)


class Tile(np.ndarray[Any, np.dtype[_D_co]]):
    """A tile of an output in a host body: a writable array with its position in the output.

    Only the tile itself has a position. A result computed from it (`y * 2`, `y.sum()`) is a plain array or scalar. A
    view of it (`y[1:]`, `y.T`) is a `Tile`, because it writes to the same memory, but has no position: its `.at`
    raises. (The slots of a view stay empty, which costs nothing. An `__array_finalize__` that clears them would be a
    Python call for each array that NumPy derives from a tile.)
    """

    __slots__ = ("_at", "_index")
    _at: tuple[slice, ...]
    _index: tuple[int, ...]

    @property
    def at(self) -> tuple[slice, ...]:
        """The position of the tile in the whole tensor. `x[y.at]` is the part of `x` at the position of the tile `y`.

        Raises:
            AttributeError: this is a view of a tile, not the tile that the host body received.
        """
        try:
            return self._at
        except AttributeError:
            raise AttributeError(_NO_PLACE.format(name="at")) from None

    @property
    def index(self) -> tuple[int, ...]:
        """The position of the tile in the grid, one number for each axis.

        Raises:
            AttributeError: this is a view of a tile, not the tile that the host body received.
        """
        try:
            return self._index
        except AttributeError:
            raise AttributeError(_NO_PLACE.format(name="index")) from None

    def __array_wrap__(
        self, array: "np.ndarray[Any, Any]", context: object = None, return_scalar: bool = True, /
    ) -> Any:
        """Return the result of a ufunc on a tile: the tile itself if it was the `out=`, else a plain array or scalar.

        NumPy 1 does not pass `return_scalar`, and converts each result without axes to a scalar.
        """
        if array is self:
            return array
        plain = array.view(np.ndarray)
        return plain[()] if return_scalar else plain


_NO_PLACE = (
    "this array is a view of a tile and has no .{name} of its own. "
    "Take .{name} from the tile that the host body was given."
)


# ---- the geometry of a launch: the place of each tile of an output ----------------------------------------------


_TABLE = 256
"""Largest number of tiles of a grid that is cached as a table, because a program may launch one shape many times."""


class TilePlace(NamedTuple):
    """The place of one tile: its shape in elements, its first byte, its slices of the tensor, its grid index."""

    shape: Shape
    offset: int
    at: tuple[slice, ...]
    number: Shape


def places(tiles: Tiles, grid: Shape) -> Iterable[TilePlace]:
    """Return one place for each index of the launch's `grid`, in C order.

    The launch's grid may differ from the output's own grid. An axis that the launch's grid lacks has index 0. The tile
    at an index outside of the output's grid is empty.
    """
    cut = _table if prod(grid) <= _TABLE else _each
    return cut(tiles.view.layout, tiles.tile, grid)


def listed(tiles: Tiles, grid: Shape, numbers: Iterable[int]) -> list[TilePlace]:
    """Return the places of the tiles with these numbers, which count in C order over the launch's `grid`."""
    layout, found = tiles.view.layout, list[TilePlace]()
    for number in numbers:
        found.append(_place(layout, tiles.tile, index_of_tile(number, grid)))
    return found


def whole(tiles: Tiles) -> TilePlace:
    """Return the place of a tile that covers the whole output."""
    layout = tiles.view.layout
    zeros = (0,) * len(layout.shape)
    return TilePlace(layout.shape, layout.offset, tuple(map(slice, zeros, layout.shape)), zeros)


def cut_out(memory: object, layout: Layout, place: TilePlace) -> Tile[Any]:
    """Return the tile at `place` of an output in `memory`."""
    assert isinstance(memory, HostMemory | ArenaRange), f"{memory!r} is not memory of the host backend"
    shape, offset, at, number = place
    strides = layout.strides if len(shape) == len(layout.strides) else (layout.dtype.itemsize,)
    tile: Tile[Any] = Tile(shape, layout.dtype, memory.block, offset, strides)
    tile._at, tile._index = at, number  # noqa: SLF001  # only this function sets the place, and users only read it
    return tile


def _each(layout: Layout, tile: Shape, grid: Shape) -> Iterator[TilePlace]:
    for where in product(*map(range, grid)):
        yield _place(layout, tile, where)


def _place(layout: Layout, tile: Shape, where: Shape) -> TilePlace:
    """Return the place of the tile at an index of the launch's grid."""
    rank, extents = len(tile), layout.shape
    number = where[:rank] + (0,) * (rank - len(where))
    if any(where[rank:]):
        # The index is outside, along an axis that the output lacks. An array without axes cannot be empty, so the tile
        # of an output without axes gets one.
        return TilePlace((0,) * max(rank, 1), 0, (slice(0, 0),) * rank, number)
    starts = [min(i * step, extent) for i, step, extent in zip(number, tile, extents, strict=True)]
    stops = [min(begin + step, extent) for begin, step, extent in zip(starts, tile, extents, strict=True)]
    shape = tuple(stop - begin for begin, stop in zip(starts, stops, strict=True))
    # The first byte of an empty tile may be past the end of its memory.
    offset = layout.offset + sum(map(int.__mul__, starts, layout.strides)) if 0 not in shape else 0
    return TilePlace(shape, offset, tuple(map(slice, starts, stops)), number)


@lru_cache(maxsize=512)
def _table(layout: Layout, tile: Shape, grid: Shape) -> tuple[TilePlace, ...]:
    return tuple(_each(layout, tile, grid))


def call_checked(launch: Launch, arguments: list[Any], call: Callable[[list[Any]], None]) -> None:
    """Call the body of a foreign op on arrays, and check what it does. `arguments` has the op's arrays and numbers, in
    the order of the parameters.

    The body gets copies of the outputs. These are copied back if all is well, and else the op fails.

    Raises:
        ForeignError: it writes something that is no output, or leaves a new tensor unwritten.
    """
    kernel = launch.kernel
    inputs = [index for index, param in kernel.tensors if param.form.is_input]
    before = {index: np.array(arguments[index], copy=True) for index in inputs}
    kept = []
    for flipped in (False, True):
        given = list(arguments)
        guarded: list[tuple[int, GuardedMemory]] = []
        images = []
        for index, param in kernel.tensors:
            if not param.form.is_written:
                continue
            layout, is_new = layout_of(launch, index), index >= len(kernel.params) - kernel.results
            memory = GuardedMemory(layout, None, flipped=flipped)
            image = memory.image.copy()
            given[index] = np.ndarray(layout.shape, layout.dtype, image, memory.first, layout.strides)
            if not is_new:
                given[index][...] = arguments[index]
                memory = GuardedMemory(layout, memory.inside(image), flipped=flipped)
            guarded.append((index, memory))
            images.append(image)
        call(given)
        for index in inputs:
            if arguments[index].tobytes() != before[index].tobytes():
                raise refuse_changed_input(launch, index)
        kept.append(check_outputs(launch, guarded, images))
        if not any(mask.any() for mask in kept[-1]):
            break
    else:
        check_written(launch, guarded, kept)
    for index, _ in guarded:
        arguments[index][...] = given[index]


# ---- holds what the tiles of a launch look at against what its kernel declares (`sees`) -------------------------
# The host body of each tile runs once as it is, and again with everything poisoned that the tile may not see: with NaN
# and with very large and small numbers, or with other bits. If the tile comes out different, the element that it looked
# at is found by halves. This needs nothing of the body but that it gives the same result twice.


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
