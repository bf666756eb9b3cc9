"""The layout of an op's result, as far as the op's structure shows it: without a run, and without calling closures."""

from typing import Any

import numpy as np

from dagpu.common.errors import PartitionError, ShapeError
from dagpu.common.layout import Layout, contiguous_layout, reshape_layout
from dagpu.handles import HANDLES, Partition, find_live_state
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map, On, Shared, Split, Unzip, Value, Zip
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.launch import Launch
from dagpu.ops.node_functions import Cut, Inspect, Item, Reshape, Share, Uncut


def known_layout(x: Any) -> Layout | None:
    """Return the layout of a handle, or of an op's result that is a handle; None where only a run shows it.

    A new tensor is contiguous, and its offset is 0. A handle that has been moved has no layout.
    """
    changes: list[Any] = []
    while isinstance(x, DeviceOp):
        match x:
            case Map(source=Launch() as launch, f=Item(index=index)):
                x = launch.args[index]
            case Unzip(split=Split(source=Launch() as launch), index=index):
                x = launch.args[index]
            case Map(source=Zip(sources=sources), f=Item(index=index)):
                x = sources[index]
            case Unzip(split=Split(source=Zip(sources=sources)), index=index):
                x = sources[index]
            case Map(source=source, f=Reshape() as change):
                changes.append(change)
                x = source
            case Map(source=source, f=Cut() | Uncut() | Share() | Inspect()) | Shared(source=source):
                x = source
            case On(source=source):
                x = source
            case Value(content=content):
                x = content
            case Alloc(shape=shape, dtype=dtype):
                return _reshaped(contiguous_layout(shape, dtype), changes)
            case FromHost(array=array):
                return _reshaped(contiguous_layout(array.shape, np.dtype(array.dtype)), changes)
            case Copy(source=source, into=None, dtype=dtype):
                below = known_layout(source)
                if below is None:
                    return None
                return _reshaped(contiguous_layout(below.shape, below.dtype if dtype is None else dtype), changes)
            case _:
                return None
    state = find_live_state(x) if type(x) in HANDLES or type(x) is Partition else None
    return None if state is None else _reshaped(state.layout, changes)


def _reshaped(layout: Layout, changes: list[Any]) -> Layout | None:
    """Return the layout after the calls of `reshape` in the op, the last one first; None if one of them will fail."""
    try:
        for change in reversed(changes):
            layout = reshape_layout(layout, change.shape)
    except (ShapeError, PartitionError):
        return None
    return layout
