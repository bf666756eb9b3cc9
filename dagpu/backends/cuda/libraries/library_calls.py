"""Commands that call a library: its functions enqueue work on a stream. In a graph, that work is a child graph."""

from collections.abc import Callable, Container, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, NamedTuple, final

from dagpu.backends.common.checks.checked_bodies import ends_of, is_checked, layout_of
from dagpu.backends.common.host_instructions import blame
from dagpu.backends.cuda.commands.command_list import RunBuffers
from dagpu.backends.cuda.commands.relocation import BaseOffset
from dagpu.backends.cuda.driver.driver_protocol import CapturedNode, EnqueuedWork, RawStream
from dagpu.backends.cuda.libraries.body_audit import BodyAudit, who
from dagpu.backends.cuda.libraries.checked_calls import CheckedCall
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.streams import Detour
from dagpu.backends.cuda.resources.temporaries import Temporaries
from dagpu.common.errors import CaptureError, DeviceLostError
from dagpu.common.places import describe
from dagpu.handles.device_handles import STAGED_BYTES, Capturing, Enqueue, UserBody, tuple_getter
from dagpu.plans.program import Cell, Launch


@final
class StagedOperand(NamedTuple):
    """An operand of a user's body that is at one address in each run of a graph: it is copied from and to its own."""

    number: int
    """Its number among the call's operands."""
    start: BaseOffset
    """The place of its first byte."""
    nbytes: int
    first: int
    """The distance from its first byte to its first element."""
    reads: bool
    """True if its contents are copied before the call."""
    writes: bool
    """True if they are copied back after it."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class LibraryCall:
    """Calls a library on the tensors and numbers of a launch."""

    instruction: Launch
    enqueue: Enqueue
    operands: Sequence[BaseOffset]
    """The places of the first elements of the tensors."""
    scratch: BaseOffset | None
    nbytes: int
    """Bytes of the largest tensor, or of the scratch memory; not 0."""
    numbers: tuple[Any, ...] = ()
    """The numbers. A `Cell` among them holds its number in each run."""
    body: UserBody | None = field(init=False)
    """The user's body that is called; None for a call of a library's own functions."""
    is_checked: bool = field(init=False)
    """True if the calls of the body are checked."""
    most_streams: int | None = field(init=False)
    """The most of dagpu's streams on which the body is called; None for any number."""
    takes_memory: bool = field(init=False)
    """True if the body is given memory for temporaries."""
    has_cells: bool = field(init=False)
    """True if a number differs between runs."""
    _bases_of: Callable[[Sequence[int]], tuple[int, ...]] = field(init=False)
    """Returns the bases from which the tensors are counted."""
    _offsets: tuple[int, ...] | None = field(init=False)
    """The distances of the tensors from these; None if all are 0."""

    def __post_init__(self) -> None:
        library: Any = self.instruction.kernel.library
        body = library if isinstance(library, UserBody) else None
        call: Any = self.enqueue  # of a body it is a `UserCall`
        object.__setattr__(self, "body", body)
        object.__setattr__(self, "is_checked", is_checked(self.instruction))
        object.__setattr__(self, "most_streams", None if body is None else call.most_streams)
        object.__setattr__(self, "takes_memory", body is not None and call.takes_memory)
        object.__setattr__(self, "has_cells", any(type(number) is Cell for number in self.numbers))
        object.__setattr__(self, "_bases_of", tuple_getter([place.base for place in self.operands]))
        offsets = tuple([place.offset for place in self.operands])
        object.__setattr__(self, "_offsets", offsets if any(offsets) else None)

    @property
    def bases(self) -> tuple[int, ...]:
        """The bases of the call's addresses."""
        places = self.operands if self.scratch is None else (*self.operands, self.scratch)
        return tuple([place.base for place in places])

    @property
    def cells(self) -> tuple[int, ...]:
        """The cells of the call's numbers."""
        return tuple([number.buffer for number in self.numbers if type(number) is Cell])

    def node(self, bases: Sequence[int], memory: Sequence[object], place: "BodyInGraph | None") -> CapturedNode:
        """Return the equivalent node of a graph, for the numbers in the cells of this memory. `place` is that of the
        user's body in the graph, if the call is of one."""
        addresses, scratch = self._addresses(bases)
        node = CapturedNode(self.enqueue, addresses, scratch, self._numbers(memory))
        return node if place is None else place.node(node)

    def __call__(self, buffers: RunBuffers, device: CudaDevice, stream: RawStream) -> None:
        addresses, scratch = self._addresses(buffers.bases)
        numbers = self._numbers(buffers.bound) if self.has_cells else self.numbers
        if self.body is None:
            self.enqueue(stream.handle, addresses, scratch, *numbers)
            return
        memory = None
        if self.takes_memory:
            memory = Temporaries(device.memory)
            buffers.kept_alive.append(memory)
        try:
            most = self.most_streams
            own = stream if most is None else device.streams.stream_for_body(stream, most)
            if own is stream and not self.is_checked:  # most calls
                self.enqueue(stream.handle, addresses, scratch, *numbers, memory=memory)
                return
            call = CapturedNode(self.enqueue, addresses, scratch, numbers)
            way = Detour(device.streams, stream, own) if own is not stream else nullcontext()
            buffers.kept_alive.append(way)
            with way:
                self._call_body(self.body, device, own, call, memory)
        except BaseException as error:
            kernel = self.instruction.kernel
            whose = f"the body of foreign op {kernel.name}, declared at {describe(kernel.origin)}"
            blame(error, f"{whose}, called at {describe(self.instruction.origin)}")
            raise

    def _call_body(
        self, body: UserBody, device: CudaDevice, stream: RawStream, call: CapturedNode, memory: Temporaries | None
    ) -> None:
        """Call a user's body. If the op is checked, check what it does, and then audit its work in a capture that is
        thrown away: libraries have initialised themselves by then."""
        handle, numbers = stream.handle, call.numbers
        if not self.is_checked:
            self.enqueue(handle, call.addresses, call.scratch, *numbers, memory=memory)
            return
        run = CheckedCall(self.instruction, device, stream, call.addresses)
        run.run(lambda moved, room: self.enqueue(handle, moved, room, *numbers, memory=memory))
        if body.audit:
            BodyInGraph(self, body, device).audit(call)

    def staged_operands(self, moving: Container[int]) -> list[StagedOperand]:
        """Return the operands of a user's body that are counted from these bases, and small enough to be copied."""
        found: list[StagedOperand] = []
        if self.body is None:
            return found
        kernel = self.instruction.kernel
        for number, ((index, param), place) in enumerate(zip(kernel.tensors, self.operands, strict=True)):
            if place.base not in moving:
                continue
            layout = layout_of(self.instruction, index)
            low, high = ends_of(layout)
            if 0 < high - low <= STAGED_BYTES:
                is_out, is_new = param.form.is_written, index >= len(kernel.params) - kernel.results
                reads = not (is_out and is_new and layout.contiguous)
                start = BaseOffset(place.base, place.offset + low)
                found.append(StagedOperand(number, start, high - low, -low, reads=reads, writes=is_out))
        return found

    def _addresses(self, bases: Sequence[int]) -> tuple[tuple[int, ...], int]:
        addresses = self._bases_of(bases)
        if self._offsets is not None:
            addresses = tuple(map(add, addresses, self._offsets))
        return addresses, 0 if self.scratch is None else bases[self.scratch.base] + self.scratch.offset

    def _numbers(self, memory: Sequence[object]) -> tuple[Any, ...]:
        if not self.has_cells:
            return self.numbers
        return tuple([memory[number.buffer] if type(number) is Cell else number for number in self.numbers])


@final
class BodyInGraph:
    """The place of a user's body in one graph. It keeps what the captured work needs, as long as the graph lives."""

    __slots__ = ("_audited", "_body", "_call", "_capturing", "_device", "_memory")

    def __init__(self, call: LibraryCall, body: UserBody, device: CudaDevice) -> None:
        self._call = call
        self._body = body
        self._device = device
        self._memory = Temporaries(device.memory)
        self._capturing = Capturing()
        self._audited = not body.audit
        """True once the work has been found to be as declared. Later captures differ in addresses and numbers alone."""

    def node(self, node: CapturedNode) -> CapturedNode:
        """Return the node of a graph for the same call."""

        def inspect(work: Sequence[EnqueuedWork]) -> None:
            """Check the work of the first capture."""
            self._check(node, work)
            self._audited = True

        return replace(node, enqueue=self._capture, inspect=None if self._audited else inspect)

    def audit(self, node: CapturedNode) -> None:
        """Capture a call, check its work, and throw it away. Do nothing if it cannot be captured.

        Raises:
            ForeignError: the body does not do what its declaration says.
        """
        try:
            work = self._device.gpu.captured_work(replace(node, enqueue=self._enqueue))
        except DeviceLostError:
            raise
        except Exception:  # a body that waits for the device, say
            return
        self._check(node, work)

    def _check(self, node: CapturedNode, work: Sequence[EnqueuedWork]) -> None:
        memory, device = self._memory, self._device
        call = replace(node, enqueue=self._enqueue)
        BodyAudit(self._call.instruction, self._body, call, memory, device.gpu, device.memory).check(work)

    def _enqueue(self, stream: int, addresses: Sequence[int], scratch: int, *numbers: Any) -> None:
        call: Any = self._call.enqueue  # a `UserCall`
        call(stream, addresses, scratch, *numbers, memory=self._memory, capturing=self._capturing)

    def _capture(self, stream: int, addresses: Sequence[int], scratch: int, *numbers: Any) -> None:
        try:
            self._enqueue(stream, addresses, scratch, *numbers)
        except DeviceLostError:
            raise
        except Exception as error:
            raise refused_capture([self._call], f"it raised {type(error).__name__}: {error}") from error


def refused_capture(calls: Sequence[LibraryCall], why: str) -> CaptureError:
    """Return the error for bodies of the user's, at least one of which cannot be captured. The bodies remember why."""
    named: dict[str, None] = {}
    for call in calls:
        if call.body is not None:
            call.body.refused = why
            named[who(call.instruction)] = None
    return CaptureError(
        f"{' or '.join(named)}: its body cannot be in a CUDA graph: {why}. Take out of it what waits for the device "
        '(.item(), .cpu()), or declare it with @foreign(capture="never").'
    )
