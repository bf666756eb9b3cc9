"""Commands that call a library: its functions enqueue work on a stream. In a graph, that work is a child graph."""

from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.commands.command_list import BaseOffset, RunBuffers
from dagpu.backends.cuda.driver.driver_protocol import CapturedNode, EnqueuedWork, Gpu, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.pools import MemoryBlock, Pool, array_over, rounded
from dagpu.backends.cuda.resources.streams import Detour
from dagpu.backends.host.body_checks import (
    Bytes,
    GuardedMemory,
    check_outputs,
    check_written,
    ends_of,
    is_checked,
    layout_of,
    output_name,
    refuse_body,
    refuse_changed_input,
)
from dagpu.backends.host.host_instructions import blame
from dagpu.common.errors import CaptureError, DeviceLostError, ForeignError
from dagpu.common.layout import contiguous_layout
from dagpu.common.places import describe
from dagpu.handles.device_handles import STAGED_BYTES, Capturing, Enqueue, UserBody, tuple_getter
from dagpu.plans.program import Cell, Launch

# ---- device memory for the temporaries that a user's body takes through its library's allocator -----------------


@final
class Temporaries:
    """Memory out of dagpu's pool for the work of one stream, in order. Implements
    `dagpu.handles.device_handles.TemporaryMemory`.

    A dropped temporary serves a later one: the stream comes to the earlier work first. All memory goes back to the pool
    when this object and its temporaries are gone. A run keeps the object until it is over, a graph until it is dropped.
    """

    __slots__ = ("_idle", "_pool", "_spans")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._idle: dict[int, deque[MemoryBlock]] = {}
        """The blocks whose temporaries are dropped, by size. A finaliser appends to a deque, which is atomic."""
        self._spans: list[tuple[int, int]] = []
        """The first address and the end of each block that has been taken."""

    def take(self, nbytes: int) -> "Temporary":
        """Return memory.

        Raises:
            DeviceError: there is too little memory (code 2).
        """
        idle = self._idle.setdefault(rounded(nbytes), deque())
        try:
            block = idle.pop()
        except IndexError:
            block = self._pool.take(nbytes)
            self._spans.append((block.address, block.address + block.size))
        return Temporary(block, idle)

    def has(self, address: int) -> bool:
        """Return True if an address is in a temporary, or at the end of one."""
        return any(start <= address <= end for start, end in self._spans)


@final
class Temporary:
    """A block of memory in use by a temporary."""

    __slots__ = ("_block", "_idle")

    def __init__(self, block: MemoryBlock, idle: deque[MemoryBlock]) -> None:
        self._block = block
        self._idle = idle

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self._block.address

    def __del__(self) -> None:
        self._idle.append(self._block)


# ---- the audit of a body of a foreign op: the captured work is held against what the op declares ----------------
# It reads each address that a kernel, copy or fill is given directly. It sees no pointer that lies in device memory,
# and its messages say so.


@final
class OperandSpan(NamedTuple):
    """The memory of a tensor argument in one call of a body."""

    param: int
    """Its index among the parameters."""
    is_output: bool
    start: int
    nbytes: int
    """Bytes from the first byte to the end of the last; 0 for a tensor without elements."""


def operand_spans(launch: Launch, addresses: Sequence[int]) -> list[OperandSpan]:
    """Return the spans of the tensor arguments of a launch, whose first elements are at these addresses."""
    found: list[OperandSpan] = []
    for (index, param), address in zip(launch.kernel.tensors, addresses, strict=True):
        low, high = ends_of(layout_of(launch, index))
        found.append(OperandSpan(index, param.form.is_written, address + low, high - low))
    return found


def who(launch: Launch) -> str:
    """Name an op for a message: where it is declared, and where it is called."""
    kernel = launch.kernel
    return f"{kernel.name}, declared at {describe(kernel.origin)}, called at {describe(launch.origin)}"


@final
class BodyAudit:
    """The audit of the work that a body enqueues for one call."""

    def __init__(
        self, launch: Launch, body: UserBody, node: CapturedNode, temporaries: Temporaries, gpu: Gpu, pool: Pool
    ) -> None:
        self._launch = launch
        self._body = body
        self._node = node
        """The captured call."""
        self._temporaries = temporaries
        """The memory of the body's temporaries."""
        self._gpu = gpu
        self._pool = pool
        scratch = launch.scratch
        self._spans = operand_spans(launch, node.addresses)
        self._scratch = 0 if scratch is None else scratch.layout.nbytes

    def check(self, work: Sequence[EnqueuedWork]) -> None:
        """Check the captured work.

        A word that points into memory of dagpu that is no operand may only look like a pointer. The body is captured
        once more at other addresses then; a word that is not the same in both is not refused, and the body notes it.

        Raises:
            ForeignError: the body enqueues nothing, points at memory that is no operand, or never at an output.
        """
        written = [span for span in self._spans if span.is_output and span.nbytes]
        if not work and written:
            raise self._wrong(
                "enqueued nothing on the lane's stream",
                "Its work is on another stream: use the current one, or lane.handle in a raw body",
            )
        strange = [(each.name, word) for each in work for word in dict.fromkeys(each.words) if self._is_strange(word)]
        if strange:
            kept = self._words_elsewhere()
            for name, word in strange:
                if word in kept:
                    raise ForeignError(
                        f"{who(self._launch)}: {name} of its {self._body.described} points at {word:#x}, memory of "
                        "dagpu that is no operand of this call. Declare it as In or Out. If it is no pointer, declare "
                        'the op with @foreign(verify="none").'
                    )
            odd = [word for _, word in strange if not self._is_end(word)]
            if odd:
                self._body.noted = _remark(len(odd))
        for span in written:
            if not any(span.start <= word < span.start + span.nbytes for each in work for word in each.words):
                raise self._wrong(
                    f"enqueued no kernel, copy or fill that points at {output_name(self._launch.kernel, span.param)}",
                    "Write the output. If a pointer to it lies in device memory, where the audit does not see it, "
                    'declare the op with @foreign(verify="none")',
                )

    def _is_strange(self, word: int) -> bool:
        """Return True if a word is an address in dagpu's memory that the body has not been given.

        The end of an operand is one: it may be the start of the next block. A kernel that is given ends has others in
        a capture elsewhere.
        """
        if not self._pool.owns(word):
            return False
        scratch = self._node.scratch
        if any(span.start <= word < span.start + span.nbytes for span in self._spans):
            return False
        return not (scratch <= word < scratch + self._scratch or self._temporaries.has(word))

    def _is_end(self, word: int) -> bool:
        """Return True if a word is the end of an operand or of the scratch memory."""
        ends = [span.start + span.nbytes for span in self._spans]
        return word in ends or word == self._node.scratch + self._scratch

    def _words_elsewhere(self) -> frozenset[int]:
        """Return the words of a capture in which all operands are elsewhere; none if there is no such capture."""
        node = self._node
        try:
            block = self._pool.take(max([span.nbytes for span in self._spans] + [self._scratch, 1]))
            moved = CapturedNode(
                node.enqueue, (block.address,) * len(node.addresses), block.address if node.scratch else 0, node.numbers
            )
            work = self._gpu.captured_work(moved)
        except DeviceLostError:
            raise
        except Exception:  # the body has been captured once: this time it may fail in any way
            return frozenset()
        return frozenset([word for each in work for word in each.words])

    def _wrong(self, what: str, cure: str) -> ForeignError:
        return ForeignError(f"{who(self._launch)}: its {self._body.described} {what}. {cure}.")


def _remark(words: int) -> str:
    return (
        f"{words} words of its kernels' parameters look like pointers into dagpu's memory, and are not the same in "
        "every capture, so they count as none"
    )


# ---- checked calls of the bodies of foreign ops on a CUDA device; see `dagpu.backends.host.body_checks` ----


_U8 = np.dtype(np.uint8)


@final
class CheckedCall:
    """One checked call of a body. It waits for the stream several times. The context must be current."""

    def __init__(self, launch: Launch, device: CudaDevice, stream: RawStream, addresses: Sequence[int]) -> None:
        self._launch = launch
        self._device = device
        self._stream = stream
        self._addresses = addresses
        self._spans = operand_spans(launch, addresses)

    def run(self, call: Callable[[Sequence[int], int], object]) -> None:
        """Call the body by `call(addresses, scratch)`, on copies of the outputs, and copy these back if all is well.

        Raises:
            ForeignError: it writes something that is no output, or leaves a new tensor unwritten.
        """
        launch = self._launch
        inputs = [(span, self._read(span.start, span.nbytes)) for span in self._spans if not span.is_output]
        outputs = [(span, self._read(span.start, span.nbytes)) for span in self._spans if span.is_output]
        kept: list[list[NDArray[np.bool_]]] = []
        for flipped in (False, True):
            guarded = [(span.param, self._guarded(span, contents, flipped)) for span, contents in outputs]
            blocks = [self._placed(memory) for _, memory in guarded]
            given = list(self._addresses)
            for (span, _), (_, memory), block in zip(outputs, guarded, blocks, strict=True):
                given[self._spans.index(span)] = block.address + memory.first
            self._call(call, given, flipped)
            for span, contents in inputs:
                if not np.array_equal(self._read(span.start, span.nbytes), contents):
                    raise refuse_changed_input(launch, span.param)
            after = [
                self._read(block.address, len(memory.image)) for (_, memory), block in zip(guarded, blocks, strict=True)
            ]
            kept.append(check_outputs(launch, guarded, after))
            if not any(mask.any() for mask in kept[-1]):
                break
        else:
            check_written(launch, guarded, kept)
        for (span, contents), (_, memory), image in zip(outputs, guarded, after, strict=True):
            if span.nbytes:  # only the elements: what is between them is not the op's
                whole = memory.image.copy()
                memory.inside(whole)[...] = contents
                memory.elements(whole)[...] = memory.elements(image)
                self._write(span.start, memory.inside(whole))

    def _guarded(self, span: OperandSpan, contents: Bytes, flipped: bool) -> GuardedMemory:
        kernel = self._launch.kernel
        is_new = span.param >= len(kernel.params) - kernel.results
        return GuardedMemory(layout_of(self._launch, span.param), None if is_new else contents, flipped=flipped)

    def _call(self, call: Callable[[Sequence[int], int], object], addresses: Sequence[int], flipped: bool) -> None:
        """Call the body, with scratch memory between canaries."""
        scratch = self._launch.scratch
        if scratch is None:
            call(addresses, 0)
            return
        memory = GuardedMemory(contiguous_layout((scratch.layout.nbytes,), _U8), None, flipped=flipped)
        block = self._placed(memory)
        call(addresses, block.address + memory.first)
        if overrun := memory.overrun(self._read(block.address, len(memory.image))):
            what = f"wrote {overrun} bytes outside of its scratch memory"
            raise refuse_body(self._launch, what, "Reserve what it needs in the declaration: reserve(nbytes)")

    def _placed(self, memory: GuardedMemory) -> MemoryBlock:
        block = self._device.memory.take(len(memory.image))
        self._write(block.address, memory.image)
        return block

    def _read(self, address: int, nbytes: int) -> Bytes:
        """Return bytes of the device, once the stream has come to them."""
        if not nbytes:
            return np.empty(0, np.uint8)
        block = self._device.pinned.take(nbytes)
        found = array_over(block, nbytes)
        self._device.gpu.copy_out(found, address, self._stream)
        self._stream.synchronize()
        return found.copy()

    def _write(self, address: int, contents: Bytes) -> None:
        """Write bytes to the device, and wait until they are there."""
        block = self._device.pinned.take(contents.nbytes)
        source = array_over(block, contents.nbytes)
        source[...] = contents
        self._device.gpu.copy_in(address, source, self._stream)
        self._stream.synchronize()


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
