"""Lets the real driver layer wait, on the stand-in for libcuda, which ends the process with status 86 at a deadlock.

    python -m tests.stand_in.waits calls             prints as JSON for each call of the driver if it releases the GIL
    python -m tests.stand_in.waits behind ours       makes each call while another thread loads a module and waits for a
                                                     host function that takes the GIL; prints as JSON the calls that
                                                     have waited for the load
    python -m tests.stand_in.waits behind pycuda     records an event with PyCUDA while another thread does so
    python -m tests.stand_in.waits WHO FUNCTION      loads a module while a kernel and a host function after it are in
                                                     progress: WHO loads it, `ours` or `pycuda`; FUNCTION is `ours`, or
                                                     `python`, which takes the GIL

It must run in a separate process, with the stand-in first in LD_LIBRARY_PATH.
"""

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from dagpu.backends.cuda.driver.pycuda_driver import _limits_of, open_gpus
from dagpu.testing import CapturedNode, CopyNode, FillNode, GraphNode, IfNode, KernelLaunch
from tests.support.driver_calls import driver_calls

LIBRARY: Final = ctypes.CDLL("libcuda.so.1")
LIBRARY.stand_in_meet.argtypes = (ctypes.c_char_p, ctypes.c_double)
LIBRARY.stand_in_patience.argtypes = (ctypes.c_double,)
LIBRARY.stand_in_go_on.restype = ctypes.c_char_p

DEADLOCK: Final = ("pycuda", "python")
"""Arguments that deadlock: PyCUDA holds the GIL while it loads, and the function waits for the GIL."""

See: TypeAlias = Callable[[str, str, Callable[[], object]], None]
"""Checks a call of the driver, given the call's name, the library that makes it, and a function that makes it once,
possibly together with other calls."""

GENEROUS, SHORT = 30.0, 0.05
"""Seconds for which the stand-in waits in a call for another Python thread to get the GIL.

If the call releases the GIL, the other thread gets it and the call ends at once. If the call holds it, the full time
passes.
"""


def let_go(name: str, call: Callable[[], object], seconds: float) -> str:
    """Test if a call of the driver, made once in `call`, releases the GIL."""
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
    """Make each call of the list as dagpu makes it, and print if it releases the GIL."""
    import pycuda.driver as cuda

    (gpu,) = open_gpus()
    found: dict[str, str] = {}
    device = cuda.Device(0)
    stands_for = {(row.name, row.through): row for row in driver_calls()}

    def see(name: str, through: str, call: Callable[[], object]) -> None:
        seconds = GENEROUS if stands_for[name, through].releases else SHORT
        found[f"{name} {through}"] = let_go(name, call, seconds)

    see("cuInit", "cuda.init", cuda.init)
    see("cuDeviceGetCount", "cuda.Device.count", cuda.Device.count)
    see("cuDeviceGet", "cuda.Device", lambda: cuda.Device(0))
    see("cuDeviceGetName", "Device.name", device.name)
    see("cuDeviceComputeCapability", "Device.compute_capability", device.compute_capability)
    see("cuDeviceGetAttribute", "Device.get_attribute", lambda: _limits_of(device))
    (other,) = open_gpus()
    see("cuDriverGetVersion", "bindings", lambda: other.lacks_conditions)
    see("cuDevicePrimaryCtxRetain", "bindings", other.current)
    with gpu.current():
        _calls_of_a_context(gpu, see)
    see("cuCtxPushCurrent", "bindings", gpu.current().__enter__)
    see("cuCtxPopCurrent", "bindings", lambda: gpu.current().__exit__(None, None, None))
    print(json.dumps(found))


def _calls_of_a_context(gpu: Any, see: See) -> None:
    stream, event, timing = gpu.new_stream(), gpu.new_event(), gpu.new_timing_event()
    see("cuCtxSynchronize", "bindings", gpu.synchronize)
    see("cuDeviceCanAccessPeer", "bindings", lambda: gpu.reach_peer(gpu))
    see("cuCtxEnablePeerAccess", "bindings", lambda: gpu.reach_peer(gpu))
    see("cuStreamCreate", "bindings", gpu.new_stream)
    see("cuStreamWaitEvent", "bindings", lambda: stream.wait_for_event(event))
    see("cuStreamQuery", "bindings", stream.query)
    see("cuStreamSynchronize", "bindings", stream.synchronize)
    see("cuEventCreate", "bindings", gpu.new_event)
    see("cuEventRecord", "bindings", lambda: event.record(stream))
    see("cuEventQuery", "bindings", event.query)
    see("cuEventSynchronize", "bindings", event.synchronize)
    see("cuEventElapsedTime", "bindings", lambda: timing.time_since(timing))
    see("cuLaunchHostFunc", "ctypes", lambda: gpu.close_when_reached(stream, os.dup(0)))
    see("cuMemAlloc", "bindings", lambda: gpu.allocate(64))
    see("cuMemFree", "bindings", lambda: gpu.free(64))
    see("cuMemHostAlloc", "bindings", lambda: gpu.allocate_pinned(64))
    see("cuMemFreeHost", "bindings", lambda: gpu.free_pinned(0))
    see("cuMemGetInfo", "bindings", gpu.memory_info)
    array = np.zeros(16, np.uint8)
    see("cuPointerGetAttribute", "bindings", lambda: gpu.is_pinned(array))
    see("cuMemcpyHtoDAsync", "bindings", lambda: gpu.copy_in(64, array, stream))
    see("cuMemcpyDtoHAsync", "bindings", lambda: gpu.copy_out(array, 64, stream))
    see("cuMemcpyDtoDAsync", "bindings", lambda: gpu.copy(128, 64, 8, stream))
    see("cuMemcpy2DAsync", "bindings", lambda: gpu.copy_pitched(128, 64, 8, 2, (8, 8), stream))
    for width in (1, 2, 4):
        bits = 8 * width
        see(f"cuMemsetD{bits}Async", "bindings", partial(gpu.fill, 64, width, 0, 1, stream))
    see("cuModuleLoadData", "bindings", lambda: gpu.load(b"no cubin", "kernel"))
    see("cuModuleGetFunction", "bindings", lambda: gpu.load(b"no cubin", "kernel"))
    see("cuModuleGetGlobal", "bindings", lambda: gpu.load(b"no cubin", "kernel", ["variable"]))
    see("cuFuncGetAttribute", "bindings", lambda: gpu.load(b"no cubin", "kernel"))
    function = gpu.load(b"no cubin", "kernel")
    see("cuFuncSetAttribute", "bindings", lambda: function.allow_shared(1 << 16))
    launch = KernelLaunch(function, (1, 1, 1), (1, 1, 1), bytearray(8), 0)
    see("cuOccupancyMaxActiveBlocksPerMultiprocessor", "bindings", lambda: function.resident(32, 0))
    launches = gpu.prepare_launches([(launch, 0)])
    launches.set_streams([stream])
    see("cuLaunchKernelEx", "ctypes", launches.each[0])
    work = CapturedNode(lambda *_: None, (64,), 0)
    copy, fill = CopyNode("within", 128, 64, 8), FillNode(64, 1, 0, 8)
    nodes: list[tuple[GraphNode, tuple[int, ...]]] = [
        (launch, ()), (copy, ()), (fill, ()), (launch._replace(early=True), (0,)), (work, (1,)), (IfNode(), ()),
        (launch._replace(cooperative=True, cluster=(2, 1, 1)), ()),
    ]  # fmt: skip
    for name in (
        "cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddMemcpyNode", "cuGraphAddMemsetNode",
        "cuGraphKernelNodeSetAttribute",
        "cuGraphAddDependencies", "cuGraphConditionalHandleCreate", "cuGraphAddNode", "cuStreamBeginCapture",
        "cuStreamEndCapture", "cuGraphAddChildGraphNode", "cuGraphInstantiate",
    ):  # fmt: skip
        see(name, "bindings", lambda: gpu.make_graph(nodes))
    for name in (
        "cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphKernelNodeGetParams", "cuGraphMemcpyNodeGetParams",
        "cuGraphMemsetNodeGetParams", "cuGraphChildGraphNodeGetGraph", "cuFuncGetParamInfo", "cuKernelGetParamInfo",
        "cuFuncGetName", "cuKernelGetName",
    ):  # fmt: skip
        see(name, "bindings", lambda: gpu.captured_work(work))
    graph = gpu.make_graph(nodes)
    see("cuGraphExecKernelNodeSetParams", "bindings", lambda: graph.prepare_updates([0]).apply())
    see("cuGraphExecMemcpyNodeSetParams", "bindings", lambda: graph.update_copy(1, copy))
    see("cuGraphExecMemsetNodeSetParams", "bindings", lambda: graph.update_fill(2, fill))
    see("cuGraphExecChildGraphNodeSetParams", "bindings", lambda: graph.update_captured(4, work))
    see("cuGraphUpload", "bindings", lambda: graph.upload(stream))
    see("cuGraphLaunch", "bindings", lambda: graph.launch(stream))
    see("cuGraphExecDestroy", "bindings", graph.destroy)
    see("cuGraphDestroy", "bindings", gpu.make_graph(nodes).destroy)
    see("cuGetErrorString", "bindings", lambda: gpu.refused("call", 1))


def _behind_a_load(gpu: Any, call: Callable[[], object]) -> list[str]:
    """Make a call while another thread loads a module. Return the calls that have waited for the load.

    The load waits for a host function in Python, which ends once a call waits for the load or all calls have returned.
    """
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: LIBRARY.stand_in_until_behind())

    def load() -> None:
        with gpu.current():
            gpu.load(b"no cubin", "kernel")

    LIBRARY.stand_in_busy()
    LIBRARY.cuLaunchHostFunc(None, function, None)
    thread = threading.Thread(target=load)
    thread.start()
    LIBRARY.stand_in_beside_a_load()
    call()
    waited: bytes = LIBRARY.stand_in_go_on()
    thread.join()
    return waited.decode().split()


def behind(who: str) -> None:
    """Load a module on a thread, and call the driver at the same time."""
    import pycuda.driver as cuda

    (gpu,) = open_gpus()
    found = set[str]()
    if who == "pycuda":
        cuda.Device(0).retain_primary_context().push()
        event, stream = cuda.Event(), cuda.Stream()

        def record() -> None:
            LIBRARY.stand_in_patience(SHORT)
            event.record(stream)

        _behind_a_load(gpu, record)
    with gpu.current():
        _calls_of_a_context(gpu, lambda name, through, call: found.update(_behind_a_load(gpu, call)))
    print(json.dumps(sorted(found)))


def load(who: str, function: str) -> None:
    """Load a module while a kernel runs, followed by a host function that closes a descriptor."""
    import pycuda.driver as cuda

    (gpu,) = open_gpus()
    read, write = os.pipe()
    LIBRARY.stand_in_patience(GENEROUS if (who, function) != DEADLOCK else SHORT)
    with gpu.current():
        stream = gpu.new_stream()
        LIBRARY.stand_in_busy()
        if function == "ours":
            gpu.close_when_reached(stream, write)
        else:
            # CuPy, Numba, and cuda.bindings 12 do the same, with any function.
            function_of_python = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: os.close(write))
            LIBRARY.cuLaunchHostFunc(ctypes.c_void_p(stream.handle), function_of_python, None)
        if who == "ours":
            gpu.load(b"no cubin", "kernel")
        else:
            context = cuda.Device(0).retain_primary_context()
            context.push()
            cuda.module_from_buffer(b"no cubin")
            context.pop()
    assert os.read(read, 1) == b"", "the descriptor is not closed"


if __name__ == "__main__":
    if sys.argv[1] == "calls":
        calls()
    elif sys.argv[1] == "behind":
        behind(sys.argv[2])
    else:
        load(*sys.argv[1:])
