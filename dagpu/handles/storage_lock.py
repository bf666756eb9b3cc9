"""`Lock`: the lock state of one block of memory."""

from typing import final

from dagpu.common.origin import Origin


@final
class Lock:
    """The runs that read or write a block of memory now. `Locks` alone changes it, under `BOOKKEEPING`.

    Invariant: readers > 0  =>  writer is None
    """

    __slots__ = ("holder", "readers", "writer")

    def __init__(self) -> None:
        self.readers = 0
        """Number of runs that hold a read lock."""
        self.writer: object = None
        """The `Locks` that hold the exclusive lock; None while it is free."""
        self.holder: Origin = None
        """The place in the user's code that started the run which holds the newest lock."""
