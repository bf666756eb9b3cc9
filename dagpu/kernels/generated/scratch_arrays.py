"""Arrays for what NumPy twins compute on their way, which a thread keeps for its next call.

The C library gives freed memory of such sizes back to the system. An array that is new for each step would be cleared
by the system at each first touch, which takes longer than the step.
"""

import threading
from math import prod
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.dtypes import Shape

Bytes: TypeAlias = NDArray[np.uint8]

NBYTES: Final = 1 << 19
"""The size of an array that is kept; the processor's own cache is about as large."""
KEPT: Final = 4
"""The most arrays that a thread keeps."""


@final
class ScratchArrays(threading.local):
    """The free arrays of this thread."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def __reduce__(self) -> str:
        """A function that is sent to another process uses the arrays there."""
        return "SCRATCH"

    def take(self) -> Bytes:
        """Return `NBYTES` bytes that nothing else uses. Without `give_back` they are freed with the last reference."""
        try:
            return self._free.pop()
        except IndexError:
            return np.empty(NBYTES, np.uint8)

    def give_back(self, taken: Bytes) -> None:
        """Keep an array that has been taken. No view of it is used any more."""
        if len(self._free) < KEPT:
            self._free.append(taken)


SCRATCH: Final = ScratchArrays()


def shaped(taken: Bytes, shape: Shape, dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Return an array over bytes that have been taken; a new one if they are too few."""
    nbytes = prod(shape) * dtype.itemsize
    return taken[:nbytes].view(dtype).reshape(shape) if nbytes <= NBYTES else np.empty(shape, dtype)
