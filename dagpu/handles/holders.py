"""`Holders`: a count of the live `SharedTensor`s of a storage, so that the last one can become its owner."""

from typing import final

from dagpu.common.reference_queue import Reference


@final
class Holders:
    """The live `SharedTensor`s of one storage.

    Invariant, under `BOOKKEEPING`: the storage has an owner  =>  no holder of it is alive.

    So code that clones a holder, and code that makes the last holder an owner, must hold that lock. The death of a
    holder does not need the lock, because it only decreases the count.
    """

    __slots__ = ("alive",)

    def __init__(self) -> None:
        self.alive: set[Reference[None]] = set()
        """The weak references to the live holders."""

    def add(self, holder: object) -> Reference[None]:
        """Count a holder until it dies, or until its returned reference is discarded."""
        reference: Reference[None] = Reference(holder, self.alive.discard)
        self.alive.add(reference)
        return reference

    def alias(self) -> "Holders":
        """Return another object that shares the same set of holders."""
        other = Holders()
        other.alive = self.alive
        return other
