"""Counts the living `SharedTensor`s of a block of memory, so that the last one can give the memory back to an owner."""

from typing import final

from dagpu.common.reference_queue import Reference


@final
class Holders:
    """The living `SharedTensor`s of one storage.

    Invariant, under `BOOKKEEPING`: the storage has been handed to an owner  =>  no holder of it is alive.

    So code that makes one more holder of a living one, and code that makes an owner of the last, hold that lock. A
    holder that dies does not take the lock: there is one holder less either way.
    """

    __slots__ = ("alive",)

    def __init__(self) -> None:
        self.alive: set[Reference[None]] = set()

    def add(self, holder: object) -> Reference[None]:
        """Count one more holder until it dies, or until its reference is discarded."""
        reference: Reference[None] = Reference(holder, self.alive.discard)
        self.alive.add(reference)
        return reference

    def alias(self) -> "Holders":
        """Another object with the same holders."""
        other = Holders()
        other.alive = self.alive
        return other
