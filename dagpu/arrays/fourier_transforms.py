"""Fourier transforms, by cuFFT on a GPU and by NumPy on the host.

Both transform the rows of a contiguous matrix. cuFFT transforms its columns too, if they fit into one of its kernels.
Along any other axis with others after it, the tensor is transposed before, so that the axis is the last one, and its
transform is transposed back.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.axis_maps import rolled
from dagpu.arrays.nvidia.cufft import CufftTransforms
from dagpu.arrays.products.matrix_products import resize_kernel, scale_kernel
from dagpu.arrays.rearranging import from_rows, rows_along
from dagpu.arrays.reductions import checked_input, converted, normal_axes
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape, c64, c128, contiguous_layout, f32, f64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.expression import TILE
from dagpu.kernels.expression_text import tile_of
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    contiguous_copy,
    first_output,
    library_kernel,
    move_arguments,
    new_output,
    output,
    refused_call,
    reshaped,
    tensor_input,
)
from dagpu.kernels.operations import type_name
from dagpu.kernels.row_elements import one_axis
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Cut, Map
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import Constant
from dagpu.ops.kernel_spec import KernelSpec

# Constrained, not bounded: handles are covariant.
_C = TypeVar("_C", c64, c128)
_A = TypeVar("_A", bound=np.generic)

Norm: TypeAlias = Literal["backward", "ortho", "forward"] | None
"""Which transform is divided by n, the number of elements that are transformed: the inverse ("backward", or None), each
by the root of n, or the one that is not the inverse."""

_COMPLEX: Final[dict[str, type[np.generic]]] = {"float32": c64, "complex64": c64, "float64": c128, "complex128": c128}
"""The complex elements that a transform computes with, by the elements that it takes."""
_REAL: Final[dict[str, type[np.generic]]] = {"complex64": f32, "complex128": f64}
"""The elements of the result of an inverse transform to real numbers."""


ALIGNED: Final = 16
"""cuFFT wants elements at multiples of their size, of which this is the largest."""
COLUMN: Final = 1 << 15
"""The most bytes of a column that cuFFT transforms as it lies. On an H200 that takes 9 us for 2^20 elements of c64 in
columns of 1,024, where two transpositions and a transform of rows take 20; 93 and 250 us for 2^24 elements in such
columns, 139 and 230 in columns of 4,096, but 445 and 278 in columns of 16,384, for which cuFFT has several kernels."""


@overload
def fft(x: In[_C], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[_C], Any]: ...
@overload
def fft(x: In[f32], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[c64], Any]: ...  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
@overload
def fft(x: In[f64], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def fft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """Return the discrete Fourier transform of each row along an axis. Real elements become complex ones before.

    On a GPU it is a call of cuFFT (extra `math`) on scratch memory of the plan, in streams and in graphs; on the host
    it is `numpy.fft`. The two round differently: the error of both is about `eps * log2(n)` times the norm of a row.

    Args:
        x: a tensor of c64, c128, f32 or f64, or an op whose result is one.
        n: the elements of a row that are transformed; the row is cut, or zeros are added. None for all.
        axis: the axis of the rows; a negative number counts from the last one. Along another axis than the first and
            the last one, and for long columns, two more launches of a kernel transpose the elements.
        norm: "ortho" multiplies the result by `n ** -0.5`, "forward" by `1 / n`, "backward" by nothing.

    Raises:
        KernelArgumentError: x has other elements, or there is no such `norm`.
        ShapeError: x has no such axis, n is not a whole number of 1 or more, or rows without elements are to
            be transformed without n.
        DeviceError: the run raises it if cuFFT is missing or refuses.
    """
    return _transform("fft", x, n, axis, norm)


@overload
def ifft(x: In[_C], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[_C], Any]: ...
@overload
def ifft(x: In[f32], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[c64], Any]: ...  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
@overload
def ifft(x: In[f64], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def ifft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """Return the inverse of `fft` along an axis, divided by n. Arguments and errors are those of `fft`; of `norm`,
    "ortho" multiplies by `n ** -0.5`, and "forward" by nothing."""
    return _transform("ifft", x, n, axis, norm)


@overload
def rfft(x: In[f32], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[c64], Any]: ...  # type: ignore[overload-overlap]  # reason: no handle has elements of both types
@overload
def rfft(x: In[f64], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def rfft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """Return the first `n // 2 + 1` elements of the Fourier transform of each row of real numbers; the others are their
    conjugates. Arguments and errors are those of `fft`, but x has elements of f32 or f64."""
    return _transform("rfft", x, n, axis, norm)


@overload
def irfft(x: In[c64], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[f32], Any]: ...  # type: ignore[overload-overlap]  # reason: no handle has elements of both types
@overload
def irfft(x: In[c128], n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DeviceOp[Tensor[f64], Any]: ...
@leaves_run
def irfft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """Return the inverse of `rfft`: n real numbers of the first `n // 2 + 1` elements of each row.

    The imaginary parts of the first element, and for an even n of the last one, do not count. Without n it is twice
    the extent less two, so an odd n must be said. Arguments and errors are those of `fft`, but x has elements of c64 or
    c128; `norm` is that of `ifft`.
    """
    return _transform("irfft", x, n, axis, norm)


@overload
def fftn(
    x: In[_C], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[_C], Any]: ...
@overload
def fftn(  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
    x: In[f32], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[c64], Any]: ...
@overload
def fftn(
    x: In[f64], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def fftn(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward") -> Any:
    """Return the Fourier transform along several axes: `fft` along each of them, the last one first.

    Args:
        x: a tensor of c64, c128, f32 or f64, or an op whose result is one.
        s: the elements that are transformed along each of the axes, as `n` of `fft`; -1 for all of one. None for all.
        axes: different axes. None for all, or with `s` for as many of the last ones.
        norm: as in `fft`, where n is the product of the elements along the axes.

    Raises:
        KernelArgumentError: x has other elements, or there is no such `norm`.
        ShapeError: x has no such axes, or there is not a number of `s` for each.
        DeviceError: the run raises it if cuFFT is missing or refuses.
    """
    return _transform_all("fftn", x, s, axes, norm)


@overload
def ifftn(
    x: In[_C], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[_C], Any]: ...
@overload
def ifftn(  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
    x: In[f32], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[c64], Any]: ...
@overload
def ifftn(
    x: In[f64], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def ifftn(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward") -> Any:
    """Return the inverse of `fftn`. Arguments and errors are those of `fftn`."""
    return _transform_all("ifftn", x, s, axes, norm)


@overload
def rfftn(  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
    x: In[f32], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[c64], Any]: ...
@overload
def rfftn(
    x: In[f64], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def rfftn(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward") -> Any:
    """Return the Fourier transform of real numbers along several axes: `rfft` along the last of them, and `fft` along
    the others. Arguments and errors are those of `fftn`, but x has elements of f32 or f64."""
    return _transform_all("rfftn", x, s, axes, norm)


@overload
def irfftn(  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
    x: In[c64], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[f32], Any]: ...
@overload
def irfftn(
    x: In[c128], s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> DeviceOp[Tensor[f64], Any]: ...
@leaves_run
def irfftn(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward") -> Any:
    """Return the inverse of `rfftn`: real numbers. Without `s` there are twice the extent less two of them along the
    last of the axes. Arguments and errors are those of `fftn`, but x has elements of c64 or c128."""
    return _transform_all("irfftn", x, s, axes, norm)


@overload
def fft2(
    x: In[_C], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[_C], Any]: ...
@overload
def fft2(  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
    x: In[f32], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[c64], Any]: ...
@overload
def fft2(
    x: In[f64], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def fft2(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward") -> Any:
    """Return the Fourier transform of each matrix: `fftn` along the last two axes."""
    return _transform_all("fft2", x, s, axes, norm)


@overload
def ifft2(
    x: In[_C], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[_C], Any]: ...
@overload
def ifft2(  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
    x: In[f32], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[c64], Any]: ...
@overload
def ifft2(
    x: In[f64], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def ifft2(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward") -> Any:
    """Return the inverse of `fft2`: `ifftn` along the last two axes."""
    return _transform_all("ifft2", x, s, axes, norm)


@overload
def rfft2(  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
    x: In[f32], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[c64], Any]: ...
@overload
def rfft2(
    x: In[f64], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def rfft2(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward") -> Any:
    """Return the Fourier transform of each matrix of real numbers: `rfftn` along the last two axes."""
    return _transform_all("rfft2", x, s, axes, norm)


@overload
def irfft2(  # type: ignore[overload-overlap]  # reason: no element and no handle is of both types
    x: In[c64], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[f32], Any]: ...
@overload
def irfft2(
    x: In[c128], s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward"
) -> DeviceOp[Tensor[f64], Any]: ...
@leaves_run
def irfft2(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: Norm = "backward") -> Any:
    """Return the inverse of `rfft2`: `irfftn` along the last two axes."""
    return _transform_all("irfft2", x, s, axes, norm)


@leaves_run
def fftshift(x: In[_A], axes: int | tuple[int, ...] | None = None) -> DeviceOp[Tensor[_A], Any]:
    """Return `x` with the element of frequency 0 in the middle of some axes: each is rolled by half of its extent.

    Args:
        x: a tensor, or an op whose result is one.
        axes: the axes; None for all.

    Raises:
        ShapeError: x has no such axis.
    """
    return _shifted("fftshift", x, axes)


@leaves_run
def ifftshift(x: In[_A], axes: int | tuple[int, ...] | None = None) -> DeviceOp[Tensor[_A], Any]:
    """Return `x` with the element of frequency 0 first again, as before `fftshift`. Arguments and errors are its."""
    return _shifted("ifftshift", x, axes)


def _shifted(name: str, x: Any, axes: object) -> AnyOp:
    origin = here()

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = checked_input(name, layouts[0], "any", origin)
        chosen = normal_axes(axes, len(layout.shape), name, origin)
        halves = [layout.shape[axis] // 2 for axis in chosen]
        shifts = {axis: n if name == "fftshift" else -n for axis, n in zip(chosen, halves, strict=True)}
        return rolled(name, arguments[0], shifts, origin)

    return array_call(name, ("x",), (x,), build, origin)


# ---- along one axis, or several
@final
class Step(NamedTuple):
    """A transform along one axis: its name, the axis, and the number of its elements."""

    name: str
    axis: int
    length: int


def _transform(name: str, x: Any, n: object, axis: object, norm: object) -> AnyOp:
    origin = here()
    asked = None if n is None else _checked_count(name, "n", n, origin)
    _check_norm(name, norm, origin)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = _checked(name, layouts[0], origin)
        place = one_axis(axis, len(layout.shape), name, origin)
        steps = [step_along(name, name, layout, place, asked, "n", origin)]
        return _in_steps(name, arguments, layout, steps, norm, origin)

    return array_call(name, ("x",), (x,), build, origin)


def _transform_all(name: str, x: Any, s: Any, axes: Any, norm: object) -> AnyOp:
    origin = here()
    counts = None if s is None else _listed(name, "s", s, origin)
    asked = None if counts is None else [None if n == -1 else _checked_count(name, "s", n, origin) for n in counts]
    chosen = None if axes is None else tuple(_listed(name, "axes", axes, origin))
    _check_norm(name, norm, origin)
    first = name[:-1]

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout = _checked(first, layouts[0], origin, name)
        rank = len(layout.shape)
        wanted = range(-len(asked), 0) if chosen is None and asked is not None else chosen
        places = normal_axes(None if wanted is None else tuple(wanted), rank, name, origin)
        numbers = [None] * len(places) if asked is None else asked
        if len(numbers) != len(places) or not places:
            raise ShapeError(
                f"{name} at {describe(origin)}: s has {len(numbers)} numbers for {len(places)} axes. Give one for each "
                "axis, of which there is one at least."
            )
        steps = steps_along(name, layout, places, numbers, origin)
        return _in_steps(name, arguments, layout, steps, norm, origin)

    return array_call(name, ("x",), (x,), build, origin)


def _listed(name: str, param: str, given: Any, origin: Origin) -> list[int]:
    """Return whole numbers, one for each axis. `param` is the name of the argument."""
    listed = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    found = [as_whole_number(each) for each in given] if listed else [None]
    numbers = [each for each in found if each is not None]
    if len(numbers) != len(found):
        raise ShapeError(
            f"{name} at {describe(origin)}: {param} is {format_value(given)}, but a number for each axis is wanted. "
            f"Write {param}={(0, 1) if param == 'axes' else (64, 64)}, say."
        )
    return numbers


def _checked_count(name: str, param: str, n: object, origin: Origin) -> int:
    count = as_whole_number(n)
    if count is None or count < 1:
        raise ShapeError(
            f"{name} at {describe(origin)}: {param} is {format_value(n)}, but it counts elements. Give a whole number "
            "of 1 or more, or leave it out."
        )
    return count


def steps_along(
    name: str, layout: Layout, axes: Sequence[int], counts: Sequence[int | None], origin: Origin
) -> list[Step]:
    """Return the transforms along several axes in their order: that of real numbers is along the last of the axes, and
    comes first, or last where the result is real."""
    first = name[:-1]
    others = {"rfft": "fft", "irfft": "ifft"}.get(first, first)
    steps = [
        step_along(first if at == len(axes) - 1 else others, name, layout, axis, count, "s", origin)
        for at, (axis, count) in enumerate(zip(axes, counts, strict=True))
    ]
    return steps if first == "irfft" else steps[::-1]


def step_along(
    name: str, called: str, layout: Layout, axis: int, asked: int | None, param: str, origin: Origin
) -> Step:
    """Return the transform along an axis of a tensor. `called` is the user's function."""
    extent = layout.shape[axis]
    count = asked if asked is not None else 2 * (extent - 1) if name == "irfft" else extent
    if count < 1:
        raise ShapeError(
            f"{called} at {describe(origin)}: a row of {layout.shape} along axis {axis} gives {max(count, 0)} "
            f"elements, so there is nothing to transform. Give {param}, or longer rows."
        )
    return Step(name, axis, count)


_NORMS: Final = ("backward", "ortho", "forward")


def _check_norm(name: str, norm: object, origin: Origin) -> None:
    if not isinstance(norm, str | None) or norm not in (None, *_NORMS):
        cure = 'Write "backward", "ortho" or "forward"'
        raise refused_call(name, origin, f"norm is {format_value(norm)}", cure)


def _factor(steps: Sequence[Step], norm: object) -> float:
    """Return the number by which the sums of transforms are multiplied."""
    count, inverse = prod([step.length for step in steps]), steps[0].name[0] == "i"
    if norm == "ortho":
        return float(count**-0.5)
    return 1 / count if inverse is (norm != "forward") else 1.0


def _in_steps(
    name: str, arguments: tuple[Any, ...], layout: Layout, steps: Sequence[Step], norm: object, origin: Origin
) -> AnyOp:
    """Return the op of transforms, one after the other, of an argument that has not moved."""
    if layout.dtype.kind != "c" and steps[0].name != "rfft":
        target = np.dtype(_COMPLEX[layout.dtype.name])
        x: Any = converted(layout.dtype, target).build(arguments, origin)
        layout = contiguous_layout(layout.shape, target)
    else:
        (x,) = move_arguments(name, arguments, origin)
    for step in steps:
        factor = _factor(steps, norm) if step is steps[-1] else 1.0
        x, layout = _along(step, x, layout, factor, origin)
    found: AnyOp = x
    return found


def _other_type(name: str, dtype: "np.dtype[Any]") -> str:
    """Return the cure for elements that a transform does not take."""
    if dtype.kind != "c":
        return "Convert the tensor before: convert(t, f32)"
    return "Use fft for complex numbers" if name == "rfft" else "Take their real part: array.real(t)"


def _checked(name: str, layout: Layout | None, origin: Origin, called: str = "") -> Layout:
    """Return the layout of the input of a transform, which the user may have `called` by another name."""
    called = called or name
    if layout is None:
        raise refused_call(called, origin, "x is a number", "Pass a tensor: full((1,), x), say")
    kinds = {"rfft": "f", "irfft": "c"}.get(name, "cf")
    wanted = [np.dtype(each) for each in _COMPLEX if np.dtype(each).kind in kinds]
    if layout.dtype not in wanted:
        what = f"it takes elements of {' or '.join(map(type_name, wanted))}, not of {type_name(layout.dtype)}"
        raise refused_call(called, origin, what, _other_type(name, layout.dtype))
    if not layout.shape:
        raise ShapeError(
            f"{called} at {describe(origin)}: x has no axis, so it has no rows. Reshape it: x.reshape((1,)), say."
        )
    return layout


def _along(step: Step, x: Any, layout: Layout, factor: float, origin: Origin) -> tuple[AnyOp, Layout]:
    """Return the op of the transforms of all rows along an axis, multiplied by a factor, of an argument that has moved,
    and the layout of its result."""
    name, axis, count = step
    result = np.dtype((_REAL if name == "irfft" else _COMPLEX)[layout.dtype.name])
    made = count // 2 + 1 if name == "rfft" else count
    shape: Shape = (*layout.shape[:axis], made, *layout.shape[axis + 1 :])
    after = contiguous_layout(shape, result)
    if 0 in shape or not layout.size:  # a row without elements becomes one of zeros
        return Alloc(shape, result, Constant(0), origin), after
    size = prod(shape[axis + 1 :])
    if size > 1 and prod(shape[:axis]) == 1 and _fits_column(layout, result, count):
        given = contiguous_layout((layout.shape[axis], size), layout.dtype)
        fresh = not layout.contiguous or layout.offset % ALIGNED != 0
        if fresh:
            x, layout = contiguous_copy(x, origin), contiguous_layout(layout.shape, layout.dtype)
        columns = reshaped(x, layout, given.shape, origin)
        found = _transforms(name, columns, given, result, count, 0, fresh, factor, origin)
        return reshaped(found, contiguous_layout((made, size), result), shape, origin), after
    given = contiguous_layout((layout.size // layout.shape[axis], layout.shape[axis]), layout.dtype)
    rows, fresh = rows_along(x, layout, axis, origin, multiple=ALIGNED)
    op = _transforms(name, rows, given, result, count, 1, fresh, factor, origin)
    return from_rows(op, result, shape, axis, origin), after


def _fits_column(layout: Layout, result: "np.dtype[Any]", count: int) -> bool:
    """True if cuFFT is to transform columns of this many elements as they lie."""
    return count * max(layout.dtype.itemsize, result.itemsize) <= COLUMN


def _transforms(
    name: str,
    x: Any,
    layout: Layout,
    result: "np.dtype[Any]",
    count: int,
    axis: int,
    fresh: bool,
    factor: float,
    origin: Origin,
) -> AnyOp:
    """Return the op of the transforms along an axis of a contiguous matrix, multiplied by a factor. With `fresh` it is
    a temporary, which may be overwritten."""
    given = count // 2 + 1 if name == "irfft" else count
    made = count // 2 + 1 if name == "rfft" else count
    before, after = [(*layout.shape[:axis], each, *layout.shape[axis + 1 :]) for each in (given, made)]
    if layout.shape != before or (name == "irfft" and not fresh):  # the library overwrites the input of irfft
        target = new_output(before, layout.dtype, tile_of(before, TILE), origin)
        x = first_output(resize_kernel(layout.dtype), (target, x), origin)
    if name == "irfft":
        x = Map(x, Cut(before, True), origin)
    target = new_output(after, result, after, origin)
    found = first_output(_kernel(name, layout.dtype, result, axis), (target, x), origin)
    if factor != 1:
        scaled = new_output(after, result, tile_of(after, TILE), origin)
        found = first_output(scale_kernel(result), (scaled, found, factor), origin)
    return found


@cache
def _kernel(name: str, dtype: "np.dtype[Any]", result: "np.dtype[Any]", axis: int) -> KernelSpec:
    source = output("x", dtype, 2) if name == "irfft" else tensor_input("x", dtype, 2)
    body = CufftTransforms(name in ("ifft", "irfft"), axis)
    place = (_kernel.__wrapped__.__code__, 0)
    return library_kernel(name, [output("y", result, 2), source], body, _twin(name, axis), place)


def _twin(name: str, axis: int) -> Callable[..., None]:
    """Return the host body of a transform. The inverse is not scaled, as that of the library."""
    transform: Any = getattr(np.fft, name)

    def body(y: NDArray[Any], x: NDArray[Any]) -> None:
        options = {"n": y.shape[axis], "norm": "forward"} if name == "irfft" else {}
        if name == "ifft":
            options = {"norm": "forward"}
        y[...] = transform(x, axis=axis, **options).astype(y.dtype, copy=False)

    return body
