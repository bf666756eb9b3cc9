"""The geometry of a launch: the place of each tile of an output."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from dagpu.backends.common.checks.tile_sight import index_of_tile
from dagpu.backends.host.arrays import ArenaRange, HostMemory
from dagpu.common.layout import Layout, Shape
from dagpu.kernels.tile import Tile
from dagpu.plans.program import Tiles

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
