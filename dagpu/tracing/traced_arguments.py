"""The leaves (arguments) of a traced op. Handles that derive from them are distinguished from handles that the traced
function closed over.

A pipeline's function may close over the same tensor, or array, that it is called with. The plan serves calls with other
arguments, so handles that derive from an argument must be distinguished from handles that derive from a closure's own
tensor. Their memory does not help, since it is the same. So for handles that may be held elsewhere too, borrows and
shared tensors, the function gets stand-ins, and all handles that derive from a stand-in lead back to it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, final

from dagpu.common.errors import KernelArgumentError
from dagpu.common.frozen import plain
from dagpu.common.places import Origin
from dagpu.handles import (
    HANDLES,
    OWNING,
    HandleBase,
    LenderAlias,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    clone_shared,
    find_live_state,
    live_state,
    state_of,
)
from dagpu.handles.handle_state import Storage
from dagpu.handles.symbolic import SymbolicNumber, standin_of
from dagpu.handles.tensors import map_handles
from dagpu.kernels.call_arguments import check_scalar_argument
from dagpu.ops.compose import Unzip, Value
from dagpu.ops.creation import Alloc
from dagpu.ops.graph import Captured
from dagpu.ops.initializers import SEED_COUNT
from dagpu.ops.kernel_spec import KernelSpec, Param
from dagpu.ops.single_flight import Once
from dagpu.tracing.flattened import SEED_PLACE, AnyOp, Flattened, RememberedValue
from dagpu.tracing.value_kinds import Trace, with_standins
from dagpu.tracing.value_tokens import closed_over_numbers, is_stateless

FixedHandle: TypeAlias = SharedTensor[Any, Any] | TensorRef[Any, Any]
"""The handles that do not move when an op uses them."""


@final
class TracedArguments:
    """The leaves of the run that is traced, and the other objects that its op holds."""

    def __init__(self, inputs: Flattened | None) -> None:
        self.inputs = inputs
        self.pure = inputs is not None
        """True if the functions of the user depend on the leaves alone, so that a plan may replace calls of them."""
        self.reads: set[int] = set()
        """The indices of the leaves whose values the trace has read. The plan holds for these values alone."""
        self.fixed_handles: list[FixedHandle] | None = []
        """The handles that the op holds and that are not leaves; None as soon as a second trace might differ."""
        self.never_kept: str | None = None
        """Why no run of this op leaves a plan for later ones, and the cure; None if that is not known."""
        self.graphs: list[Captured] = []
        """The graphs that the op launches."""
        self.storages: dict[Storage, int] = {}
        """The memory of the handles among the leaves, each with the index of the first leaf that refers to it."""
        self._index_of: dict[int, int] = {}
        self._kinds: dict[int, type[HandleBase]] = {}
        self._owned: set[Storage] = set()
        """The memory of tensors that have moved into the op, which has the only handle to it."""
        self._loans: set[object] = set()
        """The loans of tensors that are lent to the op for writing."""
        self._sources: set[int] = set()
        """The ids of lenders and holders that belong only to stand-ins and to handles that derive from them."""
        self._standins: dict[int, tuple[Any, int]] = {}
        """The stand-ins by their ids, with the indices of their leaves."""
        self._source_handles: dict[int, Any] = {}
        """The stand-in for the tensor of each source that the trace has read, by the index of its leaf."""
        self._unused: dict[Once, int] = {}
        """For each remembered value in the key, how many of its uses the trace has not reached yet."""
        if inputs is not None and inputs.remembered:
            self._unused = {once: found.uses for once, found in inputs.remembered.items()}
        for index, leaf in enumerate(() if inputs is None else inputs.leaves):
            self._index_of[id(leaf)] = index
            state = find_live_state(leaf) if type(leaf) in HANDLES else None
            if state is not None:
                self.storages.setdefault(state.storage, index)
                self._kinds[index] = state.kind
                if state.kind is Tensor:
                    self._owned.add(state.storage)
                elif state.loan is not None:
                    self._loans.add(state.loan.whole)

    # ---- leaves, and handles that derive from them

    def moves(self) -> tuple[int, ...]:
        """Return the indices of the leaves that move into the run. An `Unzip` among them gives up its component."""
        leaves = () if self.inputs is None else self.inputs.leaves
        return tuple([index for index, leaf in enumerate(leaves) if type(leaf) in OWNING or type(leaf) is Unzip])

    def index_of(self, leaf: Any) -> int | None:
        """Return the index of a leaf; None for any other object."""
        return self._index_of.get(id(leaf))

    def seed_of(self, op: Alloc[Any]) -> SymbolicNumber | None:
        """Return the stand-in for the seed of random numbers; None if the seed is not a leaf."""
        inputs = self.inputs
        index = None if inputs is None else inputs.number_leaves.get((id(op), SEED_PLACE))
        return None if inputs is None or index is None else SymbolicNumber(index, inputs.leaves[index], self.reads)

    def numbers_of(self, node: AnyOp, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments of a node, with stand-ins for the numbers that may be others in the next run."""
        inputs = self.inputs
        if inputs is None or not inputs.number_leaves:
            return tuple(arguments)
        found = list(arguments)
        for place in range(len(found)):
            leaf = inputs.number_leaves.get((id(node), place))
            if leaf is not None:
                found[place] = SymbolicNumber(leaf, inputs.leaves[leaf], self.reads)
        return tuple(found)

    def index_of_result(self, value: Any) -> int | None:
        """Return the index of the leaf that this part of the result *is* (the same handle object). None if there is
        none, or if the match is ambiguous."""
        found = self._standins.get(id(value))
        if found is not None:
            return found[1]
        if self.inputs is None or self.inputs.calls:
            return None  # a function may have closed over this array
        return self._index_of.get(id(value))

    def is_derived(self, handle: HandleBase) -> bool:
        """Return true for a handle that derives from a leaf, so that another run has another handle in its place."""
        state = state_of(handle)
        if state is None:
            return False
        if state.storage in self._owned or id(handle) in self._standins:
            return True
        if state.loan is not None:
            return state.loan.whole in self._loans
        if state.kind is Tensor:
            return False
        return id(state.holders if state.lender is None else state.lender) in self._sources

    def source_index(self, handle: HandleBase) -> int | None:
        """Return the index of a leaf from which a handle such as this one can be made; None if there is none."""
        state = state_of(handle)
        index = None if state is None else self.storages.get(state.storage)
        if state is None or index is None or not self.is_derived(handle):
            return None
        kind, leaf = state.kind, self._kinds[index]
        if kind is TensorMut:
            return index if leaf is TensorMut else None  # a derived borrow has the loan of its leaf
        return index if leaf is Tensor or (leaf is SharedTensor and kind is SharedTensor) else None

    def record_handle(self, handle: FixedHandle) -> None:
        """Record a handle of the op that does not move and is not a leaf."""
        if self.fixed_handles is not None and not self.is_derived(handle):
            self.fixed_handles.append(handle)

    def forbid_reuse(self, never_kept: str | None = None) -> None:
        """Record that a second trace might differ from this one, so that its plan must not be cached; and, if that is
        so in each run, why, with the cure."""
        self.fixed_handles = None
        self.never_kept = self.never_kept or never_kept

    def keep_function(self, f: object) -> bool:
        """Let a plan call a function of the user's in each run, for the numbers alone over which it closes. Return
        false if it may not: calls of the function could differ in more."""
        if not is_stateless(f):
            return False
        for number in closed_over_numbers(f):
            if number.index_in(self.reads) is not None:
                number.read()
        return True

    # ---- values of `Shared` and `Unzip`

    def reach_remembered(self, once: Once) -> RememberedValue | None:
        """Count one use of a remembered value. Return how the key has the value; None if the key does not have this
        use, because a function has built it. (The uses of one value cannot be distinguished, so the first ones count as
        those in the key.)"""
        left = self._unused.get(once)
        if not left or self.inputs is None:
            return None
        self._unused[once] = left - 1
        return self.inputs.remembered[once]

    # ---- stand-ins for arguments

    def symbolic_arguments(self, node: Value[Any], take: Callable[[Any], Any]) -> Any:
        """Return the arguments of a pipeline that a node holds, as its function receives them. `take` moves a handle
        into the run."""
        assert self.inputs is not None
        rows = self.inputs.key.rows[self.inputs.calls[id(node)]]
        return with_standins(rows, node.content, Trace(self.reads, self.inputs.leaves, take))

    def standin_of_handle(self, handle: Any, index: int) -> Any:
        """Return the stand-in for a handle that was taken for the leaf of this index."""
        state, standin = live_state(handle), handle
        if type(handle) is TensorRef and state.lender is not None:
            lender = LenderAlias(state.lender)
            standin = TensorRef(state.with_lender(lender))
            self._sources.add(id(lender))
        elif type(handle) is SharedTensor and state.holders is not None:
            holders = state.holders.alias()  # both share one set of holders, so each handle counts for both
            standin = clone_shared(handle, holders=holders)
            self._sources.add(id(holders))
        self._standins[id(standin)] = standin, index
        return standin

    def standin_of_source(self, node: AnyOp, value: Any) -> Any:
        """Return the stand-in for the value of a source of the key, or the value itself if it is in the key."""
        assert self.inputs is not None
        index = self.inputs.source_values[node]
        if index < 0:
            return value
        leaf = self.inputs.leaves[index]
        if type(leaf) not in HANDLES:
            return standin_of(index, leaf, self.reads)
        before = self._source_handles.get(index)
        if before is None:
            before = self._source_handles[index] = self.standin_of_handle(leaf, index)
            return before
        return before.clone()  # no leaf is that of two readers

    def restore_arguments(self, result: Any) -> Any:
        """Return the result of the run, or a value that it remembers, with the leaves' own handles, and lenders, in
        place of their stand-ins."""
        if self.inputs is None or not self._standins:
            return result
        leaves = self.inputs.leaves

        def change(handle: Any) -> Any:
            found = self._standins.get(id(handle))
            if found is not None and type(handle) in (TensorRef, SharedTensor):
                return leaves[found[1]]
            state = state_of(handle)
            if state is not None and state.kind is TensorRef and isinstance(state.lender, LenderAlias):
                return TensorRef(live_state(handle).with_lender(state.lender.tensor))
            return handle

        return map_handles(change, result)


def storage_of_leaf(leaf: Any) -> Storage | None:
    """Return the memory of a living handle; None for any other object."""
    state = find_live_state(leaf) if type(leaf) in HANDLES else None
    return None if state is None else state.storage


# ---- numbers that may differ
#
# Numbers that may differ between runs of a plan: scalar arguments of kernels, and seeds of random numbers. Each has a
# cell of its own.


class NumberUse(Protocol):
    """One use of a number: the form in which the number is passed on, and the check of its value."""

    @property
    def form(self) -> object:
        """The identity of the form. Uses of one number that have the same form share one value and one cell."""
        ...

    @property
    def check(self) -> Callable[[float], object]:
        """The function that `checked` calls first. Its error need not name the place of the use."""
        ...

    def checked(self, number: float) -> object:
        """Return the number in this form. Raise the error that a trace would raise if the number does not fit."""
        ...


@final
@plain
class ScalarUse:
    """The use of a number as a scalar parameter of a kernel."""

    spec: KernelSpec
    param: Param
    origin: Origin

    @property
    def form(self) -> object:
        return self.param.check

    @property
    def check(self) -> Callable[[float], object]:
        assert self.param.check is not None
        return self.param.check

    def checked(self, number: float) -> object:
        """Return the number in the form in which the kernel takes it.

        Raises:
            KernelArgumentError: the number does not fit the parameter's type.
        """
        assert self.param.check is not None
        try:
            return self.param.check(number)
        except KernelArgumentError:
            # This raises the same error with the place of the call.
            check_scalar_argument(self.spec, self.param, number, self.origin)
            raise


@final
class SeedUse:
    """The use of a number as a seed of random numbers. Every integer fits."""

    __slots__ = ()

    @property
    def form(self) -> object:
        return SeedUse

    @property
    def check(self) -> Callable[[float], object]:
        return self.checked

    def checked(self, number: float) -> object:
        """Return the number modulo 2**64."""
        return int(number) % SEED_COUNT


SEED: Final = SeedUse()
