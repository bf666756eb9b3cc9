"""Reads the nodes of a captured CUgraph through cuda.bindings: the addresses in their parameters.

The driver's functions see the kernels of every library. The runtime's getter fails for kernels that another copy of the
runtime has loaded.
"""

import ctypes
from collections.abc import Sequence
from struct import iter_unpack
from typing import Any, Final

from dagpu.backends.cuda.driver.driver_protocol import EnqueuedWork
from dagpu.backends.cuda.driver.pycuda_streams import Checked

_POINTER_OPTION, _SIZE_OPTION, _END_OPTION = 1, 2, 0
"""cuda.h: CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END."""

_PREFIX: Final = "CU_GRAPH_NODE_TYPE_"


def read_work(bindings: Any, checked: Checked, graph: Any) -> Sequence[EnqueuedWork]:
    """Return the nodes of a graph, with those of its child graphs. The context must be current.

    Raises:
        DeviceError: the driver refuses to read a node.
    """
    found: list[EnqueuedWork] = []
    graphs = [graph]
    while graphs:
        graph = graphs.pop()
        count = checked("cuGraphGetNodes", bindings.cuGraphGetNodes(graph))[1]
        nodes = checked("cuGraphGetNodes", bindings.cuGraphGetNodes(graph, count))[0] if count else ()
        for node in nodes:
            kind = checked("cuGraphNodeGetType", bindings.cuGraphNodeGetType(node))[0].name.removeprefix(_PREFIX)
            if kind == "KERNEL":
                params = checked("cuGraphKernelNodeGetParams", bindings.cuGraphKernelNodeGetParams(node))[0]
                found.append(_kernel(bindings, params))
            elif kind == "MEMCPY":
                copy = checked("cuGraphMemcpyNodeGetParams", bindings.cuGraphMemcpyNodeGetParams(node))[0]
                found.append(_copy(bindings, copy))
            elif kind == "MEMSET":
                fill = checked("cuGraphMemsetNodeGetParams", bindings.cuGraphMemsetNodeGetParams(node))[0]
                start, size = int(fill.dst), int(fill.width) * int(fill.elementSize)
                found.append(EnqueuedWork("a fill", _ends(start, int(fill.pitch), size, int(fill.height))))
            elif kind == "GRAPH":
                child = bindings.cuGraphChildGraphNodeGetGraph(node)
                graphs.append(checked("cuGraphChildGraphNodeGetGraph", child)[0])
            elif kind != "EMPTY":
                found.append(EnqueuedWork(f"a node of type {kind}", ()))
    return found


def _kernel(bindings: Any, params: Any) -> EnqueuedWork:
    """Return the words of a kernel's parameters."""
    function, kernel = int(params.func), int(params.kern)
    named = bindings.cuFuncGetName(params.func) if function else bindings.cuKernelGetName(params.kern)
    name = named[1].decode(errors="replace") if not named[0] and named[1] else "of no name"
    pointers, extra = int(params.kernelParams), int(params.extra)
    words: list[int] = []
    number = 0
    while pointers and (function or kernel):
        about = (
            bindings.cuFuncGetParamInfo(params.func, number)
            if function
            else bindings.cuKernelGetParamInfo(params.kern, number)
        )
        if about[0]:  # the kernel has no further parameter
            break
        words += _words(ctypes.c_void_p.from_address(pointers + 8 * number).value, int(about[2]))
        number += 1
    if not pointers and extra:
        words += _words(*_packed(extra))
    return EnqueuedWork(f"kernel `{name}`", tuple(words))


def _packed(extra: int) -> tuple[int, int]:
    """Return the address and the bytes of parameters that are given as one buffer, from a launch's `extra`."""
    address = size = 0
    while (option := ctypes.c_size_t.from_address(extra).value) != _END_OPTION:
        value = ctypes.c_size_t.from_address(extra + 8).value
        if option == _POINTER_OPTION:
            address = value
        elif option == _SIZE_OPTION:
            size = ctypes.c_size_t.from_address(value).value
        extra += 16
    return address, size


def _words(address: int | None, nbytes: int) -> list[int]:
    if not address or nbytes < 8:
        return []
    return [word for (word,) in iter_unpack("<Q", ctypes.string_at(address, nbytes // 8 * 8))]


def _copy(bindings: Any, params: Any) -> EnqueuedWork:
    """Return the ends of a copy's source and target, where they are on a device."""
    device, unified = bindings.CUmemorytype.CU_MEMORYTYPE_DEVICE, bindings.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    width, rows = int(params.WidthInBytes), int(params.Height) * max(int(params.Depth), 1)
    words: tuple[int, ...] = ()
    for kind, address, pitch, x, y in (
        (params.srcMemoryType, params.srcDevice, params.srcPitch, params.srcXInBytes, params.srcY),
        (params.dstMemoryType, params.dstDevice, params.dstPitch, params.dstXInBytes, params.dstY),
    ):
        if kind in (device, unified):
            words += _ends(int(address) + int(x) + int(y) * int(pitch), int(pitch), width, rows)
    return EnqueuedWork("a copy", words)


def _ends(start: int, pitch: int, width: int, rows: int) -> tuple[int, ...]:
    """Return the addresses of the first and the last byte of rows; none if they have no bytes."""
    return (start, start + max(rows - 1, 0) * pitch + width - 1) if width else ()
