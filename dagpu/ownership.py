"""Handles inside values of any shape: finding them, moving them, and undoing a move."""

from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from dagpu.containers import mapped, values_in
from dagpu.handles import HANDLES, OWNING, Handle, Partition, move_in
from dagpu.origin import Origin
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


def map_handles(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `change` applied to each handle in it; see `dagpu.containers.mapped`."""
    return mapped(change, value, HANDLES)


def moved_in(value: Any, how: str, where: Origin) -> Any:
    """`value` with each handle in it moved in (`dagpu.handles.move_in`): all of them, or where that fails, none.

    They are not looked at first: another thread may move one of them in between.

    Raises:
        MovedError: a handle has been moved before, or it moves and stands in `value` twice.
        OwnershipError: a list or dict holds itself.
    """
    moved: list[tuple[Any, Any]] = []

    def move(handle: Any) -> Any:
        taken = move_in(handle, how, where)
        if taken is not handle:
            moved.append((handle, taken))
        return taken

    try:
        return map_handles(move, value)
    except BaseException:
        for handle, taken in moved:
            _put_back(handle, taken)
        raise


def _put_back(handle: Any, taken: Any) -> None:
    """The handle has again what `move_in` took out of it."""
    if type(handle) is Partition:
        handle._inner = taken._inner
    else:
        handle._storage = taken._storage
    handle._moved = None


def handles_in(value: Any) -> Iterator[Handle]:
    """Every handle in a value; see `dagpu.containers.values_in`."""
    return (item for item in values_in(value) if type(item) in HANDLES)


def for_several(value: Any) -> Any:
    """A value that several takers will have: its NumPy arrays as read-only views, for none of them may write what the
    others read."""
    return mapped(_unwritable, value)


def _unwritable(item: Any) -> Any:
    if not issubclass(type(item), np.ndarray):  # not isinstance: that believes a stand-in
        return item
    view = item.view()
    view.flags.writeable = False
    return view


def moves(value: Any) -> bool:
    """Does a value hold a handle that moves?"""
    return any(type(item) in OWNING for item in values_in(value))
