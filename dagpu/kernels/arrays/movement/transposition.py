"""`transpose`: the elements of a tensor with its axes in another order.

Where the last axis stays, neighbours in memory stay neighbours, and each thread copies elements. Otherwise a block
reads a tile along the last axis of the input, keeps it in shared memory, and writes it along the last axis of the
output.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.arrays.reducing.reduction_order import power_of_two
from dagpu.kernels.arrays.reducing.reductions import checked_input
from dagpu.kernels.expressions.broadcasting import tile_of
from dagpu.kernels.expressions.expression import TILE
from dagpu.kernels.expressions.operations.cuda_operations import complex_struct, memory_type
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    output,
    reshaped,
    tensor_input,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import KernelSpec

_D = TypeVar("_D", bound=np.generic)

THREADS: Final = 256

COPYING: Final = """\
__global__ void transpose(Tile<{element}, {rank}> out, View<const {element}, {rank}> x) {{
    for (auto i : out) out[i] = x({places});
}}
"""
TILED: Final = """\
// A tile has {across} elements along the last axis of x, and {along} along the last axis of out.
__global__ void transpose(Tile<{element}, {rank}> out, View<const {element}, {rank}> x) {{
    __shared__ {element} part[{along}][{across} + 1];
    for (int n = threadIdx.x; n < {size}; n += {threads}) {{
        const int a = n % {across}, b = n / {across};
        if (a < out.tile_extent({axis}) && b < out.tile_extent({last})) part[b][a] = x({places});
    }}
    __syncthreads();
    for (int n = threadIdx.x; n < {size}; n += {threads}) {{
        const int a = n / {along}, b = n % {along};
        if (a < out.tile_extent({axis}) && b < out.tile_extent({last})) out({targets}) = part[b][a];
    }}
}}
"""


@leaves_run
def transpose(x: In[_D], axes: tuple[int, ...] | None = None) -> DeviceOp[Tensor[_D], Any]:
    """Return a contiguous tensor with the axes of `x` in another order: axis n of the result is axis `axes[n]` of `x`.

    A new tensor is written, where NumPy returns a view.

    Args:
        x: a tensor, or an op whose result is one.
        axes: all axes of `x`, each once; a negative number counts from the last one. None reverses their order.

    Raises:
        ShapeError: `axes` does not name each axis of `x` once.
    """
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input("transpose", layouts[0], "any", origin)
        order = _order(axes, len(layout.shape), origin)
        (moved,) = move_arguments("transpose", arguments, origin)
        return transposed(moved, layout, order, origin)

    return array_call("transpose", ("x",), (x,), build, origin)


def transposed(x: Any, layout: Layout, order: Shape, origin: Origin) -> AnyOp:
    """Return the op of a new tensor whose axis n is axis `order[n]` of an argument that has moved, a handle or an op.

    `layout` is that of the argument, with elements of any type, also of a complex one.
    """
    shape, merged = _merge(layout, order)
    target = tuple([shape[axis] for axis in merged])
    tile = _tile(target, merged)
    given = reshaped(x, layout, shape, origin) if layout.contiguous else x
    spec = _kernel(layout.dtype, merged, tile if _swaps(merged) else None)
    op = first_output(spec, (new_output(target, layout.dtype, tile, origin), given), origin)
    result: AnyOp = reshaped(
        op, Layout(layout.dtype, target, (), 0), tuple([layout.shape[axis] for axis in order]), origin
    )
    return result


def _order(axes: object, rank: int, origin: Origin) -> Shape:
    """Return the axis of the input for each axis of the output."""
    given: Any = range(rank)[::-1] if axes is None else axes
    found = [as_whole_number(each) for each in given] if isinstance(given, tuple | list | range) else []
    order = tuple([each % rank for each in found if each is not None and -rank <= each < rank])
    if sorted(order) != list(range(rank)) or len(found) != rank or not isinstance(given, tuple | list | range):
        raise ShapeError(
            f"transpose at {describe(origin)}: axes is {format_value(axes)}, but x has {rank} axes. Name each of them "
            f"once, {tuple(range(rank))} in another order, or leave axes out."
        )
    return order


def _merge(layout: Layout, order: Shape) -> tuple[Shape, Shape]:
    """Return the shape with which a kernel gets the input, and its order of axes, with as few axes as possible."""
    if not layout.contiguous:
        return layout.shape, order
    kept = [axis for axis in order if layout.shape[axis] != 1]
    runs: list[list[int]] = []
    before: int | None = None
    for axis in kept:
        if (
            before is not None
            and not any(layout.shape[between] != 1 for between in range(before + 1, axis))
            and (axis > before)
        ):
            runs[-1].append(axis)
        else:
            runs.append([axis])
        before = axis
    inputs = sorted(runs)
    shape = tuple([prod([layout.shape[axis] for axis in run]) for run in inputs])
    return shape, tuple([inputs.index(run) for run in runs])


def _swaps(order: Shape) -> bool:
    """True if the last axis of the input is another axis of the output."""
    return bool(order) and order[-1] != len(order) - 1


def _tile(target: Shape, order: Shape) -> Shape:
    """Return the tile of an output with this shape: of 32 by 32 elements where the last axis changes its place."""
    if not _swaps(order):
        return tile_of(target, TILE)
    axis = order.index(len(order) - 1)
    along, across = min(32, power_of_two(target[-1])), min(32, power_of_two(target[axis]))
    along, across = (
        min(power_of_two(target[-1]), TILE // across),
        min(power_of_two(target[axis]), TILE // along),
    )
    tile = [1] * len(target)
    tile[-1], tile[axis] = along, across
    return tuple(tile)


@cache
def _kernel(dtype: "np.dtype[Any]", order: Shape, tile: Shape | None) -> KernelSpec:
    """Return the kernel for an input whose axis `order[n]` is axis n of the output; with a tile through shared
    memory."""
    rank = len(order)
    declared, element = (complex_struct(dtype), "Element") if dtype.kind == "c" else ("", memory_type(dtype))
    params = [output("out", dtype, rank), tensor_input("x", dtype, rank)]
    inverse = [order.index(axis) for axis in range(rank)]
    if tile is None:
        text = declared + COPYING.format(
            element=element, rank=rank, places=", ".join([f"i[{place}]" for place in inverse])
        )
        return generated_kernel("transpose", params, text, _twin(order), (_kernel.__wrapped__.__code__, 0))
    axis, last = inverse[-1], rank - 1
    targets = [f"out.origin({n}){' + a' if n == axis else ' + b' if n == last else ''}" for n in range(rank)]
    text = declared + TILED.format(
        element=element,
        rank=rank,
        across=tile[axis],
        along=tile[last],
        size=tile[axis] * tile[last],
        threads=THREADS,
        axis=axis,
        last=last,
        places=", ".join([targets[place] for place in inverse]),
        targets=", ".join(targets),
    )
    return generated_kernel(
        "transpose", params, text, _twin(order), (_kernel.__wrapped__.__code__, 0), block=(THREADS,)
    )


def _twin(order: Shape) -> Callable[..., None]:
    def body(out: Any, x: Any) -> None:
        out[...] = x.transpose(order)

    return body
