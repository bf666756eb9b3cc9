"""An update by hand in Python: a graph of a few kernels through cuda.bindings, whose number changes before each launch.

It does what an update must do and nothing else: it writes the number into each kernel's parameters, sets the nodes,
launches the graph, gives the other tasks of trio their turn, and polls the stream. It checks no result, takes no lock,
hands out no memory, and knows no second source. So no update in Python takes less.
"""

from collections.abc import Mapping
from ctypes import addressof, c_char, c_size_t
from struct import Struct
from typing import Any, Final

import numpy as np
import trio

from benchmarks.support.gpu import optional
from benchmarks.support.table import Span, now

SOURCE: Final = b"""extern "C" __global__ void step(float *y, const float *x, float c, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = c - x[i];
}"""

_PARAMETERS: Final = Struct("<QQfi")
"""The parameters of `step`, packed as the driver reads them."""
_NUMBER_AT: Final = 16
"""The byte at which the number is."""
_write_number: Final = Struct("<f").pack_into
_END, _BUFFER, _SIZE = 0, 1, 2
"""cuda.h: CU_LAUNCH_PARAM_END, CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE."""


class GraphByHand:
    """A graph of `nodes` kernels in a row on `elements` numbers, in the primary context, with its stream."""

    def __init__(self, nodes: int, elements: int) -> None:
        self._driver: Any = optional("cuda.bindings.driver")
        self._call("cuInit", 0)
        device = self._call("cuDeviceGet", 0)
        self._context = self._call("cuDevicePrimaryCtxRetain", device)
        self._call("cuCtxPushCurrent", self._context)
        function = self._function(device)
        self._stream = self._call("cuStreamCreate", 1)
        self._nbytes = 4 * elements
        first = self._call("cuMemAlloc", self._nbytes)
        self._memory = [first, *[self._call("cuMemAlloc", self._nbytes) for _ in range(nodes)]]
        ones = np.ones(elements, np.float32)
        self._call("cuMemcpyHtoD", first, ones.ctypes.data, self._nbytes)
        self._kept: list[Any] = []
        graph = self._call("cuGraphCreate", 0)
        self._texts: list[Any] = []
        self._nodes: list[tuple[Any, Any]] = []
        for x, y in zip(self._memory, self._memory[1:], strict=False):
            params = self._node_params(function, _PARAMETERS.pack(int(y), int(x), 0.0, elements))
            before = [self._nodes[-1][0]] if self._nodes else []
            self._nodes.append((self._call("cuGraphAddKernelNode", graph, before, len(before), params), params))
        self._executable = self._call("cuGraphInstantiate", graph, 0)
        self._kept.append(graph)
        self._call("cuCtxPopCurrent")

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the driver, and return its value, if any."""
        code, *values = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with {code}")
        return values[0] if values else None

    def _function(self, device: Any) -> Any:
        """Compile the kernel for a device, and return it."""
        nvrtc: Any = optional("cuda.bindings.nvrtc")
        kinds = self._driver.CUdevice_attribute
        major, minor = [
            self._call("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), device)
            for part in ("MAJOR", "MINOR")
        ]
        program = nvrtc.nvrtcCreateProgram(SOURCE, b"step.cu", 0, [], [])[1]
        architecture = f"--gpu-architecture=sm_{major}{minor}".encode()
        code = nvrtc.nvrtcCompileProgram(program, 1, [architecture])[0]
        if code:
            raise RuntimeError(f"nvrtcCompileProgram failed with {code}")
        cubin = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return self._call("cuModuleGetFunction", self._call("cuModuleLoadData", cubin), b"step")

    def _node_params(self, function: Any, packed: bytes) -> Any:
        """Return the parameters of a node, whose kernel's parameters are in a buffer of their own."""
        text = bytearray(packed)
        size = c_size_t(len(text))
        buffer = (c_char * len(text)).from_buffer(text)
        extra = (c_size_t * 5)(_BUFFER, addressof(buffer), _SIZE, addressof(size), _END)
        self._texts.append(text)
        self._kept += [size, buffer, extra]
        params = self._driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = function
        params.gridDimX = params.gridDimY = params.gridDimZ = 1
        params.blockDimX, params.blockDimY, params.blockDimZ = 32, 1, 1
        params.extra = addressof(extra)
        return params

    async def update(self, number: float) -> None:
        """Write the number, launch, and wait."""
        driver, context, executable, stream = self._driver, self._context, self._executable, self._stream
        write = _write_number
        for text in self._texts:
            write(text, _NUMBER_AT, number)
        driver.cuCtxPushCurrent(context)
        for node, params in self._nodes:
            driver.cuGraphExecKernelNodeSetParams(executable, node, params)
        driver.cuGraphLaunch(executable, stream)
        driver.cuCtxPopCurrent()
        await trio.lowlevel.checkpoint()
        driver.cuCtxPushCurrent(context)
        while driver.cuStreamQuery(stream)[0]:
            pass
        driver.cuCtxPopCurrent()

    def check(self, number: float) -> None:
        """Raise an error if the last update was not with this number."""
        found = np.zeros(self._nbytes // 4, np.float32)
        self._call("cuCtxPushCurrent", self._context)
        self._call("cuMemcpyDtoH", found.ctypes.data, self._memory[-1], self._nbytes)
        self._call("cuCtxPopCurrent")
        wanted = 1.0
        for _ in self._nodes:
            wanted = number - wanted
        if found.tolist() != [wanted] * len(found):
            raise RuntimeError(f"it computed {found.tolist()}, and not {wanted}")

    def rounds(self, name: str, count: int) -> Mapping[str, Span]:
        """Return the mean time of `count` updates in a task."""
        return trio.run(self._rounds, name, count)

    async def _rounds(self, name: str, count: int) -> Mapping[str, Span]:
        for number in range(3):
            await self.update(float(number))
        begin = now()
        for number in range(count):
            await self.update(float(number))
        span = now().since(begin)
        return {name: Span(span.wall / count, span.cpu / count)}
