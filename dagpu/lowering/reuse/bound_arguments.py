"""`BoundArguments`: the inputs of one run, bound to the buffers of a program."""

from collections.abc import Sequence
from typing import Any, final

from dagpu.common.origin import Origin
from dagpu.handles.storage import Storage
from dagpu.lowering.tracing.run_memo import BoundClaims
from dagpu.lowering.tracing.undo_log import UndoLog
from dagpu.ops.graph import Captured


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
