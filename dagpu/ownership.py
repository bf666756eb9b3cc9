"""Handles inside values of any shape: finding them, moving them, and undoing a move."""

from collections.abc import Iterator
from typing import Any, final

from dagpu.handles import HANDLES, OWNING, Handle, Partition
from dagpu.storage import Storage


@final
class Undo:
    """What it takes to give a handle back what a run took out of it."""

    __slots__ = ("_handle", "_inner", "_storage")

    def __init__(self, handle: Any) -> None:
        self._handle: Any = handle
        inner: Any = handle._live() if type(handle) is Partition else handle
        self._inner: Any = inner
        self._storage: Storage | None = inner._storage

    def undo(self) -> None:
        """The handle is as it was; what the run made of it is left without meaning."""
        self._inner._storage, self._inner._moved = self._storage, None
        if self._inner is not self._handle:
            self._handle._inner, self._handle._moved = self._inner, None


def storage_of(handle: Handle) -> Storage:
    """The memory of a living handle; `MovedError` if it is not."""
    return (handle._live() if type(handle) is Partition else handle)._live()


def storage_key(handle: Handle) -> object:
    """The same object for two handles exactly if they share memory."""
    return storage_of(handle)


def map_handles(change: Any, value: Any) -> Any:
    """`value` with `change` applied to each handle in it, through tuples, lists and dicts."""
    kind = type(value)
    if kind in HANDLES:
        return change(value)
    if isinstance(value, tuple):
        items = [map_handles(change, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return kind(*items) if hasattr(value, "_fields") else kind(items)
    if kind is list:
        return [map_handles(change, item) for item in value]
    if kind is dict:
        return {key: map_handles(change, item) for key, item in value.items()}
    return value


def handles_in(value: Any) -> Iterator[Handle]:
    """Every handle in a value, through tuples, lists and dicts."""
    if type(value) in HANDLES:
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from handles_in(item)
    elif type(value) is dict:
        for item in value.values():
            yield from handles_in(item)


def moves(value: Any) -> bool:
    """Does a value hold a handle that moves?"""
    return any(type(handle) in OWNING for handle in handles_in(value))
