"""Writes a part of a tensor's memory for `Source.write`: a copy to the device of this part alone, and before it one of
the whole tensor on the device if something else holds the memory."""

from typing import Any

import numpy as np

from dagpu.common.layout import slice_layout
from dagpu.common.origin import Origin
from dagpu.handles import HandleState, SharedTensor, Tensor, TensorMut, live_state
from dagpu.handles.device_handles import driver_of
from dagpu.handles.handle_state import Loan
from dagpu.handles.tensors import share_tensor
from dagpu.ops.base import DeviceOp
from dagpu.ops.creation import dup, from_host, memcpy
from dagpu.ops.live.parts import Box, slices_of
from dagpu.ops.live.source_op import PUT_PART
from dagpu.runtime import execute
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.interpreter import current_settings


def put_part(tensor: SharedTensor[Any], box: Box, data: Any, alone: bool, origin: Origin) -> SharedTensor[Any]:
    """Write an array or a tensor to a part of a tensor, and return the tensor that has it.

    With `alone` the tensor itself, whose memory is written; no other handle and no run may use it. Otherwise a copy.
    This thread blocks until the memory is written.
    """
    state = live_state(tensor)
    where, slices = state.storage.device, slices_of(box)
    settings = current_settings("write")
    in_place = alone and isinstance(data, np.ndarray)
    if in_place and driver_of(where).write_part(state.storage.memory, slice_layout(state.layout, slices), data):
        return tensor

    def run(op: DeviceOp[Any, Any, Any]) -> Any:
        return _run(op.on(where), settings, origin)

    target = Tensor(HandleState(Tensor, state.storage, state.layout, origin)) if alone else run(dup(tensor.clone()))
    own = live_state(target)
    layout = slice_layout(own.layout, slices)
    if alone or not isinstance(data, np.ndarray) or not driver_of(where).write_part(own.storage.memory, layout, data):
        source = run(from_host(data)).share() if isinstance(data, np.ndarray) else data.clone()
        run(memcpy(TensorMut(HandleState(TensorMut, own.storage, layout, origin, target, Loan())), source))
    return tensor if alone else share_tensor(target, origin)


def _run(op: DeviceOp[Any, Any, Any], settings: Settings, origin: Origin) -> Any:
    """Run an op, and block until its result is complete."""
    return execute.execute_now(op, settings, origin)


PUT_PART.set(put_part)
