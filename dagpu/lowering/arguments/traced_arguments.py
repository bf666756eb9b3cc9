"""The leaves (arguments) of a traced op, and how handles that derive from them are told apart from handles that the
traced function closed over.

A pipeline's function may close over the very tensor, or array, that it is given. The plan serves calls with other
arguments, so handles that derive from an argument must be told apart from handles that derive from a closure's own
tensor. Their memory does not tell: it is the same. So for handles that may be held elsewhere too, borrows and shared
tensors, the function gets stand-ins, and all handles that derive from a stand-in lead back to it.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, final

import numpy as np

from dagpu.common.containers import mapped
from dagpu.handles import (
    HANDLES,
    HandleBase,
    LenderAlias,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    another,
    live,
    living_state,
    state_of,
)
from dagpu.handles.handle_trees import map_handles
from dagpu.handles.storage import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, without_standins
from dagpu.lowering.arguments.cache_key import SEED_PLACE, Flattened
from dagpu.ops.creation import Alloc
from dagpu.ops.graph import Captured

Given: TypeAlias = SharedTensor[Any, Any] | TensorRef[Any, Any]
"""The handles that do not move."""


@final
class TracedArguments:
    """The leaves of the run that is traced, and the other objects that its op holds."""

    __slots__ = (
        "_index_of",
        "_kinds",
        "_loans",
        "_owned",
        "_sources",
        "_standins",
        "given",
        "graphs",
        "inputs",
        "pure",
        "reads",
        "storages",
    )

    def __init__(self, inputs: Flattened | None) -> None:
        self.inputs = inputs
        self.pure = inputs is not None
        """True if functions of the user may be called, because their results depend on the leaves alone."""
        self.reads: set[int] = set()
        """The numbers among the leaves that something needed the value of."""
        self.given: list[Given] | None = []
        """The handles that the op holds and that are not leaves; None as soon as a second trace might differ."""
        self.graphs: list[Captured] = []
        """The graphs that are launched."""
        self.storages: dict[Storage, int] = {}
        """The memory of handles among the leaves, with the number of the first of them."""
        self._index_of: dict[int, int] = {}
        self._kinds: dict[int, type[HandleBase]] = {}
        self._owned: set[Storage] = set()
        """The memory of tensors that have moved into the op, which has the only handle."""
        self._loans: set[object] = set()
        """The loans of tensors that are lent to the op for writing."""
        self._sources: set[int] = set()
        """The ids of lenders and holders that only stand-ins have, and handles that derive from them."""
        self._standins: dict[int, tuple[Any, int]] = {}
        """The stand-ins by their ids, with the numbers of their leaves."""
        for index, leaf in enumerate(() if inputs is None else inputs.leaves):
            self._add(index, leaf)

    def _add(self, index: int, leaf: Any) -> None:
        self._index_of[id(leaf)] = index
        state = living_state(leaf) if type(leaf) in HANDLES else None
        if state is None:
            return
        self.storages.setdefault(state.storage, index)
        self._kinds[index] = state.kind
        if state.kind is Tensor:
            self._owned.add(state.storage)
        elif state.loan is not None:
            self._loans.add(state.loan)

    # ---- what is a leaf's

    def index_of(self, leaf: Any) -> int | None:
        """The number of a leaf; None for any other object."""
        return self._index_of.get(id(leaf))

    def seed_of(self, op: Alloc[Any]) -> SymbolicNumber | None:
        """The stand-in for the seed of random numbers, where the seed is a leaf."""
        inputs = self.inputs
        index = None if inputs is None else inputs.places.get((id(op), SEED_PLACE))
        return None if inputs is None or index is None else SymbolicNumber(index, inputs.leaves[index], self.reads)

    def index_of_result(self, value: Any) -> int | None:
        """Index of the leaf that this part of the result *is* (the same handle object). None if there is none, or if
        the match is ambiguous."""
        found = self._standins.get(id(value))
        if found is not None:
            return found[1]
        if self.inputs is None or self.inputs.starts:
            return None  # a function may have closed over it
        return self._index_of.get(id(value))

    def derived(self, handle: HandleBase) -> bool:
        """True for a handle that derives from a leaf, so that another run has another handle in its place."""
        state = state_of(handle)
        if state is None:
            return False
        if state.storage in self._owned or id(handle) in self._standins:
            return True
        if state.loan is not None:
            return state.loan in self._loans
        if state.kind is Tensor:
            return False
        if id(state.holders if state.lender is None else state.lender) in self._sources:
            return True
        return self.inputs is not None and not self.inputs.starts and state.storage in self.storages

    def source_of(self, handle: HandleBase) -> int | None:
        """The number of a leaf of which a handle such as this one can be made; None where there is none."""
        state = state_of(handle)
        index = None if state is None else self.storages.get(state.storage)
        if state is None or index is None or not self.derived(handle):
            return None
        kind, leaf = state.kind, self._kinds[index]
        if kind is TensorMut:
            return index if leaf is TensorMut else None  # and of its loan, for it is derived
        return index if leaf is Tensor or (leaf is SharedTensor and kind is SharedTensor) else None

    def keeps(self, handle: Given) -> None:
        """Record a handle of the op that does not move and is not a leaf."""
        if self.given is not None and not self.derived(handle):
            self.given.append(handle)

    def forbid(self) -> None:
        """A second trace might differ from this one."""
        self.given = None

    # ---- what a pipeline's function gets

    def arguments(self, held: Any, start: int, take: Callable[[Any], Any]) -> Any:
        """A pipeline's arguments as its function gets them. `take` moves a handle into the run; the first leaf among
        them has the number `start`."""
        return mapped(_SymbolicArguments(self, start, take).of, held)

    def standin_of(self, value: Any, take: Callable[[Any], Any]) -> tuple[Any, int]:
        """The stand-in for a handle or an array among the arguments, and the number of its leaf."""
        index = self._index_of[id(value)]
        if type(value) is np.ndarray:
            return SymbolicArray(index, value, self.reads), index
        return self._standin(take(value), index), index

    def _standin(self, handle: Any, index: int) -> Any:
        state, made = live(handle), handle
        if type(handle) is TensorRef and state.lender is not None:
            lender = LenderAlias(state.lender)
            made = TensorRef(state.with_lender(lender))
            self._sources.add(id(lender))
        elif state.holders is not None:
            holders = state.holders.alias()  # each handle counts for all
            made = another(handle, holders=holders)
            self._sources.add(id(holders))
        self._standins[id(made)] = made, index
        return made

    def given_back(self, result: Any) -> Any:
        """The result of the run with the arguments' own handles, and lenders, in place of their stand-ins."""
        if self.inputs is None or not self.inputs.starts:
            return result
        leaves = self.inputs.leaves

        def change(handle: Any) -> Any:
            found = self._standins.get(id(handle))
            if found is not None and type(handle) in (TensorRef, SharedTensor):
                return leaves[found[1]]
            state = state_of(handle)
            if state is not None and state.kind is TensorRef and isinstance(state.lender, LenderAlias):
                return TensorRef(live(handle).with_lender(state.lender.tensor))
            return handle

        return map_handles(change, result)


@final
class _SymbolicArguments:
    """Makes the stand-in for each value among a pipeline's arguments. They come in the order in which leaves are
    numbered."""

    __slots__ = ("_leaves", "_next", "_take")

    def __init__(self, leaves: TracedArguments, start: int, take: Callable[[Any], Any]) -> None:
        self._leaves = leaves
        self._next = start
        """The number of the next leaf that has not come before."""
        self._take = take

    def of(self, value: Any) -> Any:
        """The stand-in for one value; the value itself where it needs none."""
        kind = type(value)
        if kind is int or kind is float:
            self._next += 1
            return SymbolicNumber(self._next - 1, value, self._leaves.reads)
        if kind is np.ndarray or kind in HANDLES:
            standin, index = self._leaves.standin_of(value, self._take)
            self._next += index == self._next
            return standin
        if kind is SymbolicNumber or kind is SymbolicArray:  # of another trace: this one is yet to begin
            return self.of(without_standins(value))
        return value


def storage_of_leaf(leaf: Any) -> Storage | None:
    """The memory of a living handle; None of anything else."""
    state = living_state(leaf) if type(leaf) in HANDLES else None
    return None if state is None else state.storage
