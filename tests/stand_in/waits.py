"""Has the real driver layer wait, on the stand-in for libcuda, which ends the process with status 86 at a deadlock.

    python -m tests.stand_in.waits calls             prints as JSON whether each call of the driver lets go of the GIL
    python -m tests.stand_in.waits WHO FUNCTION      a kernel is under way, and behind it a host function: FUNCTION is
                                                     `ours` or `python`, which takes the GIL; who loads a module
                                                     meanwhile is WHO: `ours` or `pycuda`

To be run in a process of its own, with the stand-in first in LD_LIBRARY_PATH.
"""

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from dagpu.backends.cuda.driver import CopyNode, FillNode, GraphNode, KernelLaunch
from dagpu.backends.cuda.pycuda_driver import _keep_for_ever, open_gpus
from tests.driver_calls import driver_calls

LIBRARY: Final = ctypes.CDLL("libcuda.so.1")
LIBRARY.stand_in_meet.argtypes = (ctypes.c_char_p, ctypes.c_double)
LIBRARY.stand_in_patience.argtypes = (ctypes.c_double,)

DEADLOCK: Final = ("pycuda", "python")
"""PyCUDA holds the GIL while it loads, and the function takes it: this never ends."""

GENEROUS, SHORT = 30.0, 0.05
"""Seconds that a call gives another Python thread to get the GIL: one that lets go of it ends as soon as that thread
comes; of one that holds it that thread never comes."""


def let_go(name: str, call: Callable[[], object], seconds: float) -> str:
    """Does this call of the driver's, made once in `call`, let go of the GIL?"""
    found = "not called"

    def other() -> None:
        nonlocal found
        if LIBRARY.stand_in_arrived():
            found = "released" if LIBRARY.stand_in_met() else "held"

    LIBRARY.stand_in_meet(name.encode(), seconds)
    thread = threading.Thread(target=other)
    thread.start()
    call()
    LIBRARY.stand_in_meet_nobody()
    thread.join()
    return found


def calls() -> None:
    """What each row's call does, made as dagpu makes it."""
    import pycuda.driver as cuda

    (gpu,) = open_gpus()
    found: dict[str, str] = {}
    real: Any = gpu
    device: Any = real._device
    stands_for = {(row.name, row.through): row for row in driver_calls()}

    def see(name: str, through: str, call: Callable[[], object]) -> None:
        seconds = GENEROUS if stands_for[name, through].releases else SHORT
        found[f"{name} {through}"] = let_go(name, call, seconds)

    see("cuInit", "cuda.init", cuda.init)
    see("cuDeviceGetCount", "cuda.Device.count", cuda.Device.count)
    see("cuDeviceGet", "cuda.Device", lambda: cuda.Device(0))
    see("cuDeviceGetName", "Device.name", device.name)
    see("cuDeviceComputeCapability", "Device.compute_capability", device.compute_capability)
    see("cuDeviceGetAttribute", "Device.get_attribute", real._read_limits)
    see("cuDeviceCanAccessPeer", "Device.can_access_peer", lambda: gpu.reach_peer(gpu))
    (other,) = open_gpus()
    see("cuDevicePrimaryCtxRetain", "bindings", other.current)
    retain = device.retain_primary_context
    see("cuDevicePrimaryCtxRetain", "Device.retain_primary_context", lambda: _keep_for_ever(retain()))
    with gpu.current():
        _calls_of_a_context(gpu, see)
    see("cuCtxPushCurrent", "bindings", gpu.current().__enter__)
    see("cuCtxPopCurrent", "bindings", lambda: gpu.current().__exit__(None, None, None))
    print(json.dumps(found))


def _calls_of_a_context(gpu: Any, see: Callable[[str, str, Callable[[], object]], None]) -> None:
    stream, event, timing = gpu.new_stream(), gpu.new_event(), gpu.new_timing_event()
    see("cuCtxPushCurrent", "Context.push", gpu.new_event)
    see("cuCtxPopCurrent", "cuda.Context.pop", gpu.new_event)
    see("cuCtxSynchronize", "cuda.Context.synchronize", gpu.synchronize)
    see("cuCtxEnablePeerAccess", "bindings", lambda: gpu.reach_peer(gpu))
    see("cuStreamCreate", "cuda.Stream", gpu.new_stream)
    see("cuStreamWaitEvent", "Stream.wait_for_event", lambda: stream.wait_for_event(event))
    see("cuEventCreate", "cuda.Event", gpu.new_event)
    see("cuEventRecord", "Event.record", lambda: event.record(stream))
    see("cuEventQuery", "Event.query", event.query)
    see("cuEventSynchronize", "Event.synchronize", event.synchronize)
    see("cuEventElapsedTime", "Event.time_since", lambda: timing.time_since(timing))
    see("cuLaunchHostFunc", "ctypes", lambda: gpu.close_when_reached(stream, os.dup(0)))
    see("cuMemAlloc", "bindings", lambda: gpu.allocate(64))
    see("cuMemFree", "bindings", lambda: gpu.free(64))
    see("cuMemHostAlloc", "bindings", lambda: gpu.allocate_pinned(64))
    see("cuMemFreeHost", "bindings", lambda: gpu.free_pinned(0))
    see("cuMemGetInfo", "bindings", gpu.memory_info)
    array = np.zeros(16, np.uint8)
    see("cuPointerGetAttribute", "bindings", lambda: gpu.is_pinned(array))
    see("cuMemcpyHtoDAsync", "cuda.memcpy_htod_async", lambda: gpu.copy_in(64, array, stream))
    see("cuMemcpyDtoHAsync", "cuda.memcpy_dtoh_async", lambda: gpu.copy_out(array, 64, stream))
    see("cuMemcpyDtoDAsync", "cuda.memcpy_dtod_async", lambda: gpu.copy(128, 64, 8, stream))
    see("cuMemcpy2DAsync", "cuda.Memcpy2D", lambda: gpu.copy_pitched(128, 64, 8, 2, (8, 8), stream))
    for width in (1, 2, 4):
        bits = 8 * width
        see(f"cuMemsetD{bits}Async", f"cuda.memset_d{bits}_async", partial(gpu.fill, 64, width, 0, 1, stream))
    see("cuModuleLoadData", "bindings", lambda: gpu.load(b"no cubin", "kernel"))
    see("cuModuleGetFunction", "bindings", lambda: gpu.load(b"no cubin", "kernel"))
    see("cuFuncGetAttribute", "bindings", lambda: gpu.load(b"no cubin", "kernel"))
    function = gpu.load(b"no cubin", "kernel")
    see("cuFuncSetAttribute", "bindings", lambda: function.allow_shared(1 << 16))
    launch = KernelLaunch(function, (1, 1, 1), (1, 1, 1), bytearray(8), 0)
    launches = gpu.prepare_launches([(launch, 0)])
    launches.aim([stream])
    see("cuLaunchKernelEx", "ctypes", launches.each[0])
    copy, fill = CopyNode("within", 128, 64, 8), FillNode(64, 1, 0, 8)
    nodes: list[tuple[GraphNode, tuple[int, ...]]] = [(launch, ()), (copy, ()), (fill, ())]
    for name in (
        "cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddMemcpyNode", "cuGraphAddMemsetNode", "cuGraphInstantiate",
    ):  # fmt: skip
        see(name, "bindings", lambda: gpu.make_graph(nodes))
    graph = gpu.make_graph(nodes)
    see("cuGraphExecKernelNodeSetParams", "bindings", lambda: graph.update_kernel(0))
    see("cuGraphExecMemcpyNodeSetParams", "bindings", lambda: graph.update_copy(1, copy))
    see("cuGraphExecMemsetNodeSetParams", "bindings", lambda: graph.update_fill(2, fill))
    see("cuGraphUpload", "bindings", lambda: graph.upload(stream))
    see("cuGraphLaunch", "bindings", lambda: graph.launch(stream))
    see("cuGraphExecDestroy", "bindings", graph.destroy)
    see("cuGraphDestroy", "bindings", gpu.make_graph(nodes).destroy)
    see("cuGetErrorString", "bindings", lambda: gpu.refused("call", 1))


def load(who: str, function: str) -> None:
    """A kernel is under way, behind it a host function that closes a descriptor; now somebody loads a module."""
    import pycuda.driver as cuda

    (gpu,) = open_gpus()
    real: Any = gpu
    read, write = os.pipe()
    LIBRARY.stand_in_patience(GENEROUS if (who, function) != DEADLOCK else SHORT)
    with gpu.current():
        stream = gpu.new_stream()
        LIBRARY.stand_in_busy()
        if function == "ours":
            gpu.close_when_reached(stream, write)
        else:
            # So do CuPy, Numba, and cuda.bindings 12 whatever function it is given.
            function_of_python = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: os.close(write))
            LIBRARY.cuLaunchHostFunc(ctypes.c_void_p(stream.handle), function_of_python, None)
        if who == "ours":
            gpu.load(b"no cubin", "kernel")
        else:
            real._made(cuda.module_from_buffer, b"no cubin")
    assert os.read(read, 1) == b"", "the descriptor is not closed"


if __name__ == "__main__":
    if sys.argv[1] == "calls":
        calls()
    else:
        load(*sys.argv[1:])
