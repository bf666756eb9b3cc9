"""The record that replaces a trace in later runs: how to bind their inputs, and how to put their result together.

A trace may be skipped where a second one would give the same program, whatever has happened in between. Two runs of the
same op have that property if nothing in the op calls a function of the user (`then`, `map`, `inspect`, `host_map`): it
may read state that has changed; remembers (`Shared`, `Unzip`): its second run differs from its first; moves (an owned
`Tensor`, a `TensorMut`, a `Partition`): the second run is a `MovedError`; can be changed in place (a list in a
`Value`); waits for host data: then there is more than one program. For runs of different ops of one key
(dagpu.lowering.arguments.cache_key) the leaves of the key may move, and numbers differ. A pipeline's function may call
functions: `@pipeline` states that its result depends on its arguments alone.

The tracer finds all of this out in passing. `bind` checks in each run the facts that may change between two runs:
handles may have been moved or lost, and arrays may have got another shape. Then the op is traced again, and the trace
raises its usual error.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, final

from dagpu.common.layout import Layout
from dagpu.common.origin import Origin
from dagpu.handles import (
    OWNING,
    Cut,
    HandleBase,
    HandleState,
    Holders,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    another,
    cut_of,
    live,
    living_state,
    move_in,
    state_of,
)
from dagpu.handles.handle_trees import Undo
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, without_standins
from dagpu.lowering.arguments.cache_key import PLAIN
from dagpu.lowering.arguments.scalar_params import Use, fresh_seed
from dagpu.lowering.arguments.traced_arguments import Given, TracedArguments, storage_of_leaf
from dagpu.lowering.tracing.deferred import Deferred, FromCell, FromItems
from dagpu.lowering.tracing.program_builder import ProgramBuilder
from dagpu.lowering.tracing.traced_storage import TracedStorage
from dagpu.ops.graph import Captured

Make: TypeAlias = Callable[[list[Any], Sequence[Any]], Any]
"""Makes (a part of) a run's result of the memory that the run leaves, and of its leaves, moved into it."""

_DEEPEST: Final = 20
"""A result whose tuples are nested deeper is made by a trace."""


@final
class BoundArguments:
    """The inputs of one run, in their places."""

    __slots__ = ("_undo", "graphs", "leaves", "locks")

    def __init__(self, locks: dict[Storage, bool], leaves: Sequence[Any], graphs: Sequence[Captured]) -> None:
        self.locks = locks
        self.graphs = graphs
        self.leaves = leaves
        self._undo: list[Undo] = []

    def take(self, origin: Origin) -> None:
        """Move the leaves that move into the run. They are not gone yet: see `undo`."""
        if any(type(leaf) in OWNING for leaf in self.leaves):
            self.leaves = [self._taken(leaf, origin) for leaf in self.leaves]

    def _taken(self, leaf: Any, origin: Origin) -> Any:
        if type(leaf) not in OWNING:
            return leaf
        undo = Undo(leaf)
        taken = move_in(leaf, "a run of the op that owned it, started", origin)
        self._undo.append(undo)
        return taken

    def undo(self) -> None:
        """Nothing was submitted: the op has its handles back."""
        for undo in reversed(self._undo):
            undo.undo()


@final
class Signature:
    """Immutable, and of no run in particular: any number of runs may use it at once.

    It refers to handles that the op holds anyway, never to their memory: that goes when they are moved and dropped.
    """

    __slots__ = ("_arrays", "_drawn", "_given", "_graphs", "_held", "_leaves", "_numbers", "buffers", "result")

    def __init__(
        self,
        buffers: int,
        given: tuple[tuple[Given, int], ...],
        leaves: tuple[tuple[int, int, bool | None, Storage | None], ...],
        graphs: tuple[tuple["Captured | int", tuple[int, ...]], ...],
        builder: ProgramBuilder,
        result: Make,
    ) -> None:
        self.buffers = buffers
        """Number of buffers of the program."""
        self._given = given
        """Each handle that is not a leaf, with the buffer of its memory; -1 where the program does not use it."""
        self._graphs = graphs
        """The graphs that are launched, or their numbers among the leaves, with the buffers that their memory is. A
        graph has the plans of those who launch it, so they do not have it."""
        self._held = _storages(handle for handle, _ in given)
        self._leaves = leaves
        """For each leaf with memory: its number; the buffer of its memory, or -1 where the program does not use it;
        true if that is locked for writing, false for reading, None where it is not locked; and the memory itself where
        the op also holds it in another way."""
        self._arrays: list[tuple[int, Any, int, tuple[int, ...], Any]] = []
        """For each array that is copied from: its cell; the array if it is not a leaf; the number of the leaf; and the
        shape and element type that it was traced with."""
        self._numbers: list[tuple[int, int, Use]] = [
            (cell, index, use) for (index, _), (cell, use) in builder.numbers.items()
        ]
        """Each cell of a number, with the number of the leaf, and its use."""
        self._drawn = tuple(builder.drawn)
        """The cells of seeds that each run draws."""
        self.result = result

    def copies(self, cell: int, array: Any, index: int | None) -> None:
        """Tell of an array that is copied from: a leaf where it has an index."""
        kept, number = (array, -1) if index is None else (None, index)
        self._arrays.append((cell, kept, number, array.shape, array.dtype))

    def bind(self, memory: list[Any], leaves: Sequence[Any] = ()) -> BoundArguments | None:
        """Put this run's inputs in their places.

        None where only a trace will do: something has been moved, or lost, or changed.
        """
        locks: dict[Storage, bool] = {}
        for handle, buffer in self._given:
            state = living_state(handle)
            if state is None:
                return None
            if buffer >= 0:
                storage = state.storage
                if storage.memory is None:
                    return None
                memory[buffer] = storage.memory
                locks[storage] = False
        graphs = self._bind_graphs(memory, leaves, locks)
        if not self._bind_leaves(memory, leaves, locks, graphs):
            return None
        for cell, kept, index, shape, dtype in self._arrays:
            array = leaves[index] if kept is None else kept
            if array.shape != shape or array.dtype != dtype:
                return None
            memory[cell] = array
        for cell, index, use in self._numbers:
            memory[cell] = use.checked(leaves[index])
        for cell in self._drawn:
            memory[cell] = fresh_seed()
        return BoundArguments(locks, leaves, graphs)

    def _bind_graphs(self, memory: list[Any], leaves: Sequence[Any], locks: dict[Storage, bool]) -> Sequence[Captured]:
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
        """False where one has been moved or lost, or where two tensors have become one, or the other way round."""
        for index, buffer, exclusive, held in self._leaves:
            storage = storage_of_leaf(leaves[index])
            if storage is None or storage.memory is None:
                return False
            if storage is not held and (held is not None or storage in self._held or _uses(graphs, storage)):
                return False
            if buffer >= 0:
                memory[buffer] = storage.memory
            if exclusive is not None:
                locks[storage] = exclusive or locks.get(storage, False)
        return True


def _uses(graphs: Sequence[Captured], storage: Storage) -> bool:
    return any(storage in graph.storages for graph in graphs)


def repeat_of(root: Any, traced: TracedArguments, builder: ProgramBuilder) -> Signature | None:
    """The record that lets later runs skip this trace; None where the result cannot be put together without a trace.

    `root` is the traced result, not settled yet.
    """
    given = traced.given
    assert given is not None
    result = _ResultTemplate(builder, given, traced).part(root, 0)
    if result is None:
        return None
    external = builder.external()
    locked = {storage for graph in traced.graphs for storage in graph.locks()} | traced.storages.keys()
    others = {storage: lock for storage, lock in builder.locks.items() if storage not in locked}
    if any(others.values()) or not others.keys() <= external.keys():
        return None
    read: list[tuple[Given, int]] = []
    for handle in given:
        state = state_of(handle)
        if state is None:  # moved meanwhile, by another thread
            return None
        read.append((handle, external.get(state.storage, -1)))
    graphs: list[tuple[Captured | int, tuple[int, ...]]] = []
    for graph in dict.fromkeys(traced.graphs):
        index = traced.index_of(graph)
        graphs.append((graph if index is None else index, tuple(external[storage] for storage in graph.storages)))
    held = _storages(given) | {storage for graph in traced.graphs for storage in graph.storages}
    leaves = tuple(
        (index, external.get(storage, -1), builder.locks.get(storage), storage if storage in held else None)
        for storage, index in traced.storages.items()
    )
    repeat = Signature(builder.size(), tuple(read), leaves, tuple(graphs), builder, result)
    for cell, array, leaf in builder.arrays:
        repeat.copies(cell, array, leaf)
    return repeat


@final
class _ResultTemplate:
    """Reads off a traced value how to make another of its kind."""

    __slots__ = ("_builder", "_given", "_traced", "_used")

    def __init__(self, builder: ProgramBuilder, given: list[Given], traced: TracedArguments) -> None:
        self._builder = builder
        self._given = set(map(id, given))
        self._traced = traced
        self._used: set[Storage] = set()

    def part(self, value: Any, depth: int) -> Make | None:
        """A function that makes this part of the result; None if the part is unknown."""
        kind = type(value)
        if kind is SymbolicNumber or kind is SymbolicArray:
            index = value.index_in(self._traced.reads)
            return _Same(without_standins(value)) if index is None else _leaf(index)
        if kind is SharedTensor or kind is TensorRef:
            index = self._traced.index_of_result(value)
            if index is not None:
                return _leaf(index)
        if kind is Tensor or kind is TensorMut or kind is SharedTensor:
            return _Same(value) if id(value) in self._given else self._tensor(value)
        if kind in PLAIN or id(value) in self._given:
            return _Same(value)
        if kind is tuple:
            return self._items(value, value, depth)
        if kind is Deferred:
            if type(value.cause) is FromCell:
                return _cell(value.cause.buffer)
            return self._items(value.cause.items, None, depth) if type(value.cause) is FromItems else None
        if kind is Partition:
            whole = self._tensor(value)
            return None if whole is None else _partition(whole, cut_of(value))
        return None  # such as a new handle to memory from outside: `reshape` of a SharedTensor

    def _items(self, items: tuple[Any, ...], whole: object, depth: int) -> Make | None:
        if depth == _DEEPEST:
            return None
        parts: list[Make] = []
        for item in items:
            part = self.part(item, depth + 1)
            if part is None:
                return None
            parts.append(part)
        if whole is not None and all(type(part) is _Same for part in parts):
            return _Same(whole)
        return lambda memory, leaves: tuple([part(memory, leaves) for part in parts])

    def _tensor(self, value: HandleBase) -> Make | None:
        """A tensor that the run makes: on memory that it makes, or on that of a leaf. Each memory gets one handle."""
        state = state_of(value)
        if state is None or state.storage in self._used:
            return None
        self._used.add(state.storage)
        if type(state.storage) is TracedStorage and state.storage.builder is self._builder:
            return _new(state.kind, state.storage, state.layout, state.made)
        index = self._traced.source_of(value)
        return None if index is None else _on_leaf(state.kind, index, state.layout)


@final
class _Same:
    """Makes the same object in every run."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return self._value


def _leaf(index: int) -> Make:
    return lambda memory, leaves: leaves[index]


def _cell(buffer: int) -> Make:
    return lambda memory, leaves: without_standins(memory[buffer])


def _new(kind: type[HandleBase], traced: TracedStorage, layout: Layout, made: Origin) -> Make | None:
    """A handle on new memory of each run. It must not refer to the storage, which is that of the traced run."""
    device, nbytes, buffer = traced.device, traced.nbytes, traced.buffer

    def tensor(memory: list[Any], leaves: Sequence[Any]) -> Any:
        return Tensor(HandleState(Tensor, Storage(device, nbytes, memory[buffer]), layout, made))

    def shared(memory: list[Any], leaves: Sequence[Any]) -> Any:
        storage = Storage(device, nbytes, memory[buffer])
        return SharedTensor(HandleState(SharedTensor, storage, layout, made, holders=Holders()))

    return tensor if kind is Tensor else shared if kind is SharedTensor else None


def _on_leaf(kind: type[HandleBase], index: int, layout: Layout) -> Make:
    """A handle on the memory of a leaf that has moved into the run, or is shared."""

    def make(memory: list[Any], leaves: Sequence[Any]) -> Any:
        leaf = leaves[index]
        if type(leaf) is SharedTensor:
            return another(leaf, layout)
        state = live(leaf)
        if kind is state.kind:
            return kind(state.with_layout(layout))
        return SharedTensor(HandleState(SharedTensor, state.storage, layout, state.made, holders=Holders()))

    return make


def _partition(whole: Make, cut: Cut) -> Make:
    return lambda memory, leaves: Partition(live(whole(memory, leaves)), cut)


def _storages(handles: Iterable[HandleBase]) -> set[Storage]:
    """The memory of those handles that have not been moved."""
    return {state.storage for state in map(state_of, handles) if state is not None}
