"""Where the temporaries of a plan lie: one arena for each device, in which bytes are used again.

Lifetimes are `Allocate` and `Release`, and the only order that counts is happens-before: bytes of a buffer go to
another one if the release of the first happens before the allocation of the second in *every* execution. Where the two
are on different lanes, that is so through waits which the data flow has put there anyway: none is ever added for the
sake of memory. What comes later in the plan's steps alone may well run earlier.

Freed bytes are kept by size first, since mostly a buffer takes the place of one of its own size. Where there is none
that its lane may use, all that is free becomes *holes*, which are joined and cut: see `dagpu.lowering.holes`. A buffer
goes into the smallest hole that its lane may use, best fit; else over neighbouring holes that it may use; else to the
arena's end. Best fit meets buffers in the plan's order, so a large one may come to find its bytes cut up. Where that
has cost memory and the plan is small, all are placed anew, large first, and the better of the two is kept.

Cost: a look at each lane for each buffer, and a binary search over the sizes of its holes where none has the same size.
Placing anew is the square of the number of temporaries, which is why it is bounded.
"""

from collections.abc import Sequence
from typing import Final, final

from dagpu.lowering.arena import Arena
from dagpu.lowering.large_first import Lifetime, large_first
from dagpu.lowering.order import Clock, step_clocks
from dagpu.lowering.plan import ALIGNMENT, Allocate, Execute, Plan, Release, Step, may_write_over
from dagpu.lowering.program import Buffer, Instruction, Launch, Role, label
from dagpu.origin import describe

_SMALL: Final = 1024
"""Up to how many temporaries of a device are placed anew. See `dagpu.lowering.large_first` for what that takes."""

_ENOUGH: Final = 1.02
"""Best fit stands where it takes no more than this times the bytes that are alive at once in the plan's order."""

_WASTE: Final = 256 * 1024
"""And where it takes no more bytes than this above them: saving less is not worth the time."""


def lay_out(
    buffers: Sequence[Buffer], steps: Sequence[Step], devices: int, lanes: int, events: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`Plan.offsets` and `Plan.arena_bytes` for steps as `schedule` makes them.

    In them the `Allocate`s of an instruction stand right before it, and the `Release`s of what ends with it right
    after it. Where a kernel may work in place, an output takes the bytes of an input that ends there.
    """
    clocks = step_clocks(steps, lanes, events)
    walk = _Walk(buffers, devices, lanes)
    walk.run(steps, clocks)
    offsets = walk.offsets
    lives: list[list[Lifetime]] | None = None
    for device, arena in enumerate(walk.arenas):
        top, most = arena.top, walk.most[device]
        if top > max(_ENOUGH * most, most + _WASTE) and walk.count[device] <= _SMALL:
            if lives is None:  # hardly ever asked for: to note them the first time would be a tenth of the walk
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
    """One walk over the steps, which places each temporary where it is allocated."""

    def __init__(self, buffers: Sequence[Buffer], devices: int, lanes: int, *, lifetimes: bool = False) -> None:
        self._buffers = buffers
        self._held = [0] * devices
        self._lost = bytearray(len(buffers))  # true of a buffer that another one has been written over
        self._lifetimes = lifetimes
        self._live: dict[int, Lifetime] = {}
        self.most = [0] * devices
        """The most bytes that are held at once in the plan's order."""
        self.offsets = [-1] * len(buffers)
        self.arenas = [Arena(lanes) for _ in range(devices)]
        self.count = [0] * devices
        """How many temporaries each device has."""
        self.lives: list[list[Lifetime]] = [[] for _ in range(devices)]
        """Theirs, where they were asked for."""

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
        """Let outputs take the bytes of inputs that end with this launch; gives back the others."""
        ending: list[int] = []
        lane = steps[at].lane
        for step in steps[at + 1 :]:
            if not isinstance(step, Release) or step.lane != lane:
                break
            ending.append(step.buffer)
        rest: list[int] = []
        for out in fresh:
            about = self._buffers[out]
            for source in ending:
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
    """What is alive on a device where the plan's order holds most of it: the largest first, with what first writes it.

    Outputs count from where they are allocated, inputs not at all.
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
"""How many of what is alive at the peak a message names."""


def describe_peak(plan: Plan, device: int) -> str:
    """The same for a message: `Fill at file.py:3 (1,024 bytes), ... and 7 more (90 bytes)`; empty if nothing is."""
    alive = alive_at_peak(plan, device)
    named = [
        f"{'nobody' if writer is None else f'{label(writer)} at {describe(writer.origin)}'} ({buffer.nbytes:,} bytes)"
        for buffer, writer in alive[:_NAMED]
    ]
    rest = alive[_NAMED:]
    if rest:
        named.append(f"and {len(rest)} more ({sum(buffer.nbytes for buffer, _ in rest):,} bytes)")
    return ", ".join(named)
