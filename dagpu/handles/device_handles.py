"""Devices and streams as values, and the work of libraries on them.

The body knows the library, a backend knows streams, addresses and graphs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, final

import numpy as np

from dagpu.common.critical import Section
from dagpu.common.frozen import Slot
from dagpu.common.layout import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray


Enqueue: TypeAlias = Callable[..., object]
"""Enqueues the work: `f(stream, addresses, scratch, *numbers)`. `stream` is a CUstream, `addresses` are those of the
first elements of the tensor arguments, `scratch` is that of the scratch memory, 0 if the work needs none, and `numbers`
are the scalar arguments.

Any thread may call it, also several at once. It does not wait for the device, and may be called while the stream is
captured into a graph, unless its body says that it waits."""


@final
class Effort(NamedTuple):
    """What a call of a library does, as its time is predicted from it."""

    kind: Literal["f64", "f32", "tf32", "f16", "transform"]
    """What the operations are: those of a product, with the precision in which it adds, or those of a transform."""
    operations: float
    """Additions and multiplications."""
    nbytes: int
    """Bytes that are read and written, all passes over the data together."""


class LibraryBody(Protocol):
    """Functions of a library that do the work of a kernel on a CUDA device. The body knows the library, a backend knows
    streams, addresses and graphs.

    `operands` are the layouts of the tensor arguments, in the order of the kernel's parameters, `device` is the index
    of the CUDA device, and its context is current during each call. Equal arguments give equal work, so results do not
    depend on the run.
    """

    @property
    def waits(self) -> bool:
        """True if the function that enqueues the work waits for the device: a thread that may not wait leaves the
        submission of a run to others."""
        ...

    @property
    def no_graph(self) -> str:
        """The reason why a plan with such a call is no CUDA graph, with its cure; empty if the work can be captured."""
        ...

    def is_known(self, operands: Sequence[Layout], device: int) -> bool:
        """True if `scratch_bytes` and `bind` return at once. Otherwise the library may be loaded, and prepare the work:
        a thread that may not wait leaves the first call of `scratch_bytes` to another one."""
        ...

    def scratch_bytes(self, operands: Sequence[Layout], device: int) -> int:
        """Return the bytes of scratch memory that the work needs. The trace of a run asks, before it plans memory.

        Raises:
            NoDeviceError: the library cannot be imported; the message names the package.
            DeviceError: the library refuses the work.
        """
        ...

    def bind(self, operands: Sequence[Layout], device: int) -> Enqueue:
        """Return the function that enqueues the work."""
        ...

    def effort(self, operands: Sequence[Layout]) -> Effort | None:
        """Return what the work consists of; None if only its bytes are known. No device is asked."""
        ...


class TemporaryMemory(Protocol):
    """Device memory for the temporaries of a user's body. Its bytes serve one stream, in order."""

    def take(self, nbytes: int) -> "TemporaryBlock":
        """Return memory. It may serve the next call of `take` from when it is dropped on.

        Raises:
            DeviceError: there is too little memory.
        """
        ...


class TemporaryBlock(Protocol):
    """Memory of `TemporaryMemory.take`, until it is dropped."""

    @property
    def address(self) -> int: ...


STAGED_BYTES: Final = 64 << 20
"""The most bytes of an operand of a `UserBody` that is copied in a graph, from and to where it is in each run. The body
of a larger one is captured again. A copy of so many bytes takes 31 us on an H200, and a call of a body 100 and more."""


class UserBody(ABC):
    """A `LibraryBody` that is Python code of the user's, for arrays of a library: the body of a foreign op.

    It may take long, and raise anything. So it is not called by a thread that may not wait, and an error of it fails
    the outputs of its op alone. In a graph it runs once for each capture, and may refuse to be captured.
    """

    capture: Literal["auto", "never", "required"]
    """Whether its work becomes part of CUDA graphs: if it can, never, or else the run raises a `CaptureError`."""
    audit: bool
    """True if its captured work is held against its operands before it becomes part of a graph."""
    refused: str | None = None
    """The reason why its work could not be captured when that was tried last; None if no capture has failed."""
    noted: str | None = None
    """A remark of the last audit that refused nothing; None if there is none."""

    @property
    def waits(self) -> bool:
        """See `LibraryBody`. Whether it does is not known, so any call of one is left to a thread that may wait."""
        return False

    @property
    def no_graph(self) -> str:
        """See `LibraryBody`."""
        never = 'it is declared with capture="never". Declare it with @foreign(capture="auto")'
        return never if self.capture == "never" else ""

    @property
    @abstractmethod
    def described(self) -> str:
        """The body that runs on a GPU, for messages: "torch body (model.py:14)"."""

    def is_known(self, operands: Sequence[Layout], device: int) -> bool:
        """See `LibraryBody`. The declaration says everything."""
        return True

    def effort(self, operands: Sequence[Layout]) -> Effort | None:
        """See `LibraryBody`. What the code of a user does is not known."""
        return None

    @abstractmethod
    def scratch_bytes(self, operands: Sequence[Layout], device: int) -> int:
        """See `LibraryBody`."""

    @abstractmethod
    def bind(self, operands: Sequence[Layout], device: int) -> "UserCall":
        """See `LibraryBody`."""


class UserCall(Protocol):
    """An `Enqueue` of a `UserBody`."""

    @property
    def most_streams(self) -> int | None:
        """The most of dagpu's streams on which the body is called; None for any number."""
        ...

    @property
    def takes_memory(self) -> bool:
        """True if a call needs `memory`."""
        ...

    def __call__(
        self,
        stream: int,
        addresses: Sequence[int],
        scratch: int,
        /,
        *numbers: Any,
        memory: TemporaryMemory | None = None,
        capturing: "Capturing | None" = None,
    ) -> object:
        """Call the body. Its temporaries are in `memory`, or in memory that `capturing` keeps, or that its library
        manages itself."""
        ...


@final
class Capturing:
    """A place in one CUDA graph where the work of a body is captured, perhaps several times. It keeps what the captured
    work needs, as long as the graph lives."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: dict[str, object] = {}
        """Objects of the body's library, by its name."""


def tuple_getter(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return the function that gives the items at these places of a sequence. It is a C function if there are several:
    each call of a body calls it."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple([items[place] for place in places])


# ---- device handles
#
# Devices and streams as values: a name and a driver.
#
# dagpu.runtime.device_lookup finds devices (`device("host:1")`, `use_device`); dagpu.backends implements them.


class Exchange(Protocol):
    """The exchange of one device's memory with other libraries. A stream is a CUstream, as an integer."""

    @property
    def alignment(self) -> int:
        """The alignment, in bytes, that the backend's own blocks have."""
        ...

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """The type of the device in DLPack's numbers, and its index."""
        ...

    @property
    def visited(self) -> set[int] | None:
        """The addresses of the blocks in use that other libraries have been given; None where `is_parked` alone can
        tell."""
        ...

    def open_stream(self, stream: int, owner: object) -> Hashable:
        """Return a stream of another library in the form of `Driver.open_stream`. It keeps `owner` alive.

        Only devices of kind cuda have it.
        """
        ...

    def wrap(self, address: int, nbytes: int, owner: object, stream: int | None) -> object:
        """Return a memory object of the backend for memory of another library. It keeps `owner` alive. Runs that use it
        wait for the work of `stream` as `await_work` says."""
        ...

    def address_of(self, memory: object) -> int:
        """Return the address of a memory object of the backend."""
        ...

    def device_of(self, address: int) -> int:
        """Return the index of the device that has this address."""
        ...

    def arrival_stream(self) -> int | None:
        """Return the stream that libraries make wait for their work on an array that they give to dagpu; None on the
        host, where arrays are complete."""
        ...

    def follow(self, stream: int) -> bool:
        """Make the arrival stream wait for all work that is in `stream` now. Return False, and do nothing, if that is
        being captured into a CUDA graph, so that it does not run now."""
        ...

    def await_work(self, memory: object, stream: int | None) -> None:
        """Make every run that uses `memory` from now on wait for all work that is in `stream` now; None for the arrival
        stream."""
        ...

    def give_out(self, memory: object, stream: int | None) -> None:
        """Prepare `memory` for work of another library: `stream` waits for what runs that use it would wait for, and
        once it is dropped it is not used again while that work may still use it. None: the library orders its work
        itself."""
        ...

    def await_visitors(self, memory: object) -> None:
        """Make the next run that uses `memory` wait for all work of other libraries that have been given it, which may
        be any work of the device."""
        ...

    def is_parked(self, memory: object) -> bool:
        """Return true if `memory` has been given out, so that nothing may write it in place of what it holds."""
        ...


@final
class MappedMemory(NamedTuple):
    """Memory that the host writes between runs, and that kernels read in place, so that no copy goes before them."""

    memory: object
    """The memory object of the backend, to bind to a buffer of a plan."""
    content: "NDArray[np.uint8]"
    """Its bytes. They must not be written while a run reads them."""


NO_GRAPHS: Final = "its backend launches no CUDA graphs"
"""The reason why no CUDA graph decides anything, of backends other than CUDA's."""


class Driver(Protocol):
    """The functions of a backend for one of its devices."""

    @property
    def exchange(self) -> Exchange:
        """The exchange of the device's memory with other libraries."""
        ...

    @property
    def arch(self) -> str:
        """The architecture for which kernels of the device are compiled: `sm_90`; empty if none are."""
        ...

    @property
    def lacks_conditions(self) -> str:
        """The reason why no CUDA graph of the device decides which of its nodes run; empty if graphs can."""
        ...

    def open_stream(self) -> Hashable:
        """Open a stream of the device. It closes when the last reference to it is dropped."""
        ...

    def stream_handle(self, lane: Hashable) -> int:
        """Return the CUstream of a stream that `open_stream` returned; 0 if the backend has none."""
        ...

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total memory, in bytes."""
        ...

    def memory_for_runs(self, results: Sequence[int]) -> int | None:
        """Return the bytes that a run with results of these sizes could allocate now, with them; None for a device
        whose runs have no limit."""
        ...

    def memory_used(self) -> int:
        """Return the number of bytes that dagpu's handles and runs use."""
        ...

    def is_known(self, body: LibraryBody, operands: Sequence[Layout]) -> bool:
        """True if `scratch_bytes` returns at once for these arguments."""
        ...

    def mapped_memory(self, nbytes: int) -> "MappedMemory":
        """Return host memory that kernels of the device read where it is.

        Raises:
            DeviceError: there is too little memory.
        """
        ...

    def write_part(self, memory: object, layout: Layout, array: "NDArray[Any]") -> bool:
        """Write an array to the elements of `layout` in `memory`, which no run uses, and return True when it is
        complete. This thread blocks. Return False, and change nothing, if that needs a run of its own.

        Raises:
            DeviceError: the device is lost.
        """
        ...

    def copy_part(self, memory: object, layout: Layout, source: object) -> bool:
        """Copy `source`, memory of this device with the same elements in C order, to the elements of `layout`. See
        `write_part`."""
        ...

    def copy_for_later(self, array: "NDArray[Any]") -> "NDArray[Any] | None":
        """Return a copy of an array from which `write_part` writes quickly. Return None if the array had better go to
        the device now."""
        ...

    def reaches(self, peer: int) -> bool:
        """Return whether the device reads the memory of device number `peer` of its kind."""
        ...

    def scratch_bytes(self, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return the bytes of scratch memory that the body of a kernel needs here; 0 if this backend does not call it.

        Raises:
            DeviceError: the library is missing, or refuses the work.
        """
        ...


INSTALL_CUDA: Final = "pip install 'pycuda>=2026.1' 'cuda-bindings>=12'"
"""The command that installs the packages for CUDA devices, in addition to NVIDIA's driver.

It lists the extra `cuda` of pyproject.toml: dagpu is not on a package index, so the extra has no name outside of a
checkout.
"""
INSTALL_NVRTC: Final = (
    "pip install 'cuda-bindings>=12' 'nvidia-cuda-nvrtc>=12' 'nvidia-cuda-runtime>=12' 'nvidia-cuda-cccl>=12'"
)
"""The command that installs the CUDA compiler as a library, which needs no GPU and no driver: the extra `nvrtc`."""


@final
class Device:
    """A device that has memory and runs work: `host`, `host:1`, `cuda:0`."""

    __slots__ = ("__weakref__", "_driver", "_index", "_kind", "_node")

    def __init__(self, kind: Literal["host", "cuda", "explore"], index: int, driver: Driver, node: str = "") -> None:
        self._kind: Literal["host", "cuda", "explore"] = kind
        self._index = index
        self._driver = driver
        self._node = node

    @property
    def name(self) -> str:
        """The kind and the index of the device in one word. `device(name)` returns the device. The name of a device of
        a cluster begins with that of its worker: `node3/cuda:1`.

        While an op is traced that `Spread` places, handles are on `host:auto` or `cuda:auto`: their device is chosen
        once the whole op is known.
        """
        own = f"{self._kind}:{self._index}" if self._index >= 0 else f"{self._kind}:auto"
        return f"{self._node}/{own}" if self._node else own

    @property
    def kind(self) -> Literal["host", "cuda", "explore"]:
        """The backend of the device."""
        return self._kind

    @property
    def index(self) -> int:
        """The number of the device among those of its kind, of its worker if it is one of a cluster."""
        return self._index

    def stream(self) -> "Stream":
        """Return a new stream, for `op.sync_on(stream)`. It closes when the last reference to it is dropped."""
        with Section("device.stream() was called"):
            return Stream(self, self._driver.open_stream())

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total memory of the device, in bytes."""
        with Section("device.memory_info() was called"):
            return self._driver.memory_info()

    def memory_used(self) -> int:
        """Return the number of bytes that dagpu's handles and runs use on this device."""
        with Section("device.memory_used() was called"):
            return self._driver.memory_used()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (
            (self._kind, self._index, self._node) == (other._kind, other._index, other._node)
        )

    def __hash__(self) -> int:
        return hash((self._kind, self._index, self._node))

    def __reduce__(self) -> tuple[Callable[[str], "Device"], tuple[str]]:
        """A copy or pickle of a device is its name, looked up where it is loaded."""
        return FIND_DEVICE.value, (self.name,)

    def __repr__(self) -> str:
        return f"device({self.name!r})"


FIND_DEVICE: Final[Slot[Callable[[str], Device]]] = Slot("dagpu.runtime.device_lookup")
"""Returns a device by its name."""
driver_of: Final[Callable[[Device], Driver]] = attrgetter("_driver")
"""Return the driver of a device."""


def automatic_device(like: Device) -> Device:
    """Return the place `host:auto` or `cuda:auto`, for work whose device is chosen after the trace. It asks the driver
    of `like` for what a trace has to know, such as the bytes of scratch memory that a library needs."""
    return Device(like.kind, -1, driver_of(like))


def reaches(one: Device, other: Device) -> bool:
    """Return whether a device reads the memory of another one of its kind, which may take a call of its driver."""
    return driver_of(one).reaches(other.index)


def is_remote(device: Device) -> bool:
    """Return whether this is a device of a cluster, whose memory no library of this process is given."""
    return bool(device._node)


def kind_of(name: str) -> str:
    """Return the kind of a device by its name: `cuda` of `cuda:0`, `node3/cuda:1` and `cuda:auto`."""
    return name.rpartition("/")[2].partition(":")[0]


def is_automatic(name: str) -> bool:
    """Return whether this is the name of an automatic device."""
    return name.endswith(":auto")


@final
class Stream:
    """A queue of work on one device, which runs in the order of submission."""

    __slots__ = ("_device", "lane")

    def __init__(self, device: Device, lane: Hashable) -> None:
        self._device = device
        self.lane = lane

    @property
    def device(self) -> Device:
        """The device that runs the work of the stream."""
        return self._device

    @property
    def handle(self) -> int:
        """The CUstream, for other libraries; 0 on the host."""
        return driver_of(self._device).stream_handle(self.lane)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, 0, and the CUstream, so that other libraries can enqueue to the stream.

        cuda.core, CuPy and others call it. Keep this object alive as long as they use the stream.
        """
        return 0, self.handle

    def __repr__(self) -> str:
        return f"<Stream on {self._device.name}>"
