"""Comparisons of the values that a feed has at two instants."""

from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any

import numpy as np

from dagpu.common.containers import contents_of, is_container
from dagpu.common.errors import UpdateError
from dagpu.common.places import describe
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import SharedTensor, live_state
from dagpu.ops.compose import Cutoff
from dagpu.tracing.value_tokens import PLAIN, exact_token


def same_kind(old: Any, new: Any) -> bool:
    """Return true if a trace with one value serves the other: both have the same type, and arrays the same shape."""
    if type(old) is not type(new):
        return False
    if type(old) is np.ndarray:
        return bool(old.shape == new.shape and old.dtype == new.dtype)
    if type(old) is SharedTensor:
        before, after = live_state(old), live_state(new)
        return (
            (before.layout is after.layout or before.layout == after.layout)
            and before.storage.device is after.storage.device
            and before.storage.nbytes == after.storage.nbytes
        )
    return True


def host_values_equal(cutoff: Cutoff[Any, Any, Any], old: Any, new: Any) -> bool:
    """Return true if a cutoff takes two host values for the same. Arrays and plain values are compared exactly."""
    whose = f"cutoff at {describe(cutoff.origin)}"
    if cutoff.equal is not None:
        return truth_of(cutoff.equal(old, new), f"{whose}: its `equal` returned", "Return True or False")
    return same_contents(old, new, whose, "Say what makes two of them equal: cutoff(op, equal=f)")


def same_contents(old: Any, new: Any, whose: str, cure: str) -> bool:
    """Return true if two host values have the same types and bits, in tuples, lists and dicts too. Objects of other
    classes are compared by `==`. `whose` and `cure` are for the error.

    Raises:
        UpdateError: the `==` of two objects says neither true nor false.
    """
    todo: list[tuple[Any, Any]] = [(old, new)]
    while todo:
        a, b = todo.pop()
        kind = type(a)
        if a is b:
            continue
        if kind is not type(b):
            return False
        if kind in PLAIN:
            if exact_token(a) != exact_token(b):
                return False
        elif issubclass(kind, np.ndarray):
            if not _same_arrays(a, b):
                return False
        elif is_container(a):
            items, others = list(contents_of(a)), list(contents_of(b))
            if len(items) != len(others):
                return False
            todo += zip(items, others, strict=True)
        elif not _objects_equal(a, b, whose, cure):
            return False
    return True


def _same_arrays(a: "np.ndarray[Any, Any]", b: "np.ndarray[Any, Any]") -> bool:
    """Return true if two arrays of one class have the same shape, element type and bits, and the same mask."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if isinstance(a, np.ma.MaskedArray):
        return _same_arrays(np.ma.getmaskarray(a), np.ma.getmaskarray(b)) and a.tobytes() == b.tobytes()
    return a.tobytes() == b.tobytes()


def _objects_equal(a: Any, b: Any, whose: str, cure: str) -> bool:
    """Return what `==` says of two objects."""
    what = f"{whose} cannot compare two values of type {type(a).__name__}: their `==` gives"
    try:
        found = a == b
    except ValueError as error:  # as that of a dataclass with an array in it
        raise UpdateError(f"{what} neither true nor false ({error}). {cure}.") from None
    return truth_of(found, what, cure)


def truth_of(found: Any, what: str, cure: str) -> bool:
    """Return the result of a comparison as a truth value.

    Raises:
        UpdateError: it is neither true nor false, as an array of several elements.
    """
    try:
        return bool(found)
    except (TypeError, ValueError):
        raise UpdateError(f"{what} {format_value(found)}, which is neither true nor false. {cure}.") from None


def same_objects(old: Any, new: Any, are_equal: Callable[[object, object], bool] = is_) -> bool:
    """Return true if two values are built of the same objects, or of plain values with the same bits, in containers
    too. `are_equal` may know that two objects have equal contents. No container of `old` may have been changed since.
    """
    if are_equal(old, new):
        return True
    if type(old) in PLAIN and type(old) is type(new):
        return exact_token(old) == exact_token(new)
    if type(old) is SharedTensor and type(new) is SharedTensor:
        return live_state(old).storage is live_state(new).storage
    if type(old) is not type(new) or not is_container(old):
        return False
    items, others = list(contents_of(old)), list(contents_of(new))
    return len(items) == len(others) and all(map(partial(same_objects, are_equal=are_equal), items, others))
