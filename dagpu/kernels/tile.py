"""`Tile`: the argument of a host body for an output."""

from typing import Any

import numpy as np
from typing_extensions import TypeVar

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
