"""GPUs whose driver does nothing: the real CUDA backend runs on them, and both readers make the same calls of C.

Kernels are compiled to nothing and never run; device memory is addresses alone. What a run through an idle graph calls
is in null_driver.c, which the compiled reader calls by address, and this module by ctypes. Any other call succeeds.
"""

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.backend import CudaBackend
from dagpu.backends.cuda.compile.compiler import Compiled
from dagpu.backends.cuda.driver.driver_protocol import (
    IN_DRIVER,
    NOT_READY,
    CopyNode,
    NodeAddresses,
    device_error,
)
from dagpu.backends.kernel_text.units import Unit
from dagpu.common.compiled import READER
from dagpu.testing import LAUNCH, Function, Gpu, GraphNode, KernelLaunch, KernelSpec, Limits, replaced_backend

LIMITS: Final = Limits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 227 << 10, 48 << 10)
CONTEXT: Final = 0xC0
_READER_CALLS: Final = (
    "cuGraphLaunch", "cuStreamQuery", "cuStreamSynchronize", "cuGraphExecKernelNodeSetParams", "cuCtxPushCurrent",
    "cuCtxPopCurrent", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync", "cuGraphExecMemcpyNodeSetParams",
)  # fmt: skip
_POINTERS: Final = {
    "cuCtxPushCurrent": 1, "cuCtxPopCurrent": 1, "cuGraphExecKernelNodeSetParams": 3,
    "cuGraphExecMemcpyNodeSetParams": 4, "cuGraphLaunch": 2,
    "cuStreamQuery": 1, "cuStreamSynchronize": 1, "cuEventRecord": 2, "cuEventQuery": 1, "cuEventSynchronize": 1,
    "null_destroy": 1,
}  # fmt: skip
"""The functions that take so many pointers alone."""


@final
class Driver:
    """The library of null_driver.c."""

    def __init__(self, library: Path) -> None:
        self.calls = calls = ctypes.CDLL(str(library))
        for name, count in _POINTERS.items():
            getattr(calls, name).argtypes = [ctypes.c_void_p] * count
        for name in ("null_graph", "null_node", "null_stream", "null_event"):
            getattr(calls, name).restype = ctypes.c_void_p
        calls.null_node.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        calls.null_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
        calls.null_busy.argtypes = calls.null_press.argtypes = [ctypes.c_long]
        calls.null_launches.restype = calls.null_contexts.restype = ctypes.c_long
        calls.null_parameters.restype = ctypes.c_size_t
        calls.null_copied.restype = ctypes.c_uint64
        for copy in (calls.cuMemcpyHtoDAsync, calls.cuMemcpyDtoHAsync):
            copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        calls.cuMemcpyDtoDAsync.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
        calls.null_log.restype = calls.null_problems.restype = ctypes.c_char_p
        self._call = calls.null_call
        self.pinned: dict[int, ctypes.Array[ctypes.c_char]] = {}
        """The page-locked memory of the host, by its address."""
        calls.null_reset()
        if READER is not None:
            functions = {name: getattr(calls, name) for name in _READER_CALLS}
            READER.set_driver({name: ctypes.cast(f, ctypes.c_void_p).value for name, f in functions.items()})

    def check(self, call: str, code: int) -> None:
        """Raise the error of a call that has returned this CUresult, unless it is 0."""
        if code:
            raise device_error(call, code, "some error")

    def call(self, name: str) -> None:
        """Make a call of which only the name matters."""
        self.check(name, self._call(name.encode()))

    def log(self) -> list[str]:
        """Return the calls since the last question, without those that make a context current, and those that
        only ask whether work is complete. The driver notes no query."""
        text: bytes = self.calls.null_log()
        self.calls.null_clear()
        return [line for line in text.decode().split() if not line.endswith(("Synchronize", "PushCurrent"))]

    def problems(self) -> list[str]:
        text: bytes = self.calls.null_problems()
        return text.decode().splitlines()

    def copied(self) -> list[int]:
        """Return where to and where from the last copy was, its bytes, and the first byte of one from the host."""
        return [self.calls.null_copied(which) for which in range(4)]

    def is_pinned_at(self, address: int) -> bool:
        """Return true for an address of page-locked memory of the host."""
        return any(begin <= address < begin + ctypes.sizeof(each) for begin, each in self.pinned.items())

    def parameters(self, node: int = 0) -> bytes:
        """Return the parameters of a node in the launch that was made last."""
        found = ctypes.create_string_buffer(512)
        size: int = self.calls.null_parameters(node, found)
        return found.raw[:size]


class _Params(ctypes.Structure):
    """The parameters of a node, as null_driver.c declares them."""

    _fields_ = (("bytes", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _params_of(text: Any) -> Any:
    return _Params(ctypes.addressof(ctypes.c_char.from_buffer(text)) if len(text) else 0, len(text))


@final
class NullStream:
    """Implements `RawStream`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.handle: int = driver.calls.null_stream()

    def wait_for_event(self, event: Any, /) -> None:
        self._driver.call("cuStreamWaitEvent")

    def query(self) -> bool:
        code: int = self._driver.calls.cuStreamQuery(self.handle)
        if code != NOT_READY:
            self._driver.check("cuStreamQuery", code)
        return not code

    def synchronize(self) -> None:
        self._driver.check("cuStreamSynchronize", self._driver.calls.cuStreamSynchronize(self.handle))


@final
class NullEvent:
    """Implements `TimingEvent`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.handle: int = driver.calls.null_event()

    def record(self, stream: Any, /) -> None:
        self._driver.check("cuEventRecord", self._driver.calls.cuEventRecord(self.handle, stream.handle))

    def query(self) -> bool:
        code: int = self._driver.calls.cuEventQuery(self.handle)
        if code != NOT_READY:
            self._driver.check("cuEventQuery", code)
        return not code

    def synchronize(self) -> None:
        self._driver.check("cuEventSynchronize", self._driver.calls.cuEventSynchronize(self.handle))

    def time_since(self, earlier: Any, /) -> float:
        return 0.0


@final
class NullUpdates:
    """Implements `KernelUpdates`."""

    def __init__(self, graph: "NullGraph", nodes: Sequence[int]) -> None:
        self._graph = graph
        self._nodes = nodes
        self.refused: int | None = None

    def apply(self) -> None:
        graph = self._graph
        set_params = graph.driver.calls.cuGraphExecKernelNodeSetParams
        self.refused = None
        for node in self._nodes:
            params = graph.params[node]
            if code := set_params(graph.handle, graph.nodes[node], ctypes.addressof(params)):
                self.refused = node
                graph.driver.check("cuGraphExecKernelNodeSetParams", code)


def _is_within(node: GraphNode) -> bool:
    return isinstance(node, CopyNode) and node.kind == "within"


def _text_of(node: GraphNode) -> Any:
    """Return the parameters of a kernel, or the addresses of a copy within the memory of devices."""
    if isinstance(node, KernelLaunch):
        return node.parameters
    if isinstance(node, CopyNode) and node.kind == "within":
        return bytearray(struct.pack("<QQ", node.target, node.source))
    return bytearray()


@final
class NullGraph:
    """Implements `RawGraph`. A node that is no kernel has no parameters."""

    def __init__(self, driver: Driver, nodes: Sequence[GraphNode]) -> None:
        driver.call("cuGraphInstantiate")
        self.driver = driver
        texts: list[Any] = [_text_of(node) for node in nodes]
        self.texts = texts
        self.copies = {number for number, node in enumerate(nodes) if _is_within(node)}
        self.params = [_params_of(text) for text in texts]
        self.handle: int = driver.calls.null_graph(len(nodes))
        self.nodes: list[int] = [
            driver.calls.null_node(self.handle, number, bytes(text), len(text)) for number, text in enumerate(texts)
        ]

    def prepare_updates(self, nodes: Sequence[int]) -> NullUpdates:
        return NullUpdates(self, nodes)

    def node_addresses(self) -> NodeAddresses:
        nodes = [
            (node, ctypes.addressof(params), CONTEXT * (number in self.copies)) if params.size else (0, 0, 0)
            for number, (node, params) in enumerate(zip(self.nodes, self.params, strict=True))
        ]
        starts = {number: ctypes.addressof(ctypes.c_char.from_buffer(self.texts[number])) for number in self.copies}
        copies = {number: (start, start + 8) for number, start in starts.items()}
        return NodeAddresses(self.handle, CONTEXT, nodes, copies, self)

    def update_copy(self, node: int, to: CopyNode) -> None:
        if node in self.copies:
            self.texts[node][:] = _text_of(to)
            set_params = self.driver.calls.cuGraphExecMemcpyNodeSetParams
            code = set_params(self.handle, self.nodes[node], ctypes.addressof(self.params[node]), CONTEXT)
            self.driver.check("cuGraphExecMemcpyNodeSetParams", code)
        else:
            self.driver.call("cuGraphExecMemcpyNodeSetParams")

    def update_fill(self, node: int, to: object) -> None:
        self.driver.call("cuGraphExecMemsetNodeSetParams")

    def update_captured(self, node: int, to: object) -> bool:
        raise NotImplementedError

    def upload(self, stream: object) -> None:
        self.driver.call("cuGraphUpload")

    def launch(self, stream: Any) -> None:
        self.driver.check("cuGraphLaunch", self.driver.calls.cuGraphLaunch(self.handle, stream.handle))

    def destroy(self) -> None:
        self.driver.calls.null_destroy(self.handle)


@final
class NullLaunches:
    """Implements `Launches`."""

    def __init__(self, driver: Driver, count: int) -> None:
        self.each: Sequence[Callable[[], int]] = [partial(driver.calls.null_call, LAUNCH.encode())] * count

    def set_streams(self, streams: object) -> None:
        pass


@final
class NullGpu:
    """Implements `Gpu`."""

    is_native = True

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver = driver
        self.index = index
        self.name = f"null GPU {index}"
        self.arch = "sm_90"
        self.limits = LIMITS
        self.needs_context = False
        self.lacks_conditions = "this driver does nothing"
        self.room = 1 << 40
        """The bytes that can be allocated from now on."""
        self._lock = threading.Lock()
        self._next = (index + 1) << 44

    @contextmanager
    def current(self) -> Iterator[None]:
        self.driver.check("cuCtxPushCurrent", self.driver.calls.cuCtxPushCurrent(CONTEXT))
        try:
            yield
        finally:
            self.driver.calls.cuCtxPopCurrent(ctypes.byref(ctypes.c_void_p()))

    def entered(self) -> AbstractContextManager[object]:
        return self.current() if self.needs_context else IN_DRIVER

    def record(self, event: Any, stream: Any) -> None:
        event.record(stream)

    def refused(self, call: str, code: int) -> Any:
        return device_error(call, code, "some error")

    def new_stream(self) -> NullStream:
        return NullStream(self.driver)

    def foreign_stream(self, handle: int) -> NullStream:
        raise NotImplementedError

    def device_of(self, address: int) -> int:
        return (address >> 44) - 1

    def new_event(self) -> NullEvent:
        return NullEvent(self.driver)

    def new_timing_event(self) -> NullEvent:
        return NullEvent(self.driver)

    def allocate(self, nbytes: int) -> int:
        self.driver.call("cuMemAlloc")
        with self._lock:
            if nbytes > self.room:
                raise self.refused("cuMemAlloc", 2)
            self.room -= nbytes
            self._next += -(-nbytes // 512) * 512
            return self._next

    def free(self, address: int) -> None:
        self.driver.call("cuMemFree")

    def allocate_pinned(self, nbytes: int) -> int:
        self.driver.call("cuMemHostAlloc")
        memory = ctypes.create_string_buffer(nbytes)
        self.driver.pinned[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free_pinned(self, address: int) -> None:
        self.driver.call("cuMemFreeHost")
        del self.driver.pinned[address]

    def memory_info(self) -> tuple[int, int]:
        self.driver.call("cuMemGetInfo")
        return 1 << 33, 1 << 34

    def synchronize(self) -> None:
        self.driver.check("cuCtxSynchronize", self.driver.calls.cuCtxSynchronize())

    def load(self, cubin: bytes, symbol: str, variables: Sequence[str] = ()) -> Function:
        self.driver.call("cuModuleLoadData")
        return Function(symbol, self.limits.threads, 0, 32, lambda nbytes: None)

    def prepare_launches(self, launches: Sequence[tuple[KernelLaunch, int]]) -> NullLaunches:
        return NullLaunches(self.driver, len(launches))

    def copy_in(self, address: int, source: NDArray[Any], stream: Any) -> None:
        code = self.driver.calls.cuMemcpyHtoDAsync(address, source.ctypes.data, source.nbytes, stream.handle)
        self.driver.check("cuMemcpyHtoDAsync", code)

    copy_in_and_wait = copy_in

    def copy_out(self, target: NDArray[Any], address: int, stream: Any) -> None:
        code = self.driver.calls.cuMemcpyDtoHAsync(target.ctypes.data, address, target.nbytes, stream.handle)
        self.driver.check("cuMemcpyDtoHAsync", code)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        code = self.driver.calls.cuMemcpyDtoDAsync(target, source, nbytes, stream.handle)
        self.driver.check("cuMemcpyDtoDAsync", code)

    def copy_pitched(
        self, target: int, source: int, width: int, height: int, pitches: tuple[int, int], stream: object
    ) -> None:
        self.driver.call("cuMemcpy2DAsync")

    def reach_peer(self, peer: object) -> bool:
        return peer is not self

    def fill(self, address: int, width: int, value: int, count: int, stream: object) -> None:
        self.driver.call(f"cuMemsetD{8 * width}Async")

    def make_graph(
        self,
        nodes: Sequence[tuple[GraphNode, Sequence[int]]],
        gpus: Sequence[Gpu] = (),
        bodies: Sequence[int] = (),
    ) -> NullGraph:
        return NullGraph(self.driver, [node for node, _ in nodes])

    def captured_work(self, node: object) -> Sequence[Any]:
        raise NotImplementedError

    def close_when_reached(self, stream: object, descriptor: int) -> None:
        self.driver.call("cuLaunchHostFunc")
        self.driver.calls.null_close(descriptor)

    def is_pinned(self, array: "np.ndarray[Any, Any]") -> bool:
        return False


@final
class NullCompiler:
    """Replaces `dagpu.backends.cuda.compile.compiler.Compiler`."""

    def compile(self, unit: Unit) -> Compiled:
        return Compiled(b"nothing", unit.name)

    def compile_python(self, spec: KernelSpec, variant: int, arch: str) -> Compiled:
        raise NotImplementedError


@contextmanager
def opened(library: Path) -> Iterator[Driver]:
    """Within the `with` block, `cuda:0` and `cuda:1` are such GPUs."""
    driver = Driver(library)
    gpus = [NullGpu(driver, index) for index in range(2)]
    with replaced_backend("cuda", CudaBackend(lambda: gpus, NullCompiler)):
        yield driver
