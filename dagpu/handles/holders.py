"""`Holders`: a count of the live `SharedTensor`s of a storage, so that the last one can become its owner."""

from sys import getrefcount
from typing import Final, final


@final
class Holders:
    """The live `SharedTensor`s of one storage.

    Each of them refers to one common object, the *token*, and the references to it are their count. Weak references to
    the handles would not do: the garbage collector clears those of a cycle before it calls finalizers, and a finalizer
    may bring a handle back. The collector does not track the token, so it is released with the handle itself.

    Invariant, under `BOOKKEEPING`: the storage has an owner  =>  no holder of it is alive.

    So code that clones a holder, and code that makes the last holder an owner, must hold that lock. The death of a
    holder does not need the lock, because it only decreases the count.
    """

    __slots__ = ("_token",)

    def __init__(self, *, held_elsewhere: bool = False) -> None:
        """With `held_elsewhere` something counts that no one can give up."""
        token = object()
        self._token = [token, token] if held_elsewhere else [token]
        """The token, in a list that all aliases have. A second reference in it counts for ever."""

    def add(self) -> object:
        """Count a holder as long as it refers to the object that this returns."""
        return self._token[0]

    @property
    def count(self) -> int:
        """The number of live holders."""
        return getrefcount(self._token[0]) - _OF_NONE

    def alias(self) -> "Holders":
        """Return another object that shares the same set of holders."""
        other = Holders()
        other._token = self._token
        return other


_NO_HOLDER: Final = [object()]

_OF_NONE: Final = getrefcount(_NO_HOLDER[0])
"""What `getrefcount` gives for a token that only its list refers to. It differs between versions of Python."""
