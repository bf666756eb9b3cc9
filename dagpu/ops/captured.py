"""What a graph is to the ops and runs that launch it: memory of its own, and memory that was lent to it."""

import itertools
from collections.abc import Iterable
from typing import Any, Final, final

from dagpu.device import Stream
from dagpu.errors import MovedError
from dagpu.handles import HandleState, Lender, last_move, state_of
from dagpu.origin import Origin, describe
from dagpu.storage import Storage

_numbers: Final = itertools.count()


@final
class Captured:
    """A captured graph. It keeps alive whatever its nodes point at."""

    __slots__ = (
        "__weakref__", "_lent", "_token", "frozen", "number", "origin", "plan", "plans", "storages",
        "stream", "updates",
    )  # fmt: skip

    def __init__(
        self,
        frozen: object,
        plan: Any,
        stream: Stream,
        storages: dict[Storage, bool],
        lent: Iterable[tuple[HandleState, Lender]],
        origin: Origin,
    ) -> None:
        self.frozen = frozen
        """What the backend made of its plan: `Prepared.freeze`."""
        self.plan = plan
        self.number = next(_numbers)
        """No other graph has had it."""
        self.stream = stream
        self.storages = storages
        """The memory that it reads or (true) writes, its outputs among it."""
        self.origin = origin
        self.updates: Any = None
        """What was enqueued for its next launch; dagpu.runtime.updates."""
        self.plans: Any = None
        """The plans of the ops that launch it, which die with it; dagpu.runtime.kept."""
        self._lent = tuple(lent)
        # Its temporaries are no tensor of anybody's, but two launches may not use them at once either.
        self._token = Storage(stream.device, 0, memory=())

    def check(self) -> None:
        """Raise if a tensor that it reads or writes has been moved away since.

        Raises:
            MovedError: it says which, and where it went.
        """
        for used, lender in self._lent:
            if state_of(lender) is None:
                how, where = last_move(lender)
                raise MovedError(
                    f"the graph captured at {describe(self.origin)} uses {used.kind.__name__} made at "
                    f"{describe(used.made)}, whose tensor was moved by {how} at {describe(where)}. Keep the tensor "
                    "where it is while the graph is in use, or capture the graph again."
                )

    def locks(self) -> dict[Storage, bool]:
        """What a launch locks, exclusively where true."""
        return {**self.storages, self._token: True}

    def __repr__(self) -> str:
        return f"<graph captured at {describe(self.origin)}>"
