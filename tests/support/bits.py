"""Arrays that are equal to the bit."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def same_bits(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Return true if two arrays have the same shape, type and bits; a NaN is equal to any NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype.kind == "c":
        return same_bits(left.real, right.real) and same_bits(left.imag, right.imag)
    if left.dtype.kind in "iub":
        return bool((left == right).all())
    wide = left.astype(np.float64), right.astype(np.float64)  # exact
    both = np.isnan(wide[0]) & np.isnan(wide[1])
    return bool((both | (wide[0].view(np.uint64) == wide[1].view(np.uint64))).all()) if left.size else True
