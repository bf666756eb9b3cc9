"""The variants of a kernel, and the one that a launch needs: each is compiled with other macros of the prelude."""

from math import prod
from typing import Final

from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import Layout
from dagpu.common.places import describe
from dagpu.ops.kernel_spec import KernelSpec, PythonKernel
from dagpu.plans.program import Launch

NARROW: Final = 2**31 - 2048
"""Indices of this many elements or more need 64 bits. The limit is below 2**31 because a block steps up to 1,024 past
the end of its tile."""

STRIDED: Final = 1
WIDE: Final = 2
LINEAR_GRID: Final = 4
CHECKED: Final = 8
TILE_LIST: Final = 16
SEES: Final = 32
_MACROS: Final = {
    STRIDED: "DAGPU_STRIDED", WIDE: "DAGPU_WIDE", LINEAR_GRID: "DAGPU_LINEAR_GRID", CHECKED: "DAGPU_CHECKED",
    TILE_LIST: "DAGPU_TILE_LIST", SEES: "DAGPU_SEES",
}  # fmt: skip


def macros(variant: int) -> tuple[str, ...]:
    """Return the prelude's macros for a variant, which is a sum of the flags above."""
    return tuple([name for bit, name in _MACROS.items() if variant & bit])


def variant_for(launch: Launch, linear: bool) -> int:
    """Return the variant that a launch needs. `linear` is true if its grid is linear."""
    spec = launch.kernel
    if spec.python is not None:
        return _python_variant(launch, spec.python)
    if spec.abi == "pointers":
        return 0
    variant = CHECKED if spec.checked else 0
    if linear:
        variant |= LINEAR_GRID
    if launch.tile_list is not None:
        variant |= TILE_LIST
    if spec.checked and spec.sees is not None and spec.grid is None:
        variant |= SEES
    for _, view in launch.views:
        layout = view.layout
        if not layout.contiguous:
            variant |= STRIDED
        if _reach(layout) >= NARROW:
            variant |= WIDE
    for extents in spec.walked:
        if prod([launch.view(number).layout.shape[axis] for number, axis in extents]) >= NARROW:
            variant |= WIDE
    return variant


def usual_variant(spec: KernelSpec) -> int:
    """Return the variant that is compiled ahead of the first launch: that for contiguous tensors.

    Raises:
        KernelArgumentError: it depends on the arguments of a launch.
    """
    if spec.python is not None:
        return spec.python.usual_variant()
    return CHECKED if spec.checked and spec.abi == "views" else 0


def _python_variant(launch: Launch, python: PythonKernel) -> int:
    try:
        return python.variant([view.layout for _, view in launch.views], launch.tile)
    except KernelArgumentError as error:
        raise KernelArgumentError(f"{error} It is launched at {describe(launch.origin)}.") from error.__cause__


def _reach(layout: Layout) -> int:
    """Return the largest number that is computed for an index of a layout, or is a field of its struct."""
    itemsize = layout.dtype.itemsize
    largest, elements, index = 0, 1, 0
    for extent, stride in zip(layout.shape, layout.strides, strict=True):
        step = abs(stride) // itemsize
        largest = max(largest, extent, step)
        elements *= extent
        index += extent * step
    return max(largest, elements, index)


def kernel_key(spec: KernelSpec, variant: int) -> tuple[object, ...]:
    """Return the key of a compiled kernel: everything in its spec that the compilation depends on, and the variant."""
    if spec.python is not None:
        return spec.python, variant
    return spec.cuda, spec.name, spec.options, spec.abi, variant
