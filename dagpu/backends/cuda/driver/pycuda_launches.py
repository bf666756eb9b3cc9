"""Prepares kernel launches for the driver: structs at fixed addresses, written once for many launches.

A launch in a stream is one call of the driver's cuLaunchKernelEx with four addresses: 0.35 us on a driver that does
nothing (CPython 3.12, in a loop like the one that submits a command list). Two alternatives were tried. PyCUDA's launch
takes 0.38 us, and holds the GIL while a full queue blocks it. cuLaunchKernel of cuda.bindings releases the GIL, but it
unpacks eleven arguments for each launch: 0.64 us.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any, Final, final

from dagpu.backends.cuda.driver.driver_protocol import GridExtents, KernelLaunch, RawStream

# cuda.h: CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
_POINTER, _SIZE, _END = 1, 2, 0
_EXTRA: Final = Struct("<6Q")
"""A launch's `extra`: two options, each with its value, and the end; then the size to which the second option
points."""
_NUMBER: Final = 40
"""Offset of the size in `_EXTRA`."""

_CONFIG: Final = Struct("<7I4xQQI4x")
"""CUlaunchConfig: x, y, z of the grid and of the block, dynamic shared bytes, the stream, no attributes."""
_STREAM: Final = 32
"""Offset of the stream in `_CONFIG`."""

_write_number: Final = Struct("<Q").pack_into


def _address(memory: bytearray | memoryview) -> tuple[object, int]:
    """Return a view of this memory, and its address. The address is fixed as long as the view exists."""
    view = ctypes.c_char.from_buffer(memory)
    return view, ctypes.addressof(view)


@final
class Extras:
    """For each launch the `extra`, which contains the address of its parameters. All are in one table: a ctypes array
    for each takes longer than the driver takes for a node of a graph."""

    __slots__ = ("_held", "_table", "addresses")

    def __init__(self, launches: Sequence[KernelLaunch]) -> None:
        self._table = bytearray(max(1, len(launches)) * _EXTRA.size)
        view, start = _address(self._table)
        self._held = [view]
        self.addresses = range(start, start + len(launches) * _EXTRA.size, _EXTRA.size)
        """For each launch the address of its `extra`."""
        for launch, address in zip(launches, self.addresses, strict=True):
            view, parameters = _address(launch.parameters)
            self._held.append(view)
            size = len(launch.parameters)
            _EXTRA.pack_into(
                self._table, address - start, _POINTER, parameters, _SIZE, address + _NUMBER, _END, size
            )  # fmt: skip


@final
class PyCudaLaunches:
    """Prepared launches. Implements `dagpu.backends.cuda.driver.driver_protocol.Launches`."""

    __slots__ = ("_configs", "_extras", "_held", "_lanes", "_streams", "each")

    def __init__(self, launch_kernel: Callable[..., int], launches: Sequence[tuple[KernelLaunch, int]]) -> None:
        """Prepare launches for `launch_kernel`, the driver's cuLaunchKernelEx. Its arguments are instances of c_void_p:
        ctypes passes these on directly, and converts an int at each call."""
        self._extras = Extras([launch for launch, _ in launches])
        shapes: dict[tuple[GridExtents, GridExtents, int, int], int] = {}
        """The distinct configurations, by number. Most launches of a plan share a few."""
        numbers = [
            shapes.setdefault((launch.grid, launch.block, launch.shared, lane), len(shapes))
            for launch, lane in launches
        ]  # fmt: skip
        self._configs = bytearray(max(1, len(shapes)) * _CONFIG.size)
        self._held, start = _address(self._configs)
        for number, (grid, block, shared, _) in enumerate(shapes):
            _CONFIG.pack_into(self._configs, number * _CONFIG.size, *grid, *block, shared, 0, 0, 0)
        self._lanes = [lane for _, _, _, lane in shapes]
        configs = [ctypes.c_void_p(start + number * _CONFIG.size) for number in range(len(shapes))]
        functions: dict[Any, ctypes.c_void_p] = {}
        self.each: list[Callable[[], int]] = []
        for (launch, _), number, extra in zip(launches, numbers, self._extras.addresses, strict=True):
            handle = launch.function.handle
            function = functions.get(handle)
            if function is None:
                function = functions[handle] = ctypes.c_void_p(handle)
            self.each.append(partial(launch_kernel, configs[number], function, None, ctypes.c_void_p(extra)))
        self._streams: Sequence[RawStream] = ()

    def set_streams(self, streams: Sequence[RawStream]) -> None:
        if streams == self._streams:
            return
        self._streams = ()  # an interrupt must not leave streams that look written and are not
        for number, lane in enumerate(self._lanes):
            _write_number(self._configs, number * _CONFIG.size + _STREAM, streams[lane].handle)
        self._streams = streams
