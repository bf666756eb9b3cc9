"""Handles inside values of any shape: finding them, moving them, and undoing a move."""

from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from dagpu.common.containers import mapped, values_in
from dagpu.common.origin import Origin
from dagpu.handles import HANDLES, OWNING, Handle, HandleState, give_back, live, move_in, state_of
from dagpu.handles.storage import Storage


@final
class Undo:
    """The state of a handle, kept so that a run can give it back after taking it."""

    __slots__ = ("_handle", "_state")

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._state: HandleState = live(handle)

    def undo(self) -> None:
        """Give the handle its state back. Handles that the run made of it must not be used any more."""
        give_back(self._handle, self._state)


def storage_of(handle: Handle) -> Storage:
    """The memory of a living handle; `MovedError` if it is not."""
    return live(handle).storage


def storage_key(handle: Handle) -> object:
    """A key that is equal for two handles exactly if they share memory."""
    return storage_of(handle)


def map_handles(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `change` applied to each handle in it; see `dagpu.common.containers.mapped`."""
    return mapped(change, value, HANDLES)


def moved_in(value: Any, how: str, where: Origin) -> Any:
    """`value` with each handle in it moved in (`dagpu.handles.move_in`): all of them, or none if one fails.

    They are not checked first: another thread may move one of them in between.

    Raises:
        MovedError: a handle has been moved before, or it moves and is in `value` twice.
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
            state = state_of(taken)
            assert state is not None  # only this function has seen it
            give_back(handle, state)
        raise


def handles_in(value: Any) -> Iterator[Handle]:
    """Every handle in a value; see `dagpu.common.containers.values_in`."""
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
    """True if a value contains a handle that moves."""
    return any(type(item) in OWNING for item in values_in(value))
