"""The record that replaces a trace in later runs. It binds their inputs, and builds their results.

A trace may be skipped if a second one would give the same program, whatever has happened in between. Two runs of the
same op have that property unless the op
    calls a function of the user (`then`, `map`, `inspect`, `host_map`), which may read state that has changed;
    remembers a value (`Shared`, `Unzip`), since its second run differs from its first: other ops of the structure of
        the first run, which have not run, can use the plan;
    moves a handle (an owned `Tensor`, a `TensorMut`, a `Partition`), since the second run is a `MovedError`;
    holds an object that can be changed in place (a list in a `Value`);
    waits for host data, since there is more than one program then.

Runs of different ops of one key (dagpu.lowering.arguments.cache_key) may also move leaves of the key, and differ in
their numbers. A pipeline's function may call functions: `@pipeline` states that its result depends on its arguments
alone.

The tracer finds all of this out during the trace. `bind` checks in each run the facts that may change between two runs:
handles may have been moved or lost, and arrays may have got another shape. Then the op is traced again, and the trace
raises its usual error.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin
from dagpu.handles import (
    Cut,
    HandleBase,
    HandleState,
    Holders,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    clone_shared,
    cut_of,
    find_live_state,
    live_state,
    state_of,
)
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, replace_standins
from dagpu.lowering.arguments.call_guard import BoundCall, LeafBinding
from dagpu.lowering.arguments.exact_tokens import PLAIN
from dagpu.lowering.arguments.flattened import RememberedValue
from dagpu.lowering.arguments.scalar_params import NumberUse, fresh_seed
from dagpu.lowering.arguments.traced_arguments import FixedHandle, TracedArguments
from dagpu.lowering.tracing.deferred import PENDING, Deferred, FromCell, FromItems
from dagpu.lowering.tracing.program_builder import ProgramBuilder
from dagpu.lowering.tracing.run_memo import BoundClaims, RunMemo
from dagpu.lowering.tracing.traced_storage import TracedStorage
from dagpu.lowering.tracing.undo_log import UndoLog
from dagpu.ops.compose import Taken
from dagpu.ops.graph import Captured
from dagpu.ops.single_flight import NOTHING

ResultBuilder: TypeAlias = Callable[[list[Any], Sequence[Any]], Any]
"""A function that builds (a part of) a run's result from the run's memory and from its leaves, which have moved into
it."""

_DEEPEST: Final = 20
"""The depth to which tuples in a result are inspected. A run whose result is nested deeper is traced each time."""


@final
class BoundArguments:
    """The inputs of one run, bound to the program's buffers."""

    __slots__ = ("claims", "graphs", "leaves", "locks", "memory", "moves", "undo_log")

    def __init__(
        self,
        memory: list[Any],
        locks: dict[Storage, bool],
        leaves: Sequence[Any],
        graphs: Sequence[Captured],
        moves: tuple[int, ...] = (),
        undo_log: UndoLog | None = None,
        claims: BoundClaims | None = None,
    ) -> None:
        self.memory = memory
        """The memory and the values of the program's buffers: the inputs, and after the run the outputs."""
        self.locks = locks
        """The memory that the run locks, exclusively where the value is true."""
        self.graphs = graphs
        """The graphs that the run launches."""
        self.leaves = leaves
        """The leaves of the run. A traced run has none here: its trace has moved them."""
        self.moves = moves
        """The indices of the leaves that `take_leaves` moves."""
        self.claims = claims
        """The claims of the values of `Shared` and `Unzip` nodes that the run computes; None if it computes none. A
        traced run has none here: its trace has claimed the values."""
        self.undo_log = undo_log
        """The log of the handles that have moved into the run; None if there are none. Discard it when the run is
        submitted: from then on nothing can be moved back."""

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


@final
class Signature:
    """The inputs and the result of a program. It is immutable and belongs to no single run: any number of runs may use
    it at once.

    It refers to handles that the op holds anyway, never to their memory. So that memory is freed when the handles are
    moved and dropped.
    """

    __slots__ = (
        "_arrays", "_drawn", "_given", "_graphs", "_guard_binds_all", "_held_storages", "_leaves", "_numbers",
        "_remembered", "buffers", "moves", "result",
    )  # fmt: skip

    def __init__(
        self,
        buffers: int,
        moves: tuple[int, ...],
        given: tuple[tuple[FixedHandle, int], ...],
        leaves: tuple[tuple[int, int, bool | None, Storage | None], ...],
        graphs: tuple[tuple["Captured | int", tuple[int, ...]], ...],
        builder: ProgramBuilder,
        result: ResultBuilder,
        remembered: tuple[int, ...],
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
        self._held_storages = _storages_of(handle for handle, _ in given)
        self._leaves = leaves
        """For each leaf with memory: its index; the buffer of its memory, or -1 if the program does not use it; true if
        the memory is locked for writing, false for reading, None if it is not locked; and the memory itself if the op
        also holds it in another way."""
        self._arrays: list[tuple[int, Any, int, tuple[int, ...], Any]] = []
        """For each array that is copied from: its cell; the array if it is not a leaf; the index of the leaf, or -1;
        and the shape and element type with which it was traced."""
        self._numbers: list[tuple[int, int, Callable[[float], object], NumberUse]] = [
            (cell, index, use.check, use) for (index, _), (cell, use) in builder.numbers.items()
        ]
        """Each cell of a number, with the index of its leaf, and one of its uses with its check."""
        self._drawn = tuple(builder.drawn)
        """The cells of the seeds that each run draws."""
        self.result = result
        """Builds the result; if the run remembers values, a pair of these values and the result."""
        self._guard_binds_all = False
        """True if a guard made with `leaf_bindings` binds all that differs between calls."""
        self._remembered = remembered
        """The indices among the leaves of the `Once` of each value that a run computes and remembers."""

    def add_array(self, cell: int, array: Any, index: int | None) -> None:
        """Record an array that is copied from. `index` is its index among the leaves, None if it is not a leaf."""
        constant, number = (array, -1) if index is None else (None, index)
        self._arrays.append((cell, constant, number, array.shape, array.dtype))

    def leaf_bindings(self, leaves: int) -> list[LeafBinding]:
        """Return the use of each leaf, for a guard that binds them."""
        handles = {index: (buffer, exclusive) for index, buffer, exclusive, _ in self._leaves}
        arrays = {index: cell for cell, constant, index, _, _ in self._arrays if constant is None}
        # A guard binds all unless these facts depend on each other, or an array is copied twice.
        self._guard_binds_all = not (self._given or self._graphs) and len(arrays) == len(self._arrays)
        found = []
        for index in range(leaves):
            buffer, lock = handles.get(index, (arrays.get(index, -1), None))
            numbers = tuple((cell, check) for cell, leaf, check, _ in self._numbers if leaf == index)
            found.append(LeafBinding(buffer, lock, numbers))
        return found

    def finish(self, call: BoundCall) -> BoundArguments | None:
        """Bind what is not a leaf. A guard made with `leaf_bindings` has bound the leaves.

        Return None if the run needs a trace.
        """
        if not self._guard_binds_all:
            return self.bind(call.leaves)
        for cell in self._drawn:
            call.memory[cell] = fresh_seed()
        return BoundArguments(call.memory, call.locks, call.leaves, (), self.moves)

    def bind(self, leaves: Sequence[Any] = ()) -> BoundArguments | None:
        """Bind the inputs of a run.

        Return None if the run needs a trace, because an input has been moved, lost or changed.
        """
        memory: list[Any] = [None] * self.buffers
        locks: dict[Storage, bool] = {}
        if self._given and not self._bind_given(memory, locks):
            return None
        graphs = self._bind_graphs(memory, leaves, locks) if self._graphs else ()
        if not self._bind_leaves(memory, leaves, locks, graphs):
            return None
        for cell, constant, index, shape, dtype in self._arrays:
            array = leaves[index] if constant is None else constant
            if array.shape != shape or array.dtype != dtype:
                return None
            memory[cell] = array
        for cell, index, check, use in self._numbers:
            try:
                memory[cell] = check(leaves[index])
            except KernelArgumentError:
                memory[cell] = use.checked(leaves[index])  # raises the same error with the place of the call
        for cell in self._drawn:
            memory[cell] = fresh_seed()
        remembered = self._remembered
        claims = BoundClaims([leaves[index] for index in remembered]) if remembered else None
        return BoundArguments(memory, locks, leaves, graphs, self.moves, claims=claims)

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


def _any_uses(graphs: Sequence[Captured], storage: Storage) -> bool:
    """Return true if one of the graphs uses this memory."""
    return any(storage in graph.storages for graph in graphs)


def make_signature(root: Any, traced: TracedArguments, builder: ProgramBuilder, memo: RunMemo) -> Signature | None:
    """Return the record that lets later runs skip this trace; None if the result, or a value that the run remembers,
    cannot be built without a trace.

    `root` is the traced result, before it is settled.
    """
    given = traced.fixed_handles
    assert given is not None
    template = _ResultTemplate(builder, given, traced)
    remembered = template.remembered_builders(memo)
    result = None if remembered is None else template.part_builder(root, 0)
    if result is None or remembered is None:
        return None
    external = builder.external_buffers()
    locked = {storage for graph in traced.graphs for storage in graph.locks()} | traced.storages.keys()
    others = {storage: lock for storage, lock in builder.locks.items() if storage not in locked}
    if any(others.values()) or not others.keys() <= external.keys():
        return None
    read: list[tuple[FixedHandle, int]] = []
    for handle in given:
        state = state_of(handle)
        if state is None:  # another thread has moved it meanwhile
            return None
        read.append((handle, external.get(state.storage, -1)))
    graphs: list[tuple[Captured | int, tuple[int, ...]]] = []
    for graph in dict.fromkeys(traced.graphs):
        index = traced.index_of(graph)
        graphs.append((graph if index is None else index, tuple(external[storage] for storage in graph.storages)))
    held = _storages_of(given) | {storage for graph in traced.graphs for storage in graph.storages}
    leaves = tuple(
        (index, external.get(storage, -1), builder.locks.get(storage), storage if storage in held else None)
        for storage, index in traced.storages.items()
    )
    if remembered or template.kept:
        result = _remembering_builder(result, remembered, template.kept)
    signature = Signature(
        builder.buffer_count(), traced.moves(), tuple(read), leaves, tuple(graphs), builder, result,
        tuple([index for index, _ in remembered]),
    )  # fmt: skip
    for cell, array, leaf in builder.arrays:
        signature.add_array(cell, array, leaf)
    return signature


@final
class _ResultTemplate:
    """Reads off a traced value how to build the same value in another run."""

    __slots__ = ("_builder", "_given", "_leaves", "_traced", "_used", "kept")

    def __init__(self, builder: ProgramBuilder, given: list[FixedHandle], traced: TracedArguments) -> None:
        self._builder = builder
        self._given = set(map(id, given))
        self._traced = traced
        self._used: dict[Storage, _FirstHandle | None] = {}
        """The memory of the parts so far, with the builder of its handle; None if no other part may have the memory."""
        self._leaves = 0 if traced.inputs is None else len(traced.inputs.leaves)
        self.kept = 0
        """The number of handles that several parts are built from. They come after the leaves."""

    def remembered_builders(self, memo: RunMemo) -> tuple[tuple[int, ResultBuilder], ...] | None:
        """Return a function that builds each value that the run computes and remembers, with the index of its `Once`
        among the leaves. None if one of them cannot be built without a trace."""
        found: list[tuple[int, ResultBuilder]] = []
        inputs = self._traced.inputs
        for once, known in () if inputs is None else inputs.remembered.items():
            if known.value is not NOTHING:
                continue
            value = memo.claimed_value(once)
            if value is PENDING:  # another run has made it since the key was made
                return None
            builder = self._components_builder(value, known) if known.alive else self.part_builder(value, 0)
            if builder is None:
                return None
            found.append((known.leaf, builder))
        return tuple(found)

    def _components_builder(self, components: list[Any], known: RememberedValue) -> ResultBuilder | None:
        """Return a function that builds the list of components that are left of an `Unzip`. None if it cannot be built
        without a trace, or if an op that might have taken a component has died since the key was made."""
        parts: list[ResultBuilder] = []
        for index, component in enumerate(components):
            if type(component) is Taken:
                if known.alive[index] and index not in known.components:
                    return None
                parts.append(_Constant(component))
                continue
            part = self.part_builder(component, 1)
            if part is None:
                return None
            parts.append(part)
        return lambda memory, leaves: [part(memory, leaves) for part in parts]

    def part_builder(self, value: Any, depth: int) -> ResultBuilder | None:
        """Return a function that builds this part of the result; None if the part cannot be built without a trace."""
        kind = type(value)
        if kind is SymbolicNumber or kind is SymbolicArray:
            index = value.index_in(self._traced.reads)
            return _Constant(replace_standins(value)) if index is None else _leaf_builder(index)
        if kind is SharedTensor or kind is TensorRef or kind is np.ndarray:
            index = self._traced.index_of_result(value)
            if index is not None:
                return _leaf_builder(index)
        if kind is Tensor or kind is TensorMut or kind is SharedTensor:
            return _Constant(value) if id(value) in self._given else self._tensor_builder(value)
        if kind in PLAIN or id(value) in self._given:
            return _Constant(value)
        if kind is tuple:
            return self._tuple_builder(value, value, depth)
        if kind is Deferred:
            if type(value.cause) is FromCell:
                return _cell_builder(value.cause.buffer)
            return self._tuple_builder(value.cause.items, None, depth) if type(value.cause) is FromItems else None
        if kind is Partition:
            whole = self._tensor_builder(value)
            return None if whole is None else _partition_builder(whole, cut_of(value))
        return None  # for example a new handle to memory from outside: `reshape` of a SharedTensor

    def _tuple_builder(self, items: tuple[Any, ...], whole: object, depth: int) -> ResultBuilder | None:
        """Return a function that builds a tuple. `whole` is the tuple itself if all its items exist."""
        if depth == _DEEPEST:
            return None
        parts: list[ResultBuilder] = []
        for item in items:
            part = self.part_builder(item, depth + 1)
            if part is None:
                return None
            parts.append(part)
        if whole is not None and all(type(part) is _Constant for part in parts):
            return _Constant(whole)
        return lambda memory, leaves: tuple([part(memory, leaves) for part in parts])

    def _tensor_builder(self, value: HandleBase) -> ResultBuilder | None:
        """Return a function that builds a tensor on memory that the run makes, or on the memory of a leaf. None if
        another part has that memory already, unless both are shared tensors: each memory gets one handle, and clones
        of it."""
        state = state_of(value)
        if state is None:
            return None
        storage, shared = state.storage, state.kind is SharedTensor
        if storage in self._used:
            first = self._used[storage]
            if first is None or not shared:
                return None
            return _leaf_memory_builder(SharedTensor, self._keep(first), state.layout)
        if type(storage) is TracedStorage and storage.builder is self._builder:
            made = _new_memory_builder(state.kind, storage, state.layout, state.origin)
        else:
            index = self._traced.source_index(value)
            made = None if index is None else _leaf_memory_builder(state.kind, index, state.layout)
        if made is None or not shared:
            self._used[storage] = None
            return made
        self._used[storage] = first = _FirstHandle(made)
        return first

    def _keep(self, first: "_FirstHandle") -> int:
        """Let the first handle to some memory be kept beside the leaves, for clones of it. Return its index there."""
        if first.index is None:
            first.index = self._leaves + self.kept
            self.kept += 1
        return first.index


@final
class _Constant:
    """Returns the same object in every run."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return self._value


@final
class _FirstHandle:
    """Builds a shared tensor. If other parts are clones of it, it is kept beside the leaves, at `index`."""

    __slots__ = ("_make", "index")

    def __init__(self, make: ResultBuilder) -> None:
        self._make = make
        self.index: int | None = None

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        handle = self._make(memory, leaves)
        if self.index is not None:
            assert isinstance(leaves, list)
            leaves[self.index] = handle
        return handle


def _remembering_builder(
    result: ResultBuilder, remembered: tuple[tuple[int, ResultBuilder], ...], kept: int
) -> ResultBuilder:
    """Return a function that builds the list of the values that a run remembers, and its result; the result alone if it
    remembers none. `kept` handles are kept beside the leaves."""

    def build(memory: list[Any], leaves: Sequence[Any]) -> Any:
        leaves = [*leaves, *[None] * kept]
        values = [part(memory, leaves) for _, part in remembered]
        found = result(memory, leaves)
        return (values, found) if remembered else found

    return build


def _leaf_builder(index: int) -> ResultBuilder:
    """Return a function that returns a leaf."""
    return lambda memory, leaves: leaves[index]


def _cell_builder(buffer: int) -> ResultBuilder:
    """Return a function that returns the value of a cell."""
    return lambda memory, leaves: replace_standins(memory[buffer])


def _new_memory_builder(
    kind: type[HandleBase], traced: TracedStorage, layout: Layout, origin: Origin
) -> ResultBuilder | None:
    """Return a function that builds a handle on new memory of each run. The function must not refer to the storage,
    which belongs to the traced run."""
    device, nbytes, buffer = traced.device, traced.nbytes, traced.buffer

    def tensor(memory: list[Any], leaves: Sequence[Any]) -> Any:
        return Tensor(HandleState(Tensor, Storage(device, nbytes, memory[buffer]), layout, origin))

    def shared(memory: list[Any], leaves: Sequence[Any]) -> Any:
        storage = Storage(device, nbytes, memory[buffer])
        return SharedTensor(HandleState(SharedTensor, storage, layout, origin, holders=Holders()))

    return tensor if kind is Tensor else shared if kind is SharedTensor else None


def _leaf_memory_builder(kind: type[HandleBase], index: int, layout: Layout) -> ResultBuilder:
    """Return a function that builds a handle on the memory of a leaf that has moved into the run, or is shared."""

    def make(memory: list[Any], leaves: Sequence[Any]) -> Any:
        leaf = leaves[index]
        if type(leaf) is SharedTensor:
            return clone_shared(leaf, layout)
        state = state_of(leaf) if kind is Tensor else None
        if state is None:
            state = live_state(leaf)
        if kind is state.kind:
            return kind(state if state.layout == layout else state.with_layout(layout))
        return SharedTensor(HandleState(SharedTensor, state.storage, layout, state.origin, holders=Holders()))

    return make


def _partition_builder(whole: ResultBuilder, cut: Cut) -> ResultBuilder:
    """Return a function that builds a partition of a tensor."""
    return lambda memory, leaves: Partition(live_state(whole(memory, leaves)), cut)


def _storages_of(handles: Iterable[HandleBase]) -> set[Storage]:
    """Return the memory of those handles that have not been moved."""
    return {state.storage for state in map(state_of, handles) if state is not None}
