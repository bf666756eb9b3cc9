"""Finalisers that run no Python: what belonged to an object that is gone is put into a queue by C code.

A `__del__` is Python code, and runs wherever the last reference goes. An interrupt in it is printed and lost, together
with the memory or the event that it was about to give back; and it may run in the middle of any other code, on any
thread. The callback of a weak reference that is a method of C, such as `deque.append`, is one step: nothing comes
between.
"""

import weakref
from collections import deque
from typing import Any, Final, Generic, TypeVar, final

_T = TypeVar("_T")


@final
class Reference(weakref.ref[Any], Generic[_T]):
    """A weak reference to an owner, with what is to be given back once that is gone."""

    __slots__ = ("belongs",)
    belongs: _T

    # Those of weakref.ref ask the owner.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


@final
class ReferenceQueue(Generic[_T]):
    """A queue of values whose owners are gone, in the order in which they went. The name is Java's.

    Any thread may add and take at any time.
    """

    __slots__ = ("_alive", "_gone")

    def __init__(self, gone: "deque[Reference[_T]] | None" = None) -> None:
        self._gone: Final[deque[Reference[_T]]] = deque() if gone is None else gone
        self._alive: Final[set[Reference[_T]]] = set()
        """The references themselves: a reference that dies before its owner calls no callback."""

    def watch(self, owner: object, belongs: _T) -> Reference[_T]:
        """Put `belongs` into the queue once `owner` is gone."""
        reference: Reference[_T] = Reference(owner, self._gone.append)
        reference.belongs = belongs
        self._alive.add(reference)
        return reference

    def pop(self) -> _T:
        """Take the first; `IndexError` if the queue is empty."""
        reference = self._gone.popleft()
        self._alive.discard(reference)
        return reference.belongs

    def __bool__(self) -> bool:
        return bool(self._gone)
