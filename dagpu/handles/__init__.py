"""Handles: the results of ops that are device data. They have shape, dtype and device; the contents stay on the device.

At run time, ownership is one flag of each handle. A handle that owns its memory can be *moved* once: the memory goes to
a new handle, and the old one raises `MovedError` from then on. A borrow refers to its lender. Runs lock memory while
they last (dagpu.runtime).

Other modules read the internal state of a handle through `state_of`, `live` and `living_state`.
"""

from dagpu.handles.handle_errors import ARRAY_NAMES, OP_NAMES, copy_error
from dagpu.handles.handle_moves import HANDLES, OWNING, Handle, Owning, cut_up, move_in, put_together
from dagpu.handles.handle_state import (
    HANDLE_NAMES,
    HandleBase,
    HandleState,
    Lender,
    LenderAlias,
    Loan,
    give_back,
    last_move,
    live,
    living_state,
    made_at,
    state_of,
    take,
)
from dagpu.handles.holders import Holders
from dagpu.handles.partitions import Cut, Partition, cut_of
from dagpu.handles.tensors import (
    TO_HOST,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    another,
    reshape,
    share,
)

__all__ = [
    "ARRAY_NAMES",
    "HANDLES",
    "HANDLE_NAMES",
    "OP_NAMES",
    "OWNING",
    "TO_HOST",
    "Cut",
    "Handle",
    "HandleBase",
    "HandleState",
    "Holders",
    "Lender",
    "LenderAlias",
    "Loan",
    "Owning",
    "Partition",
    "SharedTensor",
    "Tensor",
    "TensorMut",
    "TensorRef",
    "another",
    "copy_error",
    "cut_of",
    "cut_up",
    "give_back",
    "last_move",
    "live",
    "living_state",
    "made_at",
    "move_in",
    "put_together",
    "reshape",
    "share",
    "state_of",
    "take",
]
