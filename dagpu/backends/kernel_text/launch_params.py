"""Packs the parameters of kernel launches, and chooses their grids and blocks.

The layout of the parameters matches `cuda/kernels/prelude/dagpu.cuh` and C's alignment rules. Offset and size of a
dagpu struct are multiples of 8; the offset of a scalar is a multiple of its size, that of a user's structure one of its
alignment.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from operator import gt
from typing import Any, Final, final

import numpy as np

from dagpu.backends.kernel_text.loaded_function import Function, GridExtents, Limits
from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import Layout, bf16
from dagpu.common.places import describe
from dagpu.kernels.declaration import ScalarCheck
from dagpu.ops.kernel_spec import Field, Form, KernelSpec, Param, PythonKernel, RecordCheck
from dagpu.plans.program import Cell, Launch, Tiles, View

THREADS: Final = 256
"""The default number of threads in a block. A smaller tile has fewer."""

REPORT: Final = 4 * 4 + 8 * 8 + 8 * 8
"""The size of the prelude's `Report` in bytes: state, argument, rank, kind; index[8]; extent[8]."""


LIST: Final = -1
SCRATCH: Final = -2
"""In place of the number of an argument: the list of tiles."""


@final
@dataclass(slots=True, eq=False)
class LaunchForm:
    """The common part of launches of one kernel on arguments of the same layouts: everything except addresses and
    numbers."""

    variant: int
    grid: GridExtents
    block: GridExtents
    template: bytes
    pointers: tuple[tuple[int, int, int], ...]
    """The places of addresses: byte in the parameters, number of the argument, `LIST` or `SCRATCH`, offset from the
    start of its buffer."""
    scalars: tuple[tuple[int, int, "Callable[[Any], bytes]"], ...]
    """The places of numbers: byte in the parameters, number of the argument, function that converts it to bytes."""
    reports: tuple[int, ...]
    """The places of the address of a launch's `Report`: bytes in the parameters."""
    accepted: set[Function] = field(default_factory=set)
    """Functions for which `check_limits` has accepted this form."""


@final
@dataclass(slots=True, eq=False)
class PackedLaunch:
    """One launch, packed: its form, its parameters, and the numbers that each run gives."""

    form: LaunchForm
    parameters: bytearray
    cells: list[tuple[int, int, "Callable[[Any], bytes]"]]
    """The numbers that each run gives: byte in the parameters, cell, function that converts the cell's value to
    bytes."""


def pack(launch: Launch, limits: Limits) -> PackedLaunch | None:
    """Pack the parameters of a launch, without addresses and numbers in cells. Return None if its grid is empty: there
    is nothing to launch.

    Raises:
        KernelArgumentError: the kernel takes a plain pointer, and the view is strided.
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
_kept_alive: list[object] = []
"""The objects whose ids are keys of `_forms`, kept alive so that their ids are not reused."""


def _find_form(launch: Launch, limits: Limits) -> LaunchForm | None:
    """Return the form of a launch, cached: launches of one form follow each other by the thousand.

    Layouts are compared by identity, without hashing their shapes: the launches of a chain share one layout.
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
        elif argument is None:
            key.append(None)
    if launch.tile_list is not None:
        key.append(id(launch.tile_list.layout))
    key.append(launch.scratch is not None)
    by_identity = tuple(key)
    found = _forms.get(by_identity)
    if found is None:
        found = _forms[by_identity] = _form_by_value(launch, limits)
    return found


def _form_by_value(launch: Launch, limits: Limits) -> LaunchForm:
    """Return the form of a launch, cached by the values of its layouts."""
    if len(_forms) > 4096:
        _forms.clear()
        _kept_alive.clear()
    shapes: list[object] = []
    for index, param in launch.kernel.tensors:
        argument = launch.args[index]
        written = param.form.is_written
        if argument is None:
            shapes.append(None)
            continue
        shapes.append((argument.view.layout, argument.tile, argument.grid) if written else argument.layout)
    _kept_alive.append((launch.args, launch.tile_list))
    if launch.tile_list is not None:
        shapes.append(("list", launch.tile_list.layout))
    shapes.append(launch.scratch is not None)
    by_value = (launch.kernel, launch.grid, limits, *shapes)
    found = _forms.get(by_value)
    if found is None:
        found = _forms[by_value] = _make_form(launch, limits)
    return found


def _make_form(launch: Launch, limits: Limits) -> LaunchForm:
    grid, linear = _grid(launch, limits)
    made = _Template(launch, variant_for(launch, linear))
    lists = launch.kernel.lists
    listed = {start + each: each for start, count in lists for each in range(count)} if lists else {}
    for number, param in enumerate(launch.kernel.params):
        if param.constant is not None:  # it is no parameter in CUDA
            continue
        if number in listed:
            if not listed[number]:
                made.put_list(number)
            continue
        _PUT[param.form](made, number, param, launch.args[number])
    python = launch.kernel.python
    if python is not None and python.hidden:
        made.put_hidden(python.hidden)
    return LaunchForm(
        made.variant, grid, _block(launch), bytes(made.text),
        tuple(made.pointers), tuple(made.scalars), tuple(made.reports),
    )  # fmt: skip


@final
class _Template:
    """The parameters of a launch while they are written: null for addresses and numbers, and their places."""

    def __init__(self, launch: Launch, variant: int) -> None:
        self.variant = variant
        self.text = bytearray()
        self.pointers: list[tuple[int, int, int]] = []
        self.scalars: list[tuple[int, int, Callable[[Any], bytes]]] = []
        self.reports: list[int] = []
        self._launch = launch

    def put_tensor(self, number: int, param: Param, argument: Any) -> None:
        """Append a tensor: a struct, a plain pointer, or what the library of a kernel in Python has."""
        launch, text, written = self._launch, self.text, param.form.is_written
        if argument is None:  # a null pointer
            text.extend(bytes(-len(text) % 8 + 8))
            return
        layout, spec = (argument.view if written else argument).layout, launch.kernel
        if spec.python is not None:
            self._put_fields(spec.python.fields(layout), number, layout.offset)
            return
        text.extend(bytes(-len(text) % 8))
        self.pointers.append((len(text), number, layout.offset))
        if spec.abi == "pointers":
            text.extend(bytes(8))
            return
        text.extend(_struct(launch, layout, argument if written else None, self.variant, number))
        checked = self.variant & CHECKED
        if launch.tile_list is not None and _has_list(layout, written, self.variant):
            self.pointers.append((len(text) - (24 if checked else 8), LIST, launch.tile_list.layout.offset))
        if checked:
            self.reports.append(len(text) - 16)

    def put_scalar(self, number: int, param: Param, argument: Any) -> None:
        """Append a number, or a structure."""
        text = self.text
        check = param.check
        if isinstance(check, RecordCheck):
            text.extend(bytes(-len(text) % check.align))
            self.scalars.append((len(text), number, bytes))
            text.extend(bytes(check.dtype.itemsize))
            return
        assert isinstance(check, ScalarCheck)
        dtype = check.dtype
        text.extend(bytes(-len(text) % check.align))
        self.scalars.append((len(text), number, _converter(dtype)))
        text.extend(bytes(dtype.itemsize))

    def put_list(self, number: int) -> None:
        """Append the address of the addresses of a list of tensors, of which the first has this number."""
        assert self._launch.scratch is not None
        self.text.extend(bytes(-len(self.text) % 8))
        self.pointers.append((len(self.text), SCRATCH, self._launch.scratch.layout.offset + 8 * number))
        self.text.extend(bytes(8))

    def put_hidden(self, count: int) -> None:
        """Append the pointers that the compiler of a kernel in Python has added, so many."""
        text, scratch = self.text, self._launch.scratch
        text.extend(bytes(-len(text) % 8))
        if scratch is not None:
            self.pointers.append((len(text), SCRATCH, scratch.layout.offset))
        text.extend(bytes(8 * count))

    def _put_fields(self, fields: Sequence[Field], number: int, offset: int) -> None:
        text = self.text
        for size, value in fields:
            text.extend(bytes(-len(text) % size))
            if value is None:
                self.pointers.append((len(text), number, offset))
            text.extend((value or 0).to_bytes(size, "little", signed=True))


_PUT: Final[Mapping[Form, Callable[[_Template, int, Param, Any], None]]] = {
    Form.IN: _Template.put_tensor,
    Form.OUT: _Template.put_tensor,
    Form.SCALAR: _Template.put_scalar,
}
"""Appends the argument with this number to the parameters."""


def _grid(launch: Launch, limits: Limits) -> tuple[GridExtents, bool]:
    """Return the grid, and True if it is linear. In a linear grid all blocks are along x: the tiles' grid has more than
    three axes, or too many blocks along one of them."""
    grid = launch.grid
    if launch.tile_list is not None:
        return (launch.tile_list.layout.shape[0], 1, 1), False
    given = launch.kernel.grid is not None
    if given or (len(grid) <= 3 and not any(map(gt, grid, limits.grid))):
        x, y, z = (*grid, 1, 1, 1)[:3]
        return (x, y, z), False
    if launch.kernel.abi == "pointers":
        raise KernelArgumentError(
            f"kernel {launch.kernel.name!r}, launched at {describe(launch.origin)}: its tiles make a grid of {grid}, "
            f"but the device allows {limits.grid}. Give larger tiles."
        )
    return (prod(grid), 1, 1), True


def _block(launch: Launch) -> GridExtents:
    spec = launch.kernel
    if spec.block is not None:
        x, y, z = (*spec.block, 1, 1)[:3]
        return x, y, z
    if (tile := launch.tile) is None:
        return THREADS, 1, 1
    if spec.python is not None and (own := spec.python.block(tile)):
        x, y, z = (*own, 1, 1)[:3]
        return x, y, z
    return max(32, min(THREADS, -(-prod(tile) // 32) * 32)), 1, 1


def _struct(launch: Launch, layout: Layout, tiles: Tiles | None, variant: int, argument: int) -> bytes:
    """Return the packed `View` or `Tile` of an argument, with null pointers."""
    numbers: list[int] = list(layout.shape)
    if variant & STRIDED:
        size = layout.dtype.itemsize
        numbers += [stride // size for stride in layout.strides]
    if tiles is not None:
        # A tile may be larger than the tensor, and than an int.
        numbers += [min(tile, max(extent, 1)) for tile, extent in zip(tiles.tile, layout.shape, strict=True)]
        if variant & (LINEAR_GRID | TILE_LIST):
            numbers += tiles.grid
    elif variant & SEES:
        numbers += _sight(launch, layout, argument)
    text = struct.pack(f"<q{len(numbers)}{'q' if variant & WIDE else 'i'}", 0, *numbers)
    text += bytes(-len(text) % 8)
    if variant & TILE_LIST and _has_list(layout, tiles is not None, variant):
        text += bytes(8)
    if variant & CHECKED:
        text += struct.pack("<qii", 0, argument, 0)
    return text


def _has_list(layout: Layout, output: bool, variant: int) -> bool:
    """Return true if the struct of an argument has the address of the list of tiles, where the kernel has a list."""
    return bool(layout.shape and (output or variant & SEES))


def _sight(launch: Launch, layout: Layout, argument: int) -> list[int]:
    """Return the numbers of a prelude's `Sight`: for each axis of an input the axis of the output that it follows, the
    margins before and after, the tile and the extent of the output, the number of tiles along that axis, and of the
    tiles from one to the next in C order. An axis that may be seen whole follows axis -1."""
    assert launch.kernel.sees is not None
    seen = launch.kernel.sees[argument]
    out = launch.outputs[0]
    columns = []
    for axis, extent in enumerate(layout.shape):
        part = None if seen is None else seen.axes[axis]
        if part is None:
            columns.append((-1, 0, 0, 0, 0, 1, 1))
            continue
        follows, before, after = part
        end = out.view.layout.shape[follows]
        most = max(extent, end)  # a wider margin shows no more, and might not fit into an int
        tile, step = min(out.tile[follows], max(end, 1)), prod(out.grid[follows + 1 :])
        columns.append((follows, min(before, most), min(after, most), tile, end, out.grid[follows], step))
    return [number for row in zip(*columns, strict=True) for number in row]


_FORMATS: Final = {
    "float16": "<e", "float32": "<f", "float64": "<d", "bool": "<?", "int8": "<b", "uint8": "<B", "int16": "<h",
    "uint16": "<H", "int32": "<i", "uint32": "<I", "int64": "<q", "uint64": "<Q",
}  # fmt: skip
_BFLOAT16: Final = np.dtype(bf16)


@cache
def _converter(dtype: "np.dtype[Any]") -> Callable[[Any], bytes]:
    """Return the function that packs a number as a C type. The number's range has been checked."""

    def by_numpy(value: Any) -> bytes:
        return np.array(value, dtype).tobytes()

    if dtype == _BFLOAT16 or dtype.kind == "c":
        return by_numpy
    packer = struct.Struct(_FORMATS[dtype.name])

    def by_struct(value: Any) -> bytes:
        try:
            return packer.pack(value)
        except OverflowError:  # struct rejects a number that rounds to infinity; NumPy rounds it
            return by_numpy(value)

    _letters[by_struct] = _FORMATS[dtype.name][-1]
    return by_struct


_letters: dict[Callable[[Any], bytes], str] = {}


def letter_of(convert: Callable[[Any], bytes]) -> str | None:
    """Return the letter of the struct module by which a function packs numbers, in the byte order of a GPU; None if
    struct has none for the C type."""
    return _letters.get(convert)


# ---- the variants of a kernel, and the one that a launch needs: each is compiled with other macros of the prelude


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


def parameter_sizes(spec: KernelSpec) -> tuple[int, ...]:
    """Return the sizes of the parameters of a kernel that takes plain pointers, in bytes; empty for any other."""
    if spec.abi != "pointers":
        return ()
    sizes: list[int] = []
    later = {start + each for start, count in spec.lists for each in range(1, count)}
    for number, param in enumerate(spec.params):
        if number in later or param.constant is not None:
            continue
        check = param.check
        sizes.append(check.dtype.itemsize if isinstance(check, ScalarCheck | RecordCheck) else 8)
    return tuple(sizes)


def kernel_key(spec: KernelSpec, variant: int) -> tuple[object, ...]:
    """Return the key of a compiled kernel: everything in its spec that the compilation depends on, and the variant."""
    if spec.python is not None:
        return spec.python, variant
    constants = tuple([(param.name, param.constant) for _, param in spec.constants])
    return spec.cuda, spec.entry or spec.name, spec.overload, spec.options, spec.abi, constants, variant


# ---- fits a packed launch to its compiled function and its device: the block's size, and errors about their limits


FEW_TILES: Final = 512
"""The most blocks with a list of tiles that have `FEW_TILES_THREADS` threads. Of 4,096 tiles of 64 KB, 40 took 8 us
with 512 threads and 14 with 256 on an H200, 409 took 24 and 36, and 1,024 as long with both."""

FEW_TILES_THREADS: Final = 512


def block_for(launch: Launch, form: LaunchForm, function: Function) -> GridExtents:
    """Return the block of a launch of this function. Where dagpu chooses it, it has no more threads than the function
    allows. Where a few tiles run, it has more than by default: they leave most of a GPU idle, and a tile's time is that
    of the elements of one thread, one after the other. A kernel with shared memory keeps the default, for which that
    may be cut."""
    block, spec = function.block or form.block, launch.kernel
    if spec.block is not None or spec.python is not None:
        return block
    threads = prod(block)
    shared = spec.shared_bytes or function.static_shared or function.dynamic_shared
    if launch.tile_list is not None and form.grid[0] <= FEW_TILES and threads == THREADS and not shared:
        tile = prod(launch.outputs[0].tile)
        threads = min(FEW_TILES_THREADS, -(-tile // 32) * 32)
    if threads == prod(block) and threads <= function.max_threads:
        return block
    return max(min(threads, function.max_threads) // 32, 1) * 32, 1, 1


def check_limits(
    launch: Launch, form: LaunchForm, block: GridExtents, function: Function, limits: Limits, device: str
) -> None:
    """Raise if the device cannot run a launch. Allow the kernel more dynamic shared memory if it needs that.

    Raises:
        KernelArgumentError: the block, the grid or the shared memory exceeds the device's limit.
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
    dynamic = spec.shared_bytes + function.dynamic_shared
    shared = dynamic + function.static_shared
    if shared > limits.shared:
        why = f"{dynamic} dynamic and {function.static_shared} of its own"
        what = f"{shared} bytes of shared memory for each block"
        raise _refusal(launch, what, f"at most {limits.shared}", device, why, "shared_memory")
    if shared > limits.default_shared:
        function.allow_shared(limits.shared - function.static_shared)
    if spec.cooperative:
        blocks, most = prod(form.grid), function.resident(threads, dynamic)
        if blocks > most:
            what = f"{blocks} blocks of {threads} threads that wait for each other"
            raise _refusal(launch, what, f"at most {most} at once", device, "", "grid")
    form.accepted.add(function)


def _refusal(launch: Launch, what: str, most: str, device: str, why: str, method: str) -> KernelArgumentError:
    spec = launch.kernel
    because = f" ({why})" if why else ""
    cure = f"{spec.name}.{method}(...), or another tile"
    if spec.python is not None and method != "grid":
        cure = f"smaller tiles, num_warps or num_stages, as {spec.python.library} says"
    return KernelArgumentError(
        f"kernel {spec.name!r}, launched at {describe(launch.origin)}: {what}{because}, but {device} allows it {most}. "
        f"Give fewer: {cure}."
    )
