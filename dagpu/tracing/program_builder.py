"""The builder of one stage's `Program`, and the memory that the stage makes.

`TracedStorage`: a block of memory that a run makes, and its buffer in the program that is being traced. `Loans`: the
tensors from outside that the run borrows or owns.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, final
from weakref import WeakSet

import numpy as np

from dagpu.common.errors import BorrowError, MovedError, NotReadyError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, Shape, contiguous_layout, share_bytes
from dagpu.common.places import Origin, describe
from dagpu.handles import (
    HandleBase,
    HandleState,
    Lender,
    Loan,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    cut_of,
    live_state,
)
from dagpu.handles.device_handles import Device
from dagpu.handles.handle_state import ModuleState, Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber
from dagpu.ops.compose import Cutoff, Shared
from dagpu.ops.graph import Captured
from dagpu.ops.initializers import Constant, fresh_seed
from dagpu.ops.source_op import Source
from dagpu.plans.program import HOST, Buffer, Cell, CopyDtoD, Fill, Instruction, Program, Role, Tiles, View
from dagpu.tracing.traced_arguments import NumberUse


@final
class TracedStorage(Storage):
    """A block of memory that a run makes.

    Handles refer to it from the trace on. The same object has the memory once the stage is complete.

    Invariant: `builder is None` exactly when the stage that makes it is complete, or has failed.
    """

    __slots__ = ("blank", "buffer", "builder", "mark")

    def __init__(self, device: Device, nbytes: int, builder: object, buffer: int, mark: object) -> None:
        super().__init__(device, nbytes)
        self.builder: object = builder
        """The `ProgramBuilder` of the stage that makes it. It is compared by identity alone."""
        self.buffer = buffer
        """The index of its buffer in the program of that stage."""
        self.mark = mark
        """The mark of the run that makes it: see `Loans`."""
        self.blank = False
        """True for zeros of an earlier stage in place of an `empty` that nothing has read or written yet."""

    def settle(self, memory: object) -> None:
        """Set the memory when the stage that makes it is complete."""
        self.memory, self.builder = memory, None

    def lose(self, reason: str) -> None:
        """Record why there will be no memory, when the stage that makes it has failed."""
        self.lost, self.builder = reason, None


@final
@dataclass(slots=True, eq=False)
class Loans:
    """The loans of one run, for all its stages.

    The mark is a separate object: results keep it for as long as they live, and must not keep lent memory alive.
    """

    lent: dict[Storage, dict[object, tuple[Layout, Origin]]] = field(default_factory=dict)
    """For each storage from outside that is lent to the run, its loans, with the part that each lends and the place of
    its first borrow. What is lent for reading has a loan for each part."""
    owned: WeakSet[Storage] = field(default_factory=WeakSet)
    """The storages of tensors from outside that have moved into the run."""
    mark: object = field(default_factory=object)
    """The `mark` of each storage that the run makes."""

    def made_by_run(self, storage: Storage) -> bool:
        """Return true if this run made the storage."""
        return type(storage) is TracedStorage and storage.mark is self.mark


# ---- program builder
#
# The builder of one stage's `Program`. It collects the stage's instructions and buffers.
#
# A handle that is made during the trace holds a `TracedStorage`, to which the builder has a weak reference only. When
# the stage has been traced, a storage that is still alive has a handle: it is an output. All others are temporaries. So
# Python's reference counts decide which memory outlives the stage, and no closure is inspected.

NO_DEVICE: Final = -2
"""The index of no device, which no buffer has."""

_CELL_IN, _CELL_OUT = Buffer(0, HOST, Role.INPUT), Buffer(0, HOST, Role.OUTPUT)


@final
@plain
class BuilderMark:
    """The state of a builder at some point of its trace, to which `roll_back` returns."""

    instructions: int
    buffers: int
    locks: dict[Storage, bool]
    lent: dict[HandleState, Lender]
    graphs: list[Captured]


@final
class ProgramBuilder:
    """One stage under construction."""

    def __init__(self, policies: list[Any], loans: Loans, reads: set[int], *, copies_earlier: bool = False) -> None:
        self.policies = policies
        self._copies_earlier = copies_earlier
        """True if the stage writes to copies of what earlier stages made, because a later trace may use that again; and
        to new memory in place of an `empty`."""
        self._reads = reads
        """The set that identifies the trace to its stand-ins."""
        self.instructions: list[Instruction] = []
        self.policy_of: list[int] = []
        self.inputs: dict[int, object] = {}
        """The memory and the values that buffers hold before the program starts, by the buffer's index."""
        self.arrays: list[tuple[int, np.ndarray[Any, Any], int | None]] = []
        """For each array that is copied from: its cell, the array, and its index among the leaves."""
        self.numbers: dict[tuple[int, int], tuple[int, NumberUse]] = {}
        """For each number that may differ between runs, by the index of its leaf and the form of its use: its cell, and
        one of its uses."""
        self.live_cells: list[tuple[int, int]] = []
        """For each input of a feed that a function of `host_map` gets: its cell, and its index among the inputs."""
        self.drawn: list[int] = []
        """The cells of the seeds that the user did not choose. Each run draws new seeds for them."""
        self.graphs: list[Captured] = []
        """The graphs that the stage launches."""
        self.lent: dict[HandleState, Lender] = {}
        """Borrows and shared tensors on memory from outside that has not moved in. Each has the tensor that must not
        move while it is used: the lender, or the shared tensor itself."""
        self.locks: dict[Storage, bool] = {}
        """The storages from outside the run that the stage locks: exclusively if true, for reading if false."""
        self._devices: dict[Device, int] = {}
        self.automatic = NO_DEVICE
        """The index of the automatic device, on which instructions are that get their device after the trace."""
        self._placed: Program | None = None
        self.buffers: list[Buffer] = []
        """The buffers of the program so far. The device of a cell is `HOST`."""
        self._own_storages: dict[int, weakref.ref[TracedStorage]] = {}
        self.external: dict[Storage, int] = {}
        """The storages from outside that are read or written, with their buffers."""
        self._loans = loans
        self._states: dict[Storage, int] = {}
        """The cells that stand for the variables of modules, by what the run locks for them."""
        self._undefined: dict[int, tuple[weakref.ref[TracedStorage], Layout, int, Origin]] = {}
        self._views: dict[int, View] = {}
        """The newest view of each buffer. Instructions on one tensor share it, and most often all of them do."""
        self._tiles: dict[int, Tiles] = {}
        """The newest `Tiles` of each buffer that is written in tiles."""

    def is_new(self) -> bool:
        """Return true if a trace has used nothing of it."""
        return not (self.instructions or self.buffers or self.locks or self.lent or self.graphs)

    # ---- buffers

    def device_index(self, device: Device) -> int:
        """Return the index of a device in this program; add the device if it is new."""
        number = self._devices.get(device)
        if number is None:
            number = self._devices[device] = len(self._devices)
            if device.index < 0:
                self.automatic = number
        return number

    def device_at(self, number: int) -> Device:
        """Return the device of an index in this program."""
        return next(device for device, index in self._devices.items() if index == number)

    def new_tensor(
        self, device: Device, shape: Shape, dtype: "np.dtype[Any]", origin: Origin
    ) -> tuple[Tensor[Any, Any], View]:
        """Return a handle to memory that this program will allocate, in C order, and the view of all of it."""
        layout, index = contiguous_layout(shape, dtype), len(self.buffers)
        storage = TracedStorage(device, layout.nbytes, self, index, self._loans.mark)
        self.buffers.append(Buffer(storage.nbytes, self.device_index(device), Role.TEMPORARY))
        self._own_storages[index] = weakref.ref(storage)
        self._views[index] = view = View(index, layout)
        return Tensor(HandleState(Tensor, storage, layout, origin)), view

    def new_cell(self) -> int:
        """Add a cell that an instruction writes, and return its index."""
        self.buffers.append(_CELL_OUT)
        return len(self.buffers) - 1

    def array_cell(self, array: Any, leaf: int | None) -> int:
        """Add a cell that holds a NumPy array before the program starts, and return its index. `leaf` is the array's
        index among the leaves, None if it is not a leaf."""
        if type(array) is SymbolicArray:
            index = array.index_in(self._reads)
            array, leaf = array.source, leaf if index is None else index
        cell = self._input_cell(array)
        self.arrays.append((cell, array, leaf))
        return cell

    def number_operand(self, number: SymbolicNumber, use: NumberUse) -> Any:
        """Return the `Cell` that holds a number before the program starts, in the form in which it is used. A number
        that is not a leaf of this trace is returned in that form itself."""
        index = number.index_in(self._reads)
        if index is None:
            return use.checked(number.number)
        form = use.form
        found = self.numbers.get((index, id(form)))
        if found is not None:
            return Cell(found[0])
        cell = self._input_cell(use.checked(number.number))
        self.numbers[index, id(form)] = cell, use
        return Cell(cell)

    def drawn_cell(self) -> int:
        """Add a cell that holds a random seed before the program starts, and return its index."""
        cell = self._input_cell(fresh_seed())
        self.drawn.append(cell)
        return cell

    def state_cell(self, state: ModuleState, device: int) -> int:
        """Return the cell that stands for the variables of a module on device number `device`, which a launch writes.
        The stage locks them."""
        return self._state_cell(state.on(next(each for each, index in self._devices.items() if index == device)))

    def _state_cell(self, storage: Storage) -> int:
        self.locks[storage] = True
        cell = self._states.get(storage)
        if cell is None:
            cell = self._states[storage] = self._input_cell(None)
        return cell

    @property
    def states(self) -> Collection[Storage]:
        """What the stage locks for the variables of modules."""
        return self._states.keys()

    def live_cell(self, value: object, index: int) -> int:
        """Add a cell that holds an input of a feed, and return its index. `index` is that among the inputs."""
        cell = self._input_cell(value)
        self.live_cells.append((cell, index))
        return cell

    def _input_cell(self, value: object) -> int:
        """Add a cell that holds this value before the program starts, and return its index."""
        self.buffers.append(_CELL_IN)
        self.inputs[len(self.buffers) - 1] = value
        return len(self.buffers) - 1

    def read_view(self, handle: Any) -> View:
        """Return the view by which an instruction reads a living handle. Lock its memory if it is from outside."""
        state = live_state(handle)
        storage = state.storage
        if type(storage) is TracedStorage and storage.builder is self:
            if storage.buffer in self._undefined:
                self._fill_with_zeros(storage.buffer)
            return self._shared_view(storage.buffer, state.layout)
        if type(storage) is TracedStorage:
            storage.blank = False
        self._lock_storage(handle, state, exclusive=state.writable)
        return self._shared_view(self._import_storage(storage), state.layout)

    def write_view(self, handle: "Tensor[Any, Any] | TensorMut[Any, Any] | Partition[Any, Any]") -> View:
        """Return the view by which an instruction writes a living handle that is owned or lent for writing. Lock its
        memory if it is from outside."""
        state = live_state(handle)
        storage = state.storage
        if type(storage) is TracedStorage and storage.builder is self:
            if storage.buffer in self._undefined:
                del self._undefined[storage.buffer]
            return self._shared_view(storage.buffer, state.layout)
        if self._copies_earlier and type(storage) is TracedStorage and self._loans.made_by_run(storage):
            self._make_again(storage, state.origin)
            return self._shared_view(storage.buffer, state.layout)
        self._lock_storage(handle, state, exclusive=True)
        return self._shared_view(self._import_storage(storage), state.layout)

    def _make_again(self, storage: TracedStorage, origin: Origin) -> None:
        """Let this program allocate memory that an earlier stage made, with a copy of what it holds, unless nothing has
        written it. So a launch uses the same as in a trace of one stage."""
        index, device = len(self.buffers), self.device_index(storage.device)
        self.buffers.append(Buffer(storage.nbytes, device, Role.TEMPORARY))
        if not storage.blank:
            earlier, whole = self._import_storage(storage), contiguous_layout((storage.nbytes,), np.dtype(np.uint8))
            self.emit(CopyDtoD(View(index, whole), View(earlier, whole), (earlier,), (index,), device, origin), 0)
        self._own_storages[index] = weakref.ref(storage)
        storage.builder, storage.buffer, storage.blank = self, index, False

    def write_tiles_view(self, partition: Partition[Any, Any]) -> Tiles:
        """Return the tiles by which a kernel writes a living partition."""
        view, (tile, grid) = self.write_view(partition), cut_of(partition)
        newest = self._tiles.get(view.buffer)
        if newest is not None and newest.view is view and newest.tile is tile and newest.grid is grid:
            return newest
        self._tiles[view.buffer] = tiles = Tiles(view, tile, grid)
        return tiles

    def _shared_view(self, buffer: int, layout: Layout) -> View:
        """Return the view of a buffer in this layout. The newest view of the buffer is used again if it has the
        layout."""
        newest = self._views.get(buffer)
        if newest is not None and newest.layout is layout:
            return newest
        self._views[buffer] = view = View(buffer, layout)
        return view

    def is_blank(self, handle: HandleBase) -> bool:
        """Return whether no instruction has written the memory of a handle yet."""
        storage = live_state(handle).storage
        return type(storage) is TracedStorage and self.is_blank_storage(storage)

    def is_blank_storage(self, storage: TracedStorage) -> bool:
        """Return whether no instruction has written this memory yet."""
        if storage.builder is self:
            return storage.buffer in self._undefined
        return storage.blank and self._loans.made_by_run(storage)

    def leave_undefined(self, new: View, policy: int, origin: Origin) -> None:
        """Record the view of the new tensor of an `empty`, which no instruction writes at first. If it is read, or
        leaves the run, before a kernel writes it, it is filled with zeros: earlier contents of that memory stay
        private, and runs stay deterministic."""
        self._undefined[new.buffer] = (self._own_storages[new.buffer], new.layout, policy, origin)

    def _fill_with_zeros(self, buffer: int) -> None:
        """Fill an undefined buffer with zeros."""
        _, layout, policy, origin = self._undefined.pop(buffer)
        view = View(buffer, layout)
        self.emit(Fill(view, Constant(0), (), (buffer,), self.buffers[buffer].device, origin), policy)

    def lock_handle(self, handle: HandleBase) -> None:
        """Lock the memory of a handle that the op holds, even if a later stage uses it.

        So a conflict shows before the first launch.
        """
        state = live_state(handle)
        storage = state.storage
        if type(storage) is not TracedStorage or storage.builder is not self:
            self._lock_storage(handle, state, exclusive=state.writable)

    def _lock_storage(self, handle: HandleBase, state: HandleState, *, exclusive: bool) -> None:
        """Add the memory of a handle from outside to the locks of the stage, and record the tensor that must not
        move."""
        storage, lender = state.storage, state.lender
        if storage.memory is None:
            raise _no_memory_error(state)
        if lender is not None:
            self._check_loan(state)
        self.locks[storage] = exclusive or self.locks.get(storage, False)
        if state.kind is not Tensor and storage not in self._loans.owned:
            self.lent[state] = handle if lender is None else lender

    def import_graph(self, graph: Captured) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Import the memory of a graph. Return the buffers that the graph reads and those that it writes.

        Its accesses are ordered with those of the op around it, in the order of the trace, so it does not count as a
        second borrower.
        """
        self.graphs.append(graph)
        for storage, exclusive in graph.locks().items():
            self.locks[storage] = exclusive or self.locks.get(storage, False)
        buffers = {storage: self._import_storage(storage) for storage in graph.storages}
        written = tuple(buffers[storage] for storage, exclusive in graph.storages.items() if exclusive)
        return tuple(buffer for buffer in buffers.values() if buffer not in written), written

    def _import_storage(self, storage: Storage) -> int:
        """Return the buffer of memory from outside; add the buffer if it is new."""
        index = self.external.get(storage)
        if index is None and storage.shares:  # of a graph that launches the kernel
            index = self.external[storage] = self._state_cell(storage)
        if index is None:
            index = self.external[storage] = len(self.buffers)
            self.buffers.append(Buffer(storage.nbytes, self.device_index(storage.device), Role.INPUT))
            self.inputs[index] = storage.memory
        return index

    def storages(self) -> dict[int, Storage]:
        """Return the memory of the buffers so far to which handles refer, and that from outside."""
        own = {index: reference() for index, reference in self._own_storages.items()}
        outside = {index: storage for storage, index in self.external.items()}
        return {index: storage for index, storage in own.items() if storage is not None} | outside

    def _check_loan(self, borrow: HandleState) -> None:
        """Raise `BorrowError` if this run borrows an element twice, once for writing. Within one run, each element of a
        tensor from outside is lent for writing once, or for reading any number of times."""
        if self._loans.made_by_run(borrow.storage):
            return  # an earlier stage of this run made it: the order of the trace orders its borrows
        loan, layout = borrow.loan, borrow.layout
        key = layout if loan is None else loan
        lent = self._loans.lent.get(borrow.storage)
        if lent is None:
            self._loans.lent[borrow.storage] = {key: (layout, borrow.origin)}
        elif key not in lent:
            for other, (held, origin) in lent.items():
                if (loan is not None or type(other) is Loan) and share_bytes(layout, held):
                    raise _lent_twice(borrow, origin)
            lent[key] = (layout, borrow.origin)

    # ---- several ops in one program

    def start_next_op(self, loans: Loans) -> None:
        """Start a further op, which runs after the previous one. All tensors that were lent to the previous op are back
        by then."""
        self._loans = loans

    def mark(self) -> "BuilderMark":
        """Return the current state, for `roll_back`."""
        return BuilderMark(
            len(self.instructions), len(self.buffers), dict(self.locks), dict(self.lent), list(self.graphs)
        )

    def roll_back(self, mark: "BuilderMark") -> None:
        """Remove everything that was added since the mark."""
        del self.instructions[mark.instructions :], self.policy_of[mark.instructions :], self.buffers[mark.buffers :]
        self.locks, self.lent, self.graphs = mark.locks, mark.lent, mark.graphs
        self.external = {storage: index for storage, index in self.external.items() if index < mark.buffers}
        self.inputs = {index: value for index, value in self.inputs.items() if index < mark.buffers}
        self._states = {storage: cell for storage, cell in self._states.items() if cell < mark.buffers}
        for table in (self._own_storages, self._undefined, self._views, self._tiles):
            for index in [index for index in table if index >= mark.buffers]:
                del table[index]

    def unwritten_since(self, mark: "BuilderMark") -> list[Origin]:
        """Return the places of the `empty` ops that were added since the mark, and that no kernel has written."""
        return [undefined[3] for buffer, undefined in self._undefined.items() if buffer >= mark.buffers]

    # ---- instructions

    def emit(self, instruction: Instruction, policy: int) -> None:
        """Add an instruction that policy number `policy` places."""
        self.instructions.append(instruction)
        self.policy_of.append(policy)

    def program(self) -> Program:
        """Return the program that has been collected. A buffer whose storage has a handle now is an output."""
        for buffer, (reference, *_) in list(self._undefined.items()):
            storage = reference()
            if storage is not None:
                self._fill_with_zeros(buffer)
                storage.blank = self._copies_earlier
        buffers = list(self.buffers)
        for index, reference in self._own_storages.items():
            if reference() is not None:
                buffers[index] = Buffer(buffers[index].nbytes, buffers[index].device, Role.OUTPUT)
        return Program(
            tuple([device.name for device in self._devices]),
            tuple(buffers),
            tuple(self.instructions),
            tuple(self.policies),
            tuple(self.policy_of),
        )

    def buffer_count(self) -> int:
        """Return the number of buffers so far, with those that the placement has added."""
        return len(self.buffers if self._placed is None else self._placed.buffers)

    def place_outputs(self, placed: Program, find: Callable[[str], Device]) -> None:
        """Note the placed program, and the devices that it has for memory which handles refer to."""
        self._placed = placed
        for index, storage in self.outputs():
            if storage.device.index < 0:
                storage.device = find(placed.devices[placed.buffers[index].device])

    def outputs(self) -> Iterator[tuple[int, TracedStorage]]:
        """Yield the storages of this stage that handles refer to, with their buffers."""
        for index, reference in self._own_storages.items():
            storage = reference()
            if storage is not None:
                yield index, storage

    def lose(self, reason: str) -> None:
        """Record that the stage failed. Handles to memory that it would have made report this reason from now on."""
        for _, storage in self.outputs():
            storage.lose(reason)


def _no_memory_error(state: HandleState) -> Exception:
    """Return the error for a handle whose memory does not exist: it was lost, or its run is not complete."""
    lost = state.storage.lost
    if lost is not None:
        return MovedError(f"{state!r}: its contents were lost, because {lost}. Make it again.")
    return NotReadyError(
        f"{state!r} belongs to a run that is not complete. A handle leaves its run as part of the run's result."
    )


# ---- values of `Shared`s in the trace of a feed


@final
@plain
class SharedBuffer:
    """A `Shared`, and the buffer of its value in the program of a stage."""

    node: Shared[Any]
    sources: tuple[Source[Any], ...] | None
    """The sources on which the value depends; none for a constant. None if it depends on a cutoff with an `equal` too:
    it may be that of an earlier snapshot, so no other run may take it for the value of these sources."""
    buffer: int
    device: Device
    nbytes: int
    layout: Layout
    origin: Origin
    """The place in the user's code that made the tensor."""

    def holds(self, value: Any) -> bool:
        """Return true if a value of another run can be in this buffer: it is a tensor of the same place and layout."""
        if type(value) is not SharedTensor:
            return False
        state = live_state(value)
        storage = state.storage
        return storage.device is self.device and storage.nbytes == self.nbytes and state.layout == self.layout


def shared_buffer(
    node: Shared[Any], value: Any, read: Iterable[Source[Any] | Cutoff[Any, Any, Any]], builder: ProgramBuilder
) -> SharedBuffer | None:
    """Return the buffer of a `Shared` for which the trace has read these sources and cutoffs; None if its value is no
    tensor that the stage makes."""
    if type(value) is not SharedTensor:
        return None
    state, nodes = live_state(value), list(read)
    storage = state.storage
    if type(storage) is not TracedStorage or storage.builder is not builder:
        return None
    old = any(type(each) is Cutoff and each.equal is not None for each in nodes)
    sources = None if old else tuple([each for each in nodes if type(each) is Source])
    return SharedBuffer(node, sources, storage.buffer, storage.device, storage.nbytes, state.layout, state.origin)


def _lent_twice(borrow: HandleState, origin: Origin) -> BorrowError:
    """Return the error for a borrow of elements that the same op borrows at another place, one of the two to write."""
    return BorrowError(
        f"{borrow!r} borrowed at {describe(borrow.origin)}: another part of the same op borrows that tensor, "
        f"at {describe(origin)}, one of the two for writing. Lend it once, m = t.borrow_mut(): a kernel "
        "takes m as an input too, and gives it back, to be written after that. Or lend parts of it that have no "
        "element in common, m[:4] and m[4:]. Or run the two parts as two ops, one after the other."
    )
