"""Executable graphs through cuda.bindings, of kernels that PyCUDA has loaded.

Of the driver's functions for graphs those are used that take the same arguments in cuda.bindings 12 and 13. A node is
known by its handle in the graph that the executable one was made from, so that graph lives as long.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.backends.cuda.driver import CopyNode, FillNode, GraphNode, KernelNode, RawStream

Checked: TypeAlias = Callable[[str, tuple[Any, ...]], tuple[Any, ...]]
"""Gives the values behind the CUresult that a call, whose name is given, has returned; or raises what it says."""

# cuda.h: CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
_POINTER, _SIZE, _END = 1, 2, 0
_EXTRA: Final = 5
"""Words of a launch's `extra`: two options, each with its value, and the end."""


@final
class PyCudaGraph:
    """Implements `dagpu.backends.cuda.driver.RawGraph`."""

    __slots__ = (
        "_bindings", "_checked", "_context", "_exec", "_extras", "_graph", "_kernels", "_nodes", "_set_kernel",
        "_shapes",
    )  # fmt: skip

    def __init__(
        self,
        bindings: Any,
        context: Any,
        checked: Checked,
        handle_of: Callable[[KernelNode], Any],
        nodes: Sequence[tuple[GraphNode, Sequence[int]]],
    ) -> None:
        self._bindings = bindings
        self._context = context
        self._checked = checked
        self._set_kernel: Callable[..., tuple[Any, ...]] = bindings.cuGraphExecKernelNodeSetParams
        self._extras = _Extras([node for node, _ in nodes if isinstance(node, KernelNode)])
        self._nodes: list[Any] = []
        self._kernels: dict[int, tuple[Any, int]] = {}
        """Of each kernel's node its CUDA_KERNEL_NODE_PARAMS, and the address of the `extra` to put in."""
        self._shapes: dict[tuple[object, ...], Any] = {}
        """The structs, by all else that is in them: making one takes longer than the driver does for a node."""
        self._graph: Any = checked("cuGraphCreate", bindings.cuGraphCreate(0))[0]
        try:
            for node, needs in nodes:
                self._add(node, [self._nodes[number] for number in needs], handle_of)
            self._exec: Any = checked("cuGraphInstantiate", bindings.cuGraphInstantiate(self._graph, 0))[0]
        except BaseException:
            bindings.cuGraphDestroy(self._graph)
            raise

    def _add(self, node: GraphNode, needs: list[Any], handle_of: Callable[[KernelNode], Any]) -> None:
        bindings = self._bindings
        if isinstance(node, KernelNode):
            params = self._kernel_params(node, handle_of)
            params.extra = extra = self._extras.address_of(node)
            self._kernels[len(self._nodes)] = params, extra
            added = bindings.cuGraphAddKernelNode(self._graph, needs, len(needs), params)
            call = "cuGraphAddKernelNode"
        elif isinstance(node, CopyNode):
            copy = self._copy_params(node)
            added = bindings.cuGraphAddMemcpyNode(self._graph, needs, len(needs), copy, self._context)
            call = "cuGraphAddMemcpyNode"
        else:
            fill = self._fill_params(node)
            added = bindings.cuGraphAddMemsetNode(self._graph, needs, len(needs), fill, self._context)
            call = "cuGraphAddMemsetNode"
        self._nodes += self._checked(call, added)

    # ---- what a node does ---------------------------------------------------------------------------------------

    def _kernel_params(self, node: KernelNode, handle_of: Callable[[KernelNode], Any]) -> Any:
        shape = node.function, node.grid, node.block, node.shared
        params = self._shapes.get(shape)
        if params is None:
            self._shapes[shape] = params = self._bindings.CUDA_KERNEL_NODE_PARAMS()
            params.func = handle_of(node)
            params.gridDimX, params.gridDimY, params.gridDimZ = node.grid
            params.blockDimX, params.blockDimY, params.blockDimZ = node.block
            params.sharedMemBytes = node.shared
        return params

    def _copy_params(self, node: CopyNode) -> Any:
        # Pitches and heights of 0: there is one row (as XLA has it, and NVIDIA's own tests).
        kinds, params = self._bindings.CUmemorytype, self._bindings.CUDA_MEMCPY3D()
        if node.kind == "in":
            params.srcMemoryType, params.srcHost = kinds.CU_MEMORYTYPE_HOST, node.source
        else:
            params.srcMemoryType, params.srcDevice = kinds.CU_MEMORYTYPE_DEVICE, node.source
        if node.kind == "out":
            params.dstMemoryType, params.dstHost = kinds.CU_MEMORYTYPE_HOST, node.target
        else:
            params.dstMemoryType, params.dstDevice = kinds.CU_MEMORYTYPE_DEVICE, node.target
        params.WidthInBytes, params.Height, params.Depth = node.nbytes, 1, 1
        return params

    def _fill_params(self, node: FillNode) -> Any:
        params = self._bindings.CUDA_MEMSET_NODE_PARAMS()
        params.dst, params.value, params.elementSize = node.address, node.value, node.width
        params.width, params.height = node.count, 1
        return params

    # ---- the executable graph -----------------------------------------------------------------------------------

    def update_kernel(self, node: int) -> None:
        params, extra = self._kernels[node]
        params.extra = extra
        returned = self._set_kernel(self._exec, self._nodes[node], params)
        if returned[0]:
            self._checked("cuGraphExecKernelNodeSetParams", returned)

    def update_copy(self, node: int, to: CopyNode) -> None:
        params, set_params = self._copy_params(to), self._bindings.cuGraphExecMemcpyNodeSetParams
        returned = set_params(self._exec, self._nodes[node], params, self._context)
        self._checked("cuGraphExecMemcpyNodeSetParams", returned)

    def update_fill(self, node: int, to: FillNode) -> None:
        params, set_params = self._fill_params(to), self._bindings.cuGraphExecMemsetNodeSetParams
        returned = set_params(self._exec, self._nodes[node], params, self._context)
        self._checked("cuGraphExecMemsetNodeSetParams", returned)

    def upload(self, stream: RawStream) -> None:
        self._checked("cuGraphUpload", self._bindings.cuGraphUpload(self._exec, stream.handle))

    def launch(self, stream: RawStream) -> None:
        returned = self._bindings.cuGraphLaunch(self._exec, stream.handle)
        if returned[0]:
            self._checked("cuGraphLaunch", returned)

    def destroy(self) -> None:
        self._checked("cuGraphExecDestroy", self._bindings.cuGraphExecDestroy(self._exec))
        self._checked("cuGraphDestroy", self._bindings.cuGraphDestroy(self._graph))


@final
class _Extras:
    """Of each kernel of a graph the `extra` of its launch, which says where its parameters are: in two tables for all,
    as an array of ctypes' for each takes longer than the driver does for a node."""

    __slots__ = ("_held", "_rows", "_sizes", "_start", "_table")

    def __init__(self, kernels: Sequence[KernelNode]) -> None:
        self._rows = {id(kernel): row for row, kernel in enumerate(kernels)}
        # While there is a view of a bytearray it stays where it is.
        self._held = [ctypes.c_char.from_buffer(kernel.parameters) for kernel in kernels]
        self._sizes = np.array([len(kernel.parameters) for kernel in kernels], np.uint64)
        self._table = np.zeros((len(kernels), _EXTRA), np.uint64)
        self._table[:, 0] = _POINTER
        self._table[:, 1] = [ctypes.addressof(view) for view in self._held]
        self._table[:, 2] = _SIZE
        self._table[:, 3] = self._sizes.ctypes.data + 8 * np.arange(len(kernels), dtype=np.uint64)
        self._table[:, 4] = _END
        self._start: int = self._table.ctypes.data

    def address_of(self, kernel: KernelNode) -> int:
        """Where the five words of one are."""
        return self._start + 8 * _EXTRA * self._rows[id(kernel)]


def function_of(bindings: Any, checked: Checked, node: KernelNode, stream: RawStream) -> Any:
    """The CUfunction of a kernel that PyCUDA has loaded, whose objects do not tell theirs: one launch of it is captured
    in `stream`, which nobody else uses, and is never made."""
    mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    checked("cuStreamBeginCapture", bindings.cuStreamBeginCapture(stream.handle, mode))
    try:
        node.function.launch(node.grid, node.block, node.parameters, node.shared, stream)
    except BaseException:
        code, graph = bindings.cuStreamEndCapture(stream.handle)
        if not code:
            bindings.cuGraphDestroy(graph)
        raise
    graph = checked("cuStreamEndCapture", bindings.cuStreamEndCapture(stream.handle))[0]
    try:
        nodes = checked("cuGraphGetNodes", bindings.cuGraphGetNodes(graph, 1))[0]
        params = checked("cuGraphKernelNodeGetParams", bindings.cuGraphKernelNodeGetParams(nodes[0]))[0]
        return bindings.CUfunction(int(params.func))
    finally:
        bindings.cuGraphDestroy(graph)
