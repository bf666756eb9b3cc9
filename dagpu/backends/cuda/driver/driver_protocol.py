"""What the CUDA backend asks of the driver, as types; nothing here imports one.

`pycuda_driver` is the real one. Every call is made with the device's context current (`Gpu.current`), on any thread.
A call that fails raises `DeviceError` with the CUresult as its code. A prepared launch, which is made thousands of
times for each run, returns its CUresult instead, of which `Gpu.refused` makes a `DeviceError`.

A call that may wait, for the device or for a thread that waits for it, lets go of the GIL, and nothing here takes the
GIL on a driver's thread: else a kernel under way, or a host function behind it, could never end (`pycuda_driver` has
the list of all calls).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.errors import DeviceError, DeviceLostError, OutOfMemoryError

GridExtents: TypeAlias = tuple[int, int, int]
"""x, y, z of a grid or a block."""

OUT_OF_MEMORY: Final = 2
NOT_READY: Final = 600
PEER_ACCESS_ALREADY_ENABLED: Final = 704
NOT_SUPPORTED: Final = 801

STICKY: Final = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 900, 999))
"""CUresults after which a context is beyond repair: uncorrectable ECC and NVLink errors, illegal address, launch
timeout, destroyed context, assert, hardware stack, illegal instruction, misaligned address, invalid address space,
invalid program counter, launch failure, contained error, unknown (cuda.h: those whose text says that the process must
be terminated and relaunched)."""

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
    """A failed driver call as an error: `DeviceLostError` where the context does not recover, `OutOfMemoryError` where
    it was out of memory."""
    cure = CURES.get(code)
    message = f"{call} failed: {text} (CUresult {code})"
    if code in STICKY:
        return DeviceLostError(f"{message}. {cure or 'The device cannot be used any more by this process'}.", code)
    kind = OutOfMemoryError if code == OUT_OF_MEMORY else DeviceError
    return kind(message + (f". {cure}." if cure else "."), code)


class RawStream(Protocol):
    """A CUstream."""

    @property
    def handle(self) -> int: ...
    def wait_for_event(self, event: Any, /) -> None: ...


class RawEvent(Protocol):
    """A CUevent without timing."""

    def record(self, stream: Any, /) -> object: ...
    def query(self) -> bool: ...
    def synchronize(self) -> object: ...


class TimingEvent(RawEvent, Protocol):
    """A CUevent with timing."""

    def time_since(self, earlier: Any, /) -> float:
        """Milliseconds between two events of one device that have happened."""
        ...


LAUNCH: Final = "cuLaunchKernelEx"
"""The call that a prepared launch makes."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A kernel, loaded."""

    handle: Any
    """What the `Gpu` that loaded it knows it by: for the real one the CUfunction, as a number."""
    max_threads: int
    """Threads that a block may have, given the registers that the kernel takes."""
    static_shared: int
    """Bytes of shared memory that it declares itself."""
    registers: int
    allow_shared: Callable[[int], None]
    """Let it have so many bytes of dynamic shared memory: needed above 48 KiB."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """What a device allows a launch (cuDeviceGetAttribute)."""

    threads: int
    block: GridExtents
    grid: GridExtents
    shared: int
    """Bytes of shared memory for each block, static and dynamic, that a kernel may ask for."""
    default_shared: int
    """The same without asking."""


@final
class KernelLaunch(NamedTuple):
    """A launch, in a stream or as a node of a graph. A plan may have thousands, and a frozen class takes thrice as long
    to make."""

    function: Function
    grid: GridExtents
    block: GridExtents
    parameters: bytearray
    """Packed. It stays where it is. A launch in a stream reads it when it is made; a graph when it is made, and at each
    `update_kernel`."""
    shared: int
    """Bytes of dynamic shared memory."""


class Launches(Protocol):
    """Launches that are prepared for streams, so that making one takes a single call without arguments.

    One thread at a time aims them. Then any thread makes any of them, with the kernel's context current.
    """

    @property
    def each(self) -> Sequence[Callable[[], int]]:
        """What makes each launch, in its lane's stream, with what is in its parameters at that moment. It returns the
        CUresult: 0 unless the driver has refused. A full queue makes it wait; other threads run meanwhile."""
        ...

    def aim(self, streams: Sequence[RawStream]) -> None:
        """From now on a launch goes to the stream of its lane. The list is kept: it is not changed afterwards."""
        ...


@final
@dataclass(frozen=True, slots=True, eq=False)
class CopyNode:
    """A contiguous copy, in a graph: `in` from page-locked memory to the device, `out` the other way, or `within`."""

    kind: Literal["in", "out", "within"]
    target: int
    source: int
    nbytes: int
    """Not 0."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class FillNode:
    """`count` (not 0) elements of `width` (1, 2, 4) bytes, in a graph."""

    address: int
    width: int
    value: int
    count: int


GraphNode: TypeAlias = KernelLaunch | CopyNode | FillNode


class RawGraph(Protocol):
    """An executable graph. Nodes are named by their place in what `Gpu.make_graph` got.

    It is changed, launched and destroyed only when none of its launches is under way, but for launches in one stream.
    """

    def update_kernel(self, node: int) -> None:
        """A kernel's parameters have been written anew: launches from now on take them."""
        ...

    def update_copy(self, node: int, to: CopyNode) -> None:
        """Other addresses. All else is as it was."""
        ...

    def update_fill(self, node: int, to: FillNode) -> None:
        """Another address, likewise."""
        ...

    def upload(self, stream: RawStream) -> None:
        """Do ahead what the first launch would do else."""
        ...

    def launch(self, stream: RawStream) -> None: ...

    def destroy(self) -> None: ...


class Gpu(Protocol):
    """One device and its primary context."""

    index: int
    name: str
    arch: str
    """As compilers want it: `sm_90`."""
    limits: Limits

    def current(self) -> AbstractContextManager[object]:
        """Makes the context current on this thread; what was current before is so again afterwards."""
        ...

    def refused(self, call: str, code: int) -> DeviceError:
        """The error of a call that has returned a CUresult other than 0."""
        ...

    def new_stream(self) -> RawStream:
        """A non-blocking stream: one that does not order itself with the null stream."""
        ...

    def new_event(self) -> RawEvent: ...

    def new_timing_event(self) -> TimingEvent: ...

    def allocate(self, nbytes: int) -> int:
        """Device memory; its address, aligned to 256 bytes or more. `DeviceError` with code 2 where there is none."""
        ...

    def free(self, address: int) -> None:
        """Give back what `allocate` gave. Waits for the device."""
        ...

    def allocate_pinned(self, nbytes: int) -> int:
        """Page-locked host memory that every device can read and write under the same address."""
        ...

    def free_pinned(self, address: int) -> None: ...

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        ...

    def synchronize(self) -> None:
        """Block until the device is idle; other threads run meanwhile."""
        ...

    def load(self, cubin: bytes, symbol: str) -> Function:
        """A kernel of a cubin, for the process's life. Waits for the device."""
        ...

    def prepare_launches(self, launches: Sequence[tuple[KernelLaunch, int]]) -> Launches:
        """Launches, each with its lane, of kernels of any device."""
        ...

    def copy_in(self, address: int, source: NDArray[Any], stream: RawStream) -> None:
        """From contiguous host memory, `source.nbytes` bytes. Asynchronous where `source` is pinned."""
        ...

    def copy_out(self, target: NDArray[Any], address: int, stream: RawStream) -> None:
        """To contiguous host memory, likewise."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: RawStream) -> None:
        """Within the device, or from another one to it."""
        ...

    def copy_pitched(
        self, target: int, source: int, width: int, height: int, pitches: tuple[int, int], stream: RawStream
    ) -> None:
        """`height` rows of `width` bytes; `pitches` of the target and of the source, bytes."""
        ...

    def reach_peer(self, peer: "Gpu") -> bool:
        """Let this device's kernels read the other's memory; False where the hardware cannot."""
        ...

    def fill(self, address: int, width: int, value: int, count: int, stream: RawStream) -> None:
        """`count` elements of `width` (1, 2, 4) bytes."""
        ...

    def make_graph(self, nodes: Sequence[tuple[GraphNode, Sequence[int]]]) -> RawGraph:
        """An executable graph of these nodes, each after those of the nodes before it that are named with it.

        `DeviceError` where the driver refuses it; then nothing is left of it.
        """
        ...

    def close_when_reached(self, stream: RawStream, descriptor: int) -> None:
        """Once the stream gets there, have the driver close a file descriptor, with no Python on its thread."""
        ...

    def is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        """Does the array lie in page-locked memory, whoever allocated it?"""
        ...
