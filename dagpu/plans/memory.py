"""The memory plan: an offset in an arena for every buffer of a plan.

A lifetime lasts from `Allocate` to `Release`, and only happens-before counts: a buffer may take the bytes of another
one if the release of the other happens before its allocation in *every* execution. If the two are on different lanes,
that order comes from waits that the data flow needs. The memory plan never adds a wait; within a limit of memory
`dagpu.plans.scheduler` does, before. The order of the steps alone proves
nothing, because a later step on another lane may run earlier.

Freed bytes are first kept by size, because a buffer usually takes the place of one of its own size. If its lane may use
none of that size, all free bytes become *holes*, which are merged and split: see `dagpu.plans.memory`. A
buffer goes into the smallest hole that its lane may use (best fit), else over neighbouring holes that it may use, else
to the end of the arena. Best fit takes buffers in the plan's order, so it may fragment the bytes that a large buffer
needs later. If that has cost memory and the plan is small, all buffers are placed again by size, and the better result
is taken.

Cost: a look at each lane for each buffer, and a binary search over the sizes of the lane's holes if no freed bytes have
the same size. Placing all buffers again takes the square of their number, so it is limited to small plans.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter
from random import Random
from typing import Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.places import describe
from dagpu.plans.plan import (
    ALIGNMENT,
    Allocate,
    Clock,
    Clocks,
    Execute,
    Plan,
    Record,
    Release,
    Step,
    Wait,
    as_list,
    may_write_over,
)
from dagpu.plans.program import Buffer, Instruction, Launch, Role, label

_SMALL: Final = 2048
"""Most temporaries of a device that are placed again by size. `dagpu.plans.memory` gives the cost."""

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
    walk = _Walk(buffers, devices, lanes)
    walk.run(steps, events)
    offsets = walk.offsets
    lives: list[list[Lifetime]] | None = None
    for device, arena in enumerate(walk.arenas):
        top, most = arena.top, walk.most[device]
        if top > max(_ENOUGH * most, most + _WASTE) and walk.count[device] <= _SMALL:
            if lives is None:  # rarely needed: to collect them in the first walk would cost a tenth of it
                again = _Walk(buffers, devices, lanes, lifetimes=True)
                again.run(steps, events)
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
        self._sizes = [-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers]
        """For each buffer, the bytes that it takes in an arena."""
        self._clocks = Clocks(lanes)
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

    def run(self, steps: Sequence[Step], events: int) -> None:
        """Fill in the public attributes."""
        buffers, temporary = self._buffers, Role.TEMPORARY
        now = self._clocks.current.copy()
        if now and type(now[0]) is not list:  # an allocation reads many entries
            now = list(map(as_list, now))
        recorded: list[tuple[int, int, Clock]] = [(-1, -1, [])] * events
        fresh: list[int] = []
        for at, step in enumerate(steps):
            if type(step) is Execute:
                if fresh:
                    if type(step.instruction) is Launch and step.instruction.kernel.in_place:
                        fresh = self._write_over(fresh, step.instruction, steps, at)
                    for buffer in fresh:
                        self._place(buffer, step.lane, now[step.lane], at)
                    fresh = []
            elif type(step) is Allocate:
                if buffers[step.buffer].role is temporary:
                    fresh.append(step.buffer)
            elif type(step) is Release:
                if not self._lost[step.buffer]:
                    self._release(step.buffer, step.lane, at)
            elif type(step) is Record:
                recorded[step.event] = step.lane, at, self._clocks.current[step.lane]
            elif type(step) is Wait:
                joined = self._clocks.join(step.lane, *recorded[step.event])
                now[step.lane] = joined if isinstance(joined, list) else joined.tolist()

    def _place(self, buffer: int, lane: int, clock: Clock, at: int) -> None:
        """Take bytes for a buffer that `lane` allocates before step `at`."""
        device, nbytes = self._buffers[buffer].device, self._sizes[buffer]
        self.offsets[buffer] = self.arenas[device].take(lane, clock, nbytes) if nbytes else 0
        held = self._held[device] = self._held[device] + nbytes
        if held > self.most[device]:
            self.most[device] = held
        self.count[device] += 1
        if self._lifetimes:
            live = self._live[buffer] = Lifetime(nbytes, at, clock, [buffer])
            self.lives[device].append(live)

    def _release(self, buffer: int, lane: int, at: int) -> None:
        """Give back the bytes of a buffer that no other one was written over."""
        device, nbytes = self._buffers[buffer].device, self._sizes[buffer]
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
        for later in range(at + 1, len(steps)):
            step = steps[later]
            if type(step) is not Release or step.lane != lane:
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


# ---- arena
#
# The arena of one device, while buffers are placed in it.
#
# A released block is kept whole, by lane and size, with the number of the step that released it: the next buffer
# usually has the same size, and then no search is needed. A lane first takes its own latest block, which may still be
# in a cache, else the earliest block of another lane whose release its clock covers. Only if there is no such block,
# and blocks of several sizes are free, do all free blocks become holes, which `FreeList` merges and splits.
#
# A hole is a range of free bytes with the release that freed it, as a lane and the number of a step. A lane may use the
# hole once its clock covers that step. Neighbouring holes of one lane are merged, with the later of the two releases.

_Freed: TypeAlias = dict[int, deque[tuple[int, int]]]
"""Free blocks of one lane by size: step of the release and offset, in the order of the releases."""

SEARCH: Final = 8
"""Number of sizes of holes that are tried on each lane before bytes are taken elsewhere."""


_Hole: TypeAlias = tuple[int, int, int]
"""Size in bytes, and the lane and the step of the release."""


@final
class FreeList:
    """The free bytes of one arena, and the lanes that may use them. All sizes are multiples of the alignment.

    Invariants:
        holes do not overlap, and none reaches beyond `top`
        _ends[start + nbytes] == start          for each hole
        (number, start) in _heaps[lane][nbytes] for each hole, and nbytes in _sizes[lane], which is sorted
    An entry of a heap whose hole has gone or changed is deleted when it comes to the top.
    """

    def __init__(self, lanes: int) -> None:
        self.top = 0
        """Size of the arena so far: the end of its last block."""
        self._holes: dict[int, _Hole] = {}
        self._ends: dict[int, int] = {}
        self._sizes: list[list[int]] = []
        self._heaps: list[dict[int, list[tuple[int, int]]]] = []
        for _ in range(lanes):
            self._sizes.append([])
            self._heaps.append({})

    def take(self, lane: int, clock: Clock, nbytes: int) -> int:
        """Take bytes for a buffer that `lane` allocates while its clock is `clock`, and return their offset."""
        if not self._holes:
            self.top += nbytes
            return self.top - nbytes
        best = self._fit(lane, clock[lane], nbytes)
        if best is None or best[0] != nbytes:
            for other, sizes in enumerate(self._sizes):
                if sizes and other != lane and clock[other] >= 0:
                    found = self._fit(other, clock[other], nbytes)
                    if found is not None and (best is None or found[0] < best[0]):
                        best = found
        if best is not None:
            self._carve(best[1], nbytes)
            return best[1]
        return self._span(clock, nbytes)

    def give(self, start: int, nbytes: int, lane: int, number: int) -> None:
        """Add bytes that step `number` of `lane` has released, merged with neighbouring holes of that lane."""
        holes = self._holes
        after = holes.get(start + nbytes)
        if after is not None and after[1] == lane:
            self._remove(start + nbytes)
            number, nbytes = max(number, after[2]), nbytes + after[0]
        before = self._ends.get(start)
        if before is not None and holes[before][1] == lane:
            more, _, earlier = self._remove(before)
            number, start, nbytes = max(number, earlier), before, nbytes + more
        self._add(start, (nbytes, lane, number))

    def _fit(self, lane: int, known: int, nbytes: int) -> tuple[int, int] | None:
        """Return size and start of the smallest hole of `lane` that its steps up to `known` have freed, if any."""
        sizes, heaps, holes = self._sizes[lane], self._heaps[lane], self._holes
        at = bisect_left(sizes, nbytes)
        looked = 0
        while at < len(sizes) and looked < SEARCH:
            heap = heaps[sizes[at]]
            while heap:
                number, start = heap[0]
                hole = holes.get(start)
                if hole == (sizes[at], lane, number):
                    break
                heappop(heap)
            else:
                del heaps[sizes[at]]
                del sizes[at]
                continue
            if number <= known:
                return sizes[at], start
            at += 1
            looked += 1
        return None

    def _span(self, clock: Clock, nbytes: int) -> int:
        """Take bytes where no hole is large enough: from several neighbouring holes, or by extending the arena.

        The arena is extended from the usable holes at its end, by the bytes that are missing.
        """
        for lane, sizes in enumerate(self._sizes if len(self._sizes) > 1 else ()):
            for size in sizes[: -SEARCH - 1 : -1]:
                heap = self._heaps[lane][size]
                if heap and self._usable(heap[0][1], clock):
                    found = self._join(heap[0][1], clock, nbytes)
                    if found >= 0:
                        return found
        start = self.top
        while (before := self._ends.get(start, -1)) >= 0 and self._usable(before, clock):
            start = before
        missing = nbytes - (self.top - start)
        self._clear(start, self.top)
        self.top += missing
        return start

    def _usable(self, start: int, clock: Clock) -> bool:
        """Return whether a hole starts there that a lane with this clock may use."""
        hole = self._holes.get(start)
        return hole is not None and clock[hole[1]] >= hole[2]

    def _join(self, start: int, clock: Clock, nbytes: int) -> int:
        """Take bytes from this hole and its usable neighbours, and return the offset; -1 if these are too small."""
        last = end = start
        while end - start < nbytes and self._usable(end, clock):
            last, end = end, end + self._holes[end][0]
        if end - start >= nbytes:
            rest = self._holes[last]
            self._clear(start, end)
            if end > start + nbytes:
                self._add(start + nbytes, (end - start - nbytes, rest[1], rest[2]))
            return start
        while end - start < nbytes and (before := self._ends.get(start, -1)) >= 0 and self._usable(before, clock):
            start = before
        if end - start < nbytes:
            return -1
        rest = self._holes[start]
        self._clear(start, end)
        if end > start + nbytes:
            self._add(start, (end - start - nbytes, rest[1], rest[2]))
        return end - nbytes

    def _carve(self, start: int, nbytes: int) -> None:
        """Take the first bytes of a hole, and leave the rest as a hole."""
        hole = self._remove(start)
        if hole[0] > nbytes:
            self._add(start + nbytes, (hole[0] - nbytes, hole[1], hole[2]))

    def _clear(self, start: int, end: int) -> None:
        """Remove all holes of a range that consists of holes."""
        while start < end:
            start += self._remove(start)[0]

    def _add(self, start: int, hole: _Hole) -> None:
        nbytes, lane, number = hole
        self._holes[start] = hole
        self._ends[start + nbytes] = start
        heap = self._heaps[lane].get(nbytes)
        if heap is None:
            self._heaps[lane][nbytes] = [(number, start)]
            insort(self._sizes[lane], nbytes)
        else:
            heappush(heap, (number, start))

    def _remove(self, start: int) -> _Hole:
        hole = self._holes.pop(start)
        del self._ends[start + hole[0]]
        return hole


@final
class Arena:
    """The bytes of one arena. All sizes are multiples of the alignment."""

    __slots__ = ("_freed", "_freeing", "_has_freed", "_one_size", "_space")

    def __init__(self, lanes: int) -> None:
        self._space = FreeList(lanes)
        self._freed: list[_Freed] = [{} for _ in range(lanes)]
        self._has_freed = bytearray(lanes)
        """For each lane, whether it has released a block."""
        self._freeing: list[tuple[int, _Freed]] = []
        """These lanes in order, with the free blocks of each."""
        self._one_size = 0
        """Common size of all released blocks while there are no holes; 0 for no blocks, -1 for several sizes."""

    @property
    def top(self) -> int:
        """Size of the arena so far: the end of its last block."""
        return self._space.top

    def take(self, lane: int, clock: Clock, nbytes: int) -> int:
        """Take bytes for a buffer that `lane` allocates while its clock is `clock`, and return their offset."""
        own = self._freed[lane].get(nbytes)
        if own:
            return own.pop()[1]
        usable = False
        for other, freed in self._freeing:
            known = clock[other]
            if known >= 0:
                usable = True
                there = freed.get(nbytes)
                if there and there[0][0] <= known:
                    return there.popleft()[1]
        # The stream of copies from the host waits for no other lane, so it may use no hole.
        if not usable or self._one_size == nbytes:
            self._space.top += nbytes
            return self._space.top - nbytes
        self._one_size = -1
        for number, freed in enumerate(self._freed):
            self._give_all(number, freed)
        return self._space.take(lane, clock, nbytes)

    def give(self, start: int, nbytes: int, lane: int, number: int) -> None:
        """Give bytes back that step `number` of `lane` releases."""
        if not self._has_freed[lane]:
            self._has_freed[lane] = True
            insort(self._freeing, (lane, self._freed[lane]), key=itemgetter(0))
        if nbytes != self._one_size:
            self._one_size = -1 if self._one_size else nbytes
        freed = self._freed[lane]
        there = freed.get(nbytes)
        if there is None:
            freed[nbytes] = deque(((number, start),))
        else:
            there.append((number, start))

    def _give_all(self, lane: int, freed: _Freed) -> None:
        """Turn all blocks that a lane has released into holes."""
        for nbytes, released in freed.items():
            for number, start in released:
                self._space.give(start, nbytes, lane, number)
        freed.clear()


# ---- greedy by size
#
# Greedy-by-size placement of buffers whose lifetimes are all known: each at the lowest free offset.
#
# This is the memory planning of inference libraries (Y. Pisarchyk and J. Lee, "Efficient Memory Management for Deep
# Neural Net Inference", 2020), with happens-before in place of intervals of time. No single order is best for all
# plans, so several are tried: by bytes, by bytes times lifetime, and by the bytes that may be alive together with a
# buffer. Then follow variants of the best order so far, with some of the buffers near the arena's end moved forward.

_Numbers: TypeAlias = NDArray[np.int64]

PLACINGS: Final = 2048
"""Most buffers that are placed in all tries together, at 3 us each, or 9 without a map of units."""

_MAP: Final = 1 << 21
"""Most bytes of the map of `place_in_units`, which takes a quarter of the time of `place_in_spans`."""

TRIES: Final = 16
"""Most orders that are tried."""


@final
@dataclass(slots=True)
class Lifetime:
    """Lifetime of the bytes of a buffer, and of the buffers that are written over it in place."""

    nbytes: int
    """Size, a multiple of the alignment."""
    begin: int
    """Step that the bytes are allocated for."""
    clock: Clock
    """Clock of that step's lane at that step."""
    buffers: list[int]
    """The buffer, and those written over it."""
    lane: int = -1
    """Lane of the release."""
    end: int = -1
    """Step of the release."""


def large_first(lives: Sequence[Lifetime], lanes: int, enough: float) -> tuple[list[int], int]:
    """Return an offset for each lifetime, and the size of the arena. Tries stop once that is at most `enough`.

    Time (vectorised) and memory are the square of the number of lifetimes; `PLACINGS` limits the time of the tries.
    """
    beside = ~_disjoint(lives, lanes)
    sizes: _Numbers = np.array([live.nbytes for live in lives], dtype=np.int64)
    best: _Numbers = np.zeros(len(lives), dtype=np.int64)
    top = int(sizes.sum()) + 1
    orders = _orders(lives, beside, sizes)
    random = Random(0)  # a fixed seed, so that a program always has the same plan
    order: list[int] = []
    for _ in range(min(TRIES, PLACINGS // max(len(lives), 1))):
        given = next(orders, None)
        tried = _moved_forward(order, best + sizes, random) if given is None else given
        starts = _place(tried, beside, sizes, top)
        if starts is not None:
            best, top, order = starts, int((starts + sizes).max(initial=0)), tried
        if top <= enough:
            break
    return [int(start) for start in best], top


def _orders(lives: Sequence[Lifetime], beside: "NDArray[np.bool_]", sizes: _Numbers) -> Iterator[list[int]]:
    """Yield the orders to try first, each as indices of the lifetimes."""
    alive: _Numbers = np.einsum("ij,j->i", beside, sizes)  # beside @ sizes, in a third of the time
    ranks: Iterable[Callable[[int], int]] = (
        lambda number: -lives[number].nbytes,
        lambda number: -lives[number].nbytes * (lives[number].end - lives[number].begin),
        lambda number: -int(alive[number]),
    )
    for rank in ranks:
        yield sorted(range(len(lives)), key=lambda number: (rank(number), lives[number].begin))


def _moved_forward(order: Sequence[int], ends: _Numbers, random: Random) -> list[int]:
    """Return the order with half of the buffers that reach into the uppermost tenth moved to random earlier places."""
    out = np.flatnonzero(ends > 0.9 * ends.max()).tolist()
    moved = list(order)
    for number in random.sample(out, (len(out) + 1) // 2):
        at = moved.index(number)
        moved.insert(random.randint(0, at), moved.pop(at))
    return moved


def _place(order: Sequence[int], beside: "NDArray[np.bool_]", sizes: _Numbers, top: int) -> _Numbers | None:
    """Return the offset of each buffer, placed in this order, each at the lowest free offset; None if they take more
    than `top` bytes. `beside` says for each pair whether they may be alive together."""
    unit = int(np.gcd.reduce(sizes)) or 1
    if (top // unit + 1) * len(order) <= _MAP:
        return place_in_units(order, beside, sizes, top, unit)
    return place_in_spans(order, beside, sizes, top)


def place_in_units(
    order: Sequence[int], beside: "NDArray[np.bool_]", sizes: _Numbers, top: int, unit: int
) -> _Numbers | None:
    """Do what `_place` does, where all sizes are multiples of `unit` bytes and few units are needed.

    A map says for each unit and buffer whether the unit is taken by what may be alive together with the buffer.
    """
    taken = np.zeros((top // unit + 1, len(order)), dtype=np.bool_)
    rows, beside_of, lengths = list(taken), list(beside), (sizes // unit).tolist()
    free = {units: bytes(units) for units in set(lengths)}
    offsets = [0] * len(order)
    high = 0
    for number in order:
        run = free[lengths[number]]
        start = (taken[:high, number].tobytes() + run).find(run)
        end = start + len(run)
        if end * unit > top:
            return None
        for row in rows[start:end]:
            np.logical_or(row, beside_of[number], row)
        offsets[number] = start * unit
        if end > high:
            high = end
    return np.array(offsets, dtype=np.int64)


def place_in_spans(order: Sequence[int], beside: "NDArray[np.bool_]", sizes: _Numbers, top: int) -> _Numbers | None:
    """Do what `_place` does, whatever the sizes."""
    placed: _Numbers = np.zeros((3, len(order)), dtype=np.int64)
    starts, ends, numbers = placed  # of the buffers that are placed, sorted by their starts
    found: list[int] = []
    for count, (number, nbytes) in enumerate(zip(order, sizes[list(order)].tolist(), strict=True)):
        there = beside[number].take(numbers[:count])
        start = _lowest(starts[:count].compress(there), ends[:count].compress(there), nbytes)
        if start + nbytes > top:
            return None
        at = bisect_right(found, start)
        found.insert(at, start)
        placed[:, at + 1 : count + 1] = placed[:, at:count]
        starts[at], ends[at], numbers[at] = start, start + nbytes, number
    offsets = np.empty(len(order), dtype=np.int64)
    offsets[numbers] = starts
    return offsets


def _disjoint(lives: Sequence[Lifetime], lanes: int) -> "NDArray[np.bool_]":
    """Return, for each pair, whether one ends before the other begins in every execution."""
    most = np.iinfo(np.int32).max  # steps are fewer, and numbers of half the size are compared in half the time
    begin = np.array([live.begin for live in lives], dtype=np.int32)
    end = np.array([live.end for live in lives], dtype=np.int32)[:, None]
    clocks = np.array([live.clock for live in lives], dtype=np.int64).reshape(len(lives), lanes)
    known = np.minimum(clocks, most).astype(np.int32).T[[live.lane for live in lives]]
    # A clock covers all steps of its own lane, also later ones, so the order of the steps is checked as well.
    before = known >= end
    before &= end < begin
    disjoint: NDArray[np.bool_] = before | before.T
    return disjoint


def _lowest(starts: _Numbers, ends: _Numbers, nbytes: int) -> int:
    """Return the lowest offset for `nbytes` bytes beside these spans, which are sorted by their starts, and may overlap
    each other."""
    if not len(starts) or starts[0] >= nbytes:
        return 0
    reached = np.maximum.accumulate(ends)
    is_free = starts[1:] - reached[:-1] >= nbytes
    gap = int(is_free.argmax()) if len(is_free) else 0  # the first
    return int(reached[gap] if len(is_free) and is_free[gap] else reached[-1])
