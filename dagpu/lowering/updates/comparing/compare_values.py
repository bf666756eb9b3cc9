"""Comparisons of the values that a feed has at two instants."""

from typing import Any

import numpy as np

from dagpu.handles import SharedTensor, live_state
from dagpu.lowering.arguments.exact_tokens import PLAIN, exact_token
from dagpu.ops.compose import Cutoff


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
    if cutoff.equal is not None:
        return bool(cutoff.equal(old, new))
    if type(old) is not type(new):
        return False
    if type(old) is np.ndarray:
        return same_kind(old, new) and old.tobytes() == new.tobytes()
    if type(old) in PLAIN:
        return exact_token(old) == exact_token(new)
    return old is new or bool(old == new)


def same_objects(old: Any, new: Any) -> bool:
    """Return true if two values are built of the same objects, or of plain values with the same bits."""
    if old is new:
        return True
    if type(old) in PLAIN and type(old) is type(new):
        return exact_token(old) == exact_token(new)
    if type(old) is SharedTensor and type(new) is SharedTensor:
        return live_state(old).storage is live_state(new).storage
    if type(old) is not type(new) or not isinstance(old, tuple) or len(old) != len(new):
        return False
    return all(map(same_objects, old, new))
