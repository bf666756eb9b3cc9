"""`concatenate` and `stack`: several tensors as one, along an axis that they have or along a new one.

One launch writes the elements of up to `MOST` tensors. More of them take further launches, which write further parts of
the same output.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import wrong_argument
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.arrays.movement.axis_groups import (
    AxisGroups,
    GroupPattern,
    element_text,
    extent_text,
    group_axes,
    grouped_array,
    one_axis,
)
from dagpu.kernels.arrays.reducing.reductions import checked_input
from dagpu.kernels.expressions.broadcasting import tile_of
from dagpu.kernels.expressions.expression import TILE
from dagpu.kernels.expressions.operations.cuda_operations import memory_type
from dagpu.kernels.expressions.operations.element_operations import type_name
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    array_call,
    generated_kernel,
    move_arguments,
    new_output,
    number_input,
    output,
    refused_call,
    reshaped,
    tensor_input,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import Launch
from dagpu.ops.node_functions import FIRST, UNCUT

# Constrained, not bounded: handles are covariant, and a bound would join f32 and i64 to np.generic.
_V = TypeVar("_V", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)

MOST: Final = 16
"""The most tensors of one launch: the parameters of a kernel have 4 KiB."""

TEXT: Final = """\
__global__ void {name}(Tile<{element}, 3> out, {formals}long long first) {{
    for (auto i : out) {{
        const dagpu::index_t o = i[0], n = i[2];
        long long at = i[1] - first;
        if (at < 0) continue;
{choices}    }}
}}
"""
CHOICE: Final = """\
        if (at < {extent}) {{
            out[i] = {value};
            continue;
        }}
        at -= {extent};
"""


@leaves_run
def concatenate(parts: Sequence[In[_V]], axis: int = 0) -> DeviceOp[Tensor[_V], Any]:
    """Return the elements of several tensors as one, one tensor after the other along an axis.

    Args:
        parts: tensors, or ops whose results are tensors, of one element type: they are not widened to a common one, as
            NumPy would. Their shapes are equal but for this axis.
        axis: the axis along which they are joined; a negative number counts from the last one.

    Raises:
        KernelArgumentError: the element types differ, or there are no tensors.
        ShapeError: the shapes differ along another axis, or the tensors have no such axis.
    """
    return _join("concatenate", parts, axis)


@leaves_run
def stack(parts: Sequence[In[_V]], axis: int = 0) -> DeviceOp[Tensor[_V], Any]:
    """Return several tensors of one shape as one, along a new axis.

    Args:
        parts: tensors, or ops whose results are tensors, of one shape and one element type.
        axis: the place of the new axis in the result, 0 for the first; a negative number counts from the last one.

    Raises:
        KernelArgumentError: the element types differ, or there are no tensors.
        ShapeError: the shapes differ, or the result has no such axis.
    """
    return _join("stack", parts, axis)


def _join(name: str, parts: Any, axis: object) -> AnyOp:
    origin = here()
    if not isinstance(parts, tuple | list):
        raise wrong_argument(name, origin, "parts", parts, "a tuple of tensors", f"Write {name}((a, b))")
    if not parts:
        raise refused_call(name, origin, "there are no parts", "Pass one at least: (x,), say")
    names = [f"parts[{n}]" for n in range(len(parts))]

    def build(arguments: tuple[Any, ...], given: tuple[Layout | None, ...]) -> AnyOp:
        layouts = [
            checked_input(name, layout, "any", origin, param) for layout, param in zip(given, names, strict=True)
        ]
        groups, shape = _arrange(name, layouts, axis, origin)
        passed = [
            reshaped(x, layout, group.passed, origin)
            for x, layout, group in zip(move_arguments(name, arguments, origin), layouts, groups, strict=True)
        ]
        dtype = layouts[0].dtype
        lengths = [group.extents[1] for group in groups]
        target = (groups[0].extents[0], sum(lengths), groups[0].extents[2])
        out = new_output(target, dtype, tile_of(target, TILE), origin)
        for begin in range(0, len(passed), MOST):
            part = slice(begin, begin + MOST)
            spec = _kernel(name, dtype, tuple([group.pattern for group in groups[part]]))
            out = Map(Launch(spec, (out, *passed[part], sum(lengths[:begin])), origin), FIRST, origin)
        result: AnyOp = reshaped(Map(out, UNCUT, origin), Layout(dtype, target, (), 0), shape, origin)
        return result

    return array_call(name, names, tuple(parts), build, origin)


def _arrange(name: str, layouts: list[Layout], axis: object, origin: Origin) -> tuple[list[AxisGroups], Shape]:
    """Return the groups of axes before, along and after the axis for each part, and the shape of the result.

    Raises:
        KernelArgumentError: the element types differ.
        ShapeError: the shapes do not fit together, or there is no such axis.
    """
    types = dict.fromkeys([layout.dtype for layout in layouts])
    if len(types) > 1:
        what = f"parts of {' and '.join(map(type_name, types))}"
        raise refused_call(name, origin, what, "Convert one: convert(t, f32), say")
    first = layouts[0].shape
    new = name == "stack"
    place = one_axis(axis, len(first) + new, name, origin, "the result" if new else "parts[0]")
    for n, layout in enumerate(layouts):
        if _without(layout.shape, place, new) != _without(first, place, new):
            allowed = "Give all parts one shape" if new else f"Give all parts one shape but for axis {place}"
            raise ShapeError(
                f"{name} at {describe(origin)}: parts[0] has shape {first}, and parts[{n}] has {layout.shape}. "
                f"{allowed}: reshape one, x.reshape((n, 1)), say."
            )
    after = len(first) - place - (not new)
    groups = [group_axes(layout, (place, 0 if new else 1, after)) for layout in layouts]
    along = sum([group.extents[1] for group in groups])
    return groups, (*first[:place], along, *first[len(first) - after :])


def _without(shape: Shape, place: int, new: bool) -> Shape | None:
    """Return what must be equal of a part's shape: all of it, or all but the axis; None without such an axis."""
    if new:
        return shape
    return (*shape[:place], *shape[place + 1 :], len(shape)) if place < len(shape) else None


@cache
def _kernel(name: str, dtype: "np.dtype[Any]", patterns: tuple[GroupPattern, ...]) -> KernelSpec:
    """Return the kernel that writes the elements of several parts, from the place `first` of the axis on."""
    element = memory_type(dtype)
    params, formals, choices = [output("out", dtype, 3)], "", ""
    for n, pattern in enumerate(patterns):
        params.append(tensor_input(f"x{n}", dtype, pattern.rank))
        formals += f"View<const {element}, {pattern.rank}> x{n}, "
        choices += CHOICE.format(
            extent=extent_text(f"x{n}", pattern, 1), value=element_text(f"x{n}", pattern, ("o", "at", "n"))
        )
    params.append(number_input("first", np.dtype(np.int64), name))
    text = TEXT.format(name=name, element=element, formals=formals, choices=choices)
    return generated_kernel(name, params, text, _twin(patterns), (_kernel.__wrapped__.__code__, 0))


def _twin(patterns: tuple[GroupPattern, ...]) -> Callable[..., None]:
    def body(out: Any, *arguments: Any) -> None:
        *parts, begin = arguments
        for x, pattern in zip(parts, patterns, strict=True):
            array = grouped_array(x, pattern)
            out[:, begin : begin + array.shape[1]] = array
            begin += array.shape[1]

    return body
