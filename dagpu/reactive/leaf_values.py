"""What the buffers of a traced stage hold before it starts: inputs of the feed, whose values change, and constants."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, final

import numpy as np

from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.handles import Handle, HandleState, SharedTensor, clone_shared, live_state
from dagpu.handles.handle_state import Storage
from dagpu.ops.array_parts import Box
from dagpu.ops.versions import Version
from dagpu.reactive.carried_dirt import dirt_of_boxes
from dagpu.reactive.claims import Dirty
from dagpu.tracing.live_inputs import LiveInput, LiveInputs
from dagpu.tracing.program_builder import ProgramBuilder, TracedStorage
from dagpu.tracing.traced_arguments import NumberUse


@final
class LeafValues:
    """The leaves of one stage, by buffer."""

    def __init__(self, builder: ProgramBuilder, live: LiveInputs, earlier: int, made: Mapping[Storage, int]) -> None:
        """`earlier` has the bits of what earlier stages have given to closures; 0 for the first stage. `made` has those
        of the memory that they have made."""
        self.bits: dict[int, int] = {}
        """The bits of each buffer whose contents may change."""
        self.locks: dict[int, Storage] = {}
        """The memory that the op itself holds: each run that reads it locks it."""
        self._constants: dict[int, Any] = {}
        self._live: dict[int, tuple[LiveInput, NumberUse | None]] = {}
        self._arrays: list[tuple[int, int, Layout]] = []
        """For each source that is a tensor or an array its bit, its buffer and its layout, once they are asked for."""
        self._sizes: dict[int, int] = {}
        """The number of elements of each of them, by its bit."""
        self._keepers = [
            clone_shared(handle)
            for state, handle in builder.lent.items()
            if type(handle) is SharedTensor and state.storage not in live.storages
        ]
        """A handle to each shared tensor that the op holds, so that it stays shared while the feed is open."""
        for cell, array, index in builder.arrays:
            self._add(cell, array, None if index is None else live.inputs[index], earlier)
            bits = 0 if earlier or index is not None else live.structural_bits_of(array)
            if bits:  # its change is another trace, which finds the rest if this one has kept it
                self.bits[cell] = bits
        for (index, _), (cell, use) in builder.numbers.items():
            self._add(cell, None, live.inputs[index], earlier, use)
        for cell, index in builder.live_cells:
            self._add(cell, None, live.inputs[index], earlier)
        for cell in builder.drawn:  # one seed for all updates, so that what depends on it stays consistent
            self._constants[cell] = builder.inputs[cell]
        for storage, buffer in builder.external.items():
            index = live.storages.get(storage)
            # A storage of an earlier stage may have other memory after this one.
            constant = storage.memory if type(storage) is TracedStorage else storage
            bits = made.get(storage, 0 if storage in live.constants else earlier)
            self._add(buffer, constant, None if index is None else live.inputs[index], bits)
            if index is None and type(storage) is not TracedStorage:
                self.locks[buffer] = storage

    def _add(
        self, buffer: int, constant: Any, made: LiveInput | None, earlier: int, use: NumberUse | None = None
    ) -> None:
        if made is None:
            self._constants[buffer] = constant
            if earlier:
                self.bits[buffer] = earlier
        else:
            self._live[buffer] = made, use
            self.bits[buffer] = made.bits

    def value(self, buffer: int) -> Any:
        """Return what a run finds in a buffer: memory of the device, an array, a number in the form of its use."""
        found = self._live.get(buffer)
        return content_of_constant(self._constants.get(buffer)) if found is None else content_of_input(*found)

    def constant(self, buffer: int) -> Any:
        """Return what `content_of_constant` reads for a leaf that is no input of the feed."""
        return self._constants.get(buffer)

    def live(self, buffer: int) -> tuple[LiveInput, NumberUse | None] | None:
        """Return the input whose value a buffer has, and the use of a number; None for a constant."""
        return self._live.get(buffer)

    def buffer_of(self, made: LiveInput) -> int | None:
        """Return the buffer whose contents are the value of an input; None if no instruction uses it."""
        return next((buffer for buffer, (each, _) in self._live.items() if each is made), None)

    def tensor(self, buffer: int) -> Any:
        """Return another handle to the tensor of an input of the feed; None for other memory."""
        found = self._live.get(buffer)
        return found[0].value.clone() if found is not None and type(found[0].value) is SharedTensor else None

    def identity(self, buffer: int) -> Any:
        """Return an object that is the same while the contents are: that of the value, as a use converts it. A number
        that a use refuses has the contents of nothing: the update that was to use it has failed with that error."""
        found = self._live.get(buffer)
        if found is not None and not found[0].decided:
            return object()
        if found is not None and found[0].version is not None and type(found[0].value) is SharedTensor:
            return found[0].version
        try:
            return self.value(buffer)
        except KernelArgumentError:
            return object()

    def versions(self, mask: int) -> set[Version] | None:
        """Return the versions of the sources of these bits; None if a leaf is computed of such a source."""
        versions = {made.version for made, _ in self._live.values() if made.bits & mask}
        return None if None in versions else {each for each in versions if each is not None}

    def bits_of_sources(self) -> dict[int, int]:
        """Return the bits of the leaves that are tensors or arrays of sources, by buffer."""
        return {buffer: made.own for buffer, (made, _) in self._live.items() if _layout(made) is not None}

    def mostly_changed(self, parts: Mapping[int, Sequence[Box]], share: float) -> bool:
        """Return true if of each of these sources, by their bits, one part is at least this share of all elements."""
        self._find_arrays()
        for bit, boxes in parts.items():
            least = share * self._sizes.get(bit, 1)
            if max(map(_elements, boxes), default=0) < least:
                return False
        return True

    def dirt(self, parts: Mapping[int, Sequence[Box]]) -> dict[int, Dirty]:
        """Return the dirt of the leaves of sources of which only parts have changed, by the sources' bits."""
        self._find_arrays()
        return {buffer: dirt_of_boxes(layout, parts[bit]) for bit, buffer, layout in self._arrays if bit in parts}

    def _find_arrays(self) -> None:
        """Record the sources that are tensors or arrays: a value of another shape is another trace."""
        if self._sizes:
            return
        for buffer, (made, _) in self._live.items():
            layout = _layout(made)
            if layout is not None:
                self._arrays.append((made.own, buffer, layout))
                self._sizes[made.own] = prod(layout.shape)


def content_of_constant(constant: Any) -> Any:
    """Return what a run finds in the buffer of a leaf that does not change."""
    return constant.memory if isinstance(constant, Storage) else constant


def content_of_input(made: LiveInput, use: NumberUse | None) -> Any:
    """Return what a run finds in the buffer of an input.

    Raises:
        KernelArgumentError: a number does not fit its use.
    """
    if use is not None:
        return use.checked(made.value)
    return live_state(made.value).storage.memory if type(made.value) is SharedTensor else made.value


def _elements(box: Box) -> int:
    return prod([end - begin for begin, end in box])


def _layout(made: LiveInput) -> Layout | None:
    """Return the layout of the tensor or array of a source; None for any other input."""
    if made.source is None:
        return None
    if type(made.value) is np.ndarray:
        return contiguous_layout(made.value.shape, made.value.dtype)
    return made.layout


def written_from_outside(
    builder: ProgramBuilder, taken: list[tuple[Handle, HandleState]]
) -> tuple[Handle, HandleState] | None:
    """Return a handle of the op over whose memory the stage writes; None if there is none."""
    written = {storage for storage, exclusive in builder.locks.items() if exclusive}
    for handle, state in taken:
        buffer = builder.external.get(state.storage)
        if state.storage in written and any(buffer in each.writes for each in builder.instructions):
            return handle, state
    return None
