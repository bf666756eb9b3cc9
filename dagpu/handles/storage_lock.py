"""`Lock`: the lock state of one block of memory."""

from typing import final

from dagpu.common.origin import Origin


@final
class Lock:
    """The lock of one storage: the runs that read or write it now. Only `Locks` changes it, under `BOOKKEEPING`.

    Invariant: readers > 0  =>  writer is None
    """

    __slots__ = ("holder", "readers", "writer")

    def __init__(self) -> None:
        self.readers = 0
        """The number of runs that hold a read lock; one more, for ever, if another library shares the memory."""
        self.writer: object = None
        """The `Locks` object of the run that holds the exclusive lock; None if no run holds it."""
        self.holder: Origin = None
        """The place in the user's code that started the run with the newest lock."""
