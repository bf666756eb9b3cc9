"""Fourier transforms, by cuFFT on a GPU and by NumPy on the host.

Both transform the rows of a contiguous matrix. cuFFT transforms its columns too, if they fit into one of its kernels.
Along any other axis with others after it, the tensor is transposed before, so that the axis is the last one, and its
transform is transposed back.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any, Final, NamedTuple, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.arrays.libraries import KeptPlans, import_bindings, library_error, open_handle
from dagpu.arrays.matrix_products import resize_kernel, scale_kernel
from dagpu.arrays.rearranging import from_rows, rows_along
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, Shape, c64, c128, contiguous_layout, f32, f64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.handles import Tensor
from dagpu.handles.device_handles import Enqueue
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
from dagpu.kernels.operations import DOMAINS, type_name
from dagpu.kernels.row_elements import one_axis
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Cut, Map
from dagpu.ops.creation import Alloc
from dagpu.ops.initializers import Constant
from dagpu.ops.kernel_spec import KernelSpec

# Constrained, not bounded: handles are covariant.
_C = TypeVar("_C", c64, c128)

_RESULTS: Final[dict[str, dict[str, type[np.generic]]]] = {
    "fft": {"complex64": c64, "complex128": c128},
    "ifft": {"complex64": c64, "complex128": c128},
    "rfft": {"float32": c64, "float64": c128},
    "irfft": {"complex64": f32, "complex128": f64},
}
"""For each transform the element types that it takes, and those of its result."""


ALIGNED: Final = 16
"""cuFFT wants elements at multiples of their size, of which this is the largest."""
COLUMN: Final = 1 << 15
"""The most bytes of a column that cuFFT transforms as it lies. On an H200 that takes 9 us for 2^20 elements of c64 in
columns of 1,024, where two transpositions and a transform of rows take 20; 93 and 250 us for 2^24 elements in such
columns, 139 and 230 in columns of 4,096, but 445 and 278 in columns of 16,384, for which cuFFT has several kernels."""


@leaves_run
def fft(x: In[_C], n: int | None = None, axis: int = -1) -> DeviceOp[Tensor[_C], Any]:
    """Return the discrete Fourier transform of each row along an axis.

    On a GPU it is a call of cuFFT (extra `math`) on scratch memory of the plan, in streams and in graphs; on the host
    it is `numpy.fft`. The two round differently: the error of both is about `eps * log2(n)` times the norm of a row.

    Args:
        x: a tensor of c64 or c128, or an op whose result is one.
        n: the elements of a row that are transformed; the row is cut, or zeros are added. None for all.
        axis: the axis of the rows; a negative number counts from the last one. Along another axis than the first and
            the last one, and for long columns, two more launches of a kernel transpose the elements.

    Raises:
        KernelArgumentError: x has other elements.
        ShapeError: x has no such axis, n is not a whole number of 1 or more, or rows without elements are to
            be transformed without n.
        DeviceError: the run raises it if cuFFT is missing or refuses.
    """
    return _transform("fft", x, n, axis)


@leaves_run
def ifft(x: In[_C], n: int | None = None, axis: int = -1) -> DeviceOp[Tensor[_C], Any]:
    """Return the inverse of `fft` along an axis, divided by n. Arguments and errors are those of `fft`."""
    return _transform("ifft", x, n, axis)


@overload
def rfft(x: In[f32], n: int | None = None, axis: int = -1) -> DeviceOp[Tensor[c64], Any]: ...  # type: ignore[overload-overlap]  # reason: no handle has elements of both types
@overload
def rfft(x: In[f64], n: int | None = None, axis: int = -1) -> DeviceOp[Tensor[c128], Any]: ...
@leaves_run
def rfft(x: Any, n: int | None = None, axis: int = -1) -> Any:
    """Return the first `n // 2 + 1` elements of the Fourier transform of each row of real numbers; the others are their
    conjugates. Arguments and errors are those of `fft`, but x has elements of f32 or f64."""
    return _transform("rfft", x, n, axis)


@overload
def irfft(x: In[c64], n: int | None = None, axis: int = -1) -> DeviceOp[Tensor[f32], Any]: ...  # type: ignore[overload-overlap]  # reason: no handle has elements of both types
@overload
def irfft(x: In[c128], n: int | None = None, axis: int = -1) -> DeviceOp[Tensor[f64], Any]: ...
@leaves_run
def irfft(x: Any, n: int | None = None, axis: int = -1) -> Any:
    """Return the inverse of `rfft`: n real numbers of the first `n // 2 + 1` elements of each row.

    The imaginary parts of the first element, and for an even n of the last one, do not count. Without n it is twice
    the extent less two, so an odd n must be said. Arguments and errors are those of `fft`.
    """
    return _transform("irfft", x, n, axis)


def _transform(name: str, x: Any, n: object, axis: object) -> AnyOp:
    origin = here()
    asked = None if n is None else as_whole_number(n)
    if n is not None and (asked is None or asked < 1):
        raise ShapeError(
            f"{name} at {describe(origin)}: n is {format_value(n)}, but it counts elements. Give a whole number of 1 "
            "or more, or leave it out."
        )

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        layout, result = _checked(name, layouts[0], origin)
        place = one_axis(axis, len(layout.shape), name, origin)
        extent = layout.shape[place]
        count = asked if asked is not None else _count(name, extent)
        if count < 1:
            raise ShapeError(
                f"{name} at {describe(origin)}: a row of {layout.shape} along axis {place} gives {max(count, 0)} "
                "elements, so there is nothing to transform. Give n, or longer rows."
            )
        (moved,) = move_arguments(name, arguments, origin)
        return _along(name, moved, layout, result, count, place, origin)

    return array_call(name, ("x",), (x,), build, origin)


def _count(name: str, extent: int) -> int:
    return 2 * (extent - 1) if name == "irfft" else extent


def _other_type(name: str, dtype: "np.dtype[Any]") -> str:
    """Return the cure for elements that a transform does not take. Real ones are not converted to complex ones."""
    if name == "rfft":
        return "Use fft for complex numbers" if dtype.kind == "c" else "Convert the tensor before: convert(t, f32)"
    if name == "fft":
        return "Use rfft for real numbers" + ("" if dtype in DOMAINS["float"] else ": rfft(convert(t, f32))")
    return "Make them complex on the host: from_host(array.astype(np.complex64))"


def _checked(name: str, layout: Layout | None, origin: Origin) -> tuple[Layout, "np.dtype[Any]"]:
    """Return the layout of the input, and the element type of the result."""
    if layout is None:
        raise refused_call(name, origin, "x is a number", "Pass a tensor: full((1,), x), say")
    result = _RESULTS[name].get(layout.dtype.name)
    if result is None:
        wanted = " or ".join([type_name(np.dtype(each)) for each in _RESULTS[name]])
        what = f"it takes elements of {wanted}, not of {type_name(layout.dtype)}"
        raise refused_call(name, origin, what, _other_type(name, layout.dtype))
    if not layout.shape:
        raise ShapeError(
            f"{name} at {describe(origin)}: x has no axis, so it has no rows. Reshape it: x.reshape((1,)), say."
        )
    return layout, np.dtype(result)


def _along(name: str, x: Any, layout: Layout, result: "np.dtype[Any]", count: int, axis: int, origin: Origin) -> AnyOp:
    """Return the op of the transforms of all rows along an axis, of an argument that has moved."""
    made = count // 2 + 1 if name == "rfft" else count
    shape: Shape = (*layout.shape[:axis], made, *layout.shape[axis + 1 :])
    if 0 in shape or not layout.size:  # a row without elements becomes one of zeros
        return Alloc(shape, result, Constant(0), origin)
    size = prod(shape[axis + 1 :])
    if size > 1 and prod(shape[:axis]) == 1 and _fits_column(layout, result, count):
        given = contiguous_layout((layout.shape[axis], size), layout.dtype)
        fresh = not layout.contiguous or layout.offset % ALIGNED != 0
        if fresh:
            x, layout = contiguous_copy(x, origin), contiguous_layout(layout.shape, layout.dtype)
        columns = reshaped(x, layout, given.shape, origin)
        found = _transforms(name, columns, given, result, count, 0, fresh, origin)
        transformed: AnyOp = reshaped(found, contiguous_layout((made, size), result), shape, origin)
        return transformed
    given = contiguous_layout((layout.size // layout.shape[axis], layout.shape[axis]), layout.dtype)
    rows, fresh = rows_along(x, layout, axis, origin, multiple=ALIGNED)
    return from_rows(_transforms(name, rows, given, result, count, 1, fresh, origin), result, shape, axis, origin)


def _fits_column(layout: Layout, result: "np.dtype[Any]", count: int) -> bool:
    """True if cuFFT is to transform columns of this many elements as they lie."""
    return count * max(layout.dtype.itemsize, result.itemsize) <= COLUMN


def _transforms(
    name: str, x: Any, layout: Layout, result: "np.dtype[Any]", count: int, axis: int, fresh: bool, origin: Origin
) -> AnyOp:
    """Return the op of the transforms along an axis of a contiguous matrix. With `fresh` it is a temporary, which may
    be overwritten."""
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
    if name in ("ifft", "irfft"):
        scaled = new_output(after, result, tile_of(after, TILE), origin)
        found = first_output(scale_kernel(result), (scaled, found, 1 / count), origin)
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


# ---- cufft
#
# Fourier transforms of the rows or the columns of contiguous matrices by cuFFT, by address. One plan is made for each
# shape, and kept for its next use.
#
# A plan holds a stream and a work area. A call sets what differs from the call before, under a lock, so one plan serves
# all lanes: what a call has enqueued refers to the stream and the work area of that call.

MOST: Final = 64
"""The most plans that are kept for a device. Each has tables in the device's memory, up to a few times its row."""

# cufft.h: the types of transforms, by the element types of the input and of the output, and the directions.
_TYPES: Final = {
    ("float32", "complex64"): (42, "exec_r2c"), ("complex64", "float32"): (44, "exec_c2r"),
    ("complex64", "complex64"): (41, "exec_c2c"), ("float64", "complex128"): (106, "exec_d2z"),
    ("complex128", "float64"): (108, "exec_z2d"), ("complex128", "complex128"): (105, "exec_z2z"),
}  # fmt: skip
_DIRECTIONS: Final = {False: -1, True: 1}


@final
class Direction(NamedTuple):
    """What a transform is beside its shapes: the inverse or not, and the axis of a matrix along which it is."""

    inverse: bool
    axis: int


@final
class CufftTransforms:
    """The device body of a transform of each row, or with axis 0 of each column, of a contiguous matrix: its operands
    are the result and the input.

    The inverse is not scaled. A transform from complex to real elements overwrites its input. Implements `LibraryBody`.
    """

    def __init__(self, inverse: bool, axis: int) -> None:
        self._how = Direction(inverse, axis)

    def scratch_bytes(self, operands: Sequence[Layout], device: int) -> int:
        return self._plan(operands, device).scratch

    def bind(self, operands: Sequence[Layout], device: int) -> Enqueue:
        return self._plan(operands, device).enqueue

    def is_known(self, operands: Sequence[Layout], device: int) -> bool:
        out, x = operands
        return PLANS.is_known(device, out, x, self._how)

    def _plan(self, operands: Sequence[Layout], device: int) -> "TransformPlan":
        out, x = operands
        return PLANS.find(device, out, x, self._how)


@final
class TransformPlan:
    """A plan of cuFFT."""

    def __init__(self, bindings: Any, plan: int, out: Layout, x: Layout, how: Direction) -> None:
        self._bindings = bindings
        self._plan = plan
        self.release: partial[object] = partial(bindings.destroy, plan)
        """Frees the plan and its tables."""
        self._lock = threading.Lock()
        self._stream: int | None = None
        """The stream that the plan holds; None if it is not known."""
        self._work_area: int | None = None
        """The address of the work area that the plan holds; None if it is not known."""
        kind, call = _TYPES[x.dtype.name, out.dtype.name]
        self._call: Any = getattr(bindings, call)
        self._direction = (_DIRECTIONS[how.inverse],) if x.dtype.kind == out.dtype.kind else ()
        given, made, batch = x.shape[how.axis], out.shape[how.axis], x.shape[1 - how.axis]
        count = max(given, made)  # the real side has the elements of the transform
        stride, distances = (1, (given, made)) if how.axis else (batch, (1, 1))
        try:
            bindings.set_auto_allocation(plan, 0)
            size = bindings.make_plan_many64(
                plan, 1, [count], [given], stride, distances[0], [made], stride, distances[1], kind, batch
            )
        except BaseException as error:
            self.release()
            if not isinstance(error, Exception):
                raise
            raise library_error("cufftMakePlanMany64", error) from error
        self.scratch = int(size)
        """Bytes of the work area."""

    def enqueue(self, stream: int, addresses: Sequence[int], scratch: int) -> None:
        """Enqueue all transforms. `addresses` are those of the result and of the input.

        Raises:
            DeviceError: the library refuses it.
        """
        out, x = addresses
        try:
            with self._lock:
                if stream != self._stream:
                    self._stream = None
                    self._bindings.set_stream(self._plan, stream)
                    self._stream = stream
                if scratch and scratch != self._work_area:
                    self._work_area = None
                    self._bindings.set_work_area(self._plan, scratch)
                    self._work_area = scratch
                self._call(self._plan, x, out, *self._direction)
        except Exception as error:
            raise library_error("cufftExec", error) from error


@final
class TransformPlans:
    """The plans that have been made."""

    def __init__(self, most: int = MOST) -> None:
        self._made = KeptPlans[TransformPlan](most)

    def is_known(self, device: int, out: Layout, x: Layout, how: Direction) -> bool:
        """True if `find` returns at once."""
        return self._made.get(device, _key(out, x, how)) is not None

    def find(self, device: int, out: Layout, x: Layout, how: Direction) -> TransformPlan:
        """Return the plan of a transform. The context of the device must be current."""

        def make() -> TransformPlan:
            bindings = import_bindings("cufft", "cuFFT")
            return TransformPlan(bindings, open_handle(bindings, "cuFFT"), out, x, how)

        return self._made.find(device, _key(out, x, how), make)


def _key(out: Layout, x: Layout, how: Direction) -> tuple[object, ...]:
    return out.dtype, out.shape, x.dtype, x.shape, how


PLANS: Final = TransformPlans()
