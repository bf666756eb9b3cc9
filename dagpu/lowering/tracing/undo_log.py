"""The undo log of a run: the handles that it takes out of its op, and gives back if it fails before the first
submission."""

from collections.abc import Callable
from typing import Any, TypeAlias, final

from dagpu.common.containers import is_container
from dagpu.common.origin import Origin
from dagpu.handles import HANDLES, OWNING, HandleBase, Tensor, live, move_in
from dagpu.handles.handle_trees import Undo, map_handles
from dagpu.lowering.arguments.traced_arguments import Given, TracedArguments
from dagpu.lowering.tracing.loans import Loans
from dagpu.ops.base import DeviceOp

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]


@final
class UndoLog:
    """The handles of one run. It tells `leaves` what a later run would have to take as well."""

    __slots__ = ("_leaves", "_loans", "_origin", "_undo")

    def __init__(self, leaves: TracedArguments, loans: Loans, origin: Origin) -> None:
        self._leaves = leaves
        self._loans = loans
        self._origin = origin
        self._undo: list[Undo | Callable[[], None]] | None = []

    def take(self, held: Any, node: AnyOp) -> Any:
        """Move handles out of the op that owns them, so that the next run of the op finds them moved. `node` is the op
        that holds them.

        Raises:
            MovedError: they have been moved before.
        """
        kind = type(held)
        if kind in OWNING:
            if not self._is_leaf(held, node) and not self._ours(held):
                self._leaves.forbid()
            # Handles that the run itself has made are not given back: in the log their memory would pass for an output.
            state = live(held)
            undo = None if self._loans.made(state.storage) else Undo(held)
            taken = move_in(held, "a run of the op that owned it, started", self._origin)
            if undo is not None and state.kind is Tensor:
                self._loans.owned.add(state.storage)
            if undo is not None:  # only now: a handle that was gone before keeps its note of where it went
                self.may_undo(undo)
            return taken
        if is_container(held):
            return map_handles(lambda handle: self.take(handle, node), held)
        if kind in HANDLES:
            self.keep(held, node)
        return held

    def keep(self, handle: Given, node: AnyOp) -> None:
        """Record a handle of the op that does not move: later runs need it too, unless it is a leaf, or each run makes
        it."""
        storage = live(handle).storage
        if not self._loans.made(storage) and not self._is_leaf(handle, node):
            self._leaves.keeps(handle)

    def _is_leaf(self, handle: Any, node: AnyOp) -> bool:
        """True for a leaf in one of the ops that hold leaves. Closures may build other ops around the same handles."""
        inputs = self._leaves.inputs
        return inputs is not None and node in inputs.nodes and self._leaves.index_of(handle) is not None

    def _ours(self, handle: HandleBase) -> bool:
        """True for a handle that moves whose memory this run made, or that derives from a leaf."""
        if self._leaves.inputs is None:
            return False
        return self._loans.made(live(handle).storage) or self._leaves.derived(handle)

    def may_undo(self, undo: Undo | Callable[[], None]) -> None:
        """Something was taken; this puts it back."""
        if self._undo is not None:
            self._undo.append(undo)

    def submitted(self) -> None:
        """From now on nothing can be given back."""
        self._undo = None

    def give_back(self) -> None:
        """The run failed or was cancelled: what was taken goes back, if nothing was submitted."""
        for undo in reversed(self._undo or ()):
            undo.undo() if isinstance(undo, Undo) else undo()
