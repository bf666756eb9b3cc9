"""Kernel launches as the driver reads them: structs in memory that stays where it is, written once for many launches.

A launch in a stream is one call of the driver's cuLaunchKernelEx with four addresses: 0.35 us on a driver that does
nothing (CPython 3.12, in a loop like the one that plays a script). Two other ways were tried. PyCUDA's takes 0.38 us,
and holds the GIL while a full queue makes the launch wait. cuLaunchKernel of cuda.bindings lets go of it, but takes
eleven arguments apart for each launch: 0.64 us.
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
"""A launch's `extra`: two options, each with its value, and the end. Then the number that the second points to."""
_NUMBER: Final = 40
"""Where in it that number is."""

_CONFIG: Final = Struct("<7I4xQQI4x")
"""CUlaunchConfig: x, y, z of the grid and of the block, dynamic shared bytes, the stream, its attributes: none."""
_STREAM: Final = 32
"""Where in it the stream is."""

_write_number: Final = Struct("<Q").pack_into


def _address(memory: bytearray) -> tuple[object, int]:
    """Where a bytearray lies, and a view of it: while there is one, the bytearray stays there."""
    view = ctypes.c_char.from_buffer(memory)
    return view, ctypes.addressof(view)


@final
class Extras:
    """Of each launch the `extra`, which says where its parameters are: in one table for all, as an array of ctypes' for
    each takes longer than the driver does for a node of a graph."""

    __slots__ = ("_held", "_table", "addresses")

    def __init__(self, launches: Sequence[KernelLaunch]) -> None:
        self._table = bytearray(max(1, len(launches)) * _EXTRA.size)
        view, start = _address(self._table)
        self._held = [view]
        self.addresses = range(start, start + len(launches) * _EXTRA.size, _EXTRA.size)
        """For each launch, where its own is."""
        for launch, address in zip(launches, self.addresses, strict=True):
            view, parameters = _address(launch.parameters)
            self._held.append(view)
            size = len(launch.parameters)
            _EXTRA.pack_into(
                self._table, address - start, _POINTER, parameters, _SIZE, address + _NUMBER, _END, size
            )  # fmt: skip


@final
class PyCudaLaunches:
    """Implements `dagpu.backends.cuda.driver.driver_protocol.Launches`."""

    __slots__ = ("_configs", "_extras", "_held", "_lanes", "_streams", "each")

    def __init__(self, launch_kernel: Callable[..., int], launches: Sequence[tuple[KernelLaunch, int]]) -> None:
        """`launch_kernel` is the driver's cuLaunchKernelEx, of which ctypes knows no argument types: an instance of
        c_void_p is handed on as it is, where a number would be looked at each time."""
        self._extras = Extras([launch for launch, _ in launches])
        shapes: dict[tuple[GridExtents, GridExtents, int, int], int] = {}
        """Most launches of a plan have a few configurations between them: these are numbered."""
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

    def aim(self, streams: Sequence[RawStream]) -> None:
        if streams == self._streams:
            return
        self._streams = ()  # whoever interrupts this leaves nothing that looks written and is not
        for number, lane in enumerate(self._lanes):
            _write_number(self._configs, number * _CONFIG.size + _STREAM, streams[lane].handle)
        self._streams = streams
