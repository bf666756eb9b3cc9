"""Makes graphs with the real driver layer, on the stand-in for libcuda; prints as JSON what that was given.

To be run in a process of its own, with the stand-in first in LD_LIBRARY_PATH.
"""

import ctypes
import json
from struct import pack

from dagpu.backends.cuda.driver import CopyNode, FillNode, Function, GraphNode, KernelNode
from dagpu.backends.cuda.pycuda_driver import open_gpus
from dagpu.errors import DeviceError

LIBRARY = ctypes.CDLL("libcuda.so.1")
LIBRARY.stand_in_log.restype = ctypes.c_char_p


def said() -> list[str]:
    """What was written down since the last time."""
    lines: list[str] = LIBRARY.stand_in_log().decode().splitlines()
    LIBRARY.stand_in_clear()
    return lines


def main() -> None:
    (gpu,) = open_gpus()
    found: dict[str, list[str]] = {}
    with gpu.current():
        first, second = (gpu.load(b"no cubin", name) for name in ("first", "second"))
        stream = gpu.new_stream()
        said()
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
        assert isinstance(changed, KernelNode)
        changed.parameters[:8] = pack("<Q", 0x5108)
        graph.update_kernel(4)
        graph.update_copy(1, CopyNode("in", 0x5000, 0x6600, 24))
        graph.update_copy(6, CopyNode("out", 0x6700, 0x5100, 3))
        graph.update_fill(3, FillNode(0x5800, 2, 0xBEEF, 12))
        found["update"] = said()
        graph.destroy()
        found["destroy"] = said()
        gpu.make_graph(nodes[:1]).destroy()
        found["again"] = said()
        for call, code in (("cuGraphInstantiate", 2), ("cuGraphAddMemcpyNode", 1), ("cuLaunchKernel", 1)):
            LIBRARY.stand_in_fail(call.encode(), code)
            third = kernel(gpu.load(b"no cubin", "third"), 0, 0)
            try:
                gpu.make_graph([*nodes[:2], (third, ())])
            except DeviceError as error:
                found[call] = [*said(), f"{type(error).__name__} {error.code}: {error}"]
        graph = gpu.make_graph(nodes[:1])
        said()
        LIBRARY.stand_in_fail(b"cuGraphExecKernelNodeSetParams", 1)
        try:
            graph.update_kernel(0)
        except DeviceError as error:
            found["refused update"] = [*said(), f"{type(error).__name__} {error.code}: {error}"]
    print(json.dumps(found))


def kernel(function: Function, address: int, number: int) -> KernelNode:
    """A launch with an address and a number."""
    return KernelNode(function, (3, 2, 1), (32, 4, 2), bytearray(pack("<Qi", address, number)), 96)


if __name__ == "__main__":
    main()
