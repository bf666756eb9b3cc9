"""Checked calls of the bodies of foreign ops: what a body may write, and what it must write.

An input must be the same after the call. An output lies between canaries, bytes that must not change, and so do the
bytes between the elements of a strided one. A new tensor and scratch memory begin with a pattern: an element of a new
tensor that has kept it, and also keeps the opposite pattern in a second call, has never been written.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dagpu.common.errors import ForeignError, KernelBoundsError
from dagpu.common.layout import Layout, Shape
from dagpu.common.places import describe
from dagpu.handles.device_handles import UserBody
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.plans.program import Launch

CANARY: Final = 256
"""Bytes before and after an output or scratch memory that must not change. A multiple of any alignment of a body."""

Bytes: TypeAlias = NDArray[np.uint8]


def is_checked(launch: Launch) -> bool:
    """Return True if the calls of a foreign op are checked."""
    kernel = launch.kernel
    return kernel.checked and isinstance(kernel.library, UserBody)


def ends_of(layout: Layout) -> tuple[int, int]:
    """Return the distances from the first element of a layout to the first byte in memory, and to the end of the last
    byte; both are 0 without elements."""
    if 0 in layout.shape:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(layout.shape, layout.strides, strict=True)]
    return sum([step for step in steps if step < 0]), sum([step for step in steps if step > 0]) + layout.dtype.itemsize


def output_name(kernel: KernelSpec, index: int) -> str:
    """Return the name of an output, by its index among the kernel's parameters, for messages."""
    first = len(kernel.params) - kernel.results
    return f"output {kernel.params[index].name!r}" if index < first else f"new tensor {index - first}"


def refuse_body(launch: Launch, what: str, cure: str) -> ForeignError:
    """Return the error for a body that does something else than its declaration says."""
    return ForeignError(
        f"{launch.kernel.label} (checked), called at {describe(launch.origin)}: its body {what}. {cure}."
    )


def refuse_changed_input(launch: Launch, index: int) -> ForeignError:
    """Return the error for a body that has written to an input, given its index among the parameters."""
    name = launch.kernel.params[index].name
    return refuse_body(launch, f"wrote to input {name!r}", "Declare it Out, or write to a copy")


@final
class GuardedMemory:
    """An image of an output, or of scratch memory, between canaries."""

    def __init__(self, layout: Layout, contents: Bytes | None, *, flipped: bool) -> None:
        """`contents` are the bytes that the memory begins with, from its first byte on; None for a pattern, the
        opposite one if `flipped`."""
        self._layout = layout
        low, high = ends_of(layout)
        self.nbytes = high - low
        """Bytes of the memory, without the canaries."""
        self.first = CANARY - low
        """The place of the first element in the image."""
        self.image: Bytes = (np.arange(self.nbytes + 2 * CANARY) * 37 % 251).astype(np.uint8)
        """The bytes before the call, with the canaries."""
        if flipped:
            np.invert(self.image, out=self.image)
        if contents is not None:
            self.inside(self.image)[...] = contents
        self._is_new = contents is None

    def inside(self, image: Bytes) -> Bytes:
        """Return the part of an image between the canaries."""
        return image[CANARY : CANARY + self.nbytes]

    def elements(self, image: NDArray[Any]) -> NDArray[Any]:
        """Return the bytes of an image's elements: a view with an axis of bytes after those of the layout."""
        layout = self._layout
        shape, strides = (*layout.shape, layout.dtype.itemsize), (*layout.strides, 1)
        return as_strided(image[self.first :], shape, strides)

    def overrun(self, after: Bytes) -> int:
        """Return the number of bytes outside of the elements that a call has changed."""
        changed = after != self.image
        if self.nbytes:
            self.elements(changed)[...] = False
        return int(np.count_nonzero(changed))

    def unwritten(self, after: Bytes) -> NDArray[np.bool_]:
        """Return for each element of a new tensor whether it still has the pattern."""
        if not self._is_new or not self.nbytes:
            return np.zeros(self._layout.shape, bool)
        same: NDArray[np.bool_] = (self.elements(after) == self.elements(self.image)).all(axis=-1)
        return same


def check_outputs(
    launch: Launch, guarded: Sequence[tuple[int, GuardedMemory]], after: Sequence[Bytes]
) -> list[NDArray[np.bool_]]:
    """Check the outputs of a call, each with its index among the parameters, given their images after it. Return for
    each the elements that have kept a pattern.

    Raises:
        ForeignError: the body has written bytes that are no element of an output.
    """
    for (index, memory), image in zip(guarded, after, strict=True):
        if overrun := memory.overrun(image):
            what = f"wrote {overrun} bytes outside of {output_name(launch.kernel, index)}"
            raise refuse_body(launch, what, "Keep to the shape and strides that it is given")
    return [memory.unwritten(image) for (_, memory), image in zip(guarded, after, strict=True)]


def check_written(
    launch: Launch, guarded: Sequence[tuple[int, GuardedMemory]], kept: Sequence[Sequence[NDArray[np.bool_]]]
) -> None:
    """Check that the body writes its outputs, given the elements that have kept the pattern in each of two calls.

    Raises:
        ForeignError: an element has kept both patterns.
    """
    for (index, _), *masks in zip(guarded, *kept, strict=True):
        never = np.logical_and.reduce(masks)
        if count := int(np.count_nonzero(never)):
            what = output_name(launch.kernel, index)
            some = "never wrote" if count == never.size else f"left {count} of {never.size} elements unwritten in"
            raise refuse_body(launch, f"{some} {what}", "Write all of it: out[...] = ..., or out.copy_(...) in PyTorch")


def layout_of(launch: Launch, index: int) -> Layout:
    """Return the layout of a tensor argument, given its index among the parameters."""
    return launch.view(index).layout


# ---- tiles by their numbers, and the errors of launches that looked where they may not --------------------------


def sight_error(launch: Launch, position: int, index: tuple[int, ...], tile: tuple[int, ...]) -> KernelBoundsError:
    """Return the error for a tile that looked at an element of the argument at a position."""
    kernel = launch.kernel
    assert kernel.sees is not None
    sight, name = kernel.sees[position], kernel.params[position].name
    assert sight is not None
    return KernelBoundsError(
        f"{kernel.label} looked at {name}[{', '.join(map(str, index))}] from tile {tile}, and declares "
        f"{sight.declared} of {name}. Declare what it looks at. It is declared at {describe(kernel.origin)}, and was "
        f"launched at {describe(launch.origin)}."
    )


def index_error(launch: Launch, index: int, extent: int) -> KernelBoundsError:
    """Return the error for an index beyond its axis, in the input of indices of a launch."""
    kernel = launch.kernel
    assert kernel.indexed is not None
    allowed = f"Give indices from {-extent} to {extent - 1}" if extent else "Give no indices"
    return KernelBoundsError(
        f"{kernel.label} at {describe(launch.origin)}: {kernel.indexed.name} has the index {index}, but the axis has "
        f"{extent} elements. {allowed}."
    )


def index_of_tile(number: int, grid: Shape) -> Shape:
    """Return the index of the tile with a number, which counts in C order over a grid."""
    where, rest = list[int](), number
    for extent in reversed(grid):
        rest, index = divmod(rest, extent)
        where.append(index)
    return tuple(reversed(where))
