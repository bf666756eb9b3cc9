"""The work of libraries as kernels: what a backend asks of a body, and what a user's body gets.

The body knows the library, a backend knows streams, addresses and graphs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, Literal, Protocol, TypeAlias, final

from dagpu.common.layout import Layout

Enqueue: TypeAlias = Callable[..., object]
"""Enqueues the work: `f(stream, addresses, scratch, *numbers)`. `stream` is a CUstream, `addresses` are those of the
first elements of the tensor arguments, `scratch` is that of the scratch memory, 0 if the work needs none, and `numbers`
are the scalar arguments.

Any thread may call it, also several at once. It does not wait for the device. It may be called while the stream is
captured into a graph."""


class LibraryBody(Protocol):
    """Functions of a library that do the work of a kernel on a CUDA device. The body knows the library, a backend knows
    streams, addresses and graphs.

    `operands` are the layouts of the tensor arguments, in the order of the kernel's parameters, `device` is the index
    of the CUDA device, and its context is current during each call. Equal arguments give equal work, so results do not
    depend on the run.
    """

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
    @abstractmethod
    def described(self) -> str:
        """The body that runs on a GPU, for messages: "torch body (model.py:14)"."""

    def is_known(self, operands: Sequence[Layout], device: int) -> bool:
        """See `LibraryBody`. The declaration says everything."""
        return True

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
