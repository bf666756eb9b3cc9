"""`SharedBuffer`: the value of a `Shared` in the trace of a feed, where it is a tensor that the feed computes."""

from collections.abc import Iterable
from typing import Any, final

from dagpu.common.frozen import plain
from dagpu.common.layout import Layout
from dagpu.common.places import Origin
from dagpu.handles import SharedTensor, live_state
from dagpu.handles.device_handles import Device
from dagpu.ops.compose import Cutoff, Shared
from dagpu.ops.source_op import Source
from dagpu.tracing.program_builder import ProgramBuilder, TracedStorage


@final
@plain
class SharedBuffer:
    """A `Shared`, and the buffer of its value in the program of a stage."""

    node: Shared[Any]
    sources: tuple[Source[Any], ...] | None
    """The sources on which the value depends; none for a constant. None if it depends on a cutoff with an `equal` too:
    it may be that of an earlier snapshot, so no other run may take it for the value of these sources."""
    buffer: int
    device: Device
    nbytes: int
    layout: Layout
    origin: Origin
    """The place in the user's code that made the tensor."""

    def holds(self, value: Any) -> bool:
        """Return true if a value of another run can be in this buffer: it is a tensor of the same place and layout."""
        if type(value) is not SharedTensor:
            return False
        state = live_state(value)
        storage = state.storage
        return storage.device is self.device and storage.nbytes == self.nbytes and state.layout == self.layout


def shared_buffer(
    node: Shared[Any], value: Any, read: Iterable[Source[Any] | Cutoff[Any, Any, Any]], builder: ProgramBuilder
) -> SharedBuffer | None:
    """Return the buffer of a `Shared` for which the trace has read these sources and cutoffs; None if its value is no
    tensor that the stage makes."""
    if type(value) is not SharedTensor:
        return None
    state, nodes = live_state(value), list(read)
    storage = state.storage
    if type(storage) is not TracedStorage or storage.builder is not builder:
        return None
    old = any(type(each) is Cutoff and each.equal is not None for each in nodes)
    sources = None if old else tuple([each for each in nodes if type(each) is Source])
    return SharedBuffer(node, sources, storage.buffer, storage.device, storage.nbytes, state.layout, state.origin)
