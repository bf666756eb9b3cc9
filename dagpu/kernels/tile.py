"""`Tile`: what a host body is given for each output."""

from typing import Any

import numpy as np
from typing_extensions import TypeVar

_D_co = TypeVar("_D_co", bound=np.generic, covariant=True)


class Tile(np.ndarray[Any, np.dtype[_D_co]]):
    """In a host body: one tile of an output, writable, with its place in the output.

    Only the tile itself has a place. A result computed from it (`y * 2`, `y.sum()`) is a plain array or scalar. A view
    cut out of it (`y[1:]`, `y.T`) is still a `Tile`, because it writes to the same memory, but has no place of its own:
    its `.at` raises. (A view without a place costs nothing, because its slots stay empty. An `__array_finalize__` that
    clears them would be a Python call for every array that NumPy makes from a tile.)
    """

    __slots__ = ("_at", "_index")
    _at: tuple[slice, ...]
    _index: tuple[int, ...]

    @property
    def at(self) -> tuple[slice, ...]:
        """This tile's place in the whole tensor: `x[y.at]` is the part of `x` that lies where the tile `y`
        does.

        Raises:
            AttributeError: this is a view of a tile, not the tile that the host body was given.
        """
        try:
            return self._at
        except AttributeError:
            raise AttributeError(_NO_PLACE.format(name="at")) from None

    @property
    def index(self) -> tuple[int, ...]:
        """This tile's place in the grid, one number for each axis.

        Raises:
            AttributeError: this is a view of a tile, not the tile that the host body was given.
        """
        try:
            return self._index
        except AttributeError:
            raise AttributeError(_NO_PLACE.format(name="index")) from None

    def __array_wrap__(
        self, array: "np.ndarray[Any, Any]", context: object = None, return_scalar: bool = True, /
    ) -> Any:
        """The result of a ufunc on a tile: the tile itself where that was the `out=`, else a plain array or
        scalar.

        NumPy 1 does not pass `return_scalar`, and makes a scalar of every result without axes.
        """
        if array is self:
            return array
        plain = array.view(np.ndarray)
        return plain[()] if return_scalar else plain


_NO_PLACE = (
    "this array is a view of a tile and has no .{name} of its own. "
    "Take .{name} from the tile that the host body was given."
)
