"""Finalisers without Python code: when an owner dies, C code puts the resource that belonged to it into a queue.

A `__del__` is Python code that runs where the last reference is dropped: on any thread, in the middle of any other
code. Python prints an interrupt in it and ignores it, and the memory or event that it was about to release is lost. The
callback of a weak reference may be a method written in C, such as `deque.append`. Such a callback is atomic.
"""

import weakref
from collections import deque
from typing import Any, Final, Generic, TypeVar, final

_T = TypeVar("_T")


@final
class Reference(weakref.ref[Any], Generic[_T]):
    """A weak reference to an owner, with the resource to release once the owner is gone."""

    __slots__ = ("resource",)
    resource: _T

    # The methods of weakref.ref compare and hash the owner.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


@final
class ReferenceQueue(Generic[_T]):
    """A queue of the resources of dead owners, in the order of their deaths. The name is Java's.

    It is thread-safe.
    """

    __slots__ = ("_alive", "_append", "gone")

    def __init__(self, gone: "deque[Reference[_T]] | None" = None) -> None:
        self.gone: Final[deque[Reference[_T]]] = deque() if gone is None else gone
        """The references whose owners are gone, to ask in a hot path if there are any."""
        self._append = self.gone.append
        self._alive: Final[set[Reference[_T]]] = set()
        """The references to living owners. A reference that dies before its owner does not call its callback."""

    def watch(self, owner: object, resource: _T) -> Reference[_T]:
        """Put `resource` into the queue once `owner` is gone. Return the weak reference to `owner`."""
        reference: Reference[_T] = Reference(owner, self._append)
        reference.resource = resource
        self._alive.add(reference)
        return reference

    def pop(self) -> _T:
        """Remove and return the first resource.

        Raises:
            IndexError: the queue is empty.
        """
        reference = self.gone.popleft()
        self._alive.discard(reference)
        return reference.resource

    def __bool__(self) -> bool:
        return bool(self.gone)
