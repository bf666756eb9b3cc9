"""The template of a result: functions that build the same value in another run, from its memory and its leaves."""

from collections.abc import Iterable
from typing import Any, Final, assert_never, final

import numpy as np

from dagpu.common.containers import Composite, about_of, items_of
from dagpu.handles import HandleBase, Partition, SharedTensor, Tensor, TensorMut, TensorRef, cut_of, state_of
from dagpu.handles.handle_trees import has_owning_handle
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, replace_standins
from dagpu.lowering.arguments.exact_tokens import PLAIN, is_tuple
from dagpu.lowering.arguments.flattened import RememberedValue
from dagpu.lowering.arguments.traced_arguments import FixedHandle, TracedArguments
from dagpu.lowering.reuse.result_parts import (
    CellValue,
    FirstUse,
    Leaf,
    LeafMemory,
    ResultBuilder,
    SameValue,
    TupleOf,
    component_builder,
    composite_builder,
    consumer_builder,
    dict_builder,
    list_builder,
    mapped_builder,
    named_tuple_builder,
    new_memory_builder,
    partition_builder,
    shared_builder,
)
from dagpu.lowering.tracing.deferred import (
    PENDING,
    Deferred,
    ForeignSuspension,
    FromCell,
    FromItems,
    FromPart,
    PartOfOp,
    SuspendedOp,
    resolve,
)
from dagpu.lowering.tracing.program_builder import ProgramBuilder
from dagpu.lowering.tracing.run_memo import RunMemo
from dagpu.lowering.tracing.traced_storage import TracedStorage
from dagpu.lowering.tracing.user_code import MAY_DIFFER, describe_closure, user_function
from dagpu.ops.compose import Map, Shared, Taken
from dagpu.ops.node_functions import BUILT_IN
from dagpu.ops.single_flight import NOTHING

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
            if type(each.cause) is SuspendedOp and id(each) not in self._computed:
                self._traced.forbid_reuse(
                    f"{each.cause.node!r} computes a value that the result does not contain. Return it, or leave it out"
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
            return None if items is None else composite_builder(kind, about_of(value), items)
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
            made = new_memory_builder(state.kind, storage, state.layout, state.origin)
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
