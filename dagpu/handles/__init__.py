"""Handles: results of ops that refer to device data. A handle has a shape, a dtype and a device, but not the contents.

At run time, ownership is one flag of each handle. A handle that owns its memory can be *moved* once: a new handle gets
the memory, and the old one raises `MovedError` from then on. A borrow refers to its lender. A run locks the memory that
it uses until its end (dagpu.runtime).

Other modules read the internal state of a handle through `state_of`, `live_state` and `find_live_state`.
"""

from dagpu.handles.array_handle import EXPORTS, DLPackExport, ExportRequest
from dagpu.handles.handle_errors import (
    ARITHMETIC,
    ARRAY_NAMES,
    CONTENTS,
    OP_NAMES,
    READING,
    copy_error,
    device_call,
)
from dagpu.handles.handle_moves import (
    HANDLES,
    OWNING,
    Handle,
    Owning,
    move_handle,
    partition_handle,
    unpartition_handle,
)
from dagpu.handles.handle_state import (
    END_OF_LOAN,
    HANDLE_NAMES,
    HandleBase,
    HandleState,
    Lender,
    LenderAlias,
    Loan,
    find_live_state,
    last_move,
    live_state,
    origin_of,
    restore_state,
    state_of,
    take_state,
)
from dagpu.handles.holders import Holders
from dagpu.handles.partitions import Cut, Partition, cut_of
from dagpu.handles.tensors import (
    TO_HOST,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    clone_shared,
    reshape_handle,
    share_tensor,
)

__all__ = [
    "ARITHMETIC",
    "ARRAY_NAMES",
    "CONTENTS",
    "END_OF_LOAN",
    "EXPORTS",
    "HANDLES",
    "HANDLE_NAMES",
    "OP_NAMES",
    "OWNING",
    "READING",
    "TO_HOST",
    "Cut",
    "DLPackExport",
    "ExportRequest",
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
    "clone_shared",
    "copy_error",
    "cut_of",
    "device_call",
    "find_live_state",
    "last_move",
    "live_state",
    "move_handle",
    "origin_of",
    "partition_handle",
    "reshape_handle",
    "restore_state",
    "share_tensor",
    "state_of",
    "take_state",
    "unpartition_handle",
]
