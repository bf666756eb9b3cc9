"""The undo log of a run: the handles that the run takes out of its op. They are put back if the run fails before its
first submission."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, final

from dagpu.common.containers import is_container
from dagpu.common.origin import Origin
from dagpu.handles import HANDLES, OWNING, Handle, HandleBase, HandleState, Tensor, live_state, move_handle
from dagpu.handles.handle_trees import Undo, map_handles
from dagpu.lowering.arguments.traced_arguments import FixedHandle, TracedArguments
from dagpu.lowering.tracing.loans import Loans
from dagpu.ops.base import DeviceOp

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]


@final
class UndoLog:
    """The undo log of one run, traced or not."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[Undo | Callable[[], None]] | None = []
        """The entries in the order of the moves; None once nothing can be put back."""

    def take_handle(self, handle: Handle, origin: Origin) -> Any:
        """Move an owning handle out of its op, and return the handle of the run.

        Raises:
            MovedError: it has been moved before. The note of that earlier move stays as it was.
        """
        undo = Undo(handle)
        taken = move_handle(handle, _TAKEN, origin)
        self.add(undo)
        return taken

    def add(self, undo: Undo | Callable[[], None]) -> None:
        """Add an entry that puts back a handle or component that was taken."""
        if self._entries is not None:
            self._entries.append(undo)

    def discard(self) -> None:
        """Discard the log: from now on nothing can be put back."""
        self._entries = None

    def taken(self) -> list[tuple[Handle, HandleState]]:
        """Return the handles that were taken, each with its state before."""
        return [(entry.handle, entry.state) for entry in self._entries or () if isinstance(entry, Undo)]

    def put_back(self) -> None:
        """Put back everything that was taken, because the run failed or was cancelled. After `discard`, and when
        called again, this does nothing."""
        entries, self._entries = self._entries, None
        for undo in reversed(entries or ()):
            undo.undo() if isinstance(undo, Undo) else undo()


_TAKEN: Final = "a run of the op that owned it, started"
"""The cause of the moves, for the messages of later errors."""


@final
class HandleTaker:
    """Takes the handles of one traced run out of its op. It also records in `leaves` which handles a later run of the
    op needs."""

    __slots__ = ("_leaves", "_loans", "_origin", "undo_log")

    def __init__(self, leaves: TracedArguments, loans: Loans, origin: Origin) -> None:
        self._leaves = leaves
        self._loans = loans
        self._origin = origin
        self.undo_log = UndoLog()

    def take_handles(self, value: Any, node: AnyOp) -> Any:
        """Move handles out of the op that owns them, so that the next run of the op finds them moved. `node` is the op
        that holds them.

        Raises:
            MovedError: they have been moved before.
        """
        kind = type(value)
        if kind in OWNING:
            if not self._is_leaf(value, node) and not self._is_made_or_derived(value):
                self._leaves.forbid_reuse()
            # The log holds no handles that the run itself has made: a reference from the log would make their memory an
            # output.
            state = live_state(value)
            if self._loans.made_by_run(state.storage):
                return move_handle(value, _TAKEN, self._origin)
            taken = self.undo_log.take_handle(value, self._origin)
            if state.kind is Tensor:
                self._loans.owned.add(state.storage)
            return taken
        if is_container(value):
            return map_handles(lambda handle: self.take_handles(handle, node), value)
        if kind in HANDLES:
            self.record_handle(value, node)
        return value

    def record_handle(self, handle: FixedHandle, node: AnyOp) -> None:
        """Record a handle of the op that does not move. Later runs need it too, unless it is a leaf, or each run makes
        it."""
        storage = live_state(handle).storage
        if not self._loans.made_by_run(storage) and not self._is_leaf(handle, node):
            self._leaves.record_handle(handle)

    def _is_leaf(self, handle: Any, node: AnyOp) -> bool:
        """Return true for a leaf in one of the ops that hold leaves. Closures may build other ops around the same
        handles."""
        inputs = self._leaves.inputs
        return inputs is not None and node in inputs.nodes and self._leaves.index_of(handle) is not None

    def _is_made_or_derived(self, handle: HandleBase) -> bool:
        """Return true for a handle that moves and that this run made, or that derives from a leaf."""
        if self._leaves.inputs is None:
            return False
        return self._loans.made_by_run(live_state(handle).storage) or self._leaves.is_derived(handle)
