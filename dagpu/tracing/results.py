"""The template of a result, and the functions that build its parts in a later run."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, assert_never, final

import numpy as np

from dagpu.common.containers import Composite, about_of, items_of, made_by, own_fields_of
from dagpu.common.layout import Layout
from dagpu.common.places import Origin
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
from dagpu.handles.handle_state import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, replace_standins
from dagpu.handles.tensors import has_owning_handle, make_unwritable
from dagpu.ops.compose import BUILT_IN, Map, Shared, Taken, Value
from dagpu.ops.single_flight import NOTHING
from dagpu.tracing.flattened import RememberedValue
from dagpu.tracing.program_builder import ProgramBuilder, TracedStorage
from dagpu.tracing.run_memo import (
    PENDING,
    Deferred,
    ForeignSuspension,
    FromCell,
    FromItems,
    FromPart,
    PartOfOp,
    RunMemo,
    SuspendedOp,
    check_components,
    copy_for_consumer,
    resolve,
)
from dagpu.tracing.traced_arguments import FixedHandle, TracedArguments
from dagpu.tracing.user_code import MAY_DIFFER, apply_map, describe_closure, user_function
from dagpu.tracing.value_tokens import PLAIN, is_tuple

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
    """Builds a `Tensor` or `SharedTensor` on new memory of each run. It must not refer to the storage, which belongs to
    the traced run."""

    __slots__ = ("_buffer", "_device", "_kind", "_layout", "_nbytes", "_origin")

    def __init__(self, kind: type[HandleBase], traced: TracedStorage, layout: Layout, origin: Origin) -> None:
        self._device, self._nbytes, self._buffer = traced.device, traced.nbytes, traced.buffer
        self._kind, self._layout, self._origin = kind, layout, origin

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        kind, storage = self._kind, Storage(self._device, self._nbytes, memory[self._buffer])
        holders = Holders() if kind is SharedTensor else None
        return kind(HandleState(kind, storage, self._layout, self._origin, holders=holders))


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


@final
class CompositeOf:
    """Builds a value of dagpu's own from its items."""

    __slots__ = ("_about", "_has_own_fields", "_items", "_kind")

    def __init__(self, kind: type[Composite], about: Any, items: ResultBuilder) -> None:
        self._kind, self._about, self._items = kind, about, items
        self._has_own_fields = own_fields_of(kind)

    def __call__(self, memory: list[Any], leaves: Sequence[Any]) -> Any:
        return made_by(self._kind)(self._about, self._items(memory, leaves))


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


# ---- result template
#
# The template of a result: functions that build the same value in another run, from its memory and its leaves.

_NEW: Final[frozenset[type[HandleBase]]] = frozenset((Tensor, SharedTensor))
"""The kinds of handles that a run makes new memory for."""
_DEEPEST: Final = 20
"""The depth to which tuples in a result are inspected. A run whose result is nested deeper is traced each time."""


@final
class ResultTemplate:
    """Reads off a traced value how to build the same value in another run."""

    __slots__ = ("_builder", "_computed", "_containers", "_given", "_leaves", "_memo", "_traced", "_used", "kept")

    def __init__(
        self, builder: ProgramBuilder, given: list[FixedHandle], traced: TracedArguments, memo: RunMemo
    ) -> None:
        self._builder = builder
        self._given = set(map(id, given))
        self._traced = traced
        self._memo = memo
        self._computed: dict[int, FirstUse | None] = {}
        """The builder of each value that the host computes of results of the device, by the id of its `Deferred`."""
        self._containers: set[int] = set()
        """The ids of the lists and dicts so far."""
        self._used: dict[Storage, FirstUse | None] = {}
        """The memory of the parts so far, with the builder of its handle; None if no other part may have the memory."""
        self._leaves = 0 if traced.inputs is None else len(traced.inputs.leaves)
        self.kept = 0
        """The number of values that several parts are built from. They come after the leaves."""

    @property
    def computes(self) -> bool:
        """True if a part is computed of contents, which exist only once the run has ended."""
        return bool(self._computed)

    def builds_all(self, suspended: Iterable[Deferred]) -> bool:
        """Return true if the parts so far call all functions that wait for results of the device."""
        for each in suspended:
            cause = each.cause
            if type(cause) is SuspendedOp and type(cause.node) is not Shared and id(each) not in self._computed:
                self._traced.forbid_reuse(
                    f"{cause.node!r} computes a value that the result does not contain. Return it, or leave it out"
                )
                return False
        return True

    def remembered_builders(self) -> tuple[tuple[int, ResultBuilder], ...] | None:
        """Return a function that builds each value that the run computes and remembers, with the index of its `Once`
        among the leaves. None if one of them cannot be built without a trace."""
        found: list[tuple[int, ResultBuilder]] = []
        inputs = self._traced.inputs
        for once, known in () if inputs is None else inputs.remembered.items():
            if known.value is not NOTHING:
                continue
            value = self._memo.claimed_value(once)
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
                parts.append(SameValue(component))
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
            return SameValue(replace_standins(value)) if index is None else Leaf(index)
        if kind is SharedTensor or kind is TensorRef or kind is np.ndarray:
            index = self._traced.index_of_result(value)
            if index is not None:
                return Leaf(index)
        if kind is Tensor or kind is TensorMut or kind is SharedTensor:
            return SameValue(value) if id(value) in self._given else self._tensor_builder(value) or self._refuse(value)
        if kind in PLAIN or id(value) in self._given:
            return SameValue(value)
        if kind is tuple:
            return self._tuple_builder(value, value, depth)
        if kind is Deferred:
            return self._deferred_builder(value, depth)
        if kind is Partition:
            whole = self._tensor_builder(value)
            return self._refuse(value) if whole is None else partition_builder(whole, cut_of(value))
        return self._container_builder(value, depth)

    def _container_builder(self, value: Any, depth: int) -> ResultBuilder | None:
        """Return a function that builds a container that is no plain tuple; None for any other value: for example a new
        handle to memory from outside, as `reshape` of a SharedTensor gives it."""
        kind = type(value)
        if isinstance(value, Composite):
            items = self._tuple_builder(items_of(value), None, depth)
            return None if items is None else CompositeOf(kind, about_of(value), items)
        if is_tuple(value):
            items = self._tuple_builder(tuple(value), None, depth)
            return None if items is None else named_tuple_builder(kind, items)
        if (kind is list or kind is dict) and id(value) not in self._containers:
            self._containers.add(id(value))  # at a second place the result would need the same object
            items = self._tuple_builder(tuple(value.values() if kind is dict else value), None, depth)
            if items is None:
                return None
            if kind is list or PLAIN.issuperset(map(type, value)):
                return list_builder(items) if kind is list else dict_builder(tuple(value), items)
        return self._refuse(value)

    def _refuse(self, value: object) -> ResultBuilder | None:
        """Record that no plan can make this part of the result, and return None."""
        self._traced.forbid_reuse(
            f"no plan can make a part of its result, a {type(value).__name__}, again. Return handles that it has made "
            "or was given, each once, results of to_host() and host_map, numbers, texts, and tuples, lists and dicts "
            "of these"
        )
        return None

    def _tuple_builder(self, items: tuple[Any, ...], whole: object, depth: int) -> ResultBuilder | None:
        """Return a function that builds a tuple. `whole` is the tuple itself if all its items exist."""
        if depth == _DEEPEST:
            self._traced.forbid_reuse(f"its result is nested more than {_DEEPEST} deep. Return a flatter one")
            return None
        parts: list[ResultBuilder] = []
        for item in items:
            part = self.part_builder(item, depth + 1)
            if part is None:
                return None
            parts.append(part)
        if whole is not None and all(type(part) is SameValue for part in parts):
            return SameValue(whole)
        return TupleOf(parts)

    def _deferred_builder(self, value: Deferred, depth: int) -> ResultBuilder | None:
        """Return a function that builds a value of the host that results of the device make, or functions of them."""
        found = resolve(value)
        if type(found) is not Deferred:
            return self.part_builder(found, depth)
        match found.cause:
            case FromCell(buffer=buffer):
                return CellValue(buffer)
            case FromItems(items=items):
                return self._tuple_builder(items, None, depth)
            case FromPart(whole=whole, node=part, index=index):
                made = self._once(whole, depth + 1)
                return None if made is None else component_builder(made, part.split.n, index, part.origin)
            case ForeignSuspension(node=node):  # of `Shared`, whose first consumer has the case below
                claimed = self._memo.claimed_value(node.once)
                return self._deferred_builder(claimed, depth) if type(claimed) is Deferred else None
            case PartOfOp():
                return None  # the op has no key
            case SuspendedOp(node=node):
                made = self._once(found, depth)
                return consumer_builder(made) if made is not None and type(node) is Shared else made
            case _:
                assert_never(found.cause)

    def _once(self, value: Deferred, depth: int) -> ResultBuilder | None:
        """Return a function that builds a value that a run computes once, for one more part. It calls the function of
        the user's for the first part."""
        known = self._computed.get(id(value))
        if known is not None:
            return Leaf(self._keep(known))
        made = self._computed_builder(value, depth)
        first = self._computed[id(value)] = None if made is None else FirstUse(made)
        return first

    def _computed_builder(self, value: Deferred, depth: int) -> ResultBuilder | None:
        cause = value.cause
        if type(cause) is not SuspendedOp:
            return self.part_builder(value, depth)
        node, (argument,) = cause.node, cause.inputs
        given = self.part_builder(argument, depth + 1) if depth < _DEEPEST else None
        if given is None:
            return None
        if type(node) is Shared:
            return None if has_owning_handle(argument) else shared_builder(given)
        assert type(node) is Map
        return mapped_builder(node, given) if self._may_call(node) else None

    def _may_call(self, node: Map[Any]) -> bool:
        """Return true if a plan may call the function of a `Map` in each run."""
        if type(node.f) in BUILT_IN:
            return True
        if not self._traced.pure:
            return False
        if self._traced.keep_function(user_function(node.f)):
            return True
        self._traced.forbid_reuse(f"{describe_closure(node, node.f)} {MAY_DIFFER}")
        return False

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
            return LeafMemory(SharedTensor, self._keep(first), state.layout)
        if type(storage) is TracedStorage and storage.builder is self._builder:
            made: ResultBuilder | None = (
                NewTensor(state.kind, storage, state.layout, state.origin) if state.kind in _NEW else None
            )
        else:
            index = self._traced.source_index(value)
            made = None if index is None else LeafMemory(state.kind, index, state.layout)
        if made is None or not shared:
            self._used[storage] = None
            return made
        self._used[storage] = first = FirstUse(made)
        return first

    def _keep(self, first: FirstUse) -> int:
        """Let what the first use builds be kept beside the leaves, for other parts. Return its index there."""
        if first.index is None:
            first.index = self._leaves + self.kept
            self.kept += 1
        return first.index
