"""The part of the CUDA driver that the backend uses, as protocols and data types. This module imports no driver.

`pycuda_driver` implements it. Every call needs the device's context current (`Gpu.current`), and any thread may make
it. A call that fails raises `DeviceError` with the CUresult as its code. A prepared launch, which each run makes
thousands of times, returns its CUresult instead; `Gpu.refused` converts that to a `DeviceError`.

A call that may wait, for the device or for a thread that waits for it, releases the GIL, and nothing here acquires the
GIL on a driver's thread. Otherwise a running kernel, or a host function behind it, could never end. `DRIVER_CALLS`
lists all calls.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.kernel_text.loaded_function import Function, GridExtents, Limits
from dagpu.common.errors import DeviceError, DeviceLostError, OutOfMemoryError
from dagpu.handles.device_handles import Enqueue


class RawStream(Protocol):
    """A CUDA stream (CUstream)."""

    @property
    def handle(self) -> int: ...
    def wait_for_event(self, event: Any, /) -> None: ...
    def query(self) -> bool:
        """Return True if all work in the stream is complete."""
        ...

    def synchronize(self) -> object:
        """Block until all work in the stream is complete."""
        ...


class RawEvent(Protocol):
    """A CUDA event (CUevent) without timing."""

    def record(self, stream: Any, /) -> object: ...
    def query(self) -> bool: ...
    def synchronize(self) -> object: ...


class TimingEvent(RawEvent, Protocol):
    """A CUDA event (CUevent) with timing."""

    def time_since(self, earlier: Any, /) -> float:
        """Return the milliseconds since `earlier`. Both events are of one device and complete."""
        ...


LAUNCH: Final = "cuLaunchKernelEx"
"""The driver call that a prepared launch makes."""


@final
class KernelLaunch(NamedTuple):
    """A kernel launch, in a stream or as a node of a graph. A plan may have thousands, and a frozen dataclass takes
    three times as long to create."""

    function: Function
    grid: GridExtents
    block: GridExtents
    parameters: bytearray | memoryview
    """The packed parameters, at a fixed address. A launch in a stream reads them when it is submitted; a graph reads
    them when it is created, and at each `KernelUpdates.apply`."""
    shared: int
    """Bytes of dynamic shared memory."""
    early: bool = False
    """True if in a graph its blocks may start before the kernel on which it depends is over. They wait themselves
    (griddepcontrol.wait). A stream ignores it."""
    cooperative: bool = False
    """True if all blocks are on the device at once, or the driver refuses the launch."""
    cluster: GridExtents | None = None
    """The extents of a cluster in blocks; None for those of the kernel, if it has any."""
    decides: int = -1
    """The number of the `IfNode` whose condition the kernel sets, which then depends on it; -1 if it sets none. The
    first 8 bytes of `parameters` receive the handle of the condition when the graph is made."""


class Launches(Protocol):
    """Launches that are prepared for streams. Each is submitted by a single call without arguments.

    One thread at a time calls `set_streams`. Then any thread may submit any launch, with the kernel's context current.
    """

    @property
    def each(self) -> Sequence[Callable[[], int]]:
        """Functions that submit a launch each, in its lane's stream, with the current contents of its parameters. A
        call returns the CUresult: 0 unless the driver refuses. It blocks while the queue is full; other threads run
        meanwhile."""
        ...

    def set_streams(self, streams: Sequence[RawStream]) -> None:
        """Set the stream of each lane. Later launches go to the stream of their lane. `streams` must not change
        afterwards."""
        ...


@final
@dataclass(frozen=True, slots=True, eq=False)
class CopyNode:
    """A contiguous copy in a graph: `in` from page-locked memory to the device, `out` from the device to page-locked
    memory, or `within` the memory of devices."""

    kind: Literal["in", "out", "within"]
    target: int
    source: int
    nbytes: int
    """Bytes copied; not 0."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class FillNode:
    """A memset in a graph: writes `count` (not 0) elements of `width` (1, 2, 4) bytes."""

    address: int
    width: int
    value: int
    count: int


@final
class EnqueuedWork(NamedTuple):
    """One node of captured work: a kernel, a copy, a fill, or the work of the host."""

    name: str
    """The node in words: "kernel `ampere_sgemm`", "a copy", "a fill"."""
    words: tuple[int, ...]
    """The addresses that the node may point at: each 8-byte word of a kernel's parameters, and the first and last bytes
    of copies and fills."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class CapturedNode:
    """Work of a library in a graph: a child graph of what `enqueue` enqueues for these addresses and numbers."""

    enqueue: Enqueue
    addresses: tuple[int, ...]
    scratch: int
    numbers: tuple[Any, ...] = ()
    inspect: Callable[[Sequence[EnqueuedWork]], object] | None = None
    """Called with the captured work before it becomes part of the graph; it may raise. None: the work is not read."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class IfNode:
    """A conditional node of a graph. The nodes of its body run if its condition is not 0. The condition is 0 when a
    launch begins; a kernel that `decides` it sets it (cudaGraphSetConditional)."""


GraphNode: TypeAlias = KernelLaunch | CopyNode | FillNode | CapturedNode | IfNode


class KernelUpdates(Protocol):
    """Updates of some kernels' nodes, which are prepared once for many runs."""

    @property
    def refused(self) -> int | None:
        """The node at which the last `apply` ended with an error; None if it ended otherwise, or at no one node."""
        ...

    def apply(self) -> None:
        """Copy the parameters of the kernels into their nodes. Later launches use them.

        Raises:
            DeviceError: the driver refuses one. Others may be updated.
        """
        ...


class NodeAddresses(NamedTuple):
    """The nodes of an executable graph, as addresses for the functions of the driver's library."""

    executable: int
    """The CUgraphExec."""
    context: int
    """The CUcontext that must be current while a node is updated."""
    nodes: Sequence[tuple[int, int, int]]
    """For each kernel's node its CUgraphNode, the address of its CUDA_KERNEL_NODE_PARAMS, and 0; for a copy within the
    memory of devices that of its CUDA_MEMCPY3D, and its CUcontext; zeros for a node of another kind."""
    copies: Mapping[int, tuple[int, int]]
    """For each such copy the addresses of its target and of its source in its CUDA_MEMCPY3D."""
    kept_alive: object


class RawGraph(Protocol):
    """An executable graph (CUgraphExec). A node's number is its index in the argument of `Gpu.make_graph`.

    The caller changes, launches and destroys it only while none of its launches is under way. Launches in one stream
    may follow each other.
    """

    @property
    def handle(self) -> int | None:
        """The CUgraphExec; None if the driver has no functions of C."""
        ...

    def prepare_updates(self, nodes: Sequence[int]) -> KernelUpdates:
        """Prepare updates of these kernels' nodes, for runs in which their parameters change together."""
        ...

    def node_addresses(self) -> NodeAddresses | None:
        """Return the kernels' nodes as the driver's functions take them; None if the driver has no functions of C."""
        ...

    def update_copy(self, node: int, to: CopyNode) -> None:
        """Set the addresses of a copy node. Only the addresses of `to` differ from the node's."""
        ...

    def update_fill(self, node: int, to: FillNode) -> None:
        """Set the address of a memset node. Only the address of `to` differs from the node's."""
        ...

    def update_captured(self, node: int, to: CapturedNode) -> bool:
        """Capture the work of a library for other addresses, and put it in the place of the node's. Return False if the
        driver refuses, because the work has other nodes than before; then the graph must be made again."""
        ...

    def upload(self, stream: RawStream) -> None:
        """Upload the graph to the device ahead of its first launch."""
        ...

    def launch(self, stream: RawStream) -> None: ...

    def destroy(self) -> None: ...


class Gpu(Protocol):
    """One device and its primary context."""

    index: int
    name: str
    arch: str
    """The architecture in the form of compiler options: `sm_90`."""
    limits: Limits
    is_native: bool
    """True if the functions of the driver's library take its streams and its memory, as the compiled reader calls
    them."""

    @property
    def needs_context(self) -> bool:
        """True if the launch of an executable graph, copies between host and device, and calls that poll or record
        events and streams, fail where no context is current. All other calls need the context."""
        ...

    def entered(self) -> AbstractContextManager[object]:
        """Return a context manager for the calls of which `needs_context` tells. It makes the context current if they
        need it."""
        ...

    def current(self) -> AbstractContextManager[object]:
        """Return a context manager that makes the context current on this thread, and restores the previous one at
        exit."""
        ...

    def record(self, event: RawEvent, stream: RawStream) -> None:
        """Record an event of this device in a stream of it. Any context may be current on this thread, or none."""
        ...

    def refused(self, call: str, code: int) -> DeviceError:
        """Return the error of a call that has returned a CUresult other than 0."""
        ...

    def new_stream(self) -> RawStream:
        """Create a non-blocking stream: one without implicit synchronization with the null stream."""
        ...

    def foreign_stream(self, handle: int) -> RawStream:
        """Return a stream of another library by its CUstream: 1 is the legacy default stream, 2 that of the thread."""
        ...

    def device_of(self, address: int) -> int:
        """Return the index of the device that has allocated the memory at this address."""
        ...

    def new_event(self) -> RawEvent: ...

    def new_timing_event(self) -> TimingEvent: ...

    def allocate(self, nbytes: int) -> int:
        """Allocate device memory, and return its address, aligned to 256 bytes or more.

        Raises:
            DeviceError: there is too little memory (code 2).
        """
        ...

    def free(self, address: int) -> None:
        """Free memory of `allocate`. This waits for the device."""
        ...

    def allocate_pinned(self, nbytes: int) -> int:
        """Allocate page-locked host memory, and return its address, which is valid on every device."""
        ...

    def free_pinned(self, address: int) -> None: ...

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total bytes of device memory."""
        ...

    def synchronize(self) -> None:
        """Block until the device is idle. Other threads run meanwhile."""
        ...

    def load(self, cubin: bytes, symbol: str, variables: Sequence[str] = ()) -> Function:
        """Load a kernel of a cubin for the process's life, and find variables of its module by their symbols. This
        waits for the device."""
        ...

    def prepare_launches(self, launches: Sequence[tuple[KernelLaunch, int]]) -> Launches:
        """Prepare launches, each with its lane. Their kernels may be of several devices."""
        ...

    def copy_in(self, address: int, source: NDArray[Any], stream: RawStream) -> None:
        """Copy contiguous host memory to the device. The copy is asynchronous if `source` is pinned."""
        ...

    def copy_in_and_wait(self, address: int, source: NDArray[Any], stream: RawStream) -> None:
        """Copy any contiguous host memory to the device, for a thread that may wait: unless `source` is pinned, this
        returns when the driver has read it. Other threads run meanwhile."""
        ...

    def copy_out(self, target: NDArray[Any], address: int, stream: RawStream) -> None:
        """Copy device memory to contiguous host memory. The copy is asynchronous if `target` is pinned."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: RawStream) -> None:
        """Copy within the device, or from another device to this one."""
        ...

    def copy_pitched(
        self, target: int, source: int, width: int, height: int, pitches: tuple[int, int], stream: RawStream
    ) -> None:
        """Copy `height` rows of `width` bytes. `pitches` are those of the target and of the source, in bytes."""
        ...

    def reach_peer(self, peer: "Gpu") -> bool:
        """Enable this device's kernels to read the peer's memory. Return False if the hardware cannot."""
        ...

    def fill(self, address: int, width: int, value: int, count: int, stream: RawStream) -> None:
        """Write `value` to `count` elements of `width` (1, 2, 4) bytes."""
        ...

    @property
    def lacks_conditions(self) -> str:
        """The reason why no graph can have an `IfNode`; empty if graphs can."""
        ...

    def make_graph(
        self,
        nodes: Sequence[tuple[GraphNode, Sequence[int]]],
        gpus: "Sequence[Gpu]" = (),
        bodies: Sequence[int] = (),
    ) -> RawGraph:
        """Instantiate an executable graph of these nodes. Each node comes with the numbers of the earlier nodes on
        which it depends. `gpus` has for each node the device that works on it; none if this device works on all.
        `bodies` has for each node the number of the earlier `IfNode` in whose body it is, -1 for none; it is empty if
        no node is in a body. A node in a body depends on nodes of that body alone.

        Raises:
            DeviceError: the driver refuses the graph; nothing of it remains.
        """
        ...

    def captured_work(self, node: CapturedNode) -> Sequence[EnqueuedWork]:
        """Capture the work of a library, and return what it enqueues. Nothing of it is executed.

        Raises:
            DeviceError: the library refuses the work, or it cannot be captured.
        """
        ...

    def close_when_reached(self, stream: RawStream, descriptor: int) -> None:
        """Enqueue a host function that closes a file descriptor. It runs no Python on the driver's thread."""
        ...

    def is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        """Return True if the array is in page-locked memory, whichever library allocated it."""
        ...


# ---- the results of driver calls (CUresult) that dagpu distinguishes, and the errors that users get for failed calls


OUT_OF_MEMORY: Final = 2
NOT_READY: Final = 600
PEER_ACCESS_ALREADY_ENABLED: Final = 704
NOT_SUPPORTED: Final = 801
INVALID_VALUE: Final = 1
ASSERT: Final = 710
CAPTURED_EVENT: Final = 907

STICKY: Final = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999))
"""CUresults after which a context cannot be used again: uncorrectable ECC and NVLink errors, illegal address, launch
timeout, destroyed context, assert, hardware stack, illegal instruction, misaligned address, invalid address space,
invalid program counter, launch failure, contained error, leak of tensor memory, unknown (cuda.h: the results whose text
says that the process must be terminated and relaunched)."""

CURES: Final = {
    1: "It is a defect in dagpu, or in arguments that the driver alone can check",
    200: "Compile for this device's architecture",
    209: "The kernel's options name another architecture: leave -arch out",
    218: "The kernel's options name another architecture, or the driver is older than the compiler: update the driver",
    222: "The driver is older than the compiler: update the driver",
    700: "Find the access with checked=True on the kernel (or DAGPU_CHECKED=1), or with compute-sanitizer",
    701: "Use fewer threads or less shared memory for each block",
    702: "A display's watchdog ended the kernel: make it shorter",
    710: "An assert in the kernel failed: its message is in the program's output",
    716: "A load or store is wider than its address is aligned; find it with compute-sanitizer",
    719: "Find the cause with checked=True on the kernel (or DAGPU_CHECKED=1), or with compute-sanitizer",
}


def device_error(call: str, code: int, text: str) -> DeviceError:
    """Return the error of a failed driver call: `DeviceLostError` if the context cannot be used again,
    `OutOfMemoryError` if memory is short, else `DeviceError`."""
    cure = CURES.get(code)
    message = f"{call} failed: {text} (CUresult {code})"
    if code in STICKY:
        return DeviceLostError(f"{message}. {cure or 'The device cannot be used any more by this process'}.", code)
    kind = OutOfMemoryError if code == OUT_OF_MEMORY else DeviceError
    return kind(message + (f". {cure}." if cure else "."), code)


# ---- keeps threads out of the driver while the interpreter exits ------------------------------------------------


EXIT_SECONDS: Final = 2.0
"""Seconds that the interpreter waits at exit for threads that are in the driver."""


@final
class ExitGuard:
    """Counts the threads that are in the driver. The interpreter ends daemon threads at any point by unwinding their
    stacks, and the process crashes if a thread is in the driver or in PyCUDA's C++ then. So threads are stopped
    before they enter the driver."""

    __slots__ = ("begun", "inside")

    def __init__(self) -> None:
        self.begun = False
        """True once the interpreter exits. Then a thread must not enter the driver without `stop_other_threads`."""
        self.inside: list[None] = []
        """One element for each thread that is in the driver. A thread appends it before its calls, and pops one after
        them. Both are atomic."""
        atexit.register(self._begin)
        os.register_at_fork(after_in_child=self.inside.clear)  # these threads exist in the parent only

    def _begin(self) -> None:
        self.begun = True
        deadline = time.monotonic() + EXIT_SECONDS
        while self.inside and time.monotonic() < deadline:
            time.sleep(1e-3)

    def stop_other_threads(self) -> None:
        """Block the calling thread for ever, unless it is the main thread, which may still have work at exit."""
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait()


EXIT_GUARD: Final = ExitGuard()


@final
class InDriver:
    """A `with` block in which a thread is in the driver, with any context or none."""

    __slots__ = ()

    def __enter__(self) -> None:
        if EXIT_GUARD.begun:
            EXIT_GUARD.stop_other_threads()
        EXIT_GUARD.inside.append(None)

    def __exit__(self, *_error: object) -> None:
        EXIT_GUARD.inside.pop()


IN_DRIVER: Final = InDriver()


# ---- the calls


@final
class DriverCall(NamedTuple):
    """One call."""

    name: str
    through: str
    """The library that makes the call: `bindings` for cuda.bindings, `ctypes`, or the call's name in PyCUDA."""
    waits: str
    """The work that the call may wait for; `-` if it never waits."""
    behind_a_load: str
    """`waits` if the call waits while another thread loads a module or frees memory; else `unknown`, or `-` for no."""
    releases: bool
    """True if the call releases the GIL."""

    @property
    def may_wait(self) -> bool:
        return self.waits != "-" or self.behind_a_load != "-"


DRIVER_CALLS: Final = (
    DriverCall("cuInit", "cuda.init", "-", "-", True),
    DriverCall("cuDriverGetVersion", "bindings", "-", "-", True),
    DriverCall("cuDeviceGetCount", "cuda.Device.count", "-", "-", False),
    DriverCall("cuDeviceGet", "cuda.Device", "-", "-", False),
    DriverCall("cuDeviceGetName", "Device.name", "-", "-", False),
    DriverCall("cuDeviceComputeCapability", "Device.compute_capability", "-", "-", False),
    DriverCall("cuDeviceGetAttribute", "Device.get_attribute", "-", "-", False),
    DriverCall("cuDeviceCanAccessPeer", "bindings", "-", "-", True),
    DriverCall("cuDevicePrimaryCtxRetain", "bindings", "a new context", "-", True),
    DriverCall("cuCtxPushCurrent", "bindings", "-", "-", True),
    DriverCall("cuCtxPopCurrent", "bindings", "-", "-", True),
    DriverCall("cuCtxSynchronize", "bindings", "the device", "unknown", True),
    DriverCall("cuCtxEnablePeerAccess", "bindings", "the device", "unknown", True),
    DriverCall("cuStreamCreate", "bindings", "-", "waits", True),
    DriverCall("cuStreamWaitEvent", "bindings", "a full queue", "-", True),
    DriverCall("cuStreamQuery", "bindings", "-", "unknown", True),
    DriverCall("cuStreamSynchronize", "bindings", "the stream", "unknown", True),
    DriverCall("cuStreamBeginCapture", "bindings", "-", "unknown", True),
    DriverCall("cuStreamEndCapture", "bindings", "-", "unknown", True),
    DriverCall("cuEventCreate", "bindings", "-", "waits", True),
    DriverCall("cuEventRecord", "bindings", "a full queue", "waits", True),
    DriverCall("cuEventQuery", "bindings", "-", "-", True),
    DriverCall("cuEventSynchronize", "bindings", "the event", "unknown", True),
    DriverCall("cuEventElapsedTime", "bindings", "-", "-", True),
    DriverCall("cuLaunchHostFunc", "ctypes", "a full queue", "waits", True),
    DriverCall("cuLaunchKernelEx", "ctypes", "a full queue", "waits", True),
    DriverCall("cuMemAlloc", "bindings", "-", "waits", True),
    DriverCall("cuMemFree", "bindings", "the device", "unknown", True),
    DriverCall("cuMemHostAlloc", "bindings", "pages to lock", "waits", True),
    DriverCall("cuMemFreeHost", "bindings", "the device", "waits", True),
    DriverCall("cuMemGetInfo", "bindings", "-", "-", True),
    DriverCall("cuPointerGetAttribute", "bindings", "-", "-", True),
    DriverCall("cuMemcpyHtoDAsync", "bindings", "pageable memory", "waits", True),
    DriverCall("cuMemcpyDtoHAsync", "bindings", "pageable memory", "waits", True),
    DriverCall("cuMemcpyDtoDAsync", "bindings", "a full queue", "waits", True),
    DriverCall("cuMemcpy2DAsync", "bindings", "a full queue", "waits", True),
    DriverCall("cuMemsetD8Async", "bindings", "a full queue", "waits", True),
    DriverCall("cuMemsetD16Async", "bindings", "a full queue", "waits", True),
    DriverCall("cuMemsetD32Async", "bindings", "a full queue", "waits", True),
    DriverCall("cuModuleLoadData", "bindings", "the device", "waits", True),
    DriverCall("cuModuleGetFunction", "bindings", "-", "unknown", True),
    DriverCall("cuModuleGetGlobal", "bindings", "-", "unknown", True),
    DriverCall("cuFuncGetAttribute", "bindings", "-", "-", True),
    DriverCall("cuFuncSetAttribute", "bindings", "-", "unknown", True),
    DriverCall("cuOccupancyMaxActiveBlocksPerMultiprocessor", "bindings", "-", "unknown", True),
    DriverCall("cuGraphCreate", "bindings", "-", "-", True),
    DriverCall("cuGraphAddKernelNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphKernelNodeSetAttribute", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddMemcpyNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddMemsetNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddChildGraphNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddDependencies", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphConditionalHandleCreate", "bindings", "-", "unknown", True),
    DriverCall("cuGraphGetNodes", "bindings", "-", "unknown", True),
    DriverCall("cuGraphNodeGetType", "bindings", "-", "unknown", True),
    DriverCall("cuGraphKernelNodeGetParams", "bindings", "-", "unknown", True),
    DriverCall("cuGraphMemcpyNodeGetParams", "bindings", "-", "unknown", True),
    DriverCall("cuGraphMemsetNodeGetParams", "bindings", "-", "unknown", True),
    DriverCall("cuGraphChildGraphNodeGetGraph", "bindings", "-", "unknown", True),
    DriverCall("cuFuncGetParamInfo", "bindings", "-", "unknown", True),
    DriverCall("cuKernelGetParamInfo", "bindings", "-", "unknown", True),
    DriverCall("cuFuncGetName", "bindings", "-", "unknown", True),
    DriverCall("cuKernelGetName", "bindings", "-", "unknown", True),
    DriverCall("cuGraphInstantiate", "bindings", "the device", "unknown", True),
    DriverCall("cuGraphExecKernelNodeSetParams", "bindings", "-", "-", True),
    DriverCall("cuGraphExecMemcpyNodeSetParams", "bindings", "-", "-", True),
    DriverCall("cuGraphExecMemsetNodeSetParams", "bindings", "-", "-", True),
    DriverCall("cuGraphExecChildGraphNodeSetParams", "bindings", "-", "unknown", True),
    DriverCall("cuGraphUpload", "bindings", "a full queue", "waits", True),
    DriverCall("cuGraphLaunch", "bindings", "a full queue", "waits", True),
    DriverCall("cuGraphExecDestroy", "bindings", "-", "unknown", True),
    DriverCall("cuGraphDestroy", "bindings", "-", "unknown", True),
    DriverCall("cuGetErrorString", "bindings", "-", "-", True),
)
