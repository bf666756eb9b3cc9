"""Makes streams, events, copies, launches and graphs with the real driver layer, on the stand-in for libcuda. Prints
the calls that the stand-in got, as JSON.

It must run in a separate process, with the stand-in first in LD_LIBRARY_PATH.
"""

import ctypes
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from struct import pack
from typing import Final

import ml_dtypes
import numpy as np

from dagpu.backends.cuda.driver.driver_protocol import NOT_READY
from dagpu.backends.cuda.driver.pycuda_driver import open_gpus
from dagpu.common.errors import DeviceError
from dagpu.testing import (
    CapturedNode,
    CopyNode,
    EnqueuedWork,
    FillNode,
    Function,
    Gpu,
    GraphNode,
    IfNode,
    KernelLaunch,
    RawStream,
)

LIBRARY = ctypes.CDLL("libcuda.so.1")
LIBRARY.stand_in_log.restype = ctypes.c_char_p

ILLEGAL_ADDRESS = 700
NOTHING: Final = CapturedNode(lambda *_: None, (0x5000,), 0)
"""The stand-in captures the same graph whatever is enqueued."""


def said() -> list[str]:
    """Return the calls recorded since the last call of this function."""
    lines: list[str] = LIBRARY.stand_in_log().decode().splitlines()
    LIBRARY.stand_in_clear()
    return lines


def main() -> None:
    (gpu,) = open_gpus()
    found: dict[str, list[str]] = {}
    with gpu.current():
        first, second = (gpu.load(b"no cubin", name) for name in ("first", "second"))
        said()
        stream, other = gpu.new_stream(), gpu.new_stream()
        found["streams and events"] = of_events(gpu, stream, other)
        found["copies and fills"] = of_memory(gpu, stream)
        found.update(
            in_streams(gpu, [kernel(first, 0x10, 1), kernel(first, 0x20, 2), kernel(second, 0x30, 3)], stream, other)
        )
        nodes: list[tuple[GraphNode, tuple[int, ...]]] = [
            (kernel(first, 0x7F0011223344, 7), ()),
            (CopyNode("in", 0x5000, 0x6000, 24), ()),
            (CopyNode("within", 0x5100, 0x5000, 1 << 33), (0, 1)),
            (FillNode(0x5200, 2, 0xBEEF, 12), (1,)),
            (kernel(first, 0x5100, 8), (2,)),
            (kernel(second, 0x5200, 9), (2, 3)),
            (CopyNode("out", 0x6100, 0x5100, 3), (4, 5)),
        ]
        graph = gpu.make_graph(nodes)
        found["make"] = said()
        graph.upload(stream)
        graph.launch(stream)
        found["launch"] = said()
        changed = nodes[4][0]
        assert isinstance(changed, KernelLaunch)
        changed.parameters[:8] = pack("<Q", 0x5108)
        graph.prepare_updates([4]).apply()
        graph.update_copy(1, CopyNode("in", 0x5000, 0x6600, 24))
        graph.update_copy(6, CopyNode("out", 0x6700, 0x5100, 3))
        graph.update_fill(3, FillNode(0x5800, 2, 0xBEEF, 12))
        found["update"] = said()
        graph.destroy()
        found["destroy"] = said()
        gpu.make_graph(nodes[:1]).destroy()
        found["again"] = said()
        found["early"] = early_kernels(gpu, first)
        found["conditional"] = conditional_nodes(gpu, kernel(first, 0, 5))
        found["versions"] = lacking_conditions()
        found["captured"] = captured_nodes(gpu, kernel(first, 0x5000, 1))
        found["enqueued"] = enqueued_work(gpu)
        found["refused"] = refusals(gpu, stream)
        for call, code in (("cuGraphInstantiate", 2), ("cuGraphAddMemcpyNode", 1), ("cuModuleLoadData", 2)):
            LIBRARY.stand_in_fail(call.encode(), code)
            try:
                gpu.make_graph(nodes[:2])
                gpu.load(b"no cubin", "third")
            except DeviceError as error:
                found[call] = [*said(), f"{type(error).__name__} {error.code}: {error}"]
        graph = gpu.make_graph(nodes[:1])
        said()
        updates = graph.prepare_updates([0])
        LIBRARY.stand_in_fail(b"cuGraphExecKernelNodeSetParams", 1)
        try:
            updates.apply()
        except DeviceError as error:
            found["refused update"] = [*said(), str(updates.refused), f"{type(error).__name__} {error.code}: {error}"]
        updates.apply()
        found["accepted update"] = [str(updates.refused)]
    print(json.dumps(found))


def early_kernels(gpu: Gpu, function: Function) -> list[str]:
    """Return the calls recorded for a graph of kernels that may start early: after a kernel, a copy and two kernels."""
    late = kernel(function, 0x5000, 1)
    early = late._replace(early=True)
    nodes: list[tuple[GraphNode, tuple[int, ...]]] = [
        (late, ()),
        (early, (0,)),
        (CopyNode("within", 0x5100, 0x5000, 8), (1,)),
        (early, (2,)),
        (early, (1, 3)),
    ]
    gpu.make_graph(nodes).destroy()
    return said()


def conditional_nodes(gpu: Gpu, decides: KernelLaunch) -> list[str]:
    """Return the calls recorded for a graph of two conditional nodes, of which the first has a body, and for updates of
    the nodes of this body; and the parameters of the kernels that decide."""
    first, second = (decides._replace(parameters=bytearray(decides.parameters), decides=number) for number in (1, 7))
    inside = kernel(decides.function, 0x5000, 1)
    nodes: list[tuple[GraphNode, tuple[int, ...]]] = [
        (first, ()),
        (IfNode(), (0,)),
        (inside, ()),
        (CopyNode("out", 0x6100, 0x5000, 8), (2,)),
        (FillNode(0x5200, 1, 0, 8), ()),
        (inside._replace(early=True), (2,)),
        (second, (1,)),
        (IfNode(), (6,)),
        (CopyNode("within", 0x5300, 0x5200, 8), (7,)),
    ]
    graph = gpu.make_graph(nodes, (), (-1, -1, 1, 1, 1, 1, -1, -1, -1))
    graph.prepare_updates([2]).apply()
    graph.update_copy(3, CopyNode("out", 0x6200, 0x5000, 8))
    graph.update_fill(4, FillNode(0x5400, 1, 0, 8))
    graph.destroy()
    return [*said(), first.parameters[:8].hex(), second.parameters[:8].hex()]


def lacking_conditions() -> list[str]:
    """Return what drivers of three versions lack for conditional nodes."""
    found = []
    for version in (12020, 12040, 13000):
        LIBRARY.stand_in_version(version)
        (gpu,) = open_gpus()
        found.append(gpu.lacks_conditions)
    said()
    return found


def captured_nodes(gpu: Gpu, after: KernelLaunch) -> list[str]:
    """Return the calls recorded for a graph with the work of a library, which is then aimed elsewhere, refused, and
    fails."""
    asked: list[str] = []

    def enqueue(stream: int, addresses: Sequence[int], scratch: int) -> None:
        asked.append(f"work in {stream:x} at {addresses[0]:x} with {scratch:x}")
        if addresses[0] == 0xBAD:
            raise DeviceError("the library refuses")

    graph = gpu.make_graph([(after, ()), (CapturedNode(enqueue, (0x5000,), 0x100), (0,))])
    answers = [graph.update_captured(1, CapturedNode(enqueue, (0x6000,), 0x200))]
    LIBRARY.stand_in_fail(b"cuGraphExecChildGraphNodeSetParams", 910)
    answers.append(graph.update_captured(1, CapturedNode(enqueue, (0x7000,), 0)))
    errors = []
    for address, failing in ((0xBAD, b""), (0x5000, b"cuStreamEndCapture")):
        if failing:
            LIBRARY.stand_in_fail(failing, 901)
        try:
            graph.update_captured(1, CapturedNode(enqueue, (address,), 0))
        except DeviceError as error:
            errors.append(f"{type(error).__name__} {error.code}: {error}")
    return [*said(), *asked, str(answers), *errors]


def enqueued_work(gpu: Gpu) -> list[str]:
    """Return what is read of a captured graph, and the errors of a graph that is refused for it."""
    read = [f"{name} {[f'{word:x}' for word in words]}" for name, words in gpu.captured_work(NOTHING)]

    def refuse(work: Sequence[EnqueuedWork]) -> None:
        raise ValueError(f"{len(work)} nodes")

    said()
    try:
        gpu.make_graph([(replace(NOTHING, inspect=refuse), ())])
    except ValueError as error:
        return [*read, str(error), *[line.split()[0] for line in said()]]
    return read


def of_events(gpu: Gpu, stream: RawStream, other: RawStream) -> list[str]:
    """Return the calls recorded for two new streams, and for events in them."""
    event, first, last = gpu.new_event(), gpu.new_timing_event(), gpu.new_timing_event()
    event.record(stream)
    other.wait_for_event(event)
    LIBRARY.stand_in_fail(b"cuEventQuery", NOT_READY)
    looks = event.query(), event.query()
    LIBRARY.stand_in_fail(b"cuStreamQuery", NOT_READY)
    looks_at_stream = stream.query(), stream.query()
    event.synchronize()
    stream.synchronize()
    milliseconds = last.time_since(first)
    return [*said(), f"{looks} {looks_at_stream} {milliseconds} {stream.handle:x} {other.handle:x}"]


def refusals(gpu: Gpu, stream: RawStream) -> list[str]:
    """Return the error of each call with a stream or an event that the driver refuses."""
    event, timing, array = gpu.new_event(), gpu.new_timing_event(), np.zeros(4, np.uint8)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("cuStreamCreate", gpu.new_stream),
        ("cuStreamWaitEvent", lambda: stream.wait_for_event(event)),
        ("cuStreamQuery", stream.query),
        ("cuStreamSynchronize", stream.synchronize),
        ("cuEventCreate", gpu.new_event),
        ("cuEventRecord", lambda: event.record(stream)),
        ("cuEventQuery", event.query),
        ("cuEventSynchronize", event.synchronize),
        ("cuEventElapsedTime", lambda: timing.time_since(timing)),
        ("cuCtxSynchronize", gpu.synchronize),
        ("cuMemcpyHtoDAsync", lambda: gpu.copy_in(0x5000, array, stream)),
        ("cuMemcpyDtoHAsync", lambda: gpu.copy_out(array, 0x5000, stream)),
        ("cuMemcpyDtoDAsync", lambda: gpu.copy(0x5100, 0x5000, 4, stream)),
        ("cuMemcpy2DAsync", lambda: gpu.copy_pitched(0x5100, 0x5000, 1, 1, (4, 4), stream)),
        ("cuMemsetD8Async", lambda: gpu.fill(0x5000, 1, 0, 4, stream)),
        ("cuMemsetD16Async", lambda: gpu.fill(0x5000, 2, 0, 4, stream)),
        ("cuMemsetD32Async", lambda: gpu.fill(0x5000, 4, 0, 4, stream)),
        ("cuDeviceCanAccessPeer", lambda: gpu.reach_peer(gpu)),
    ]
    errors = []
    for call, make in calls:
        LIBRARY.stand_in_fail(call.encode(), ILLEGAL_ADDRESS)
        try:
            make()
        except DeviceError as error:
            errors.append(f"{call}: {type(error).__name__} {error.code}")
    said()
    return errors


def of_memory(gpu: Gpu, stream: RawStream) -> list[str]:
    """Return the calls recorded for copies and fills, with `HOST` for the address of the host's array."""
    array, brain = np.zeros((3, 5), np.float16), np.zeros((), ml_dtypes.bfloat16)
    gpu.copy_in(0x5000, array, stream)
    gpu.copy_out(array, 0x5000, stream)
    gpu.copy_in(0x5000, brain, stream)
    gpu.copy_out(brain, 0x5000, stream)
    gpu.copy(0x5100, 0x5000, 1 << 33, stream)
    gpu.copy_pitched(0x5100, 0x5000, 12, 3, (64, 16), stream)
    for width, value in ((1, 0xAB), (2, 0xABCD), (4, 0xABCDEF01)):
        gpu.fill(0x5200, width, value, 7, stream)
    return [
        line.replace(f"{array.ctypes.data:x}", "HOST").replace(f"{brain.ctypes.data:x}", "BRAIN") for line in said()
    ]


def in_streams(gpu: Gpu, kernels: Sequence[KernelLaunch], stream: RawStream, other: RawStream) -> dict[str, list[str]]:
    """Return the calls recorded for launches in two lanes."""
    found = {}
    launches = gpu.prepare_launches([(kernels[0], 0), (kernels[1], 0), (kernels[2], 1)])
    launches.set_streams([stream, other])
    for launch in launches.each:
        assert launch() == 0
    found["streams"] = said()
    launches.set_streams([other, stream])
    kernels[1].parameters[:8] = pack("<Q", 0x28)
    for launch in launches.each[1:]:
        launch()
    found["other streams"] = said()
    LIBRARY.stand_in_fail(b"cuLaunchKernelEx", 701)
    code = launches.each[0]()
    found["refused launch"] = [*said(), str(code), str(gpu.refused("cuLaunchKernelEx", code)), str(launches.each[0]())]
    said()
    none = gpu.prepare_launches([])
    none.set_streams([stream])
    assert not none.each
    return found


def kernel(function: Function, address: int, number: int) -> KernelLaunch:
    """Return a launch with an address and a number as parameters."""
    return KernelLaunch(function, (3, 2, 1), (32, 4, 2), bytearray(pack("<Qi", address, number)), 96)


if __name__ == "__main__":
    main()
