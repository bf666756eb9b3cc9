"""Launches on a simulated GPU: reads the packed parameters as the CUDA side declares them, and runs the kernel's host
body over the simulated memory.

The parameters are read by the contract of kernels/prelude/dagpu.cuh, independently of dagpu's own packing. They contain
neither the kernel's identity nor the shapes of plain pointers. For these, `tests.simulated.cuda` appends a number.
"""

import re
import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, final

import numpy as np

from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork
from dagpu.backends.host.arrays import Account, HostMemory
from dagpu.backends.host.bounds_reports import OUT_OF_SIGHT
from dagpu.backends.host.numpy_execution import execute
from dagpu.backends.kernel_text.launch_params import CHECKED, LINEAR_GRID, SEES, STRIDED, TILE_LIST, WIDE, macros
from dagpu.backends.kernel_text.loaded_function import GridExtents
from dagpu.backends.kernel_text.units import Unit
from dagpu.common.errors import KernelBoundsError
from dagpu.common.layout import Layout
from dagpu.kernels.declaration import ScalarCheck
from dagpu.ops.kernel_spec import PythonKernel, RecordCheck
from dagpu.testing import LAUNCH, KernelLaunch, KernelSpec, Launch, Param, Tiles, View, contiguous_layout
from tests.simulated.gpu import SimulatedGpu

REPORT: Final = struct.Struct("<4i8q8q")
"""Layout of a bounds report: state, argument, rank, kind; index; extent."""


class Violation(Exception):
    """Raised by a host body to simulate an access out of bounds."""

    def __init__(self, argument: int, index: tuple[int, ...], extent: tuple[int, ...], kind: int = 0) -> None:
        super().__init__(argument, index)
        self.argument, self.index, self.extent, self.kind = argument, index, extent, kind


KERNELS: Final[list[Any]] = []
"""The spec of each kernel, or its launch if it has plain pointers, by the number after the parameters."""

OWN: Final[list[tuple[BuiltinWork, Callable[..., None]]]] = []
"""The action of each of dagpu's own kernels, by the number after the parameters."""

VARIANTS: Final = {macros(variant): variant for variant in range(64)}


@final
class Reader:
    """Reads parameters in order, each aligned to its own size."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0
        self.lists: set[int] = set()
        """The addresses of lists of tiles that were read."""

    def align(self, size: int) -> None:
        """Skip to a multiple of `size`. The skipped bytes must be zero."""
        end = -(-self.at // size) * size
        assert not any(self.text[self.at : end]), "padding that is not zero"
        self.at = end

    def bytes(self, size: int, align: int = 0) -> bytes:
        """Read a scalar of `size` bytes, or a structure of another alignment."""
        self.align(align or size)
        assert self.at + size <= len(self.text), "the parameters end too early"
        self.at += size
        return self.text[self.at - size : self.at]

    def pointer(self) -> int:
        return int.from_bytes(self.bytes(8), "little")

    def indices(self, count: int, variant: int) -> tuple[int, ...]:
        """Read `index_t[count]`."""
        size = 8 if variant & WIDE else 4
        return tuple(int.from_bytes(self.bytes(size), "little", signed=True) for _ in range(count))


@final
class LoadedOwn:
    """One of dagpu's own kernels, loaded on a simulated GPU."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu

    def act(self, launch: KernelLaunch) -> Callable[[], None]:
        """Return the action of a launch, in a stream or in a graph. The parameters are read now, as by the driver."""
        text = bytes(launch.parameters)
        made, act = OWN[int.from_bytes(text[-8:], "little")]
        addresses = [int.from_bytes(text[at : at + 8], "little") for at in made.pointers]
        plain = bytearray(text)
        for at in made.pointers:
            plain[at : at + 8] = bytes(8)
        numbers = []
        if launch.decides >= 0:
            numbers.append(int.from_bytes(text[:8], "little"))
            plain[:8] = bytes(8)
        if made.seed is not None:
            numbers.append(int.from_bytes(text[made.seed : made.seed + 8], "little"))
            plain[made.seed : made.seed + 8] = bytes(8)
        assert plain == made.arguments
        assert (launch.grid, launch.block) == (made.grid, made.block)
        refuse(self.gpu, launch)
        return lambda: act(self.gpu, *addresses, *numbers)


@final
class Loaded:
    """A user's kernel, loaded on a simulated GPU. Its launches are reconstructed from their parameters."""

    def __init__(self, gpu: SimulatedGpu, unit: Unit, variables: Sequence[tuple[int, int]]) -> None:
        self.gpu = gpu
        self._unit = unit
        self._variables = dict(zip([name for name, _ in unit.constants], variables, strict=True))
        """The addresses and the bytes of its `__constant__` variables."""
        self._variant = VARIANTS[unit.defines]

    def act(self, launch: KernelLaunch) -> Callable[[], None]:
        """Return the action of a launch, in a stream or in a graph. The parameters are read now, as by the driver."""
        refuse(self.gpu, launch)
        if not self._unit.text:
            self.gpu.machine.shapes.add((self._unit.name, launch.block, launch.shared))
        text, grid = bytes(launch.parameters), launch.grid
        known = KERNELS[int.from_bytes(text[-8:], "little")]
        spec: KernelSpec = known.kernel if isinstance(known, Launch) else known
        wanted = None if spec.cluster is None else (*spec.cluster, 1, 1)[:3]
        assert (launch.cooperative, launch.cluster) == (spec.cooperative, wanted)
        return lambda: self.run(grid, text)

    def run(self, grid: GridExtents, text: bytes) -> None:
        """Run all blocks of a launch."""
        launch, memory, reports = self.read(grid, text)
        if memory is None:
            return  # the device has been lost
        try:
            execute(launch, memory)
        except Violation as violation:
            self._violated(violation, reports)
        except KernelBoundsError as error:
            self._violated(_refused(error, launch), reports)
        except BaseException as error:
            self.gpu.machine.problems.append(f"a host body failed on the GPU: {error!r}")

    def read(self, grid: GridExtents, text: bytes) -> tuple[Launch, list[object] | None, dict[int, int]]:
        """Return the launch, the memory of its arguments, and the address of each argument's bounds report."""
        known, variant, reader = KERNELS[int.from_bytes(text[-8:], "little")], self._variant, Reader(text)
        given: Launch | None = known if isinstance(known, Launch) else None
        spec: KernelSpec = known if given is None else given.kernel
        shapes = given if spec.abi == "pointers" else None
        assert ((spec.entry or spec.name).partition("<")[0].split("::")[-1], spec.cuda) == (
            self._unit.name,
            self._unit.text,
        )
        listed = self._listed(spec)
        arguments: list[Any] = []
        argument: Any
        memory: list[object] | None = []
        reports: dict[int, int] = {}
        for number, param in enumerate(spec.params):
            if not param.form.is_tensor:
                arguments.append(_scalar(param, reader))
                continue
            if param.constant is not None:
                assert given is not None
                shape = given.view(number).layout
                argument = View(-1, contiguous_layout(shape.shape, shape.dtype))
                report = 0
                data, room = self._variables[param.name]
                rest = self.gpu.bytes_at(data + shape.nbytes, room - shape.nbytes)
                assert rest is None or not rest.any(), "what the contents leave is zero"
            elif shapes is None:
                data, argument, report = self._struct(number, param, reader)
            else:
                argument, report = shapes.args[number], 0
                if argument is None:
                    assert reader.pointer() == 0
                    arguments.append(None)
                    continue
                address = listed(number, reader)
                shape = (argument.view if type(argument) is Tiles else argument).layout
                data = _passed(spec.python, shape, reader) if address is None else address
            layout: Layout = (argument.view if type(argument) is Tiles else argument).layout
            found = self._place(data, layout)
            if memory is None or found is None:
                memory = None
                continue
            placed = View(len(memory), replaced(layout, offset=found[1]))
            arguments.append(placed if type(argument) is not Tiles else Tiles(placed, argument.tile, argument.grid))
            memory.append(found[0])
            reports[number] = report
        if spec.python is not None:
            self._check_hidden(spec.python.hidden, None if shapes is None else shapes.scratch, reader)
        reader.align(8)
        assert reader.at == len(text) - 8, "the parameters go on"
        tiles = next((a for a in arguments if type(a) is Tiles), None)
        whole: tuple[int, ...] = grid
        if variant & LINEAR_GRID and tiles is not None:
            whole = tiles.grid
            assert grid == (prod(whole), 1, 1)
        tile_list = None
        if variant & TILE_LIST and memory is not None and tiles is not None:
            whole = tiles.grid
            (address,) = reader.lists  # all structs have one address
            assert grid[1:] == (1, 1)
            layout = contiguous_layout((grid[0],), np.dtype(np.int32))
            found = self._place(address, layout)
            if found is None:
                memory = None
            else:
                tile_list = View(len(memory), replaced(layout, offset=found[1]))
                memory.append(found[0])
        launch = Launch(spec, tuple(arguments), whole, (), (), self.gpu.index, None, tile_list)
        return launch, memory, reports

    def _listed(self, spec: KernelSpec) -> Callable[[int, Reader], int | None]:
        """Return the function that reads the address of a tensor in a list, by its number, from the memory of which the
        parameters have the address; None for a tensor that is in no list."""
        tables: dict[int, int] = {}

        def read(number: int, reader: Reader) -> int | None:
            for start, count in spec.lists:
                if start <= number < start + count:
                    if start not in tables:
                        tables[start] = reader.pointer()
                    found = self.gpu.bytes_at(tables[start] + 8 * (number - start), 8)
                    return 0 if found is None else int.from_bytes(found.tobytes(), "little")
            return None

        return read

    def _check_hidden(self, count: int, scratch: View | None, reader: Reader) -> None:
        """Check the pointers that a compiler has appended: the scratch memory, if the launch has some, and null. Write
        to that memory, of which nothing is any other's."""
        for number in range(count):
            pointer, nbytes = reader.pointer(), 0 if scratch is None or number else scratch.layout.nbytes
            assert bool(pointer) == bool(nbytes)
            room = self.gpu.bytes_at(pointer, nbytes) if nbytes else None
            if room is not None:
                room[...] = 0xA5

    def _struct(self, number: int, param: Param, reader: Reader) -> tuple[int, Any, int]:
        assert param.rank is not None
        assert param.dtype is not None
        rank, variant = param.rank, self._variant
        data = reader.pointer()
        shape = reader.indices(rank, variant)
        layout = contiguous_layout(shape, param.dtype)
        if variant & STRIDED:
            strides = tuple(n * param.dtype.itemsize for n in reader.indices(rank, variant))
            layout = Layout(param.dtype, shape, strides, 0)
        argument: Any = View(-1, layout)
        if param.form.is_written:
            tile = reader.indices(rank, variant)
            own = tuple(-(-n // step) for n, step in zip(shape, tile, strict=True))
            argument = Tiles(argument, tile, own)
            if variant & (LINEAR_GRID | TILE_LIST):
                assert reader.indices(rank, variant) == own
        elif variant & SEES:
            reader.indices(7 * rank, variant)  # the emulated prelude reads them
        reader.align(8)
        if variant & TILE_LIST and rank and (param.form.is_written or variant & SEES):
            reader.lists.add(reader.pointer())
        report = 0
        if variant & CHECKED:
            report = reader.pointer()
            assert int.from_bytes(reader.bytes(4), "little") == number
            reader.align(8)
        return data, argument, report

    def _place(self, data: int, layout: Layout) -> tuple[object, int] | None:
        """Return an argument's memory, and the offset in it. If there is none, lose the device and return None."""
        return placed(self.gpu, data, layout)

    def _violated(self, violation: Violation, reports: dict[int, int]) -> None:
        if not self._variant & CHECKED:
            self.gpu.lose()
            return
        report = self.gpu.bytes_at(reports[violation.argument], REPORT.size)
        if report is None or report[0]:
            return  # only the first violation is reported
        rank, room = len(violation.index), (0,) * (8 - len(violation.index))
        fields = (2, violation.argument, rank, violation.kind, *violation.index, *room, *violation.extent, *room)
        report[...] = np.frombuffer(REPORT.pack(*fields), np.uint8)


def _refused(error: KernelBoundsError, launch: Launch) -> Violation:
    """Return the violation that the host body, or the check of its tiles, has found: as the prelude would report it."""
    return _out_of_sight(error, launch) if launch.kernel.indexed is None else _beyond(error, launch)


def _beyond(error: KernelBoundsError, launch: Launch) -> Violation:
    """Return the violation of an index beyond its axis: of the access with it, to the output or to the first input."""
    found = re.search(r"the index (-?\d+), but the axis has (\d+) elements", str(error))
    assert found is not None
    assert launch.kernel.indexed is not None
    number, axis = int(launch.kernel.name == "take"), launch.kernel.indexed.axis
    argument: Any = launch.args[number]
    shape = (argument.view if type(argument) is Tiles else argument).layout.shape
    index = [0] * len(shape)
    index[axis] = int(found[1])
    assert shape[axis] == int(found[2])
    return Violation(number, tuple(index), shape, int(type(argument) is Tiles))


def _out_of_sight(error: KernelBoundsError, launch: Launch) -> Violation:
    """Return the violation of a tile that the host body's check has found: the prelude reports the tile's number."""
    found = re.search(r"looked at (\w+)\[(.*?)\] from tile \((.*?)\)", str(error))
    assert found is not None
    name, index, tile = found.groups()
    (argument,) = [number for number, param in enumerate(launch.kernel.params) if param.name == name]
    number = 0
    for extent, at in zip(launch.grid, map(int, filter(None, tile.split(","))), strict=True):
        number = number * extent + at
    at_index = tuple(map(int, index.split(",")))
    return Violation(argument, at_index, (number, *(0,) * (len(at_index) - 1)), OUT_OF_SIGHT)


def _passed(python: PythonKernel | None, layout: Layout, reader: Reader) -> int:
    """Read a tensor as the library of a kernel has it passed, and return its address."""
    size, shape = layout.dtype.itemsize, layout.shape
    library = "" if python is None else python.library.split()[0]
    if library == "Numba":  # meminfo, parent, number of items, size of one, address, shape, strides in bytes
        about = [reader.pointer() for _ in range(4)]
        assert about == [0, 0, prod(shape), size]
        address = reader.pointer()
        found = [int.from_bytes(reader.bytes(8), "little", signed=True) for _ in range(2 * len(shape))]
        assert found == [*shape, *layout.strides]
        return address
    address = reader.pointer()
    if library == "cuTile":  # address, shape, strides in elements
        found = [int.from_bytes(reader.bytes(4), "little", signed=True) for _ in range(2 * len(shape))]
        assert found == [*shape, *[stride // size for stride in layout.strides]]
    return address


def _scalar(param: Param, reader: Reader) -> Any:
    if isinstance(param.check, RecordCheck):
        return reader.bytes(param.check.dtype.itemsize, param.check.align)
    assert isinstance(param.check, ScalarCheck)
    dtype = param.check.dtype
    value = np.frombuffer(reader.bytes(dtype.itemsize), dtype)[0]
    return value.item() if dtype.kind in "biufc" else float(value)


def refuse(gpu: SimulatedGpu, launch: KernelLaunch) -> None:
    """Refuse launches that the driver refuses."""
    limits, grid, block = gpu.limits, launch.grid, launch.block
    fits = all(0 < n <= most for n, most in zip((*grid, *block), (*limits.grid, *limits.block), strict=True))
    if not fits or prod(block) > limits.threads or launch.shared > limits.shared:
        raise gpu.refused(LAUNCH, 1)
    if launch.cooperative and prod(grid) > gpu.most_blocks(prod(block), launch.shared):
        raise gpu.refused(LAUNCH, 720)
    if launch.cluster is not None and any(n % of for n, of in zip(grid, launch.cluster, strict=True)):
        raise gpu.refused(LAUNCH, 1)


def replaced(layout: Layout, offset: int) -> Layout:
    """Return the layout of the same array at another offset."""
    return Layout(layout.dtype, layout.shape, layout.strides, offset)


def placed(gpu: SimulatedGpu, data: int, layout: Layout) -> tuple[object, int] | None:
    """Return the memory, and the offset in it, of an array whose first element is at `data`.

    If a part of it is outside of all memory, lose the device and return None.
    """
    if layout.size == 0:
        return HostMemory(Account(), 0), 0
    ends = [(extent - 1) * stride for extent, stride in zip(layout.shape, layout.strides, strict=True)]
    first = data + sum(min(end, 0) for end in ends)
    last = data + sum(max(end, 0) for end in ends) + layout.dtype.itemsize
    if gpu.bytes_at(first, last - first) is None:
        return None
    found = gpu.machine.find(first, last - first)
    assert found is not None
    return found[0], found[1] + data - first
