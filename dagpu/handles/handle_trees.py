"""Functions that find and move the handles inside nested values, and undo the moves."""

from collections.abc import Callable, Iterator
from operator import is_
from typing import Any, Final

import numpy as np

from dagpu.common.containers import is_container, map_values, own_containers, values_in
from dagpu.common.places import Origin
from dagpu.handles import HANDLES, OWNING, Handle, live_state, move_handle, restore_state, state_of
from dagpu.handles.handle_state import Storage

_SHALLOW: Final = 4
"""The depth to which tuples are walked by recursion."""


def storage_of(handle: Handle) -> Storage:
    """Return the memory of a handle.

    Raises:
        MovedError: the handle or its lender has been moved.
    """
    return live_state(handle).storage


def storage_key(handle: Handle) -> object:
    """Return a key that is equal for two handles exactly if they share memory."""
    return storage_of(handle)


def map_handles(change: Callable[[Any], Any], value: Any) -> Any:
    """Return `value` with `change` applied to each handle in its tuples, lists and dicts."""
    return map_values(change, value, HANDLES)


def move_handles(
    value: Any, how: str, where: Origin, around: list[tuple[Any, Any]] | None = None, depth: int = 0
) -> Any:
    """Move all handles in a value with `move_handle`, and return the value with the new handles.

    If one move fails, the others are undone: those of `around` too, which are of the values around this one, by the
    outermost call.

    A check before the moves would not suffice, because another thread may move a handle after the check.

    Raises:
        MovedError: a handle has been moved before, or a handle that moves is in `value` twice.
        OwnershipError: a list or dict contains itself.
    """
    moved: list[tuple[Any, Any]] = [] if around is None else around
    try:
        if type(value) is not tuple:
            return _move_nested(value, how, where, moved)
        items: list[Any] = []
        for item in value:  # most are handles, numbers, and shallow tuples of these
            kind = type(item)
            if kind in HANDLES:
                taken = move_handle(item, how, where)
                if taken is not item:
                    moved.append((item, taken))
                items.append(taken)
            elif kind is int or kind is float:
                items.append(item)
            elif kind is tuple and depth < _SHALLOW:
                items.append(move_handles(item, how, where, moved, depth + 1))
            elif is_container(item):
                items.append(_move_nested(item, how, where, moved))
            else:
                items.append(item)
        return value if all(map(is_, items, value)) else tuple(items)
    except BaseException:
        if around is None:
            for handle, taken in moved:
                state = state_of(taken)
                assert state is not None  # only this function has a reference to it
                restore_state(handle, state)
        raise


def _move_nested(value: Any, how: str, where: Origin, moved: list[tuple[Any, Any]]) -> Any:
    """Return a value with its handles moved. Adds each handle that moves to `moved`, with the new one."""

    def move(handle: Any) -> Any:
        taken = move_handle(handle, how, where)
        if taken is not handle:
            moved.append((handle, taken))
        return taken

    return map_handles(move, value)


def handles_in(value: Any) -> Iterator[Handle]:
    """Return an iterator over the handles in the tuples, lists and dicts of a value."""
    return (item for item in values_in(value) if type(item) in HANDLES)


def make_unwritable(value: Any) -> Any:
    """Return a value that several consumers share: its NumPy arrays become read-only views.

    So one consumer cannot write an array that another one reads. Each of them gets lists, dicts, sets and bytearrays of
    its own by `own_containers`.
    """
    return own_containers(map_values(_unwritable, value))


def _unwritable(item: Any) -> Any:
    """Return a read-only view of a NumPy array, or any other value itself. A view that is read-only stays the same
    object: by that a later trace knows it."""
    if not issubclass(type(item), np.ndarray):  # isinstance would be true for a `SymbolicArray`
        return item
    if not item.flags.writeable and item.base is not None:
        return item
    view = item.view()
    view.flags.writeable = False
    return view


def has_owning_handle(value: Any) -> bool:
    """Return true if a value contains a handle that moves when it is passed on."""
    return any(type(item) in OWNING for item in values_in(value))
