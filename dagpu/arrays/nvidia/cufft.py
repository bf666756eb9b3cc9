"""Fourier transforms of the rows or the columns of contiguous matrices by cuFFT, by address.

One plan is made for each shape, and kept for its next use. A plan holds a stream and a work area. A call sets what
differs from the call before, under a lock, so one plan serves all lanes: what a call has enqueued refers to the stream
and the work area of that call.
"""

import threading
from collections.abc import Sequence
from functools import partial
from math import ceil, log2
from typing import Any, Final, NamedTuple, final

from dagpu.arrays.nvidia.libraries import KeptPlans, import_bindings, library_error, open_handle
from dagpu.common.layout import Layout
from dagpu.handles.device_handles import Effort, Enqueue

MOST: Final = 64
"""The most plans that are kept for a device. Each has tables in the device's memory, up to a few times its row."""

# cufft.h: the types of transforms, by the element types of the input and of the output, and the directions.
_TYPES: Final = {
    ("float32", "complex64"): (42, "exec_r2c"), ("complex64", "float32"): (44, "exec_c2r"),
    ("complex64", "complex64"): (41, "exec_c2c"), ("float64", "complex128"): (106, "exec_d2z"),
    ("complex128", "float64"): (108, "exec_z2d"), ("complex128", "complex128"): (105, "exec_z2z"),
}  # fmt: skip
_DIRECTIONS: Final = {False: -1, True: 1}
_PASS: Final = 12
"""Bits of an extent that cuFFT is taken to transform in a pass: 4,096 elements fit in the shared memory of a block."""


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
        self.waits: Final = False
        self.no_graph: Final = ""

    def scratch_bytes(self, operands: Sequence[Layout], device: int) -> int:
        return self._plan(operands, device).scratch

    def bind(self, operands: Sequence[Layout], device: int) -> Enqueue:
        return self._plan(operands, device).enqueue

    def is_known(self, operands: Sequence[Layout], device: int) -> bool:
        out, x = operands
        return PLANS.is_known(device, out, x, self._how)

    def effort(self, operands: Sequence[Layout]) -> Effort:
        """5 n log2 n operations for each transform of n elements (Cooley and Tukey, 1965), half as many where one side
        is real, and a pass over the data for each `_PASS` bits of n."""
        out, x = operands
        count = max(x.shape[self._how.axis], out.shape[self._how.axis])
        batch = x.shape[1 - self._how.axis]
        bits = max(log2(count), 1.0) if count else 1.0
        operations = 5.0 * batch * count * bits * (1.0 if x.dtype.kind == out.dtype.kind else 0.5)
        return Effort("transform", operations, ceil(bits / _PASS) * (out.nbytes + x.nbytes))

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
