"""`csr_matmul`: products of a sparse matrix, in compressed rows (CSR), and a dense vector or matrix.

Row r of the matrix has the elements `data[indptr[r]:indptr[r + 1]]`, in the columns that `indices` has at these places.

With a vector, some lanes of a warp make a row: lane l of `width` adds up the products l, l + width, l + 2 width, ...
one after the other, and then the sums of the lanes are folded by halves. The width follows from the mean number of
elements in a row, so from the shapes alone. With a matrix, a thread makes an element, and adds up the products of its
row one after the other; neighbouring threads read neighbouring elements of the dense matrix. So a result has the same
bits on every device and in every run.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.gathering import checked_indices, checked_places
from dagpu.arrays.reductions import checked_input
from dagpu.common.env_vars import CHECKED
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape, bf16, f16, f32, f64, i32, i64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    output,
    refused_call,
    tensor_input,
)
from dagpu.kernels.numpy_twin import PART, until_cancelled
from dagpu.kernels.operations import load_text, memory_type, register_dtype, register_type, store_text, type_name
from dagpu.kernels.reduction_order import power_of_two
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import IndexBeyond, Indexed, KernelSpec

_F = TypeVar("_F", f16, bf16, f32, f64)
_I = TypeVar("_I", i32, i64)

THREADS: Final = 256
WARP: Final = 32
COLUMNS: Final = 64
"""The most columns of a tile of the result, where the dense factor is a matrix."""

HEAD: Final = """\
__device__ void places_of(
    View<const {starts}, 1> indptr, long long count, dagpu::index_t row, long long& first, long long& last
) {{
    first = indptr[row];
    last = indptr[row + 1];
    if (first < 0) first = 0;
    if (last > count) last = count;
}}

__global__ void {name}(
    Tile<{element}, {rank}> out, View<const {element}, 1> data, View<const {whole}, 1> indices,
    View<const {starts}, 1> indptr, View<const {element}, {rank}> b
) {{
    const long long count = data.extent(0), extent = b.extent(0);
"""
READ: Final = """\
const long long given = indices[k];
{indent}const long long at = given < 0 && given >= -extent ? given + extent : given;
#ifdef DAGPU_CHECKED
{indent}const {number} factor = {load};  // an index beyond the axis is refused and reported here
#else
{indent}const {number} factor = at >= 0 && at < extent ? {load} : {zero};
#endif
{indent}sum = sum + {element} * factor;\
"""
WITH_VECTOR: Final = """\
    const int lane = threadIdx.x % {width}, row = threadIdx.x / {width};
    const bool mine = row < out.tile_extent(0);
    const dagpu::index_t r = out.origin(0) + row;
    long long first = 0, last = 0;
    if (mine) places_of(indptr, count, r, first, last);
    {number} sum = 0;
    for (long long k = first + lane; k < last; k += {width}) {{
        {read}
    }}
    for (int half = {width} / 2; half > 0; half /= 2) sum = sum + __shfl_down_sync(0xffffffffu, sum, half, {width});
    if (mine && lane == 0) out(r) = {store};
}}
"""
WITH_MATRIX: Final = """\
    for (auto i : out) {{
        long long first, last;
        places_of(indptr, count, i[0], first, last);
        {number} sum = 0;
        for (long long k = first; k < last; ++k) {{
            {read}
        }}
        out[i] = {store};
    }}
}}
"""


@leaves_run
def csr_matmul(data: In[_F], indices: In[_I], indptr: In[_I], b: In[_F]) -> DeviceOp[Tensor[_F], Any]:
    """Return the product of a sparse matrix in compressed rows (CSR) and a dense vector or matrix.

    The three tensors are those of `scipy.sparse.csr_matrix`. For a vector `b` of shape (columns,) the result has the
    shape (rows,), for a matrix of shape (columns, n) it has (rows, n). Products are added in an order that follows from
    the shapes alone, so a result has the same bits in every run. f16 and bf16 are computed in f32, and a sum is rounded
    once. Elements of one place count each.

    A column index is followed as `take` follows one: a negative one counts from the end, and one beyond `b` is a
    `KernelBoundsError`: always on the host, and on a GPU if DAGPU_CHECKED is 1, else its product is 0. A row start
    that is below 0, beyond the elements or below the one before is one on the host; on a GPU the row has no elements
    there.

    Args:
        data: the elements, row after row, of shape (count,).
        indices: the column of each element, of shape (count,).
        indptr: where each row starts among the elements, and where the last one ends: of shape (rows + 1,), ascending.
        b: a vector or a matrix with as many rows as the sparse matrix has columns.

    Raises:
        KernelArgumentError: the elements are not floats, or of two types; or the indices are not whole numbers.
        ShapeError: a tensor has other axes, the first two differ in length, or `indptr` is empty.
    """
    name: str = "csr_matmul"
    origin: Origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        elements = checked_input(name, layouts[0], "float", origin, "data")
        columns = checked_indices(name, layouts[1], origin)
        starts = checked_indices(name, layouts[2], origin, "indptr")
        dense: Layout = checked_input(name, layouts[3], "float", origin, "b")
        if dense.dtype != elements.dtype:
            what = f"data has elements of {type_name(elements.dtype)}, and b of {type_name(dense.dtype)}"
            raise refused_call(name, origin, what, "Convert one of them: convert(t, f32), say")
        _check_shapes(elements, columns, starts, dense, origin)
        rows = starts.shape[0] - 1
        width = _width(elements.shape[0], rows) if len(dense.shape) == 1 else 0
        shape: Shape = (rows, *dense.shape[1:])
        tile: Shape = (THREADS // width,) if width else _tile(shape)
        spec = _kernel(elements.dtype, columns.dtype, starts.dtype, width, CHECKED.get())
        target = new_output(shape, elements.dtype, tile, origin)
        return first_output(spec, (target, *move_arguments(name, arguments, origin)), origin)

    return array_call(name, ("data", "indices", "indptr", "b"), (data, indices, indptr, b), build, origin)


def _check_shapes(data: Layout, indices: Layout, indptr: Layout, b: Layout, origin: Origin) -> None:
    """Refuse tensors that are no sparse matrix and no dense factor.

    Raises:
        ShapeError: see `csr_matmul`.
    """
    where = f"csr_matmul at {describe(origin)}"
    for param, layout in (("data", data), ("indices", indices), ("indptr", indptr)):
        if len(layout.shape) != 1:
            raise ShapeError(
                f"{where}: {param} has shape {layout.shape}, and one axis is wanted. Reshape it: {param}.reshape((n,))."
            )
    if data.shape != indices.shape:
        raise ShapeError(
            f"{where}: data has {data.size} elements, and indices {indices.size}. Give each element one column: both "
            "are tensors of a csr_matrix, m.data and m.indices."
        )
    if not indptr.size:
        raise ShapeError(
            f"{where}: indptr is empty, and has one number more than the matrix has rows. A matrix without rows has "
            "from_host(np.array([0]))."
        )
    if len(b.shape) not in (1, 2):
        raise ShapeError(f"{where}: b has shape {b.shape}; one or two axes are wanted. Reshape it: b.reshape((n, m)).")


def _width(count: int, rows: int) -> int:
    """Return the number of lanes of a row: about a quarter of its mean number of elements, and at most a warp."""
    return min(WARP, power_of_two(-(-count // (4 * rows)))) if rows and count else 1


def _tile(shape: Shape) -> Shape:
    """Return the tile of a matrix: rows side by side, as many elements as a block has threads."""
    columns = max(1, min(shape[1], COLUMNS))
    return max(1, THREADS // columns), columns


@cache
def _kernel(
    dtype: "np.dtype[Any]", whole: "np.dtype[Any]", starts: "np.dtype[Any]", width: int, checked: bool
) -> KernelSpec:
    """Return the kernel of a product: with a vector, by so many lanes for each row; with a matrix if that is 0."""
    del checked  # `generated_kernel` reads it
    name, number, rank = "csr_matmul", register_type(register_dtype(dtype)), 1 if width else 2
    read = READ.format(
        number=number,
        indent=" " * (8 if width else 12),
        load=load_text(dtype, "b[at]" if width else "b(at, i[1])"),
        zero=f"static_cast<{number}>(0)",
        element=load_text(dtype, "data[k]"),
    )
    head = HEAD.format(
        name=name, starts=memory_type(starts), element=memory_type(dtype), rank=rank, whole=memory_type(whole)
    )
    body = WITH_VECTOR if width else WITH_MATRIX
    params = [
        output("out", dtype, rank),
        tensor_input("data", dtype, 1),
        tensor_input("indices", whole, 1),
        tensor_input("indptr", starts, 1),
        tensor_input("b", dtype, rank),
    ]
    return generated_kernel(
        name,
        params,
        head + body.format(width=width, number=number, read=read, store=store_text(dtype, "sum")),
        _twin(width or 1),
        (_kernel.__wrapped__.__code__, 0),
        block=(THREADS,) if width else None,
        indexed=Indexed("indices", 0),
    )


# ---- NumPy
def _twin(width: int) -> Callable[..., None]:
    """Return the host body. It takes the products of many rows at a time, one of each lane of each row."""

    def body(out: Any, data: Any, indices: Any, indptr: Any, b: Any) -> None:
        first, last = indptr[:-1].astype(np.int64), indptr[1:].astype(np.int64)
        _check_starts(indptr, len(data))
        columns, number = checked_places(indices, len(b)), register_dtype(data.dtype)
        values, dense = data.astype(number, copy=False), b.astype(number, copy=False)
        step = max(1, PART // (width * max(1, b.size // max(1, len(b)))))
        for begin in until_cancelled(range(0, len(first), step)):
            rows = slice(begin, begin + step)
            out[rows] = _sums(values, columns, dense, first[rows], last[rows], width)

    return body


def _check_starts(indptr: NDArray[Any], count: int) -> None:
    """Refuse row starts that are not places among so many elements, or their end, or that descend.

    Raises:
        IndexBeyond: one is so.
    """
    least, most = int(indptr.min()), int(indptr.max())
    if least < 0 or most > count:
        raise IndexBeyond(least if least < 0 else most, count, "indptr")
    descends = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(descends):
        row = int(descends[0])
        raise IndexBeyond(int(indptr[row + 1]), count, "indptr", int(indptr[row]))


def _sums(
    values: NDArray[Any],
    columns: NDArray[Any],
    dense: NDArray[Any],
    first: NDArray[Any],
    last: NDArray[Any],
    width: int,
) -> NDArray[Any]:
    """Return the sums of the products of some rows, from their first and up to their last elements."""
    lanes = np.zeros((len(first), width, *dense.shape[1:]), dense.dtype)
    # Longer rows first: those that still have elements are a range, which ends sooner in each step.
    order = np.argsort(first - last, kind="stable")
    lengths, starts, held = (last - first)[order], first[order], lanes
    for k in range(0, int(lengths[0]) if len(lengths) else 0, width):
        left = int(np.searchsorted(-lengths, -k, side="left"))
        for lane in range(width):
            many = int(np.searchsorted(-lengths[:left], -(k + lane), side="left"))
            if not many:
                break
            at = starts[:many] + (k + lane)
            factors = values[at].reshape(-1, *[1] * (dense.ndim - 1))
            held[:many, lane] += factors * dense[columns[at]]
    while width > 1:
        width //= 2
        held = held[:, :width] + held[:, width : 2 * width]
    found = np.empty_like(held[:, 0])
    found[order] = held[:, 0]
    return found
