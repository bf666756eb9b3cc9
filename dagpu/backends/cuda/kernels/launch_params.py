"""Launches as the driver wants them: which variant of the kernel, the grid, and the parameters as bytes.

The parameters' layout is the other half of `kernels/prelude/dagpu.cuh`, and of C's rules of alignment: a struct of ours
begins at a multiple of 8 and its size is one; a scalar begins at a multiple of its own size.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, Final, final

import numpy as np

from dagpu.backends.cuda.driver.driver_protocol import Function, GridExtents, Limits
from dagpu.common.dtypes import bf16
from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import Layout
from dagpu.common.origin import describe
from dagpu.kernels.declaration import ScalarCheck
from dagpu.lowering.program import Cell, Launch, Tiles, View
from dagpu.ops.kernel_spec import KernelSpec

NARROW: Final = 2**31 - 2048
"""From so many elements on, or so far from the first one, an `int` does not reach: a block steps up to 1,024 past the
end of its tile."""

THREADS: Final = 256
"""Threads in a block where nobody says how many, unless the tile is smaller."""

REPORT: Final = 4 * 4 + 8 * 8 + 8 * 8
"""Bytes of the prelude's `Report`: state, argument, rank, kind; index[8]; extent[8]."""


STRIDED: Final = 1
WIDE: Final = 2
LINEAR_GRID: Final = 4
CHECKED: Final = 8
_MACROS: Final = {
    STRIDED: "DAGPU_STRIDED", WIDE: "DAGPU_WIDE", LINEAR_GRID: "DAGPU_LINEAR_GRID", CHECKED: "DAGPU_CHECKED",
}  # fmt: skip


def macros(variant: int) -> tuple[str, ...]:
    """How a kernel is compiled for a launch: the prelude's macros for a sum of the numbers above."""
    return tuple(name for bit, name in _MACROS.items() if variant & bit)


@final
@dataclass(slots=True, eq=False)
class LaunchForm:
    """What launches of one kernel on arguments of the same layouts have in common: all but addresses and numbers."""

    variant: int
    grid: GridExtents
    block: GridExtents
    template: bytes
    pointers: tuple[tuple[int, int, int], ...]
    """Where addresses go: byte in the parameters, number of the argument, bytes beyond the buffer's first."""
    scalars: tuple[tuple[int, int, "Callable[[Any], bytes]"], ...]
    """Where numbers go: byte in the parameters, number of the argument, what makes bytes of it."""
    reports: tuple[int, ...]
    """Where the address of a launch's `Report` goes."""
    accepted: set[Function] = field(default_factory=set)
    """Functions whose limits it keeps."""


@final
@dataclass(slots=True, eq=False)
class PackedLaunch:
    """One launch."""

    form: LaunchForm
    parameters: bytearray
    cells: list[tuple[int, int, "Callable[[Any], bytes]"]]
    """Numbers that each run brings: byte in the parameters, the cell, what makes bytes of its value."""


def pack(launch: Launch, limits: Limits) -> PackedLaunch | None:
    """A launch, but for its addresses and for numbers that are in cells. None where its grid is empty, so that there is
    nothing to launch.

    Raises:
        KernelArgumentError: plain pointers are wanted of a strided view.
    """
    arguments = launch.args
    form = _find_form(launch, limits)
    if form is None:
        return None
    parameters = bytearray(form.template)
    cells = []
    for at, number, convert in form.scalars:
        argument = arguments[number]
        if type(argument) is Cell:
            cells.append((at, argument.buffer, convert))
            continue
        value = convert(argument)
        parameters[at : at + len(value)] = value
    return PackedLaunch(form, parameters, cells)


_forms: dict[tuple[object, ...], LaunchForm] = {}
_kept: list[object] = []
"""What `_forms` names by identity, so that those ids stay theirs."""


def _find_form(launch: Launch, limits: Limits) -> LaunchForm | None:
    """The form of a launch, kept: launches of one form follow each other by the thousand.

    Layouts are told apart by identity, which takes no hashing of shapes: a chain hands one layout on.
    """
    if 0 in launch.grid:
        return None
    spec = launch.kernel
    key: list[object] = [id(spec), launch.grid, id(limits)]
    for argument in launch.args:
        kind = type(argument)
        if kind is View:
            key.append(id(argument.layout))
        elif kind is Tiles:
            key += (id(argument.view.layout), argument.tile, argument.grid)
    by_identity = tuple(key)
    found = _forms.get(by_identity)
    if found is None:
        found = _forms[by_identity] = _form_by_value(launch, limits)
    return found


def _form_by_value(launch: Launch, limits: Limits) -> LaunchForm:
    """The same for layouts that are equal, but not those that were seen before."""
    if len(_forms) > 4096:
        _forms.clear()
        _kept.clear()
    arguments = [argument for argument in launch.args if type(argument) is View or type(argument) is Tiles]
    _kept.append(arguments)
    shapes = [
        argument.layout if type(argument) is View else (argument.view.layout, argument.tile, argument.grid)
        for argument in arguments
    ]
    by_value = (launch.kernel, launch.grid, limits, *shapes)
    found = _forms.get(by_value)
    if found is None:
        found = _forms[by_value] = _make_form(launch, limits)
    return found


def _make_form(launch: Launch, limits: Limits) -> LaunchForm:
    spec = launch.kernel
    grid, linear = _grid(launch, limits)
    variant = _variant(launch, linear)
    template = bytearray()
    pointers, scalars, reports = [], [], []
    for number, (param, argument) in enumerate(zip(spec.params, launch.args, strict=True)):
        kind = type(argument)
        if kind is View or kind is Tiles:
            view: View = argument if kind is View else argument.view
            template.extend(bytes(-len(template) % 8))
            pointers.append((len(template), number, view.layout.offset))
            if spec.abi == "views":
                template += _struct(view.layout, argument if kind is Tiles else None, variant, number)
                if variant & CHECKED:
                    reports.append(len(template) - 16)
            else:
                _refuse_strides(launch, number, view.layout)
                template += bytes(8)
        else:
            assert isinstance(param.check, ScalarCheck)
            convert = _converter(param.check.dtype)
            value = bytes(param.check.dtype.itemsize)
            template.extend(bytes(-len(template) % len(value)))
            scalars.append((len(template), number, convert))
            template += value
    return LaunchForm(
        variant, grid, _block(launch), bytes(template), tuple(pointers), tuple(scalars), tuple(reports)
    )  # fmt: skip


def check_limits(
    launch: Launch, form: LaunchForm, block: GridExtents, function: Function, limits: Limits, device: str
) -> None:
    """Refuse a launch that the device would refuse.

    Raises:
        KernelArgumentError: too large a block or grid, or too much shared memory; with the device's limit.
    """
    if function in form.accepted:
        return
    spec = launch.kernel
    threads = prod(block)
    if threads > function.max_threads:
        why = (
            f"it takes {function.registers} registers for each thread" if function.max_threads < limits.threads else ""
        )
        raise _refusal(launch, f"a block of {threads} threads", f"at most {function.max_threads}", device, why, "block")
    for axis, (count, most) in enumerate(zip(block, limits.block, strict=True)):
        if count > most:
            raise _refusal(launch, f"{count} threads along axis {'xyz'[axis]}", f"at most {most}", device, "", "block")
    for axis, (blocks, most) in enumerate(zip(form.grid, limits.grid, strict=True)):
        if blocks > most:
            raise _refusal(launch, f"{blocks} blocks along axis {'xyz'[axis]}", f"at most {most}", device, "", "grid")
    shared = spec.shared_bytes + function.static_shared
    if shared > limits.shared:
        why = f"{spec.shared_bytes} dynamic and {function.static_shared} of its own"
        what = f"{shared} bytes of shared memory for each block"
        raise _refusal(launch, what, f"at most {limits.shared}", device, why, "shared_memory")
    if shared > limits.default_shared:
        function.allow_shared(limits.shared - function.static_shared)
    form.accepted.add(function)


def _refusal(launch: Launch, what: str, most: str, device: str, why: str, method: str) -> KernelArgumentError:
    spec = launch.kernel
    because = f" ({why})" if why else ""
    return KernelArgumentError(
        f"kernel {spec.name!r}, launched at {describe(launch.origin)}: {what}{because}, but {device} allows it {most}. "
        f"Give fewer: {spec.name}.{method}(...), or another tile."
    )


def _grid(launch: Launch, limits: Limits) -> tuple[GridExtents, bool]:
    """The grid, and whether it is linear: where the tiles' grid has more than three axes, or too many blocks along one
    of them, all its blocks lie along x."""
    grid = launch.grid
    given = launch.kernel.grid is not None
    if given or (len(grid) <= 3 and all(n <= most for n, most in zip(grid, limits.grid, strict=False))):
        x, y, z = (*grid, 1, 1, 1)[:3]
        return (x, y, z), False
    return (prod(grid), 1, 1), True


def _block(launch: Launch) -> GridExtents:
    spec = launch.kernel
    if spec.block is not None:
        x, y, z = (*spec.block, 1, 1)[:3]
        return x, y, z
    for argument in launch.args:
        if type(argument) is Tiles:
            return max(32, min(THREADS, -(-prod(argument.tile) // 32) * 32)), 1, 1
    return THREADS, 1, 1


def _variant(launch: Launch, linear: bool) -> int:
    spec = launch.kernel
    if spec.abi == "pointers":
        return 0
    variant = CHECKED if spec.checked else 0
    if linear:
        variant |= LINEAR_GRID
    for argument in launch.args:
        kind = type(argument)
        if kind is View or kind is Tiles:
            layout: Layout = argument.layout if kind is View else argument.view.layout
            if not layout.contiguous:
                variant |= STRIDED
            if _reach(layout) >= NARROW:
                variant |= WIDE
    return variant


def _reach(layout: Layout) -> int:
    """The largest number that is computed for one of its indices, or stands in its struct."""
    size = layout.dtype.itemsize
    steps = [abs(stride) // size for stride in layout.strides]
    return max(layout.size, sum(map(int.__mul__, layout.shape, steps)), *layout.shape, *steps, 0)


def _struct(layout: Layout, tiles: Tiles | None, variant: int, argument: int) -> bytes:
    """A `View` or `Tile` with null pointers."""
    numbers: list[int] = list(layout.shape)
    if variant & STRIDED:
        size = layout.dtype.itemsize
        numbers += [stride // size for stride in layout.strides]
    if tiles is not None:
        # A tile may be larger than the tensor, and than an int.
        numbers += [min(tile, max(extent, 1)) for tile, extent in zip(tiles.tile, layout.shape, strict=True)]
        if variant & LINEAR_GRID:
            numbers += tiles.grid
    text = struct.pack(f"<q{len(numbers)}{'q' if variant & WIDE else 'i'}", 0, *numbers)
    text += bytes(-len(text) % 8)
    if variant & CHECKED:
        text += struct.pack("<qii", 0, argument, 0)
    return text


_FORMATS: Final = {
    "float16": "<e", "float32": "<f", "float64": "<d", "bool": "<?", "int8": "<b", "uint8": "<B", "int16": "<h",
    "uint16": "<H", "int32": "<i", "uint32": "<I", "int64": "<q", "uint64": "<Q",
}  # fmt: skip
_BFLOAT16: Final = np.dtype(bf16)


@cache
def _converter(dtype: "np.dtype[Any]") -> Callable[[Any], bytes]:
    """What makes the bytes of a C type of a number. Its range has been checked."""

    def by_numpy(value: Any) -> bytes:
        return np.array(value, dtype).tobytes()

    if dtype == _BFLOAT16:
        return by_numpy
    packer = struct.Struct(_FORMATS[dtype.name])

    def by_struct(value: Any) -> bytes:
        try:
            return packer.pack(value)
        except OverflowError:  # struct refuses what rounds up to infinity, and NumPy rounds it
            return by_numpy(value)

    return by_struct


def _refuse_strides(launch: Launch, number: int, layout: Layout) -> None:
    if layout.contiguous:
        return
    spec = launch.kernel
    raise KernelArgumentError(
        f"kernel {spec.name!r}, argument {spec.params[number].name!r}: a view of shape {layout.shape} and strides "
        f'{layout.strides} bytes, but abi="pointers" passes a plain pointer, which has no strides. Launched at '
        f'{describe(launch.origin)}. Make it contiguous with dup(...), or use abi="views".'
    )


def entry_of(spec: KernelSpec, variant: int) -> tuple[object, ...]:
    """What a compiled kernel depends on."""
    return spec.cuda, spec.name, spec.options, spec.abi, variant
