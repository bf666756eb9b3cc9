"""The template of a result: functions that build the same value in another run, from its memory and its leaves."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.containers import Composite, about_of, items_of
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
    live_state,
    state_of,
)
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, replace_standins
from dagpu.lowering.arguments.call_text import CallText
from dagpu.lowering.arguments.exact_tokens import PLAIN
from dagpu.lowering.arguments.flattened import RememberedValue
from dagpu.lowering.arguments.traced_arguments import FixedHandle, TracedArguments
from dagpu.lowering.tracing.deferred import PENDING, Deferred, FromCell, FromItems
from dagpu.lowering.tracing.program_builder import ProgramBuilder
from dagpu.lowering.tracing.run_memo import RunMemo
from dagpu.lowering.tracing.traced_storage import TracedStorage
from dagpu.ops.compose import Taken
from dagpu.ops.single_flight import NOTHING

ResultBuilder: TypeAlias = Callable[[list[Any], Sequence[Any]], Any]
"""A function that builds (a part of) a run's result from the run's memory and from its leaves, which have moved into
it."""

_DEEPEST: Final = 20
"""The depth to which tuples in a result are inspected. A run whose result is nested deeper is traced each time."""


@final
class ResultTemplate:
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
            return _Constant(replace_standins(value)) if index is None else _Leaf(index)
        if kind is SharedTensor or kind is TensorRef or kind is np.ndarray:
            index = self._traced.index_of_result(value)
            if index is not None:
                return _Leaf(index)
        if kind is Tensor or kind is TensorMut or kind is SharedTensor:
            return _Constant(value) if id(value) in self._given else self._tensor_builder(value)
        if kind in PLAIN or id(value) in self._given:
            return _Constant(value)
        if kind is tuple:
            return self._tuple_builder(value, value, depth)
        if kind is Deferred:
            if type(value.cause) is FromCell:
                return _Cell(value.cause.buffer)
            return self._tuple_builder(value.cause.items, None, depth) if type(value.cause) is FromItems else None
        if kind is Partition:
            whole = self._tensor_builder(value)
            return None if whole is None else _partition_builder(whole, cut_of(value))
        if isinstance(value, Composite):
            items = self._tuple_builder(items_of(value), None, depth)
            return None if items is None else _composite_builder(type(value), about_of(value), items)
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
        return _Tuple(parts)

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
            return _LeafMemory(SharedTensor, self._keep(first), state.layout)
        if type(storage) is TracedStorage and storage.builder is self._builder:
            made = _new_memory_builder(state.kind, storage, state.layout, state.origin)
        else:
            index = self._traced.source_index(value)
            made = None if index is None else _LeafMemory(state.kind, index, state.layout)
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

    def expression(self, text: CallText) -> str:
        return text.constant("VALUE", self._value)


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


def remembering_builder(
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


@final
class _Leaf:
    """Returns a leaf."""

    __slots__ = ("_index",)

    def __init__(self, index: int) -> None:
        self._index = index

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return leaves[self._index]

    def expression(self, text: CallText) -> str:
        return text.leaf_in_run(self._index)


@final
class _Cell:
    """Returns the value of a cell."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: int) -> None:
        self._buffer = buffer

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return _value_of_cell(memory[self._buffer])

    def expression(self, text: CallText) -> str:
        return f"{text.function_name(_value_of_cell)}(memory[{self._buffer}])"


def _value_of_cell(value: Any) -> Any:
    """Return a value of the host with the arguments in place of their stand-ins. Most are arrays, which have none."""
    return value if type(value) is np.ndarray else replace_standins(value)


@final
class _Tuple:
    """Builds a tuple."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[ResultBuilder]) -> None:
        self._parts = parts

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return tuple([part(memory, leaves) for part in self._parts])

    def expression(self, text: CallText) -> str | None:
        parts = [result_expression(part, text) for part in self._parts]
        found = [part for part in parts if part is not None]
        return f"({''.join(f'{part}, ' for part in found)})" if len(found) == len(parts) else None


@final
class _NewTensor:
    """Builds a tensor on new memory of each run. It must not refer to the storage, which belongs to the traced run."""

    __slots__ = ("_buffer", "_device", "_layout", "_nbytes", "_origin")

    def __init__(self, traced: TracedStorage, layout: Layout, origin: Origin) -> None:
        self._device, self._nbytes, self._buffer = traced.device, traced.nbytes, traced.buffer
        self._layout, self._origin = layout, origin

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        storage = Storage(self._device, self._nbytes, memory[self._buffer])
        return Tensor(HandleState(Tensor, storage, self._layout, self._origin))

    def expression(self, text: CallText) -> str:
        tensor, state, storage = map(text.class_name, (Tensor, HandleState, Storage))
        device, nbytes = text.constant("DEVICE", self._device), text.constant("BYTES", self._nbytes)
        layout, origin = text.constant("LAYOUT", self._layout), text.constant("ORIGIN", self._origin)
        return f"{tensor}({state}({tensor}, {storage}({device}, {nbytes}, memory[{self._buffer}]), {layout}, {origin}))"


def _new_memory_builder(
    kind: type[HandleBase], traced: TracedStorage, layout: Layout, origin: Origin
) -> ResultBuilder | None:
    """Return a function that builds a handle on new memory of each run. The function must not refer to the storage,
    which belongs to the traced run."""
    device, nbytes, buffer = traced.device, traced.nbytes, traced.buffer

    def shared(memory: list[Any], leaves: Sequence[Any]) -> Any:
        storage = Storage(device, nbytes, memory[buffer])
        return SharedTensor(HandleState(SharedTensor, storage, layout, origin, holders=Holders()))

    return _NewTensor(traced, layout, origin) if kind is Tensor else shared if kind is SharedTensor else None


@final
class _LeafMemory:
    """Builds a handle on the memory of a leaf that has moved into the run, or is shared."""

    __slots__ = ("_index", "_kind", "_layout")

    def __init__(self, kind: type[HandleBase], index: int, layout: Layout) -> None:
        self._kind, self._index, self._layout = kind, index, layout

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        leaf, kind, layout = leaves[self._index], self._kind, self._layout
        if type(leaf) is SharedTensor:
            return clone_shared(leaf, layout)
        state = live_state(leaf)
        if kind is state.kind:
            return kind(state if state.layout == layout else state.with_layout(layout))
        return SharedTensor(HandleState(SharedTensor, state.storage, layout, state.origin, holders=Holders()))

    def expression(self, text: CallText) -> str | None:
        names = text.handles.get(self._index)
        if self._kind is not Tensor or names is None or names.kind is not Tensor or self._index not in text.taken:
            return None
        state = names.state
        if names.layout != self._layout:
            state += f".with_layout({text.constant('LAYOUT', self._layout)})"
        return f"{text.class_name(Tensor)}({state})"


def _partition_builder(whole: ResultBuilder, cut: Cut) -> ResultBuilder:
    """Return a function that builds a partition of a tensor."""
    return lambda memory, leaves: Partition(live_state(whole(memory, leaves)), cut)


def _composite_builder(kind: type[Composite], about: Any, items: ResultBuilder) -> ResultBuilder:
    """Return a function that builds a value of dagpu's own from its items."""
    return lambda memory, leaves: kind(about, items(memory, leaves))


def result_expression(builder: ResultBuilder, text: CallText) -> str | None:
    """Return the expression that builds a result in a direct call, from `memory` and the leaves. None if `builder` has
    to build it."""
    if isinstance(builder, _Constant | _Leaf | _Cell | _Tuple | _NewTensor | _LeafMemory):
        return builder.expression(text)
    return None
