"""`BoundArguments`: the inputs of one run, bound to the buffers of a program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from dagpu.common.origin import Origin
from dagpu.handles.storage import Storage
from dagpu.lowering.tracing.run_memo import BoundClaims
from dagpu.lowering.tracing.undo_log import UndoLog
from dagpu.ops.graph import Captured


@final
@dataclass(slots=True, eq=False)
class BoundArguments:
    """The inputs of one run, bound to the program's buffers."""

    memory: list[Any]
    """The memory and the values of the program's buffers: the inputs, and after the run the outputs."""
    locks: dict[Storage, bool]
    """The memory that the run locks, exclusively where the value is true."""
    leaves: Sequence[Any]
    """The leaves of the run. A traced run has none here: its trace has moved them."""
    graphs: Sequence[Captured]
    """The graphs that the run launches."""
    moves: tuple[int, ...] = ()
    """The indices of the leaves that `take_leaves` moves."""
    undo_log: UndoLog | None = None
    """The log of the handles that have moved into the run; None if there are none. Discard it when the run is
    submitted: from then on nothing can be moved back."""
    claims: BoundClaims | None = None
    """The claims of the values of `Shared` and `Unzip` nodes that the run computes; None if it computes none. A traced
    run has none here: its trace has claimed the values."""

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
