"""`median` and `quantile`: elements of sorted rows, and what lies between two of them.

A radix sort orders the rows, and one launch more reads two elements of each row for each quantile.
"""

from functools import cache
from math import floor
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.rearranging import rows_along
from dagpu.arrays.reductions import checked_input, kept_shape, no_elements, normal_axes
from dagpu.arrays.sorting import radix_sorted
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape, bf16, contiguous_layout, f16, f32, f64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import check_flag, format_value, is_real_number
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
    move_arguments,
    new_output,
    output,
    reshaped,
    tensor_input,
)
from dagpu.kernels.operations import load_text, memory_type, register_dtype, register_type, store_text
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import Alloc, FromHost
from dagpu.ops.kernel_spec import KernelSpec

# Constrained, not bounded: handles are covariant, so a bound would join f32 and f64 to np.generic.
_F = TypeVar("_F", f16, bf16, f32, f64)

_I64: Final = np.dtype(np.int64)

TEXT: Final = """\
// Of sorted rows, what lies the part `parts[k]` of the way from element `places[k]` to the next one.
__global__ void quantile(
    Tile<{element}, 2> out, View<const {element}, 2> x, View<const long long, 1> places, View<const {number}, 1> parts
) {{
    const long long last = x.extent(1) - 1;
    for (auto i : out) {{
        const dagpu::index_t row = i[1];
        const long long at = places(i[0]), next = at < last ? at + 1 : last;
        const {number} part = parts(i[0]), a = {first}, b = {second}, most = {most};
        const {number} apart = b - a;
        const {number} between = part < {half} ? a + apart * part : b - apart * (1 - part);
        const {number} found = most != most ? most : a == b || part == 0 ? a : between;
        out[i] = {store};
    }}
}}
"""


@leaves_run
def median(x: In[_F], axis: int | None = None, *, keepdims: bool = False) -> DeviceOp[Tensor[_F], Any]:
    """Return the median along an axis: `quantile(x, 0.5, axis)`, the middle element, or halfway between two.

    Arguments and errors are those of `quantile`.
    """
    return _quantiles("median", x, 0.5, axis, keepdims)


@leaves_run
def quantile(
    x: In[_F], q: float | tuple[float, ...], axis: int | None = None, *, keepdims: bool = False
) -> DeviceOp[Tensor[_F], Any]:
    """Return the elements below which the share `q` of the others lies, of the element type of `x`.

    Between two elements it is as far from the first one as `q * (n - 1)` is from a whole number, NumPy's "linear". f16
    and bf16 are computed in f32 and rounded once. A row with a NaN has NaN.

    Args:
        x: a tensor of floats, or an op whose result is one.
        q: a number from 0 to 1, or several as a tuple. Then the result has a first axis for them, and `x` is sorted
            once.
        axis: one axis; a negative number counts from the last one. None takes all elements.
        keepdims: True keeps the axis, with extent 1.

    Raises:
        KernelArgumentError: the elements are not floats.
        ShapeError: `x` has no such axis, or no elements along it, or `q` is no such number.
    """
    return _quantiles("quantile", x, q, axis, keepdims)


def _quantiles(name: str, x: Any, q: object, axis: object, keepdims: object) -> AnyOp:
    origin = here()
    kept, shares = check_flag(keepdims, name, origin, "keepdims"), _shares(q, origin)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        given: Layout = checked_input(name, layouts[0], "float", origin)
        axes = normal_axes(axis, len(given.shape), name, origin)
        if axis is not None and len(axes) != 1:
            raise ShapeError(
                f"{name} at {describe(origin)}: axis is {format_value(axis)}. Give one axis, or None for all elements."
            )
        shape: Shape = kept_shape(given.shape, axes, kept)
        shape = (len(shares), *shape) if isinstance(q, tuple | list) else shape
        layout = contiguous_layout((given.size,), given.dtype) if axis is None else given
        length = layout.shape[axes[0] if axis is not None else 0]
        if not length and 0 not in shape:
            raise no_elements(name, origin)
        (moved,) = move_arguments(name, arguments, origin)
        if 0 in shape:
            return Alloc(shape, given.dtype, None, origin)
        if axis is None:
            moved = moved if given.contiguous else contiguous_copy(moved, origin)
            moved = reshaped(moved, given, layout.shape, origin)
        rows = rows_along(moved, layout, axes[0] if axis is not None else 0, origin)[0]
        sizes = layout.size // length, length
        (ordered,) = radix_sorted(rows, layout.dtype, sizes, length, (True, False), False, origin)
        target = len(shares), sizes[0]
        number = register_dtype(layout.dtype)
        ahead = [share * (length - 1) for share in shares]
        places = np.array([floor(each) for each in ahead], np.int64)
        parts = np.array([each - floor(each) for each in ahead]).astype(number)
        op = first_output(
            _kernel(layout.dtype),
            (
                new_output(target, layout.dtype, tile_of(target, TILE), origin),
                ordered,
                FromHost(places, origin),
                FromHost(parts, origin),
            ),
            origin,
        )
        result: AnyOp = reshaped(op, contiguous_layout(target, layout.dtype), shape, origin)
        return result

    return array_call(name, ("x",), (x,), build, origin)


def _shares(q: object, origin: Origin) -> list[float]:
    """Return the quantiles that are wanted."""
    given = q if isinstance(q, tuple | list) else (q,)
    found = [float(each) for each in given if is_real_number(each) and 0 <= each <= 1]
    if len(found) != len(given):
        raise ShapeError(
            f"quantile at {describe(origin)}: q is {format_value(q)}, but a number from 0 to 1, or a tuple of such, is "
            "wanted. Write q=0.5, say."
        )
    return found


@cache
def _kernel(dtype: "np.dtype[Any]") -> KernelSpec:
    """Return the kernel `out[k, row]`, of sorted rows."""
    number = register_dtype(dtype)
    text = TEXT.format(
        element=memory_type(dtype),
        number=register_type(number),
        first=load_text(dtype, "x(row, at)"),
        second=load_text(dtype, "x(row, next)"),
        most=load_text(dtype, "x(row, last)"),
        half="0.5" if number.itemsize == 8 else "0.5f",
        store=store_text(dtype, "found"),
    )
    params = [
        output("out", dtype, 2), tensor_input("x", dtype, 2), tensor_input("places", _I64, 1),
        tensor_input("parts", number, 1),
    ]  # fmt: skip

    def body(out: Any, x: Any, places: Any, parts: Any) -> None:
        a, b = (x[:, at].T.astype(number) for at in (places, np.minimum(places + 1, x.shape[1] - 1)))
        most, part = x[:, -1].astype(number), parts[:, None]
        apart = b - a
        between = np.where(part < 0.5, a + apart * part, b - apart * (1 - part))
        found = np.where(most != most, most, np.where((a == b) | (part == 0), a, between))  # reason: a NaN
        np.copyto(out, found, casting="unsafe")

    return generated_kernel("quantile", params, text, body, (_kernel.__wrapped__.__code__, 0))
