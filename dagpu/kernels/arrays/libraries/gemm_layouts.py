"""Products of matrices as the libraries compute them: two operands with a leading dimension each, and one batch stride.

A matrix is seen in rows or in columns: its elements follow each other along its last axis or its first. The leading
dimension is the distance between rows, or between columns.
"""

from math import gcd
from typing import NamedTuple, final

from dagpu.common.dtypes import Shape
from dagpu.common.layout import Layout

MOST_ALIGNED = 256
"""Bytes: alignment above it is of no use to a library. Memory of dagpu's begins at such an address."""


@final
class GemmOperand(NamedTuple):
    """One operand: whether its columns lie in memory in one piece, and its distances in elements."""

    by_columns: bool
    leading: int
    batch: int
    """The distance between the matrices of a batch; 0 for the same matrix each time."""
    aligned: int
    """Bytes to which the address of its first element is aligned."""


@final
class Gemm(NamedTuple):
    """`batch` products of (m, k) by (k, n). The result is contiguous."""

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    a: GemmOperand
    b: GemmOperand


def matrix_shape(shape: Shape, transposed: bool) -> tuple[int, int]:
    """Return the rows and columns of the matrices that an operand stands for."""
    rows, columns = shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def gemm_operand(layout: Layout, transposed: bool, batch: Shape) -> GemmOperand | None:
    """Return an operand that is broadcast to this batch; None if it needs another layout."""
    rows, columns = matrix_shape(layout.shape, transposed)
    size = layout.dtype.itemsize
    if any(stride % size for stride in layout.strides):
        return None
    steps = [stride // size for stride in layout.strides]
    down, right = reversed(steps[-2:]) if transposed else steps[-2:]
    stride = _batch_stride(layout.shape[:-2], steps[:-2], batch)
    if stride is None:
        return None
    aligned = gcd(MOST_ALIGNED, layout.offset)
    if (columns == 1 or right == 1) and (rows == 1 or down >= columns):
        return GemmOperand(False, down if rows > 1 else columns, stride, aligned)
    if (rows == 1 or down == 1) and (columns == 1 or right >= rows):
        return GemmOperand(True, right if columns > 1 else rows, stride, aligned)
    return None


def find_gemm(a: Layout, b: Layout, transposed: tuple[bool, bool], batch: Shape) -> Gemm:
    """Return the product of two operands that have a layout for it.

    A batch of one and the same right matrix is one product with more rows.
    """
    left, right = gemm_operand(a, transposed[0], batch), gemm_operand(b, transposed[1], batch)
    assert left is not None
    assert right is not None
    (m, k), (_, n) = matrix_shape(a.shape, transposed[0]), matrix_shape(b.shape, transposed[1])
    count = 1
    for extent in batch:
        count *= extent
    if count > 1 and right.batch == 0 and not left.by_columns and left.batch == m * left.leading:
        count, m = 1, count * m
    return Gemm(a.dtype.name, count, m, n, k, left, right)


def _batch_stride(shape: Shape, steps: list[int], batch: Shape) -> int | None:
    """Return the one distance between the matrices of a broadcast batch, in C order; None if there is none."""
    missing = len(batch) - len(shape)
    found, span = 0, 0  # nothing is known before the last axis of more than one matrix
    known = False
    for axis in reversed(range(len(batch))):
        if batch[axis] == 1:
            continue
        own = axis - missing
        step = steps[own] if own >= 0 and shape[own] > 1 else 0
        if not known:
            known, found = True, step
        elif step != span:
            return None
        span = step * batch[axis]
    return found if found >= 0 else None
