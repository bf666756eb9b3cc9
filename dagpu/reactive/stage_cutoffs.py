"""`StageCutoffs`: the cutoffs on the device of one stage, which compare tensors that it makes or is given.

A run compares the tensor of a cutoff with the one that it let through last, and sets flags in memory of the host that
the device reaches. After the run the cutoff is decided by them.
"""

from collections.abc import Callable
from typing import Any, final

from dagpu.common.layout import Layout
from dagpu.handles import HandleState, Holders, SharedTensor, live_state
from dagpu.handles.device_handles import MappedMemory, driver_of
from dagpu.handles.handle_state import Storage
from dagpu.reactive.claims import Change, Comparison, Subprogram
from dagpu.reactive.conditional_updates import NOTHING_AFTER
from dagpu.reactive.leaf_values import LeafValues
from dagpu.reactive.live_result import TargetMemory
from dagpu.reactive.staleness import Staleness
from dagpu.reactive.subprogram import ComparedBuffer, CutoffComparisons
from dagpu.runtime.device_lookup import find_device
from dagpu.tracing.live_inputs import LiveInput


@final
class StageCutoffs:
    """The cutoffs of one stage."""

    def __init__(
        self, staleness: Staleness, leaves: LeafValues, targets: TargetMemory, inputs: list[LiveInput]
    ) -> None:
        self.staleness = staleness
        """The present analysis of the stage."""
        self._leaves = leaves
        self._targets = targets
        self.inputs = inputs
        """The cutoffs, in the order of the trace."""
        compared = [_compared(cut, leaves.buffer_of(cut)) for cut in inputs]
        self.comparisons = CutoffComparisons(staleness.program, compared)
        self._flags: dict[int, MappedMemory] = {}
        """The memory in which a run sets flags where tensors of cutoffs differ, by the numbers of its buffers."""
        self._readers: dict[int, list[tuple[int, Callable[[], bytes], bytes]]] = {}
        """How the flags are read of each set of cutoffs that a run has compared, by their bits."""
        self._differing = 0
        """The bits of the cutoffs whose tensors the last run has found to differ."""
        self.cut_off = 0
        """The bits of the cutoffs that did not let through the last tensor that they got."""
        self.in_parts: str | None = None
        """The reason why the last update that had cutoffs to decide was run in parts; empty if it was one graph; None
        if there was none."""

    def describe(self) -> str:
        """Say how the last update decided cutoffs."""
        if self.in_parts is None or self.in_parts == NOTHING_AFTER:
            return "the device compares the bits"
        if not self.in_parts:
            return "one graph compares the bits, and decides what runs"
        return f"the device compares the bits, and a second run does the rest, since {self.in_parts}"

    def watched_bits(self, cut: LiveInput) -> int:
        """Return the bits of what a cutoff on the device compares."""
        return self.staleness.bits_of(compared_buffer(cut))

    def waiting_bits(self, undecided: list[LiveInput], mask: int, lost: frozenset[int]) -> int:
        """Return the bits of the cutoffs that an update for the bits `mask` decides, and that are not decided yet. The
        targets `lost` do not hold what they should."""
        waiting = 0
        for cut in undecided:  # in the order of the trace: a cutoff comes after those that it depends on
            if self.watched_bits(cut) & (mask | waiting) or compared_buffer(cut) in lost or not cut.decided:
                waiting |= cut.own
        return waiting

    def ready(self, undecided: list[LiveInput], waiting: int) -> list[LiveInput]:
        """Return those of the waiting cutoffs whose tensors depend on no other one that waits. A cutoff depends on
        earlier ones of the trace alone, so the first one is ready."""
        found, earlier = list[LiveInput](), 0
        for cut in undecided:
            if cut.own & waiting:
                if not self.watched_bits(cut) & earlier:
                    found.append(cut)
                earlier |= cut.own
        return found

    @property
    def bits(self) -> int:
        """The bits of these cutoffs."""
        return sum(cut.own for cut in self.inputs)

    def are_alike(self, bits: int) -> bool:
        """Return true if each of these cutoffs has a tensor with elements, in the layout of the one that it let through
        last, so that both can be compared."""
        return all(_is_alike(cut) and layout_of(cut).size > 0 for cut in self.inputs if cut.own & bits)

    def compares(self, cut: LiveInput, change: Change) -> bool:
        """Return true if an update for a change must compare the tensor of a cutoff with the one that it let through
        last: both have the same layout, and they are not known to be the same."""
        made = compared_buffer(cut) in self.staleness.stale_targets(change)
        return (
            _is_alike(cut)
            and layout_of(cut).size > 0
            and (made or self._memory_of(cut) is not live_state(cut.value).storage.memory)
        )

    def decide(self, cut: LiveInput, compared: int) -> bool:
        """Decide a cutoff after the run that was to make its tensor, and return true if it lets the tensor through.

        `compared` has the bits of the cutoffs whose tensors the run has compared. A tensor that is cut off is dropped:
        the one that was let through last takes its place, at the address that it had.
        """
        differs = bool(self._differing & cut.own) if compared & cut.own else not _is_alike(cut)
        if differs:
            cut.value = self._tensor(cut)
            self.cut_off &= ~cut.own
        else:
            self.cut_off |= cut.own
            if compared_buffer(cut) in self.staleness.last:
                self._targets.take_over(compared_buffer(cut), live_state(cut.value).storage.memory, cut.value)
        cut.decided = True
        return differs

    def decide_all(self, compared: int) -> None:
        """Decide the cutoffs whose tensors a run has compared that has also done what comes after them."""
        for cut in self.inputs:
            if cut.own & compared:
                self.decide(cut, compared)

    def bind(self, compare: int, subprogram: Subprogram, memory: list[object]) -> None:
        """Bind what the comparisons of the cutoffs `compare` read and write: what these have let through last, and the
        memory of flags, which is cleared. One run of a stage ends before the next begins."""
        let_through = {cut.own: live_state(cut.value).storage.memory for cut in self.inputs if cut.own & compare}
        read, written = dict(subprogram.inputs), dict(subprogram.outputs)
        for each in self.comparisons.of(compare):
            memory[read[each.last]] = let_through[each.bit]
            flags = self._flags.get(each.flags)
            if flags is None:
                device = find_device(self.comparisons.program.devices[each.device])
                flags = self._flags[each.flags] = driver_of(device).mapped_memory(each.flags_layout.nbytes)
            flags.content.fill(0)  # a comparison that does not run has found nothing
            memory[written[each.flags]] = flags.memory

    def find_differing(self, compare: int) -> int:
        """Note and return the bits of those of the cutoffs `compare` whose tensors the last run has found to differ."""
        readers = self._readers.get(compare)
        if readers is None:
            readers = self._readers[compare] = [self._reader(each) for each in self.comparisons.of(compare)]
        differing = 0
        for bit, read, clear in readers:
            if read() != clear:
                differing |= bit
        self._differing = differing
        return differing

    def _reader(self, comparison: Comparison) -> tuple[int, Callable[[], bytes], bytes]:
        """Return the bit of a cutoff, the function that reads its flags, and what that returns if none is set. `bind`
        has been called for it before."""
        content = self._flags[comparison.flags].content
        return comparison.bit, content.tobytes, bytes(content.nbytes)

    def _tensor(self, made: LiveInput) -> Any:
        """Return a handle to what the buffer of a cutoff on the device holds now."""
        buffer, storage = compared_buffer(made), made.storage
        assert storage is not None
        if buffer not in self.staleness.last:
            given = self._leaves.tensor(buffer)
            if given is not None:
                return given
            # An earlier stage has made it. Its handles end with the trace, and this memory is not written again.
            own = Storage(storage.device, storage.nbytes, self._leaves.value(buffer))
            return SharedTensor(HandleState(SharedTensor, own, layout_of(made), made.origin, holders=Holders()))
        return self._targets.shared(buffer, storage.device, storage.nbytes, layout_of(made), made.origin)

    def _memory_of(self, cut: LiveInput) -> Any:
        """Return the memory of what a cutoff on the device compares."""
        buffer = compared_buffer(cut)
        return self._targets.memory[buffer] if buffer in self.staleness.last else self._leaves.value(buffer)


def compared_buffer(cut: LiveInput) -> int:
    """Return the buffer that a cutoff on the device compares."""
    assert cut.buffer is not None
    return cut.buffer


def layout_of(cut: LiveInput) -> Layout:
    """Return the layout of the tensor that a cutoff on the device compares."""
    assert cut.layout is not None
    return cut.layout


def _is_alike(cut: LiveInput) -> bool:
    """Return true if the tensor of a cutoff has the device and the layout of the one that it let through last."""
    if cut.value is None:
        return False
    old, storage = live_state(cut.value), cut.storage
    assert storage is not None
    return old.layout == cut.layout and old.storage.device is storage.device and old.storage.nbytes == storage.nbytes


def _compared(cut: LiveInput, passed: int | None) -> ComparedBuffer:
    """Return the buffer that a cutoff on the device compares, with that of what it lets through and its place."""
    assert cut.cutoff is not None
    return ComparedBuffer(cut.own, compared_buffer(cut), passed, layout_of(cut), cut.cutoff.origin)
