"""Executable graphs through cuda.bindings.

This module uses only functions that take the same arguments in cuda.bindings 12 and 13; the exceptions say so. A node
is identified by its handle in the graph from which the executable graph was instantiated, or in the body of one of its
conditional nodes, so all these graphs live equally long.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import repeat
from struct import iter_unpack, pack_into
from typing import Any, Final, NamedTuple, final

from dagpu.backends.cuda.driver.driver_protocol import (
    CapturedNode,
    CopyNode,
    EnqueuedWork,
    FillNode,
    GraphNode,
    IfNode,
    KernelLaunch,
    NodeAddresses,
    RawStream,
)
from dagpu.backends.cuda.driver.pycuda_streams import Checked, Context, Extras
from dagpu.common.errors import DeviceError

# ---- reads the nodes of a captured CUgraph through cuda.bindings: the addresses in their parameters -------------
# The driver's functions see the kernels of every library. The runtime's getter fails for kernels that another copy of
# the runtime has loaded.


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


# ---- captures the work that a library enqueues as a CUgraph, through cuda.bindings ------------------------------


@final
class StreamCapture:
    """Captures work on one device, in a stream that is used for nothing else.

    Captures are relaxed: a library may load a kernel meanwhile, and Python's garbage collector may free memory of any
    library. The driver refuses to synchronize with a context that has a stream under capture, so `lock` is held during
    a capture, and must be held during cuCtxSynchronize.
    """

    def __init__(self, bindings: Any, checked: Checked, new_stream: Callable[[], RawStream]) -> None:
        self._bindings = bindings
        self._checked = checked
        self._new_stream = new_stream
        self._stream: Any = None
        self.lock = threading.Lock()

    @contextmanager
    def captured(self, node: CapturedNode) -> Iterator[Any]:
        """Within the `with` block, gives the CUgraph of the node's work. The context must be current.

        Raises:
            DeviceError: the library refuses the work, or it cannot be captured.
        """
        with self.lock:
            graph = self._capture(node)
        try:
            if node.inspect is not None:
                node.inspect(read_work(self._bindings, self._checked, graph))
            yield graph
        finally:
            self._bindings.cuGraphDestroy(graph)

    def work(self, node: CapturedNode) -> Sequence[EnqueuedWork]:
        """Return what the node's library enqueues; see `Gpu.captured_work`. The context must be current."""
        with self.captured(node) as graph:
            return read_work(self._bindings, self._checked, graph)

    def _capture(self, node: CapturedNode) -> Any:
        bindings = self._bindings
        if self._stream is None:
            self._stream = self._new_stream()
        stream = self._stream
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._checked("cuStreamBeginCapture", bindings.cuStreamBeginCapture(stream.cu, mode))
        try:
            node.enqueue(stream.handle, node.addresses, node.scratch, *node.numbers)
        except BaseException:
            ended = bindings.cuStreamEndCapture(stream.cu)
            if not ended[0]:
                bindings.cuGraphDestroy(ended[1])
            raise
        code, *graphs = bindings.cuStreamEndCapture(stream.cu)
        if code:  # not by `device_error`: a refused capture leaves the device as it was
            raise DeviceError(
                f"cuStreamEndCapture failed: CUresult {int(code)}. The library's work cannot be captured.", int(code)
            )
        return graphs[0]


_OK: Final = (0,)
"""The result of a call that succeeds and has no values."""


@final
class PyCudaUpdates:
    """Updates of kernels' nodes. Implements `dagpu.backends.cuda.driver.driver_protocol.KernelUpdates`."""

    __slots__ = ("_checked", "_exec", "_handles", "_nodes", "_params", "_set_params", "refused")

    def __init__(
        self,
        checked: Checked,
        set_params: Callable[[Any, Any, Any], tuple[Any, ...]],
        executable: Any,
        nodes: Sequence[int],
        handles: list[Any],
        params: list[Any],
    ) -> None:
        """Prepare updates with `set_params`, the driver's cuGraphExecKernelNodeSetParams. For each node `handles` has
        its CUgraphNode, and `params` its CUDA_KERNEL_NODE_PARAMS."""
        self._checked = checked
        self._set_params = set_params
        self._exec = executable
        self._nodes = nodes
        self._handles = handles
        self._params = params
        self.refused: int | None = None

    def apply(self) -> None:
        # No Python code of dagpu runs for each node: a loop takes twice as long.
        self.refused = None
        done = list(map(self._set_params, repeat(self._exec), self._handles, self._params))
        if done.count(_OK) == len(done):
            return
        for node, returned in zip(self._nodes, done, strict=True):
            if returned[0]:
                self.refused = node
                self._checked("cuGraphExecKernelNodeSetParams", returned)


@final
class GraphSite(NamedTuple):
    """The device that works on a node of a graph."""

    context: Context
    capture: StreamCapture
    """Captures a library's work on the device."""


@final
class PyCudaGraph:
    """An executable graph. Implements `dagpu.backends.cuda.driver.driver_protocol.RawGraph`."""

    __slots__ = (
        "_bindings", "_bodies", "_checked", "_conditions", "_copies", "_exec", "_extras", "_graph", "_here", "_kernels",
        "_launch", "_nodes", "_set_copy", "_set_kernel", "_shapes", "_sites", "_updates",
    )  # fmt: skip

    def __init__(
        self,
        bindings: Any,
        checked: Checked,
        here: GraphSite,
        nodes: Sequence[tuple[tuple[GraphNode, Sequence[int]], GraphSite]],
        bodies: Sequence[int],
    ) -> None:
        """Instantiate a graph of these nodes, each with the site where it works. `here` is the site of the device in
        whose streams the graph is launched. A kernel's node works in the context of the kernel's module. For `bodies`
        see `Gpu.make_graph`."""
        self._bindings = bindings
        self._checked = checked
        self._here = here
        self._sites = [site for _, site in nodes]
        self._set_kernel: Callable[..., tuple[Any, ...]] = bindings.cuGraphExecKernelNodeSetParams
        self._set_copy: Callable[..., tuple[Any, ...]] = bindings.cuGraphExecMemcpyNodeSetParams
        self._launch: Callable[..., tuple[Any, ...]] = bindings.cuGraphLaunch
        self._extras = Extras([node for (node, _), _ in nodes if isinstance(node, KernelLaunch)])
        self._nodes: list[Any] = []
        self._kernels: dict[int, tuple[KernelLaunch, int]] = {}
        """For each kernel's node the launch, and the address of its `extra`."""
        self._updates: dict[int, Any] = {}
        """For each kernel's node that has been updated its own CUDA_KERNEL_NODE_PARAMS."""
        self._copies: dict[int, Any] = {}
        """For each copy's node its CUDA_MEMCPY3D."""
        self._shapes: dict[tuple[object, ...], Any] = {}
        """The CUDA_KERNEL_NODE_PARAMS by their other fields. To create one takes longer than the driver takes for a
        node."""
        self._graph: Any = checked("cuGraphCreate", bindings.cuGraphCreate(0))[0]
        self._bodies: dict[int, Any] = {}
        """The CUgraph of the body of each conditional node, which the driver owns."""
        try:
            self._conditions = {
                number: self._new_condition(site)
                for number, ((node, _), site) in enumerate(nodes)
                if type(node) is IfNode
            }
            """The handle of the condition of each conditional node."""
            for number, ((node, needs), site) in enumerate(nodes):
                graph = self._bodies[bodies[number]] if bodies and bodies[number] >= 0 else self._graph
                early = isinstance(node, KernelLaunch) and node.early and self._follows_kernel(needs, site, graph)
                before = [self._nodes[number] for number in needs]
                self._add(graph, node, [] if early else before, site)
                if early:
                    self._add_programmatic_edge(before[0], self._nodes[-1])
            self._exec: Any = checked("cuGraphInstantiate", bindings.cuGraphInstantiate(self._graph, 0))[0]
        except BaseException:
            bindings.cuGraphDestroy(self._graph)
            raise

    def _follows_kernel(self, needs: Sequence[int], site: GraphSite, graph: Any) -> bool:
        """Return whether a node depends on one other node, which is a kernel of the same device. In a body every kernel
        waits for the one before it: which edges a body may have is not documented."""
        if graph is not self._graph:
            return False
        return len(needs) == 1 and needs[0] in self._kernels and self._sites[needs[0]].context is site.context

    def _new_condition(self, site: GraphSite) -> Any:
        """Create the handle of a condition, which is 0 when a launch begins."""
        bindings = self._bindings
        made = bindings.cuGraphConditionalHandleCreate(
            self._graph, site.context.context, 0, bindings.CU_GRAPH_COND_ASSIGN_DEFAULT
        )
        return self._checked("cuGraphConditionalHandleCreate", made)[0]

    def _add_if(self, needs: list[Any], site: GraphSite) -> tuple[Any, ...]:
        """Add a conditional node, and store the graph of its body. Return the result of the driver's call."""
        bindings, number = self._bindings, len(self._nodes)
        params = bindings.CUgraphNodeParams()
        params.type = bindings.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        conditional = params.conditional
        conditional.handle = self._conditions[number]
        conditional.type = bindings.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
        conditional.size = 1
        conditional.ctx = site.context.context
        # cuda.bindings 12 has the function with edge data, which 13 has under this name, under the driver's name.
        add = getattr(bindings, "cuGraphAddNode_v2", None) or bindings.cuGraphAddNode
        plain = [bindings.CUgraphEdgeData() for _ in needs]  # cuda.bindings 12 refuses None
        added: tuple[Any, ...] = add(self._graph, needs, plain, len(needs), params)
        if not added[0]:
            self._bodies[number] = bindings.CUgraph(int(conditional.phGraph_out[0]))
        return added

    def _add(self, graph: Any, node: GraphNode, needs: list[Any], site: GraphSite) -> None:
        """Add a node to the graph, or to the body of a conditional node."""
        bindings, context = self._bindings, site.context.context
        if isinstance(node, KernelLaunch):
            if node.decides >= 0:
                pack_into("<Q", node.parameters, 0, int(self._conditions[node.decides]))
            params = self._kernel_params(node)
            params.extra = extra = self._extras.addresses[len(self._kernels)]
            self._kernels[len(self._nodes)] = node, extra
            added = bindings.cuGraphAddKernelNode(graph, needs, len(needs), params)
            call = "cuGraphAddKernelNode"
        elif isinstance(node, CopyNode):
            copy = self._copies[len(self._nodes)] = self._copy_params(node)
            added = bindings.cuGraphAddMemcpyNode(graph, needs, len(needs), copy, context)
            call = "cuGraphAddMemcpyNode"
        elif isinstance(node, CapturedNode):
            with self._entered(site), site.capture.captured(node) as child:  # the node is a copy of it
                added = bindings.cuGraphAddChildGraphNode(graph, needs, len(needs), child)
            call = "cuGraphAddChildGraphNode"
        elif isinstance(node, IfNode):
            added = self._add_if(needs, site)
            call = "cuGraphAddNode"
        else:
            fill = self._fill_params(node)
            added = bindings.cuGraphAddMemsetNode(graph, needs, len(needs), fill, context)
            call = "cuGraphAddMemsetNode"
        self._nodes += self._checked(call, added)
        if isinstance(node, KernelLaunch) and (node.cooperative or node.cluster is not None):
            self._set_attributes(self._nodes[-1], node)

    def _set_attributes(self, made: Any, node: KernelLaunch) -> None:
        """Set the attributes of a kernel's node. An update of its parameters leaves them."""
        bindings = self._bindings
        known, value = bindings.CUlaunchAttributeID, bindings.CUkernelNodeAttrValue()
        set_attribute = bindings.cuGraphKernelNodeSetAttribute
        if node.cooperative:
            value.cooperative = 1
            returned = set_attribute(made, known.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value)
            self._checked("cuGraphKernelNodeSetAttribute", returned)
        if node.cluster is not None:
            value = bindings.CUkernelNodeAttrValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = node.cluster
            returned = set_attribute(made, known.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value)
            self._checked("cuGraphKernelNodeSetAttribute", returned)

    def _entered(self, site: GraphSite) -> AbstractContextManager[object]:
        """Return a context manager in which the context of a site is current. That of `here` is current already."""
        return nullcontext() if site is self._here else site.context

    def _add_programmatic_edge(self, before: Any, after: Any) -> None:
        """Let a kernel start as soon as all blocks of the kernel before it have permitted that, or have ended."""
        bindings = self._bindings
        edge = bindings.CUgraphEdgeData()
        edge.from_port = 1  # cuda.h: CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        edge.type = bindings.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
        # cuda.bindings 12 has the function with edge data under the driver's name.
        add = getattr(bindings, "cuGraphAddDependencies_v2", None) or bindings.cuGraphAddDependencies
        self._checked("cuGraphAddDependencies", add(self._graph, [before], [after], [edge], 1))

    # ---- node parameters ----------------------------------------------------------------------------------------

    def _kernel_params(self, node: KernelLaunch) -> Any:
        shape = node.function, node.grid, node.block, node.shared
        params = self._shapes.get(shape)
        if params is None:
            params = self._shapes[shape] = self._new_kernel_params(node)
        return params

    def _new_kernel_params(self, node: KernelLaunch) -> Any:
        params = self._bindings.CUDA_KERNEL_NODE_PARAMS()
        params.func = self._bindings.CUfunction(node.function.handle)
        params.gridDimX, params.gridDimY, params.gridDimZ = node.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = node.block
        params.sharedMemBytes = node.shared
        return params

    def _copy_params(self, node: CopyNode) -> Any:
        # Pitches and heights of 0 mean one row (as in XLA, and in NVIDIA's own tests).
        kinds, params = self._bindings.CUmemorytype, self._bindings.CUDA_MEMCPY3D()
        host, device = kinds.CU_MEMORYTYPE_HOST, kinds.CU_MEMORYTYPE_DEVICE
        params.srcMemoryType = host if node.kind == "in" else device
        params.dstMemoryType = host if node.kind == "out" else device
        params.WidthInBytes, params.Height, params.Depth = node.nbytes, 1, 1
        _set_addresses(params, node)
        return params

    def _fill_params(self, node: FillNode) -> Any:
        params = self._bindings.CUDA_MEMSET_NODE_PARAMS()
        params.dst, params.value, params.elementSize = node.address, node.value, node.width
        params.width, params.height = node.count, 1
        return params

    # ---- the executable graph -----------------------------------------------------------------------------------

    def prepare_updates(self, nodes: Sequence[int]) -> PyCudaUpdates:
        params = [self._update_params(node) for node in nodes]
        handles = [self._nodes[node] for node in nodes]
        return PyCudaUpdates(self._checked, self._set_kernel, self._exec, nodes, handles, params)

    @property
    def handle(self) -> int:
        return int(self._exec)

    def node_addresses(self) -> NodeAddresses:
        nodes, copies = [(0, 0, 0)] * len(self._nodes), dict[int, tuple[int, int]]()
        for at in self._kernels:
            nodes[at] = int(self._nodes[at]), self._update_params(at).getPtr(), 0
        device = self._bindings.CUmemorytype.CU_MEMORYTYPE_DEVICE
        for at, params in self._copies.items():
            if params.srcMemoryType == params.dstMemoryType == device:
                start = params.getPtr()
                nodes[at] = int(self._nodes[at]), start, int(self._sites[at].context.context)
                copies[at] = start + _TARGET_AT, start + _SOURCE_AT
        return NodeAddresses(int(self._exec), int(self._here.context.context), nodes, copies, self)

    def _update_params(self, node: int) -> Any:
        """Return the CUDA_KERNEL_NODE_PARAMS of this node alone."""
        params = self._updates.get(node)
        if params is None:
            launch, extra = self._kernels[node]
            params = self._updates[node] = self._new_kernel_params(launch)
            params.extra = extra
        return params

    def update_copy(self, node: int, to: CopyNode) -> None:
        params = self._copies[node]  # to create one takes longer than the driver takes for the node
        _set_addresses(params, to)
        returned = self._set_copy(self._exec, self._nodes[node], params, self._sites[node].context.context)
        if returned[0]:
            self._checked("cuGraphExecMemcpyNodeSetParams", returned)

    def update_fill(self, node: int, to: FillNode) -> None:
        params, set_params = self._fill_params(to), self._bindings.cuGraphExecMemsetNodeSetParams
        returned = set_params(self._exec, self._nodes[node], params, self._sites[node].context.context)
        self._checked("cuGraphExecMemsetNodeSetParams", returned)

    def update_captured(self, node: int, to: CapturedNode) -> bool:
        site = self._sites[node]
        with self._entered(site), site.capture.captured(to) as child:
            returned = self._bindings.cuGraphExecChildGraphNodeSetParams(self._exec, self._nodes[node], child)
        return not returned[0]

    def upload(self, stream: Any) -> None:
        self._checked("cuGraphUpload", self._bindings.cuGraphUpload(self._exec, stream.cu))

    def launch(self, stream: Any) -> None:
        returned = self._launch(self._exec, stream.cu)
        if returned[0]:
            self._checked("cuGraphLaunch", returned)

    def destroy(self) -> None:
        self._checked("cuGraphExecDestroy", self._bindings.cuGraphExecDestroy(self._exec))
        self._checked("cuGraphDestroy", self._bindings.cuGraphDestroy(self._graph))


_SOURCE_AT: Final = 48
"""The offset of srcDevice in CUDA_MEMCPY3D (cuda.h)."""
_TARGET_AT: Final = 136
"""The offset of dstDevice."""


def _set_addresses(params: Any, node: CopyNode) -> None:
    """Write a copy's addresses into its CUDA_MEMCPY3D."""
    if node.kind == "in":
        params.srcHost = node.source
    else:
        params.srcDevice = node.source
    if node.kind == "out":
        params.dstHost = node.target
    else:
        params.dstDevice = node.target
