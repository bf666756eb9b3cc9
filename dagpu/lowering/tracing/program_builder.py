"""Collects the instructions and buffers of one stage of a trace, and makes a `Program` of them.

A handle that is made during the trace holds a `TracedStorage`, to which the builder has a weak reference only. When the
stage has been traced, a storage that is still alive has a handle: it is an output. All others are temporaries. So
Python's reference counts decide what lives on, and no closure is inspected.
"""

import weakref
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from dagpu.common.errors import BorrowError, CaptureError, MovedError, NotReadyError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe
from dagpu.handles import HandleBase, HandleState, Lender, Partition, Tensor, TensorMut, cut_of, live
from dagpu.handles.device_handles import Device
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber
from dagpu.lowering.arguments.scalar_params import Use, fresh_seed
from dagpu.lowering.program import (
    HOST,
    Buffer,
    Cell,
    CopyDtoH,
    Fill,
    GraphLaunch,
    HostCall,
    Instruction,
    Program,
    Role,
    Tiles,
    View,
)
from dagpu.lowering.tracing.loans import Loans
from dagpu.lowering.tracing.traced_storage import TracedStorage
from dagpu.ops.creation import Alloc
from dagpu.ops.graph import Captured
from dagpu.ops.initializers import Constant

_CELL_IN, _CELL_OUT = Buffer(0, HOST, Role.INPUT), Buffer(0, HOST, Role.OUTPUT)


@final
@plain
class _BuilderMark:
    """The length of a program at some point of its trace, for `roll_back`."""

    instructions: int
    buffers: int
    locks: dict[Storage, bool]
    lent: dict[HandleState, Lender]
    graphs: list[Captured]


@final
class ProgramBuilder:
    """One stage under construction."""

    __slots__ = (
        "__weakref__",
        "_buffers",
        "_devices",
        "_external",
        "_loans",
        "_made",
        "_reads",
        "_tiles",
        "_undefined",
        "_views",
        "arrays",
        "drawn",
        "graphs",
        "inputs",
        "instructions",
        "lent",
        "locks",
        "numbers",
        "policies",
        "policy_of",
    )  # fmt: skip

    def __init__(self, policies: list[Any], loans: Loans, reads: set[int]) -> None:
        self.policies = policies
        self._reads = reads
        """The set that identifies the trace to its stand-ins."""
        self.instructions: list[Instruction] = []
        self.policy_of: list[int] = []
        self.inputs: dict[int, object] = {}
        """Memory and values that buffers hold from the start."""
        self.arrays: list[tuple[int, np.ndarray[Any, Any], int | None]] = []
        """For each array that is copied from: its cell, the array, and its number among the leaves."""
        self.numbers: dict[tuple[int, int], tuple[int, Use]] = {}
        """For each number that may differ from run to run, by its index and the form of its use: its cell, and a
        use."""
        self.drawn: list[int] = []
        """The cells of the seeds that the user did not choose: each run draws new ones."""
        self.graphs: list[Captured] = []
        """The graphs that are launched."""
        self.lent: dict[HandleState, Lender] = {}
        """Borrows and shared tensors on memory from outside that has not moved in, each with the tensor that must not
        move while it is used: the lender, or the shared tensor itself."""
        self.locks: dict[Storage, bool] = {}
        """Storages from outside the run, exclusively where true."""
        self._devices: dict[Device, int] = {}
        self._buffers: list[Buffer] = []
        self._made: dict[int, weakref.ref[TracedStorage]] = {}
        self._external: dict[Storage, int] = {}
        self._loans = loans
        self._undefined: dict[int, tuple[weakref.ref[TracedStorage], Layout, int, Origin]] = {}
        self._views: dict[int, View] = {}
        """The newest view of each buffer: instructions on one tensor share it, most often all of them."""
        self._tiles: dict[int, Tiles] = {}
        """The newest `Tiles` of each buffer that is written in tiles."""

    # ---- buffers

    def device(self, device: Device) -> int:
        """The number of a device in this program."""
        number = self._devices.get(device)
        if number is None:
            number = self._devices[device] = len(self._devices)
        return number

    def new_tensor(self, device: Device, layout: Layout, origin: Origin) -> Tensor[Any, Any]:
        """A handle to memory that this program will allocate."""
        index = len(self._buffers)
        storage = TracedStorage(device, layout.nbytes, self, index, self._loans.mark)
        self._buffers.append(Buffer(storage.nbytes, self.device(device), Role.TEMPORARY))
        self._made[index] = weakref.ref(storage)
        return Tensor(HandleState(Tensor, storage, layout, origin))

    def new_cell(self) -> int:
        """A cell that an instruction writes."""
        self._buffers.append(_CELL_OUT)
        return len(self._buffers) - 1

    def array_cell(self, array: Any, leaf: int | None) -> int:
        """A cell that holds a NumPy array from the start: leaf number `leaf`, None where it is none."""
        if type(array) is SymbolicArray:
            index = array.index_in(self._reads)
            array, leaf = array.source, leaf if index is None else index
        cell = self._given_cell(array)
        self.arrays.append((cell, array, leaf))
        return cell

    def number(self, number: SymbolicNumber, use: Use) -> Any:
        """The `Cell` that holds a number from the start, in the form in which it is used. A number that is not a leaf
        of this trace is returned in that form itself."""
        index = number.index_in(self._reads)
        if index is None:
            return use.checked(number.number)
        form = use.form
        found = self.numbers.get((index, id(form)))
        if found is not None:
            return Cell(found[0])
        cell = self._given_cell(use.checked(number.number))
        self.numbers[index, id(form)] = cell, use
        return Cell(cell)

    def drawn_cell(self) -> int:
        """A cell that holds a drawn seed from the start."""
        cell = self._given_cell(fresh_seed())
        self.drawn.append(cell)
        return cell

    def _given_cell(self, value: object) -> int:
        self._buffers.append(_CELL_IN)
        self.inputs[len(self._buffers) - 1] = value
        return len(self._buffers) - 1

    def read(self, handle: Any) -> View:
        """A living handle as something to read from."""
        state = live(handle)
        storage = state.storage
        if type(storage) is TracedStorage and storage.builder is self:
            if storage.buffer in self._undefined:
                self._define(storage.buffer)
            return self._view(storage.buffer, state.layout)
        self._lock(handle, state, exclusive=state.writable)
        return self._view(self._imported(storage), state.layout)

    def write(self, handle: "Tensor[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]") -> View:
        """A living handle that is owned or lent for writing, as something to write to."""
        state = live(handle)
        storage = state.storage
        if type(storage) is TracedStorage and storage.builder is self:
            if storage.buffer in self._undefined:
                del self._undefined[storage.buffer]
            return self._view(storage.buffer, state.layout)
        self._lock(handle, state, exclusive=True)
        return self._view(self._imported(storage), state.layout)

    def write_tiles(self, partition: Partition[Any, Any]) -> Tiles:
        """A living partition as something to write to."""
        view, (tile, grid) = self.write(partition), cut_of(partition)
        newest = self._tiles.get(view.buffer)
        if newest is not None and newest.view is view and newest.tile is tile and newest.grid is grid:
            return newest
        self._tiles[view.buffer] = made = Tiles(view, tile, grid)
        return made

    def _view(self, buffer: int, layout: Layout) -> View:
        newest = self._views.get(buffer)
        if newest is not None and newest.layout is layout:
            return newest
        self._views[buffer] = made = View(buffer, layout)
        return made

    def device_of(self, buffer: int) -> int:
        """The number of the device on which a buffer lies; `HOST` for a cell."""
        return self._buffers[buffer].device

    def leave_undefined(self, tensor: Tensor[Any, Any], policy: int) -> None:
        """Record the tensor of an `empty`: no instruction writes it, unless it is read, or leaves the run, before a
        kernel writes it. Then it is filled with zeros, so that earlier contents of that memory stay private and runs
        stay deterministic."""
        state = live(tensor)
        storage = state.storage
        assert type(storage) is TracedStorage
        self._undefined[storage.buffer] = (weakref.ref(storage), state.layout, policy, state.made)

    def _define(self, buffer: int) -> None:
        _, layout, policy, origin = self._undefined.pop(buffer)
        view = View(buffer, layout)
        self.emit(Fill(view, Constant(0), (), (buffer,), self._buffers[buffer].device, origin), policy)

    def claim(self, handle: HandleBase) -> None:
        """Lock the memory of a handle that the op holds, even if it is used some stages later.

        So a conflict shows before the first launch.
        """
        state = live(handle)
        storage = state.storage
        if type(storage) is not TracedStorage or storage.builder is not self:
            self._lock(handle, state, exclusive=state.writable)

    def _lock(self, handle: HandleBase, state: HandleState, *, exclusive: bool) -> None:
        storage, lender = state.storage, state.lender
        if storage.memory is None:
            raise _not_there(state)
        if lender is not None:
            self._check_loan(state)
        self.locks[storage] = exclusive or self.locks.get(storage, False)
        if state.kind is not Tensor and storage not in self._loans.owned:
            self.lent[state] = handle if lender is None else lender

    def launch(self, graph: Captured) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Import the memory of a graph, and return the buffers that it reads and those that it writes.

        Its accesses are ordered with those of the op around it, in the order of the trace: it does not count as a
        second borrower.
        """
        self.graphs.append(graph)
        for storage, exclusive in graph.locks().items():
            self.locks[storage] = exclusive or self.locks.get(storage, False)
        buffers = {storage: self._imported(storage) for storage in graph.storages}
        written = tuple(buffers[storage] for storage, exclusive in graph.storages.items() if exclusive)
        return tuple(buffer for buffer in buffers.values() if buffer not in written), written

    def _imported(self, storage: Storage) -> int:
        index = self._external.get(storage)
        if index is None:
            index = self._external[storage] = len(self._buffers)
            self._buffers.append(Buffer(storage.nbytes, self.device(storage.device), Role.INPUT))
            self.inputs[index] = storage.memory
        return index

    def _check_loan(self, borrow: HandleState) -> None:
        """Within one run, a tensor from outside is lent for writing once, or for reading: never both."""
        if self._loans.made(borrow.storage):
            return  # made by an earlier stage of this run: its borrows follow each other, in the order of the trace
        first = self._loans.lent.setdefault(borrow.storage, (borrow.loan, borrow.made))
        if first[0] is not borrow.loan:
            raise BorrowError(
                f"{borrow!r} borrowed at {describe(borrow.made)}: another part of the same op borrows that tensor, at "
                f"{describe(first[1])}, one of the two for writing. Lend it once, m = t.borrow_mut(): a kernel takes m "
                "as an input too, and gives it back, to be written after that. Or run the two parts as two ops, one "
                "after the other."
            )

    # ---- several ops in one program

    def lend_anew(self, loans: Loans) -> None:
        """Another op follows: what was lent to the one before is back, since the two run one after the other."""
        self._loans = loans

    def mark(self) -> "_BuilderMark":
        """The length of the program now."""
        return _BuilderMark(
            len(self.instructions), len(self._buffers), dict(self.locks), dict(self.lent), list(self.graphs)
        )

    def roll_back(self, mark: "_BuilderMark") -> None:
        """Forget what was added since."""
        del self.instructions[mark.instructions :], self.policy_of[mark.instructions :], self._buffers[mark.buffers :]
        self.locks, self.lent, self.graphs = mark.locks, mark.lent, mark.graphs
        self._external = {storage: index for storage, index in self._external.items() if index < mark.buffers}
        self.inputs = {index: held for index, held in self.inputs.items() if index < mark.buffers}
        for kept in (self._made, self._undefined, self._views, self._tiles):
            for index in [index for index in kept if index >= mark.buffers]:
                del kept[index]

    def refuse_made(self, mark: "_BuilderMark", how: str, where: Origin) -> None:
        """Raise `CaptureError` if memory has been made since, calls of the host, or launches of other graphs."""
        for instruction in self.instructions[mark.instructions :]:
            if isinstance(instruction, HostCall | CopyDtoH):
                raise waits_for_host(
                    how, where, f": {type(instruction).__name__} built at {describe(instruction.origin)}"
                )
            new = [buffer for buffer in instruction.writes if buffer >= mark.buffers and buffer not in self.inputs]
            if new or isinstance(instruction, GraphLaunch):
                what = "launches another graph" if isinstance(instruction, GraphLaunch) else "makes memory of its own"
                raise _not_alone(what, type(instruction).__name__, instruction.origin, how, where)
        for buffer, (_, _, _, origin) in self._undefined.items():  # `empty`, which no kernel has written
            if buffer >= mark.buffers:
                raise _not_alone("makes memory of its own", Alloc.__name__, origin, how, where)

    # ---- instructions

    def emit(self, instruction: Instruction, policy: int) -> None:
        """Add an instruction, placed by policy number `policy`."""
        self.instructions.append(instruction)
        self.policy_of.append(policy)

    def program(self) -> Program:
        """The program that has been collected. A buffer whose storage has a handle now is an output."""
        for buffer, (storage, *_) in list(self._undefined.items()):
            if storage() is not None:
                self._define(buffer)
        buffers = list(self._buffers)
        for index, made in self._made.items():
            if made() is not None:
                buffers[index] = Buffer(buffers[index].nbytes, buffers[index].device, Role.OUTPUT)
        return Program(
            tuple(device.name for device in self._devices),
            tuple(buffers),
            tuple(self.instructions),
            tuple(self.policies),
            tuple(self.policy_of),
        )

    def size(self) -> int:
        """Number of buffers so far."""
        return len(self._buffers)

    def external(self) -> dict[Storage, int]:
        """The storages from outside that are read or written, with their buffers."""
        return self._external

    def outputs(self) -> Iterator[tuple[int, TracedStorage]]:
        """The storages of this stage that handles refer to, with their buffers."""
        for index, made in self._made.items():
            storage = made()
            if storage is not None:
                yield index, storage

    def lose(self, reason: str) -> None:
        """The stage failed: handles to what it would have made say so from now on."""
        for _, storage in self.outputs():
            storage.lose(reason)


def waits_for_host(how: str, where: Origin, by: str = "") -> CaptureError:
    """An op that was put among a graph's work gives data of the host; `by` says which part of it does."""
    return CaptureError(
        f"the op {how} at {describe(where)} waits for data of the host{by}. Nothing waits here. Leave to_host() and "
        "host_map() to an op that runs after the launch."
    )


def _not_alone(what: str, kind: str, origin: Origin, how: str, where: Origin) -> CaptureError:
    return CaptureError(
        f"the op {how} at {describe(where)} {what}: {kind} built at {describe(origin)}. Such an op works on tensors "
        "that were made before, and lent: t.borrow(), t.borrow_mut().partition(tile). op.graph() captures ops that "
        "make memory."
    )


def _not_there(state: HandleState) -> Exception:
    lost = state.storage.lost
    if lost is not None:
        return MovedError(f"{state!r}: its contents were lost, because {lost}. Make it anew.")
    return NotReadyError(
        f"{state!r} belongs to a run that is not complete. A handle leaves its run as part of the run's result."
    )
