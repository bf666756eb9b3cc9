"""The functions that build the parts of a result in a later run, from its memory and its leaves."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from dagpu.common.containers import Composite
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
    clone_shared,
    live_state,
)
from dagpu.handles.handle_trees import make_unwritable
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import replace_standins
from dagpu.lowering.tracing.run_memo import check_components, copy_for_consumer
from dagpu.lowering.tracing.traced_storage import TracedStorage
from dagpu.lowering.tracing.user_code import apply_map
from dagpu.ops.compose import Map, Value

ResultBuilder: TypeAlias = Callable[[list[Any], Sequence[Any]], Any]
"""A function that builds (a part of) a run's result from the run's memory and from its leaves, which have moved into
it."""


@final
class SameValue:
    """Returns the same object in every run."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return self._value


@final
class FirstUse:
    """Builds a part that several others may need: a shared tensor, or a value that a function of the user's computes.
    If others need it, it is kept beside the leaves, at `index`."""

    __slots__ = ("_make", "index")

    def __init__(self, make: ResultBuilder) -> None:
        self._make = make
        self.index: int | None = None

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        made = self._make(memory, leaves)
        if self.index is not None:
            assert isinstance(leaves, list)
            leaves[self.index] = made
        return made


def remembering_builder(
    result: ResultBuilder, remembered: tuple[tuple[int, ResultBuilder], ...], kept: int
) -> ResultBuilder:
    """Return a function that builds the list of the values that a run remembers, and its result; the result alone if it
    remembers none. `kept` values are kept beside the leaves."""

    def build(memory: list[Any], leaves: Sequence[Any]) -> Any:
        leaves = [*leaves, *[None] * kept]
        values = [part(memory, leaves) for _, part in remembered]
        found = result(memory, leaves)
        return (values, found) if remembered else found

    return build


@final
class Leaf:
    """Returns a leaf."""

    __slots__ = ("_index",)

    def __init__(self, index: int) -> None:
        self._index = index

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return leaves[self._index]


@final
class CellValue:
    """Returns the value of a cell."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: int) -> None:
        self._buffer = buffer

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return _value_of_cell(memory[self._buffer])


def _value_of_cell(value: Any) -> Any:
    """Return a value of the host with the arguments in place of their stand-ins. Most are arrays, which have none."""
    return value if type(value) is np.ndarray else replace_standins(value)


@final
class TupleOf:
    """Builds a tuple."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[ResultBuilder]) -> None:
        self._parts = parts

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return tuple([part(memory, leaves) for part in self._parts])


@final
class NewTensor:
    """Builds a tensor on new memory of each run. It must not refer to the storage, which belongs to the traced run."""

    __slots__ = ("_buffer", "_device", "_layout", "_nbytes", "_origin")

    def __init__(self, traced: TracedStorage, layout: Layout, origin: Origin) -> None:
        self._device, self._nbytes, self._buffer = traced.device, traced.nbytes, traced.buffer
        self._layout, self._origin = layout, origin

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        storage = Storage(self._device, self._nbytes, memory[self._buffer])
        return Tensor(HandleState(Tensor, storage, self._layout, self._origin))


def new_memory_builder(
    kind: type[HandleBase], traced: TracedStorage, layout: Layout, origin: Origin
) -> ResultBuilder | None:
    """Return a function that builds a handle on new memory of each run. The function must not refer to the storage,
    which belongs to the traced run."""
    device, nbytes, buffer = traced.device, traced.nbytes, traced.buffer

    def shared(memory: list[Any], leaves: Sequence[Any]) -> Any:
        storage = Storage(device, nbytes, memory[buffer])
        return SharedTensor(HandleState(SharedTensor, storage, layout, origin, holders=Holders()))

    return NewTensor(traced, layout, origin) if kind is Tensor else shared if kind is SharedTensor else None


@final
class LeafMemory:
    """Builds a handle on the memory of a leaf that has moved into the run, or is shared."""

    __slots__ = ("_index", "_kind", "_layout")

    def __init__(self, kind: type[HandleBase], index: int, layout: Layout) -> None:
        self._kind, self._index, self._layout = kind, index, layout

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        leaf, kind, layout = leaves[self._index], self._kind, self._layout
        if type(leaf) is SharedTensor:
            return clone_shared(leaf, layout)
        state = live_state(leaf)
        if kind is Tensor and type(leaf) is Tensor and state.layout == layout:
            return leaf  # it has moved into the run, which has the only handle to it
        if kind is state.kind:
            return kind(state if state.layout == layout else state.with_layout(layout))
        return SharedTensor(HandleState(SharedTensor, state.storage, layout, state.origin, holders=Holders()))


def partition_builder(whole: ResultBuilder, cut: Cut) -> ResultBuilder:
    """Return a function that builds a partition of a tensor."""
    return lambda memory, leaves: Partition(live_state(whole(memory, leaves)), cut)


def composite_builder(kind: type[Composite], about: Any, items: ResultBuilder) -> ResultBuilder:
    """Return a function that builds a value of dagpu's own from its items."""
    return lambda memory, leaves: kind(about, items(memory, leaves))


def list_builder(items: ResultBuilder) -> ResultBuilder:
    """Return a function that builds a list of the items of a tuple."""
    return lambda memory, leaves: list(items(memory, leaves))


def dict_builder(keys: tuple[Any, ...], values: ResultBuilder) -> ResultBuilder:
    """Return a function that builds a dict of these keys, and of the values in a tuple."""
    return lambda memory, leaves: dict(zip(keys, values(memory, leaves), strict=True))


def named_tuple_builder(kind: type[Any], items: ResultBuilder) -> ResultBuilder:
    """Return a function that builds a named tuple. Its class is not called: it may take other arguments."""
    return lambda memory, leaves: tuple.__new__(kind, items(memory, leaves))


# ---- values that the host computes of results of the device


def mapped_builder(node: Map[Any], argument: ResultBuilder) -> ResultBuilder:
    """Return a function that applies the function of a `Map` to a part."""
    alone: Map[Any] = Map(Value(None, None), node.f, node.origin)  # `node` holds the ops before it, and their handles
    return lambda memory, leaves: _value_of_cell(apply_map(alone, argument(memory, leaves)))


def shared_builder(value: ResultBuilder) -> ResultBuilder:
    """Return a function that builds the value of a `Shared`, of which each consumer gets a copy."""
    return lambda memory, leaves: make_unwritable(value(memory, leaves))


def consumer_builder(value: ResultBuilder) -> ResultBuilder:
    """Return a function that builds the value of a `Shared` for one of its consumers."""
    return lambda memory, leaves: copy_for_consumer(value(memory, leaves))


def component_builder(whole: ResultBuilder, count: int, index: int, where: Origin) -> ResultBuilder:
    """Return a function that builds one component of an `Unzip` of `count` components."""
    return lambda memory, leaves: check_components(whole(memory, leaves), count, where)[index]
