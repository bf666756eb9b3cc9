"""Factorisations of matrices and systems of linear equations, by cuSOLVER on a GPU and by NumPy on the host.

cuSOLVER works in the place of its input, which therefore is a copy, and sees matrices by columns: `cusolver` says what
that means for each call. Whether a matrix could be factored is a number on the device, the status, which no run waits
for: a kernel that reads it writes NaN where there is no result.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.nvidia.cusolver import CusolverCalls, Name
from dagpu.arrays.rearranging import from_rows, rows_along
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape, c64, c128, contiguous_layout, f32, f64, part_type
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import check_flag
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.expression import TILE
from dagpu.kernels.expression_text import tile_of
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    contiguous_copy,
    first_output,
    generated_kernel,
    library_kernel,
    move_arguments,
    new_output,
    number_input,
    output,
    refused_call,
    reshaped,
    tensor_input,
)
from dagpu.kernels.operations import memory_type, type_name
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import UNCUT, Cut, Launch, Map, Zip, components_of
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import Constant, Eye
from dagpu.ops.kernel_spec import KernelSpec

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic, and refuse nothing.
_F = TypeVar("_F", f32, f64, c64, c128)

_TYPES: Final = tuple([np.dtype(each) for each in (f32, f64, c64, c128)])
_STATUS: Final = np.dtype(np.int32)
"""The element type of the status: 0 if the matrix was factored."""


@leaves_run
def cholesky(a: In[_F]) -> DeviceOp[Tensor[_F], Any]:
    """Return the lower triangular matrix L with L L* = a, of a symmetric (Hermitian) positive definite matrix a.

    Only the lower triangle of `a` is read; the elements of the result above the diagonal are 0. If the matrix is not
    positive definite, or an element that is read is NaN, each element of the result is NaN, on a GPU and on the host:
    an op is asynchronous, and may be part of a graph, so nothing waits for the status to raise an error. Test the
    result: `array.isnan(result)`.

    On a GPU it is a call of cuSOLVER (extra `math`), in streams and in graphs, on a copy of `a` and scratch memory of
    the plan; on the host it is `numpy.linalg.cholesky`. The two round differently: both are right for a matrix that
    differs from `a` by about `n * eps` times its norm.

    Args:
        a: a tensor of f32, f64, c64 or c128 of the shape (n, n), or an op whose result is one.

    Raises:
        KernelArgumentError: a has other elements.
        ShapeError: a is not one square matrix.
        DeviceError: the run raises it if cuSOLVER is missing or refuses.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = _matrix("cholesky", "a", layouts[0], origin, square=True)
        (a,) = move_arguments("cholesky", arguments, origin)
        dtype, shape = layout.dtype, layout.shape
        if not layout.size:
            return Alloc(shape, dtype, Constant(0), origin)
        launch = Launch(_cholesky_kernel(dtype), (_overwritten(a, layout, origin), _new_status(origin)), origin)
        factored, status = _outputs(launch, origin)
        target = new_output(shape, dtype, tile_of(shape, TILE), origin)
        return first_output(_lower_kernel(dtype), (target, factored, status, np.nan), origin)

    return array_call("cholesky", ("a",), (a,), build, origin)


@leaves_run
def solve(a: In[_F], b: In[_F]) -> DeviceOp[Tensor[_F], Any]:
    """Return x with a x = b, of the shape of b, for a square matrix a.

    If a is singular, so that a pivot of its LU factorisation is exactly 0, each element of the result is NaN, on a GPU
    and on the host, where NumPy would raise an error: an op is asynchronous, so nothing waits for the status. The two
    round differently, so a matrix that is singular but for rounding may have a solution
    with large elements on one of them.

    On a GPU it is a call of cuSOLVER (extra `math`), in streams alone, since the driver refuses its work in a graph, on
    copies of `a` and `b` and scratch memory of the plan; on the host it is `numpy.linalg.solve`. Columns of `b` are
    transposed before and after by a launch of a kernel each.

    Args:
        a: a tensor of f32, f64, c64 or c128 of the shape (n, n), or an op whose result is one.
        b: the same, with the same elements: a column of the shape (n,), or columns (n, k).

    Raises:
        KernelArgumentError: a or b has other elements, or they have different ones.
        ShapeError: a is not one square matrix, or b does not have n rows.
        DeviceError: the run raises it if cuSOLVER is missing or refuses.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        left = _matrix("solve", "a", layouts[0], origin, square=True)
        right = _right_side(left, layouts[1], origin)
        a, b = move_arguments("solve", arguments, origin)
        dtype, shape = left.dtype, right.shape
        if not right.size:
            return Alloc(shape, dtype, Constant(0), origin)
        rows, fresh = rows_along(b, right, 0, origin)
        turned: Shape = (right.size // shape[0], shape[0])
        columns = _overwritten(rows, contiguous_layout(turned, dtype), origin, fresh=fresh)
        launch = Launch(_solve_kernel(dtype), (columns, _overwritten(a, left, origin), _new_status(origin)), origin)
        x, _, status = _outputs(launch, origin)
        found, _ = _or_nan(x, status, turned, dtype, origin)
        return from_rows(found, dtype, shape, 0, origin)

    return array_call("solve", ("a", "b"), (a, b), build, origin)


@leaves_run
def qr(a: In[_F]) -> DeviceOp[tuple[Tensor[_F], Tensor[_F]], Any]:
    """Return q of the shape (m, k) with orthonormal columns and r, upper triangular of the shape (k, n), with q r = a
    and k the smaller of m and n: NumPy's `mode="reduced"`.

    The signs of a column of q and of the row of r that belongs to it are the library's: to compare results, multiply
    both by the sign of the diagonal element of r. NaNs and infinities spread.

    On a GPU it is two calls of cuSOLVER (extra `math`), in streams and in graphs, on a transposed copy of `a` and
    scratch memory of the plan; on the host it is `numpy.linalg.qr`. Three launches of kernels transpose `a`, q and r.

    Args:
        a: a tensor of f32, f64, c64 or c128 of the shape (m, n), or an op whose result is one.

    Raises:
        KernelArgumentError: a has other elements.
        ShapeError: a is not one matrix.
        DeviceError: the run raises it if cuSOLVER is missing or refuses.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = _matrix("qr", "a", layouts[0], origin, square=False)
        (a,) = move_arguments("qr", arguments, origin)
        dtype, (m, n) = layout.dtype, layout.shape
        k = min(m, n)
        if not k:
            return Zip(tuple([Alloc(shape, dtype, Constant(0), origin) for shape in ((m, k), (k, n))]), origin)
        unit: AnyOp = Map(Alloc((k, m), dtype, Eye(), origin), Cut((k, m), True), origin)
        launch = Launch(_qr_kernel(dtype), (unit, _by_columns(a, layout, origin)), origin)
        q, factored = _outputs(launch, origin)
        target = new_output((k, n), dtype, tile_of((k, n), TILE), origin)
        r = first_output(_upper_kernel(dtype), (target, factored), origin)
        return Zip((from_rows(q, dtype, (m, k), 0, origin), r), origin)

    return array_call("qr", ("a",), (a,), build, origin)


@overload
def svd(a: In[f32], full_matrices: bool = True) -> DeviceOp[tuple[Tensor[f32], Tensor[f32], Tensor[f32]], Any]: ...  # type: ignore[overload-overlap]  # reason: no handle has elements of both types
@overload
def svd(a: In[f64], full_matrices: bool = True) -> DeviceOp[tuple[Tensor[f64], Tensor[f64], Tensor[f64]], Any]: ...
@overload
def svd(a: In[c64], full_matrices: bool = True) -> DeviceOp[tuple[Tensor[c64], Tensor[f32], Tensor[c64]], Any]: ...  # type: ignore[overload-overlap]  # reason: as above
@overload
def svd(a: In[c128], full_matrices: bool = True) -> DeviceOp[tuple[Tensor[c128], Tensor[f64], Tensor[c128]], Any]: ...
@leaves_run
def svd(a: Any, full_matrices: bool = True) -> Any:
    """Return u, s and vh with u diag(s) vh = a: u and vh with orthonormal columns and rows, s real, of the shape (k,),
    the largest first, with k the smaller of m and n.

    The signs (of complex elements the phases) of a column of u and of the row of vh that belongs to it are the
    library's. If the sweeps do not converge, each element of the results is NaN, where NumPy would raise an error. On
    the host that is so of each matrix with a NaN or an infinity; a GPU's library is given such a matrix as it is.

    On a GPU it is a call of cuSOLVER (extra `math`), which waits for the device: a thread that may not wait leaves the
    submission of the run to another one, a pipeline with it goes through streams, and `op.graph()` refuses it. On the
    host it is `numpy.linalg.svd`. A matrix with more rows than columns is transposed by a kernel before, and u and vh
    after.

    Args:
        a: a tensor of f32, f64, c64 or c128 of the shape (m, n), or an op whose result is one.
        full_matrices: u and vh have the shapes (m, m) and (n, n) if true, else (m, k) and (k, n).

    Raises:
        KernelArgumentError: a has other elements, or `full_matrices` is no bool.
        ShapeError: a is not one matrix.
        DeviceError: the run raises it if cuSOLVER is missing or refuses.
        CaptureError: `op.graph()` raises it on a GPU.
    """
    origin = here()
    full = check_flag(full_matrices, "svd", origin, "full_matrices")

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = _matrix("svd", "a", layouts[0], origin, square=False)
        (a,) = move_arguments("svd", arguments, origin)
        return _singular_values(a, layout, full, origin)

    return array_call("svd", ("a",), (a,), build, origin)


def _singular_values(a: Any, layout: Layout, full: bool, origin: Origin) -> AnyOp:
    """Return the op of u, s and vh of a matrix that has moved.

    The library takes a matrix by columns with as many rows as columns, or more. So a tall one is transposed. A wide
    one lies in memory as its transposed matrix a' = w s z* by columns, so that a = conj(z) s w': the memory of w, by
    rows, is vh, and that of z* is u.
    """
    dtype, (m, n), real = layout.dtype, layout.shape, part_type(layout.dtype)
    small, large = min(m, n), max(m, n)
    made = large if full else small
    if not small:
        shapes = ((m, m), (n, n)) if full else ((m, 0), (0, n))
        units: list[AnyOp] = [Alloc(shape, dtype, Eye(), origin) for shape in shapes]
        return Zip((units[0], Alloc((0,), real, Constant(0), origin), units[1]), origin)
    tall = m > n
    given = _by_columns(a, layout, origin) if tall else _overwritten(a, layout, origin)
    sizes = (made, large), (small, small), (1, small)
    types = dtype, dtype, real
    targets = [new_output(size, each, size, origin) for size, each in zip(sizes, types, strict=True)]
    launch = Launch(_svd_kernel(dtype), (*targets, given, _new_status(origin)), origin)
    *factors, _, status = _outputs(launch, origin)
    found: list[AnyOp] = []
    for factor, size, each in zip(factors, sizes, types, strict=True):
        op, status = _or_nan(factor, status, size, each, origin)
        found.append(op)
    first, second, values = found
    s = reshaped(values, contiguous_layout((1, small), real), (small,), origin)
    if not tall:
        return Zip((second, s, first), origin)
    u, vh = from_rows(first, dtype, (m, made), 0, origin), from_rows(second, dtype, (n, n), 0, origin)
    return Zip((u, s, vh), origin)


# ---- arguments
def _matrix(name: str, param: str, layout: Layout | None, origin: Origin, *, square: bool) -> Layout:
    """Return the layout of an argument that is to be a matrix."""
    layout = _checked_elements(name, param, layout, origin)
    rank = len(layout.shape)
    if rank < 2:
        raise ShapeError(
            f"{name} at {describe(origin)}: {param} has the shape {layout.shape}, and a matrix has two axes. Reshape "
            "it: x.reshape((rows, columns)), say."
        )
    if rank > 2:
        raise ShapeError(
            f"{name} at {describe(origin)}: {param} has the shape {layout.shape}, and a call takes one matrix. Pass "
            "them one by one: t[i] of a shared tensor t."
        )
    if square and layout.shape[0] != layout.shape[1]:
        raise ShapeError(
            f"{name} at {describe(origin)}: {param} has the shape {layout.shape}, and is to be square. Pass a square "
            "matrix: array.matmul(x, x, transpose='a') of the normal equations, say."
        )
    return layout


def _right_side(left: Layout, layout: Layout | None, origin: Origin) -> Layout:
    """Return the layout of the right side of a system."""
    layout = _checked_elements("solve", "b", layout, origin)
    if layout.dtype != left.dtype:
        what = f"a has elements of {type_name(left.dtype)}, and b of {type_name(layout.dtype)}"
        raise refused_call("solve", origin, what, "Convert one: convert(t, f32), say")
    if len(layout.shape) not in (1, 2) or layout.shape[0] != left.shape[0]:
        rows = left.shape[0]
        raise ShapeError(
            f"solve at {describe(origin)}: b has the shape {layout.shape}, and a has {rows} rows. Give b as many: "
            f"the shape ({rows},) of a column, or ({rows}, k) of k columns."
        )
    return layout


def _checked_elements(name: str, param: str, layout: Layout | None, origin: Origin) -> Layout:
    if layout is None:
        raise refused_call(name, origin, f"{param} is a number", "Pass a tensor: full((1, 1), x), say")
    if layout.dtype not in _TYPES:
        what = f"it takes elements of f32, f64, c64 or c128, and {param} has those of {type_name(layout.dtype)}"
        raise refused_call(name, origin, what, "Convert the tensor before: convert(t, f32)")
    return layout


# ---- operands
def _overwritten(x: Any, layout: Layout, origin: Origin, *, fresh: bool = False) -> AnyOp:
    """Return an argument that has moved as the output of a library's call: of one that is not `fresh` a copy."""
    return Map(x if fresh else contiguous_copy(x, origin), Cut(layout.shape, True), origin)


def _by_columns(x: Any, layout: Layout, origin: Origin) -> AnyOp:
    """Return a transposed copy of a matrix that has moved, as the output of a library's call."""
    rows, fresh = rows_along(x, layout, 0, origin)
    return _overwritten(rows, contiguous_layout(layout.shape[::-1], layout.dtype), origin, fresh=fresh)


def _new_status(origin: Origin) -> AnyOp:
    return new_output((1, 1), _STATUS, (1, 1), origin)


def _outputs(launch: Launch, origin: Origin) -> list[AnyOp]:
    """Return the ops of the outputs of a launch that has no other arguments."""
    return [Map(part, UNCUT, origin) for part in components_of(launch, origin)]


def _or_nan(x: Any, status: Any, shape: Shape, dtype: "np.dtype[Any]", origin: Origin) -> tuple[AnyOp, AnyOp]:
    """Return the ops of the elements of a matrix, NaN if the status is not 0, and of the status."""
    target = new_output(shape, dtype, tile_of(shape, TILE), origin)
    parts = components_of(Launch(_status_kernel(dtype), (target, x, status, np.nan), origin), origin)
    return Map(parts[0], UNCUT, origin), parts[2]


# ---- library kernels
@cache
def _cholesky_kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    def body(a: NDArray[Any], status: NDArray[Any]) -> None:
        status[...] = _failed(lambda: np.copyto(a, np.linalg.cholesky(a)))

    return _library_kernel("cholesky", {"a": dtype, "status": _STATUS}, body, _cholesky_kernel)


@cache
def _solve_kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    def body(x: NDArray[Any], a: NDArray[Any], status: NDArray[Any]) -> None:
        status[...] = _failed(lambda: np.copyto(x, np.linalg.solve(a, x.T).T))

    return _library_kernel("solve", {"x": dtype, "a": dtype, "status": _STATUS}, body, _solve_kernel)


@cache
def _qr_kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    def body(q: NDArray[Any], a: NDArray[Any]) -> None:
        found = np.linalg.qr(a.T)
        q[...] = found.Q.T
        a[:, : len(q)] = found.R.T

    return _library_kernel("qr", {"q": dtype, "a": dtype}, body, _qr_kernel)


@cache
def _svd_kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    def body(u: NDArray[Any], v: NDArray[Any], s: NDArray[Any], a: NDArray[Any], status: NDArray[Any]) -> None:
        def factor() -> None:
            if not np.isfinite(a).all():  # some builds of LAPACK sweep for ever
                raise np.linalg.LinAlgError
            found = np.linalg.svd(a.T, full_matrices=u.shape[0] == u.shape[1])
            u[...], s[...], v[...] = found.U.T, found.S, found.Vh.T

        status[...] = _failed(factor)

    types = {"u": dtype, "v": dtype, "s": part_type(dtype), "a": dtype, "status": _STATUS}
    return _library_kernel("svd", types, body, _svd_kernel)


def _library_kernel(name: Name, types: "dict[str, np.dtype[Any]]", body: Callable[..., None], maker: Any) -> KernelSpec:
    params = [output(param, dtype, 2) for param, dtype in types.items()]
    return library_kernel(name, params, CusolverCalls(name), body, (maker.__wrapped__.__code__, 0))


def _failed(factor: Callable[[], object]) -> int:
    """Call NumPy, and return the status."""
    try:
        factor()
    except np.linalg.LinAlgError:
        return 1
    return 0


# ---- generated kernels
_STATUS_TEXT: Final = """\
__global__ void nan_by_status(Tile<Element, 2> out, View<const Element, 2> x, View<const int, 2> status, {part} nan) {{
    const bool factored = status(0, 0) == 0;
    for (auto i : out) out[i] = factored ? x[i] : {nan};
}}
"""
_LOWER_TEXT: Final = """\
__global__ void lower_factor(Tile<Element, 2> out, View<const Element, 2> x, View<const int, 2> status, {part} nan) {{
    const Element last = x(x.extent(0) - 1, x.extent(1) - 1);
    const bool factored = status(0, 0) == 0 && last{real} == last{real};
    for (auto i : out) out[i] = !factored ? {nan} : i[1] > i[0] ? Element{{}} : x(i[0], i[1]);
}}
"""
_UPPER_TEXT: Final = """\
__global__ void upper_factor(Tile<Element, 2> out, View<const Element, 2> x) {
    for (auto i : out) out[i] = i[1] < i[0] ? Element{} : x(i[1], i[0]);
}
"""


def _with_element(dtype: "np.dtype[Any]", text: str) -> str:
    return f"typedef {memory_type(dtype)} Element;\n{text}"


def _nan_kernel(
    name: str, dtype: "np.dtype[Any]", text: str, body: Callable[..., None], maker: Any, *, in_place: bool
) -> KernelSpec:
    """Return a kernel of a matrix, a status and the number NaN."""
    part, complex_ = part_type(dtype), dtype.kind == "c"
    params = [output("out", dtype, 2), tensor_input("x", dtype, 2), tensor_input("status", _STATUS, 2)]
    params.append(number_input("nan", part, name))
    nan, real = ("Element(nan, nan)", ".real") if complex_ else ("nan", "")
    full = _with_element(dtype, text.format(part=memory_type(part), nan=nan, real=real))
    return generated_kernel(name, params, full, body, (maker.__wrapped__.__code__, 0), in_place=in_place)


@cache
def _status_kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    """Return the kernel that writes the elements of a matrix, or NaN if the status is not 0."""

    def body(out: NDArray[Any], x: NDArray[Any], status: NDArray[Any], nan: Any) -> None:
        out[...] = x if status[0, 0] == 0 else nan * dtype.type(1 + 1j if dtype.kind == "c" else 1)

    return _nan_kernel("nan_by_status", dtype, _STATUS_TEXT, body, _status_kernel, in_place=True)


@cache
def _lower_kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    """Return the kernel that writes the lower triangle of a matrix, or NaN if the status is not 0 or the last element
    is NaN: a NaN in a row of a factor is in all rows after it."""

    def body(out: NDArray[Any], x: NDArray[Any], status: NDArray[Any], nan: Any) -> None:
        factored = status[0, 0] == 0 and not np.isnan(x[-1, -1])
        out[...] = np.tril(x) if factored else nan * dtype.type(1 + 1j if dtype.kind == "c" else 1)

    return _nan_kernel("lower_factor", dtype, _LOWER_TEXT, body, _lower_kernel, in_place=False)


@cache
def _upper_kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    """Return the kernel that writes the upper triangle of a matrix that it reads by columns."""

    def body(out: NDArray[Any], x: NDArray[Any]) -> None:
        out[...] = np.triu(x.T[: len(out)])

    params = [output("out", dtype, 2), tensor_input("x", dtype, 2)]
    place = (_upper_kernel.__wrapped__.__code__, 0)
    return generated_kernel("upper_factor", params, _with_element(dtype, _UPPER_TEXT), body, place)
