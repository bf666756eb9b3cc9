"""`matmul`: products of matrices, by cuBLASLt on a GPU and by NumPy on the host."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape, bf16, f16, f32, f64
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, contiguous_layout, reshape_layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.arrays.libraries.cublaslt import CublasLtProduct
from dagpu.kernels.arrays.libraries.gemm_layouts import gemm_operand, matrix_shape
from dagpu.kernels.expressions.broadcasting import broadcast_shape, tile_of
from dagpu.kernels.expressions.expression import TILE, Expression
from dagpu.kernels.expressions.operations.element_operations import DOMAINS, type_name
from dagpu.kernels.expressions.traced_expression import trace_expression
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    array_call,
    contiguous_copy,
    first_output,
    library_kernel,
    move_arguments,
    new_output,
    output,
    refused_call,
    refused_type,
    reshaped,
    tensor_input,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import Constant
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.node_functions import FIRST, UNCUT

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic, and refuse nothing.
_M = TypeVar("_M", f16, bf16, f32, f64)

_TRANSPOSED: Final = {"": (False, False), "a": (True, False), "b": (False, True), "ab": (True, True)}
_PRECISIONS: Final = ("ieee", "tf32")


@leaves_run
def matmul(
    a: In[_M], b: In[_M], *, transpose: Literal["", "a", "b", "ab"] = "", precision: Literal["ieee", "tf32"] = "ieee"
) -> DeviceOp[Tensor[_M], Any]:
    """Return the matrix product of a (..., m, k) and b (..., k, n), of shape (..., m, n).

    The axes before the last two are a batch, and broadcast by NumPy's rules. An operand with one axis is a row (`a`)
    or a column (`b`), whose axis of extent 1 the result does not have. f16 and bf16 are added in f32, and the sum is
    rounded once.

    On a GPU it is one call of cuBLASLt (extra `math`), in streams and in graphs; its algorithm is chosen once for each
    shape, so every run gives the same bits. On the host it is `numpy.matmul`. The two add in different orders: with
    elements of about 1, results differ by some `eps * k ** 0.5`, with eps of f32 for f16, bf16 and f32, and a rounding
    of the result.

    Args:
        a: a tensor of floats (f16, bf16, f32 or f64), or an op whose result is one. Convert integers before:
            `convert(t, f32)`, whose products are exact up to 2**24, or f64 up to 2**53.
        b: the same, of the same element type.
        transpose: the operands whose last two axes are exchanged before: "a", "b", "ab" or "" for none. No memory is
            copied for it.
        precision: "tf32" lets tensor cores round f32 operands to 10 bits of mantissa. The host computes in f32.

    Raises:
        KernelArgumentError: the elements are not floats or of two types, or `precision` is "tf32" for elements other
            than f32.
        ShapeError: the inner extents differ, the batches do not broadcast, or an operand has no axis.
        DeviceError: the run raises it if cuBLASLt is missing or refuses.
    """
    origin = here()
    if type(transpose) is not str or transpose not in _TRANSPOSED:
        cure = 'Write "", "a", "b" or "ab"'
        raise refused_call("matmul", origin, f"transpose is {format_value(transpose)}", cure)
    chosen = _TRANSPOSED[transpose]
    if type(precision) is not str or precision not in _PRECISIONS:
        cure = 'Write "ieee" or "tf32"'
        raise refused_call("matmul", origin, f"precision is {format_value(precision)}", cure)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        return _product(arguments, layouts, chosen, precision == "tf32", origin)

    return array_call("matmul", ("a", "b"), (a, b), build, origin)


def _product(
    arguments: tuple[Any, ...],
    layouts: tuple[Layout | None, ...],
    flags: tuple[bool, bool],
    tf32: bool,
    origin: Origin,
) -> AnyOp:
    left, right = _checked(layouts, flags, tf32, origin)
    dtype, drops = left.dtype, (len(left.shape) == 1, len(right.shape) == 1)
    shapes = _matrices(left.shape, right.shape)
    (m, k), (inner, n) = matrix_shape(shapes[0], flags[0]), matrix_shape(shapes[1], flags[1])
    batch = broadcast_shape([shapes[0][:-2], shapes[1][:-2]])
    if k != inner:
        raise _unequal(left.shape, right.shape, (k, inner), flags, drops, origin)
    if batch is None:
        raise ShapeError(
            f"matmul at {describe(origin)}: the axes before the last two, {shapes[0][:-2]} and {shapes[1][:-2]}, do "
            "not broadcast. Extents must be equal, or 1; reshape one: x.reshape((n, 1, rows, columns)), say."
        )
    shape = (*batch, *([] if drops[0] else [m]), *([] if drops[1] else [n]))
    moved = move_arguments("matmul", arguments, origin)
    if 0 in (*batch, m, n, k):
        return Alloc(shape, dtype, Constant(0), origin)
    passed = [
        _operand(arg, layout, wanted, transposed, batch, origin)
        for arg, layout, wanted, transposed in zip(moved, (left, right), shapes, flags, strict=True)
    ]
    target = new_output((*batch, m, n), dtype, (*batch, m, n), origin)
    op = first_output(_kernel(dtype, flags, tf32), (target, *passed), origin)
    result: AnyOp = reshaped(op, contiguous_layout((*batch, m, n), dtype), shape, origin)
    return result


def _checked(
    layouts: tuple[Layout | None, ...], flags: tuple[bool, bool], tf32: bool, origin: Origin
) -> tuple[Layout, Layout]:
    """Return the layouts of the operands."""
    left, right = layouts
    if left is None or right is None:
        raise refused_call(
            "matmul", origin, f"{'ab'[left is not None]} is a number", "Multiply by it: t * x in an expr"
        )
    for layout in (left, right):
        if layout.dtype not in DOMAINS["float"]:
            raise refused_type("matmul", origin, layout.dtype)
    if left.dtype != right.dtype:
        what = f"operands of {type_name(left.dtype)} and {type_name(right.dtype)}"
        raise refused_call("matmul", origin, what, "Convert one: convert(t, f32), say")
    if tf32 and left.dtype != np.float32:
        what = f'precision="tf32" is for elements of f32, and these are of {type_name(left.dtype)}'
        raise refused_call("matmul", origin, what, "Leave it out")
    for name, layout, transposed in zip("ab", (left, right), flags, strict=True):
        if len(layout.shape) < 1 + transposed:
            raise ShapeError(
                f"matmul at {describe(origin)}: {name} has the shape {layout.shape}, and "
                f"{'two axes are exchanged' if transposed else 'at least one axis is multiplied'}. Reshape it: "
                "x.reshape((rows, columns)), say."
            )
    return left, right


def _matrices(left: Shape, right: Shape) -> tuple[Shape, Shape]:
    """Return the shapes of operands as matrices: a row for `a`, a column for `b`."""
    return (1, *left) if len(left) == 1 else left, (*right, 1) if len(right) == 1 else right


def _operand(arg: Any, layout: Layout, shape: Shape, transposed: bool, batch: Shape, origin: Origin) -> Any:
    """Return an operand as matrices of this shape, in a layout that the library takes. Others are copied."""
    if layout.shape == shape and gemm_operand(layout, transposed, batch) is not None:
        return arg
    if not layout.contiguous:
        arg, layout = contiguous_copy(arg, origin), contiguous_layout(layout.shape, layout.dtype)
    arg, layout = reshaped(arg, layout, shape, origin), reshape_layout(layout, shape)
    if gemm_operand(layout, transposed, batch) is not None:
        return arg
    whole = (*batch, *shape[-2:])  # its matrices lie at several distances
    target = new_output(whole, layout.dtype, tile_of(whole, TILE), origin)
    return Map(Map(_identity(layout.dtype).into(target, arg), FIRST, origin), UNCUT, origin)


@cache
def _identity(dtype: "np.dtype[Any]") -> Expression[[Any], Any]:
    """Return the expression that copies elements, and broadcasts them to the shape of its output."""
    return Expression(trace_expression(lambda x: x, (dtype,)).named("broadcast"), (matmul.__code__, 0))


def _unequal(
    left: Shape,
    right: Shape,
    extents: tuple[int, int],
    flags: tuple[bool, bool],
    drops: tuple[bool, bool],
    origin: Origin,
) -> ShapeError:
    """Return the error for inner extents that differ."""
    cure = "Give operands with as many elements there"
    if not any(drops):
        (m, k), (rows, n) = matrix_shape(left, flags[0]), matrix_shape(right, flags[1])
        for which in ("b", "a"):
            if (k == n) if which == "b" else (m == rows):
                chosen = "".join(name for name, flag in zip("ab", flags, strict=True) if flag is not (name == which))
                cure = f'Transpose one: transpose="{chosen}"'
                break
    return ShapeError(
        f"matmul at {describe(origin)}: {left} times {right}: the inner extents {extents[0]} and {extents[1]} differ. "
        f"{cure}."
    )


@cache
def _kernel(dtype: "np.dtype[Any]", flags: tuple[bool, bool], tf32: bool) -> KernelSpec:
    params = [output("y", dtype, None), tensor_input("a", dtype, None), tensor_input("b", dtype, None)]
    place = (_kernel.__wrapped__.__code__, 0)
    return library_kernel("matmul", params, CublasLtProduct(flags, tf32), _twin(flags), place)


def _twin(flags: tuple[bool, bool]) -> Callable[..., None]:
    def body(y: NDArray[Any], *operands: NDArray[Any]) -> None:
        wide = np.float32 if y.dtype.itemsize == 2 else y.dtype
        turned = [x.swapaxes(-1, -2) if flag else x for x, flag in zip(operands, flags, strict=True)]
        a, b = [x.astype(wide, copy=False) for x in turned]
        y[...] = np.matmul(a, b).astype(y.dtype, copy=False)

    return body
