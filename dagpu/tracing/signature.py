"""The record that replaces a trace in later runs, and the inputs of one run bound by it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from dagpu.common.errors import KernelArgumentError
from dagpu.common.places import Origin
from dagpu.handles import HANDLES, find_live_state, live_state, state_of
from dagpu.handles.handle_state import Storage
from dagpu.ops.graph import Captured
from dagpu.ops.initializers import fresh_seed
from dagpu.ops.single_flight import Once
from dagpu.tracing.call_guard import LeafBinding, Reading
from dagpu.tracing.program_builder import ProgramBuilder
from dagpu.tracing.results import ResultBuilder, ResultTemplate, remembering_builder
from dagpu.tracing.run_memo import Deferred, RunMemo
from dagpu.tracing.traced_arguments import FixedHandle, NumberUse, TracedArguments
from dagpu.tracing.undo_log import UndoLog


@final
@dataclass(slots=True, eq=False)
class BoundArguments:
    """The inputs of one run, bound to the program's buffers."""

    memory: list[Any]
    """The memory and the values of the program's buffers: the inputs, and after the run the outputs."""
    locks: dict[Storage, bool]
    """The memory that the run locks, exclusively where the value is true."""
    leaves: Sequence[Any]
    """The leaves of the run. A traced run has none here: its trace has moved them."""
    graphs: Sequence[Captured]
    """The graphs that the run launches."""
    moves: tuple[int, ...] = ()
    """The indices of the leaves that `take_leaves` moves."""
    undo_log: UndoLog | None = None
    """The log of the handles that have moved into the run; None if there are none. Discard it when the run is
    submitted: from then on nothing can be moved back."""
    makes: Sequence[tuple[Once, Mapping[Any, int]]] = ()
    """The values of `Shared` and `Unzip` nodes that the run computes, each with the sources on which it depends and
    their revisions. A traced run has none here: its trace has claimed the values."""

    def take_leaves(self, origin: Origin) -> None:
        """Move the owning leaves into the run, and take the components of the `Unzip` nodes among the leaves.
        `return_leaves` can still undo both.

        Raises:
            MovedError: another run has moved or taken one of them meanwhile.
        """
        if self.moves:
            self.undo_log = log = UndoLog()
            self.leaves = leaves = list(self.leaves)
            log.take_leaves(leaves, self.moves, origin)

    def return_leaves(self) -> None:
        """Move the handles back to the op, unless the run was submitted."""
        if self.undo_log is not None:
            self.undo_log.put_back()


# ---- signature
#
# The record that replaces a trace in later runs. It binds their inputs, and builds their results.
#
# A trace may be skipped if a second one would give the same program, whatever has happened in between. Two runs of the
# same op have that property unless the op
#     calls a function of the user (`then`, `map`, `inspect`, `host_map`), which may read state that has changed;
#     remembers a value (`Shared`, `Unzip`), since its second run differs from its first: other ops of the structure of
#         the first run, which have not run, can use the plan;
#     moves a handle (an owned `Tensor`, a `TensorMut`, a `Partition`), since the second run is a `MovedError`;
#     holds an object that can be changed in place (a list in a `Value`);
#     waits for host data in another way than by `map`, since there is more than one program then.
#
# Runs of different ops of one key (dagpu.tracing.cache_key) may also move leaves of the key, and differ in
# their numbers. A pipeline's function may call functions: `@pipeline` states that its result depends on its arguments
# alone.
#
# The tracer finds all of this out during the trace. `bind` checks in each run the facts that may change between two
# runs: handles may have been moved or lost, and arrays may have got another shape. Then the op is traced again, and the
# trace raises its usual error.

MadeFor: TypeAlias = Callable[[Once], Mapping[Any, int] | None]
"""A function that returns the sources on which the value of a `Shared` or `Unzip` depends, with their revisions."""


@final
class Signature:
    """The inputs and the result of a program. It is immutable and belongs to no single run: any number of runs may use
    it at once.

    It refers to handles that the op holds anyway, never to their memory. So that memory is freed when the handles are
    moved and dropped.
    """

    def __init__(
        self,
        buffers: int,
        moves: tuple[int, ...],
        given: tuple[tuple[FixedHandle, int], ...],
        held: set[Storage],
        leaves: list[tuple[int, int, bool | None, Storage | None]],
        graphs: list[tuple["Captured | int", tuple[int, ...]]],
        builder: ProgramBuilder,
        result: ResultBuilder,
        remembered: tuple[tuple[int, tuple[int, ...]], ...],
        *,
        computes: bool,
    ) -> None:
        self.buffers = buffers
        """The number of buffers of the program."""
        self.moves = moves
        """The indices of the leaves that move into the run, also of those that the program does not use."""
        self._given = given
        """Each handle that is not a leaf, with the buffer of its memory; -1 if the program does not use it."""
        self._graphs = graphs
        """The graphs that are launched, or their indices among the leaves, each with the buffers of its memory. A graph
        that is a leaf is not held here: it owns the plans of the ops that launch it."""
        self._held_storages = held
        """The memory of the handles that are not leaves."""
        self._leaves = leaves
        """For each leaf with memory: its index; the buffer of its memory, or -1 if the program does not use it; true if
        the memory is locked for writing, false for reading, None if it is not locked; and the memory itself if the op
        also holds it in another way."""
        self._arrays: list[tuple[int, Any, int, tuple[int, ...], Any]] = []
        """For each array that is copied from: its cell; the array if it is not a leaf; the index of the leaf, or -1;
        and the shape and element type with which it was traced."""
        self._guards_arrays = True
        """True if a guard binds all arrays: each is a leaf, and is copied from once."""
        of_leaves: set[int | None] = {None}
        for cell, array, leaf in builder.arrays:
            constant, number = (array, -1) if leaf is None else (None, leaf)
            self._arrays.append((cell, constant, number, array.shape, array.dtype))
            self._guards_arrays &= leaf not in of_leaves
            of_leaves.add(leaf)
        self._numbers: list[tuple[int, int, Callable[[float], object], NumberUse]] = []
        """Each cell of a number, with the index of its leaf, and one of its uses with its check."""
        for (index, _), (cell, use) in builder.numbers.items():
            self._numbers.append((cell, index, use.check, use))
        self._states = dict.fromkeys(builder.states, True)
        """What the run locks for the variables of modules."""
        self._drawn = tuple(builder.drawn)
        """The cells of the seeds that each run draws."""
        self.result = result
        """Builds the result; if the run remembers values, a pair of these values and the result."""
        self._remembered = remembered
        """For each value that a run computes and remembers, the index of its `Once` among the leaves, and those of the
        leaves that have the revisions of its sources."""
        self._computes = computes
        """True if a function computes a part of the result of contents. A direct call may build the result while the
        device works."""

    def leaf_bindings(self, leaves: int) -> list[LeafBinding]:
        """Return the use of each leaf, for a guard that binds them."""
        handles = {index: (buffer, exclusive) for index, buffer, exclusive, _ in self._leaves}
        arrays = {index: cell for cell, constant, index, _, _ in self._arrays if constant is None}
        found = []
        for index in range(leaves):
            buffer, lock = handles.get(index, (arrays.get(index, -1), None))
            numbers = tuple((cell, check) for cell, leaf, check, _ in self._numbers if leaf == index)
            found.append(LeafBinding(buffer, lock, index in self.moves, numbers))
        return found

    @property
    def needs_bind(self) -> bool:
        """True if `bind` alone can bind a run of other inputs than the traced one's."""
        return bool(
            self._computes
            or self._graphs
            or self._remembered
            or self._states
            or any(held is not None for _, _, _, held in self._leaves)
        )

    @property
    def has_rest(self) -> bool:
        """True if the program has inputs that no guard binds."""
        return bool(self._held_storages or self._given or self._drawn or not self._guards_arrays)

    def read_rest(self, call: Reading) -> bool:
        """Bind what a guard made with `leaf_bindings` does not bind. Return false if `bind` must bind the run, or a
        trace."""
        memory, leaves, _, reads, _ = call
        if self._held_storages:
            handles = [leaf for leaf in leaves if type(leaf) in HANDLES]
            if any(live_state(handle).storage in self._held_storages for handle in handles):
                return False
        for handle, buffer in self._given:
            state = find_live_state(handle)
            if state is None:
                return False
            if buffer >= 0:
                memory[buffer] = state.storage.memory
                if memory[buffer] is None:
                    return False
                reads.append(state.storage.lock)
        for cell, constant, index, shape, dtype in self._arrays:
            if memory[cell] is None:
                array = leaves[index] if constant is None else constant
                if array.shape != shape or array.dtype != dtype:
                    return False
                memory[cell] = array
        for cell in self._drawn:
            memory[cell] = fresh_seed()
        return True

    def can_read_again(self, leaves: Sequence[Any]) -> bool:
        """Return true if `read_again` can bind a run with leaves such as these."""
        return not (self._computes or self._remembered or self._states) and all(
            type(leaves[index]) in HANDLES for index in self.moves
        )

    def launch_reader(self, leaves: Sequence[Any]) -> Callable[[Sequence[Any], Any], Reading | None] | None:
        """Return the function that reads a run which only launches the captured graph that is its one leaf, as
        `read_again` does: its memory does not change while it lives. None for other runs."""
        if self._leaves or self._numbers or self.moves or self.has_rest or len(leaves) != 1 or len(self._graphs) != 1:
            return None
        (captured,), ((graph, buffers),) = leaves, self._graphs
        if graph != 0:
            return None
        memory: list[Any] = [None] * self.buffers
        for storage, buffer in zip(captured.storages, buffers, strict=True):
            memory[buffer] = storage.memory

        def read(leaves: Sequence[Any], _: Any) -> Reading | None:
            (captured,) = leaves
            captured.check()
            return (memory.copy(), [captured], captured.writes, captured.reads, []) if captured.updates.idle else None

        return read

    def read_again(self, leaves: Sequence[Any]) -> Reading | None:
        """Bind one more run with the leaves of an earlier one: of the same op, or of a captured graph. Return None if
        the run needs a trace, or if a graph has updates that it has to take over."""
        call: Reading = [None] * self.buffers, list(leaves), [], [], []
        memory, _, writes, reads, moved = call
        graphs: Sequence[Captured] = ()
        if self._graphs:
            graphs = [leaves[graph] if isinstance(graph, int) else graph for graph, _ in self._graphs]
            for captured, (_, buffers) in zip(graphs, self._graphs, strict=True):
                captured.check()
                if not captured.updates.idle:
                    return None
                for storage, buffer in zip(captured.storages, buffers, strict=True):
                    memory[buffer] = storage.memory
                writes += captured.writes
                reads += captured.reads
        for index, buffer, exclusive, held in self._leaves:
            state = find_live_state(leaves[index])
            if state is None or state.storage.memory is None:
                return None
            storage = state.storage
            if storage is not held and (
                held is not None or storage in self._held_storages or (graphs and _any_uses(graphs, storage))
            ):
                return None
            if buffer >= 0:
                memory[buffer] = storage.memory
            if exclusive is not None:
                (writes if exclusive else reads).append(storage.lock)
        for cell, index, check, _ in self._numbers:
            try:
                memory[cell] = check(leaves[index])
            except KernelArgumentError:
                return None
        for index in self.moves:
            state = find_live_state(leaves[index])
            if state is None:
                return None
            moved.append((index, leaves[index], state))
        return call if not (self._arrays or self.has_rest) or self.read_rest(call) else None

    def bind(self, leaves: Sequence[Any] = ()) -> BoundArguments | None:
        """Bind the inputs of a run.

        Return None if the run needs a trace, because an input has been moved, lost or changed.
        """
        memory: list[Any] = [None] * self.buffers
        locks: dict[Storage, bool] = dict(self._states)
        if self._given and not self._bind_given(memory, locks):
            return None
        graphs = self._bind_graphs(memory, leaves, locks) if self._graphs else ()
        if not self._bind_leaves(memory, leaves, locks, graphs):
            return None
        if self._arrays and not self._bind_arrays(memory, leaves):
            return None
        for cell, index, check, use in self._numbers:
            try:
                memory[cell] = check(leaves[index])
            except KernelArgumentError:
                memory[cell] = use.checked(leaves[index])  # raises the same error with the place of the call
        for cell in self._drawn:
            memory[cell] = fresh_seed()
        makes = [(leaves[index], dict([leaves[each] for each in revisions])) for index, revisions in self._remembered]
        return BoundArguments(memory, locks, leaves, graphs, self.moves, makes=makes)

    def _bind_given(self, memory: list[Any], locks: dict[Storage, bool]) -> bool:
        """Bind the handles that are not leaves. Return False if one of them has been moved or lost."""
        for handle, buffer in self._given:
            state = find_live_state(handle)
            if state is None:
                return False
            if buffer >= 0:
                storage = state.storage
                if storage.memory is None:
                    return False
                memory[buffer] = storage.memory
                locks[storage] = False
        return True

    def _bind_graphs(self, memory: list[Any], leaves: Sequence[Any], locks: dict[Storage, bool]) -> Sequence[Captured]:
        """Bind the memory of the graphs, add it to `locks`, and return the graphs."""
        found: list[Captured] = []
        for graph, buffers in self._graphs:
            captured: Captured = leaves[graph] if isinstance(graph, int) else graph
            captured.check()
            locks.update(captured.locks())
            for storage, buffer in zip(captured.storages, buffers, strict=True):
                memory[buffer] = storage.memory
            found.append(captured)
        return found

    def _bind_leaves(
        self, memory: list[Any], leaves: Sequence[Any], locks: dict[Storage, bool], graphs: Sequence[Captured]
    ) -> bool:
        """Bind the memory of the leaves, and add it to `locks`. Return false if a leaf has been moved or lost, or if
        tensors share memory that did not when they were traced, or the reverse."""
        for index, buffer, exclusive, held in self._leaves:
            state = find_live_state(leaves[index])
            if state is None or state.storage.memory is None:
                return False
            storage = state.storage
            if storage is not held and (
                held is not None or storage in self._held_storages or (graphs and _any_uses(graphs, storage))
            ):
                return False
            if buffer >= 0:
                memory[buffer] = storage.memory
            if exclusive is not None:
                locks[storage] = exclusive or locks.get(storage, False)
        return True

    def _bind_arrays(self, memory: list[Any], leaves: Sequence[Any]) -> bool:
        """Bind the arrays. Return False if one of them has another shape or element type than traced."""
        for cell, constant, index, shape, dtype in self._arrays:
            array = leaves[index] if constant is None else constant
            if array.shape != shape or array.dtype != dtype:
                return False
            memory[cell] = array
        return True


def _any_uses(graphs: Sequence[Captured], storage: Storage) -> bool:
    """Return true if one of the graphs uses this memory."""
    return any(storage in graph.storages for graph in graphs)


def make_signature(
    root: Any,
    suspended: Iterable[Deferred],
    traced: TracedArguments,
    builder: ProgramBuilder,
    memo: RunMemo,
    made_for: MadeFor,
) -> Signature | None:
    """Return the record that lets later runs skip this trace; None if the result, or a value that the run remembers,
    cannot be built without a trace.

    `root` is the traced result, before it is settled, and `suspended` are the values that wait for results of the
    device. `made_for` returns the sources on which a value depends.
    """
    given = traced.fixed_handles
    assert given is not None
    template = ResultTemplate(builder, given, traced, memo)
    remembered = template.remembered_builders()
    result = None if remembered is None else template.part_builder(root, 0)
    if result is None or remembered is None or not template.builds_all(suspended):
        return None
    external = builder.external
    read: list[tuple[FixedHandle, int]] = []
    held: set[Storage] = set()
    for handle in given:
        state = state_of(handle)
        if state is None:  # another thread has moved it meanwhile
            return None
        read.append((handle, external.get(state.storage, -1)))
        held.add(state.storage)
    graphs: list[tuple[Captured | int, tuple[int, ...]]] = []
    locked, of_graphs = {*traced.storages, *builder.states}, set[Storage]()
    for graph in dict.fromkeys(traced.graphs):
        index = traced.index_of(graph)
        graphs.append((graph if index is None else index, tuple([external[storage] for storage in graph.storages])))
        locked.update(graph.locks())
        of_graphs.update(graph.storages)
    for storage, exclusive in builder.locks.items():
        if storage not in locked and (exclusive or storage not in external):
            return None
    leaves: list[tuple[int, int, bool | None, Storage | None]] = []
    for storage, index in traced.storages.items():
        also = storage if storage in held or storage in of_graphs else None
        leaves.append((index, external.get(storage, -1), builder.locks.get(storage), also))
    revisions: tuple[tuple[int, tuple[int, ...]], ...] = ()
    if remembered or template.kept:
        result = remembering_builder(result, remembered, template.kept)
        revisions = tuple([(index, _revision_leaves(traced, index, made_for)) for index, _ in remembered])
    count, moves = builder.buffer_count(), traced.moves()
    return Signature(
        count, moves, tuple(read), held, leaves, graphs, builder, result, revisions, computes=template.computes
    )


def _revision_leaves(traced: TracedArguments, once: int, made_for: MadeFor) -> tuple[int, ...]:
    """Return the indices of the leaves with the revisions of a value's sources. The leaf `once` is its `Once`."""
    assert traced.inputs is not None
    sources = made_for(traced.inputs.leaves[once]) or {}
    return tuple([traced.inputs.source_leaves[node] for node in sources])
