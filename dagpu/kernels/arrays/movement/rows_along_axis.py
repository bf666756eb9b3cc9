"""Rows along any axis of a tensor as a contiguous matrix, for kernels and libraries that work on such rows alone.

Along another axis than the last one, one launch transposes the elements before, and one transposes the result.
"""

from math import prod
from typing import Any

import numpy as np

from dagpu.common.dtypes import Shape
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.origin import Origin
from dagpu.kernels.arrays.movement.transposition import transposed
from dagpu.kernels.generated.generated_launch import AnyOp, contiguous_copy, reshaped


def rows_along(x: Any, layout: Layout, axis: int, origin: Origin, *, multiple: int = 1) -> tuple[Any, bool]:
    """Return the matrix of an argument's rows along an axis, and True if it is a new tensor.

    The argument has moved; it is a handle or an op. An axis has elements, and the first one is to lie at a multiple of
    `multiple` bytes.
    """
    extent = layout.shape[axis]
    rows = (layout.size // extent, extent)
    if _is_last(layout.shape, axis):
        fresh = not layout.contiguous or layout.offset % multiple != 0
        if fresh:
            x, layout = contiguous_copy(x, origin), contiguous_layout(layout.shape, layout.dtype)
        return reshaped(x, layout, rows, origin), fresh
    rank = len(layout.shape)
    order = (*range(axis), *range(axis + 1, rank), axis)
    turned = contiguous_layout(tuple([layout.shape[each] for each in order]), layout.dtype)
    return reshaped(transposed(x, layout, order, origin), turned, rows, origin), True


def from_rows(op: AnyOp, dtype: "np.dtype[Any]", shape: Shape, axis: int, origin: Origin) -> AnyOp:
    """Return the op of a tensor of the shape `shape`, whose rows along an axis are those of a contiguous matrix."""
    extent = shape[axis]
    rows = contiguous_layout((prod(shape) // extent, extent), dtype)
    if _is_last(shape, axis):
        whole: AnyOp = reshaped(op, rows, shape, origin)
        return whole
    last = len(shape) - 1
    turned = contiguous_layout((*shape[:axis], *shape[axis + 1 :], extent), dtype)
    back = (*range(axis), last, *range(axis, last))
    return transposed(reshaped(op, rows, turned.shape, origin), turned, back, origin)


def _is_last(shape: Shape, axis: int) -> bool:
    """Return True if the elements of rows along an axis of a contiguous tensor lie side by side."""
    return prod(shape[axis + 1 :]) == 1
