"""The memory planner: places the temporaries of a plan in one arena for each device, and reuses their bytes.

A lifetime lasts from `Allocate` to `Release`, and only happens-before counts: a buffer may take the bytes of another
one if the release of the other happens before its allocation in *every* execution. If the two are on different lanes,
that order comes from waits that the data flow needs. The planner never adds a wait. The order of the steps alone proves
nothing, because a later step on another lane may run earlier.

Freed bytes are first kept by size, because a buffer usually takes the place of one of its own size. If its lane may use
none of that size, all free bytes become *holes*, which are merged and split: see `dagpu.lowering.memory.arena`. A
buffer goes into the smallest hole that its lane may use (best fit), else over neighbouring holes that it may use, else
to the end of the arena. Best fit takes buffers in the plan's order, so it may fragment the bytes that a large buffer
needs later. If that has cost memory and the plan is small, all buffers are placed again by size, and the better result
is taken.

Cost: a look at each lane for each buffer, and a binary search over the sizes of the lane's holes if no freed bytes have
the same size. Placing all buffers again takes the square of their number, so it is limited to small plans.
"""

from collections.abc import Sequence
from typing import Final, final

from dagpu.common.origin import describe
from dagpu.lowering.memory.arena import Arena
from dagpu.lowering.memory.greedy_by_size import Lifetime, large_first
from dagpu.lowering.plan import ALIGNMENT, Allocate, Execute, Plan, Release, Step, may_write_over
from dagpu.lowering.program import Buffer, Instruction, Launch, Role, label
from dagpu.lowering.vector_clock import Clock, step_clocks

_SMALL: Final = 1024
"""Most temporaries of a device that are placed again by size. `dagpu.lowering.memory.greedy_by_size` gives the cost."""

_ENOUGH: Final = 1.02
"""Best fit is kept if it takes at most this factor of the bytes that are alive at once in the plan's order."""

_WASTE: Final = 256 * 1024
"""Best fit is kept if it takes at most these bytes more than are alive at once: saving less is not worth the time."""


def lay_out(
    buffers: Sequence[Buffer], steps: Sequence[Step], devices: int, lanes: int, events: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return `Plan.offsets` and `Plan.arena_bytes` for the steps of `schedule`.

    In those steps, the `Allocate`s of an instruction come right before it, and the `Release`s of the buffers that end
    with it come right after it. If a kernel may work in place, an output takes the bytes of an input that ends there.
    """
    clocks = step_clocks(steps, lanes, events)
    walk = _Walk(buffers, devices, lanes)
    walk.run(steps, clocks)
    offsets = walk.offsets
    lives: list[list[Lifetime]] | None = None
    for device, arena in enumerate(walk.arenas):
        top, most = arena.top, walk.most[device]
        if top > max(_ENOUGH * most, most + _WASTE) and walk.count[device] <= _SMALL:
            if lives is None:  # rarely needed: to collect them in the first walk would cost a tenth of it
                again = _Walk(buffers, devices, lanes, lifetimes=True)
                again.run(steps, clocks)
                lives = again.lives
            found, end = large_first(lives[device], lanes, _ENOUGH * most)
            if end < top:
                for live, offset in zip(lives[device], found, strict=True):
                    for buffer in live.buffers:
                        offsets[buffer] = offset
    ends = [0] * devices
    for about, offset in zip(buffers, offsets, strict=True):
        if offset >= 0 and offset + about.nbytes > ends[about.device]:
            ends[about.device] = offset + about.nbytes
    return tuple(offsets), tuple(ends)


@final
class _Walk:
    """One walk over the steps, which places each temporary when it is allocated."""

    def __init__(self, buffers: Sequence[Buffer], devices: int, lanes: int, *, lifetimes: bool = False) -> None:
        self._buffers = buffers
        self._held = [0] * devices
        self._lost = bytearray(len(buffers))  # true for a buffer that another one has been written over
        self._lifetimes = lifetimes
        self._live: dict[int, Lifetime] = {}
        self.most = [0] * devices
        """For each device, the most bytes that are held at once in the plan's order."""
        self.offsets = [-1] * len(buffers)
        """For each buffer, its offset in the arena of its device; -1 if it has none."""
        self.arenas: list[Arena] = []
        """The arena of each device."""
        self.count = [0] * devices
        """For each device, the number of its temporaries."""
        self.lives: list[list[Lifetime]] = []
        """For each device, the lifetimes of its temporaries, if `lifetimes` was set."""
        for _ in range(devices):
            self.arenas.append(Arena(lanes))
            self.lives.append([])

    def run(self, steps: Sequence[Step], clocks: Sequence[Clock]) -> None:
        """Fill in the public attributes; `clocks` holds the clock of each step's lane."""
        buffers = self._buffers
        fresh: list[int] = []
        for at, step in enumerate(steps):
            if type(step) is Execute:
                if fresh:
                    if type(step.instruction) is Launch and step.instruction.kernel.in_place:
                        fresh = self._write_over(fresh, step.instruction, steps, at)
                    for buffer in fresh:
                        self._place(buffer, step.lane, clocks[at], at)
                    fresh = []
            elif type(step) is Allocate:
                if buffers[step.buffer].role is Role.TEMPORARY:
                    fresh.append(step.buffer)
            elif type(step) is Release:
                self._release(step.buffer, step.lane, at)

    def _place(self, buffer: int, lane: int, clock: Clock, at: int) -> None:
        """Take bytes for a buffer that `lane` allocates before step `at`."""
        about = self._buffers[buffer]
        device, nbytes = about.device, -(-about.nbytes // ALIGNMENT) * ALIGNMENT
        self.offsets[buffer] = self.arenas[device].take(lane, clock, nbytes) if nbytes else 0
        held = self._held[device] = self._held[device] + nbytes
        if held > self.most[device]:
            self.most[device] = held
        self.count[device] += 1
        if self._lifetimes:
            live = self._live[buffer] = Lifetime(nbytes, at, clock, [buffer])
            self.lives[device].append(live)

    def _release(self, buffer: int, lane: int, at: int) -> None:
        """Give the bytes of a buffer back, unless another one was written over it."""
        if self._lost[buffer]:
            return
        about = self._buffers[buffer]
        device, nbytes = about.device, -(-about.nbytes // ALIGNMENT) * ALIGNMENT
        if nbytes:
            self.arenas[device].give(self.offsets[buffer], nbytes, lane, at)
            self._held[device] -= nbytes
        if self._lifetimes:
            live = self._live[buffer]
            live.lane, live.end = lane, at

    def _write_over(self, fresh: list[int], launch: Launch, steps: Sequence[Step], at: int) -> list[int]:
        """Let outputs take the bytes of inputs that end with this launch; return the outputs that take none."""
        ending: list[int] = []
        lane = steps[at].lane
        for step in steps[at + 1 :]:
            if not isinstance(step, Release) or step.lane != lane:
                break
            ending.append(step.buffer)
        rest: list[int] = []
        for out in fresh:
            about = self._buffers[out]
            # An output that nobody reads ends here too. What it is written over has to be released before it.
            for source in ending[: ending.index(out)] if out in ending else ending:
                if not self._lost[source] and self._buffers[source] == about and may_write_over(launch, source, out):
                    self._lost[source] = True
                    self.offsets[out] = self.offsets[source]
                    if self._lifetimes:
                        live = self._live[out] = self._live[source]
                        live.buffers.append(out)
                    break
            else:
                rest.append(out)
        return rest


def alive_at_peak(plan: Plan, device: int) -> list[tuple[Buffer, Instruction | None]]:
    """Return the buffers of a device that are alive at its peak in the plan's order, largest first.

    Each comes with the instruction that first writes it. Outputs count from their allocation, inputs do not count.
    """
    held = most = 0
    alive: set[int] = set()
    found: list[int] = []
    growing = False
    for step in plan.steps:
        match step:
            case Allocate() if plan.buffers[step.buffer].device == device:
                alive.add(step.buffer)
                held += plan.buffers[step.buffer].nbytes
                growing = growing or held > most
                most = max(most, held)
            case Release() if step.buffer in alive:
                if growing:
                    found, growing = list(alive), False
                alive.remove(step.buffer)
                held -= plan.buffers[step.buffer].nbytes
            case _:
                pass
    if growing:
        found = list(alive)
    writers: dict[int, Instruction] = {}
    for step in plan.steps:
        if isinstance(step, Execute):
            for buffer in step.instruction.writes:
                writers.setdefault(buffer, step.instruction)
    found.sort(key=lambda buffer: (-plan.buffers[buffer].nbytes, buffer))
    return [(plan.buffers[buffer], writers.get(buffer)) for buffer in found]


_NAMED: Final = 5
"""Number of buffers alive at the peak that a message names."""


def describe_peak(plan: Plan, device: int) -> str:
    """Name the buffers of `alive_at_peak` for a message: `Fill at file.py:3 (1,024 bytes), and 7 more (90 bytes)`."""
    alive = alive_at_peak(plan, device)
    named: list[str] = []
    for buffer, writer in alive[:_NAMED]:
        name = "an unwritten output" if writer is None else f"{label(writer)} at {describe(writer.origin)}"
        named.append(f"{name} ({buffer.nbytes:,} bytes)")
    rest = alive[_NAMED:]
    if rest:
        named.append(f"and {len(rest)} more ({sum(buffer.nbytes for buffer, _ in rest):,} bytes)")
    return ", ".join(named)
