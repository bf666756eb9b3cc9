"""`Partition`: a tensor that is cut into tiles."""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeAlias, cast, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape
from dagpu.common.errors import NotReadyError, PartitionError
from dagpu.common.layout import tiling
from dagpu.common.origin import Origin, describe, here
from dagpu.handles.array_handle import ArrayHandle
from dagpu.handles.handle_errors import refuse_await, refuse_copy, refuse_name
from dagpu.handles.handle_state import HandleBase, HandleState, live, take

Cut: TypeAlias = tuple[Shape, Shape]
"""Extents of one tile, in elements, and the number of tiles along each axis."""

_V_co = TypeVar("_V_co", covariant=True)
_Tile_co = TypeVar("_Tile_co", bound=tuple[int, ...], covariant=True, default=tuple[int, ...])


@final
class Partition(HandleBase, Generic[_V_co, _Tile_co]):
    """A tensor cut into disjoint tiles: the only form that a kernel's output takes."""

    __slots__ = ("__weakref__", "_cut")

    def __init__(self, state: HandleState, cut: Cut) -> None:
        self._state = state
        self._cut = cut

    @property
    def shape(self) -> Shape:
        """Extents of the whole tensor, in elements."""
        return self._held().layout.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        return self._held().layout.dtype

    @property
    def tile(self) -> _Tile_co:
        """Extents of one tile, in elements."""
        self._held()
        return cast(_Tile_co, self._cut[0])

    @property
    def grid(self) -> Shape:
        """Number of tiles along each axis."""
        self._held()
        return self._cut[1]

    def unpartition(self) -> _V_co:
        """The tensor that was cut, whole again. Moves the partition."""
        return cast(_V_co, whole(self, here()))

    def __repr__(self) -> str:
        layout, _, where = self._face()
        tile, grid = self._cut
        state = where if where == "gone" else f"grid {grid}"
        return f"Partition({layout.dtype.name}, {layout.shape}, tile {tile}, {state})"

    if not TYPE_CHECKING:  # as for the other handles
        __getattr__ = refuse_name
        __await__ = refuse_await

        def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
            _, made, _ = self._face()
            raise NotReadyError(
                f"Partition of a tensor made at {describe(made)}: a handle never yields its contents by itself. "
                "Put it together with .unpartition(), and get them with .to_host()."
            )

        __reduce_ex__ = refuse_copy
        __array__ = __getitem__ = __setitem__ = __iter__ = __len__ = __bool__ = _no_contents
        __float__ = __int__ = __complex__ = __index__ = _no_contents
        __eq__ = ArrayHandle.__eq__
        __hash__ = object.__hash__


cut_of: Final[Callable[[Partition[Any, Any]], Cut]] = attrgetter("_cut")
"""The tile and the grid of a partition, moved or not."""


def cut(tensor: HandleBase, tile: object, partial: bool, where: Origin) -> Partition[Any, Any]:
    """Cut a `Tensor` or a `TensorMut` into tiles. Moves it.

    Raises:
        MovedError: it has been moved, or its lender has.
        PartitionError: the tile does not divide the shape and `partial` is false.
    """
    state = live(tensor)
    try:
        tiles = tiling(state.layout.shape, tile, partial)
    except PartitionError as error:
        raise PartitionError(f"partition() at {describe(where)}: {error}") from None
    return Partition(take(tensor, "partition()", where), tiles)


def whole(partition: Partition[Any, Any], where: Origin) -> HandleBase:
    """The tensor that was cut. Moves the partition."""
    state = take(partition, "unpartition()", where)
    return state.kind(state)
