"""`Partition`: a tensor that is divided into tiles, as kernels write it."""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, TypeAlias, cast, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import NotReadyError, PartitionError
from dagpu.common.layout import Shape, check_tiling
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.handles.array_handle import (
    ARITHMETIC,
    READING,
    contents_cure,
    refuse_await,
    refuse_copy,
    refuse_name,
)
from dagpu.handles.handle_state import HandleBase, HandleState, live_state, take_state
from dagpu.handles.operators import Operators

Cut: TypeAlias = tuple[Shape, Shape]
"""The extents of one tile in elements, and the number of tiles along each axis."""

_V_co = TypeVar("_V_co", covariant=True)
_Tile_co = TypeVar("_Tile_co", bound=tuple[int, ...], covariant=True, default=tuple[int, ...])


@final
class Partition(HandleBase, Generic[_V_co, _Tile_co]):
    """A tensor that is divided into disjoint tiles. Outputs of kernels must be partitions."""

    __slots__ = ("__weakref__", "_cut")

    if TYPE_CHECKING:  # for checkers unhashable, so that no source takes it; at run time it hashes by identity
        # As in typeshed for lists; object declares a method.
        __hash__: ClassVar[None]  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, state: HandleState, cut: Cut) -> None:
        self._state = state
        self._cut = cut

    @property
    def shape(self) -> Shape:
        """The extents of the whole tensor, in elements."""
        return self._unmoved_state().layout.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The element type."""
        return self._unmoved_state().layout.dtype

    @property
    def tile(self) -> _Tile_co:
        """The extents of one tile, in elements."""
        self._unmoved_state()
        return cast(_Tile_co, self._cut[0])

    @property
    def grid(self) -> Shape:
        """The number of tiles along each axis."""
        self._unmoved_state()
        return self._cut[1]

    def unpartition(self) -> _V_co:
        """Return the tensor that was partitioned. Moves the partition."""
        return cast(_V_co, unpartition_tensor(self, here()))

    def __repr__(self) -> str:
        layout, _, where = self._summary()
        tile, grid = self._cut
        state = where if where == "gone" else f"grid {grid}"
        return f"Partition({layout.dtype.name}, {layout.shape}, tile {tile}, {state})"

    if not TYPE_CHECKING:  # hidden from type checkers, as in `ArrayHandle`
        __getattr__ = refuse_name
        __await__ = refuse_await

        @leaves_run
        def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
            """Raise a `NotReadyError`, because the operation needs the contents."""
            _, made, _ = self._summary()
            raise NotReadyError(
                f"Partition of a tensor made at {describe(made)}: a handle never reveals its contents by itself. "
                f"Put it together with .unpartition(). {contents_cure()}."
            )

        __reduce_ex__ = refuse_copy
        vars().update(dict.fromkeys(ARITHMETIC + READING, _no_contents))

        @leaves_run
        def __eq__(self, other: object) -> bool:
            """Compare by identity. Raise for another handle, an op, a number or an array: as those of tensors, such a
            comparison would be of elements."""
            if other is not self and isinstance(other, (HandleBase, Operators, int, float, np.generic, np.ndarray)):
                self._no_contents()
            return True if other is self else NotImplemented

        __ne__ = object.__ne__
        __getitem__ = __setitem__ = __delitem__ = __iter__ = __bool__ = _no_contents
        __hash__ = object.__hash__


cut_of: Final[Callable[[Partition[Any, Any]], Cut]] = attrgetter("_cut")
"""Return the tile and the grid of a partition. The partition may have been moved."""


def partition_tensor(tensor: HandleBase, tile: object, partial: bool, where: Origin) -> Partition[Any, Any]:
    """Return the partition of a `Tensor` or a `TensorMut` into tiles. Moves the tensor.

    `where` is the place of the call in the user's code.

    Raises:
        MovedError: the tensor or its lender has been moved.
        PartitionError: the tile does not divide the shape and `partial` is false.
    """
    state = live_state(tensor)
    try:
        tiles = check_tiling(state.layout.shape, tile, partial)
    except PartitionError as error:
        raise PartitionError(f"partition() at {describe(where)}: {error}") from None
    return Partition(take_state(tensor, "partition()", where), tiles)


def unpartition_tensor(partition: Partition[Any, Any], where: Origin) -> HandleBase:
    """Return the tensor that was partitioned. Moves the partition."""
    state = take_state(partition, "unpartition()", where)
    return state.kind(state)
