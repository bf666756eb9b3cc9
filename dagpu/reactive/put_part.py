"""Writes a part of a tensor's memory for `Source.write`: a copy to the device of this part alone, and before it one of
the whole tensor on the device if something else holds the memory. In a batch a small part is copied to page-locked
memory at once, and a large one to the device; it gets to its place when the batch ends."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dagpu.common.layout import Layout, contiguous_layout, slice_layout
from dagpu.common.places import Origin
from dagpu.handles import HandleState, SharedTensor, Tensor, TensorMut, live_state
from dagpu.handles.device_handles import driver_of
from dagpu.handles.handle_state import Loan, Storage
from dagpu.handles.tensors import share_tensor
from dagpu.ops.array_parts import Box, slices_of
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import dup, from_host, memcpy
from dagpu.ops.source_op import KEEP_PART, PUT_PART
from dagpu.runtime import execute
from dagpu.runtime.interpreter import current_settings
from dagpu.runtime.loaded_plan import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray


def put_part(tensor: SharedTensor[Any], box: Box, data: Any, alone: bool, origin: Origin) -> SharedTensor[Any]:
    """Write an array or a tensor to a part of a tensor, and return the tensor that has it.

    With `alone` the tensor itself, whose memory is written; no other handle and no run may use it. Otherwise a copy.
    This thread blocks until the memory is written.
    """
    state = live_state(tensor)
    where, slices = state.storage.device, slices_of(box)
    if alone and _put_now(state, slice_layout(state.layout, slices), data):
        return tensor
    settings = current_settings("write")

    def run(op: DeviceOp[Any, Any, Any]) -> Any:
        return _run(op.on(where), settings, origin)

    target = Tensor(HandleState(Tensor, state.storage, state.layout, origin)) if alone else run(dup(tensor.clone()))
    own = live_state(target)
    layout = slice_layout(own.layout, slices)
    if alone or not _put_now(own, layout, data):
        source = run(from_host(data)).share() if isinstance(data, np.ndarray) else data.clone()
        if not (isinstance(data, np.ndarray) and _put_now(own, layout, source)):
            run(memcpy(TensorMut(HandleState(TensorMut, own.storage, layout, origin, target, Loan())), source))
    return tensor if alone else share_tensor(target, origin)


def keep_part(tensor: SharedTensor[Any], data: "NDArray[Any]", origin: Origin) -> Any:
    """Return a copy of an array, or a tensor of its elements, to write to a part of a tensor later by `put_part`."""
    where = live_state(tensor).storage.device
    copied = driver_of(where).copy_for_later(data)
    return _run(from_host(data).on(where), current_settings("write"), origin).share() if copied is None else copied


def _put_now(target: HandleState, layout: Layout, data: Any) -> bool:
    """Write an array or a tensor to the elements of `layout` in memory that no run uses, and return True when it is
    complete. Return False, and change nothing, if that needs a run."""
    driver = driver_of(target.storage.device)
    if isinstance(data, np.ndarray):
        return driver.write_part(target.storage.memory, layout, data)
    state = live_state(data)
    is_whole = state.layout == contiguous_layout(layout.shape, layout.dtype)
    if not is_whole or type(state.storage) is not Storage or state.storage.device is not target.storage.device:
        return False
    return driver.copy_part(target.storage.memory, layout, state.storage.memory)


def _run(op: DeviceOp[Any, Any, Any], settings: Settings, origin: Origin) -> Any:
    """Run an op, and block until its result is complete."""
    return execute.execute_now(op, settings, origin)


PUT_PART.set(put_part)
KEEP_PART.set(keep_part)
