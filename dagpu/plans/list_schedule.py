"""`ListSchedule`: list scheduling, which simulates the program in a cost model on a given number of streams.

Whenever a stream is free and an instruction is ready, an instruction starts. Ready instructions start by rank:

1. The first attempt ranks by program order. A trace goes depth first, so this order finishes one branch before it
   begins the next, and holds little memory. The attempt is taken if it comes within `_GOOD` of the lower bound.
2. The second attempt ranks by the longest remaining path (critical path first). The faster of the two is taken.
3. Both of these hold back each *leaf*, an instruction with no producer, such as the `zeros` of the next step of a loop.
   A leaf waits until the other producers of its consumer have started, because until then it would only hold memory.
   If the result is too slow, a third attempt holds back nothing, and is taken if it gains enough.
4. As long as it is worth it, by the rule of `order_search`, further attempts follow: the second and the third, where
   these were not needed above, then orders by chance around the longest paths.

In the first three, an instruction whose only consumer has no other producer passes its stream on to that consumer. So a
chain stays on one stream and needs no wait. Of the others some may take a chain's stream for what is more urgent.

A piece of unknown cost, a user's kernel or a function of the host, counts as long as its share of the known work. If
it counted as short as its bytes, all such pieces would go where a short upload has ended while long ones last. If it
counted as long as the longest piece, the known pieces would not be shared out: a stream would get two long uploads
while the others seem busy. The share lies between two guesses that fail one way each. Over 1,000 random DAGs whose
unknown kernels are alike, plans for a host took up to 2.10 times the bound with the length of an average known piece,
and up to 2.33 times if all unknown pieces together counted as long as all known ones. With the geometric mean of the
two they took up to 1.96 times, over 7,800 DAGs.

Of the streams that are free in the simulation, those are taken first that are surely free. A stream that has run a
kernel of unknown cost is free only if the cost model guessed right. It is taken when no other one is free, and then the
one that was free first. So independent kernels of unknown cost go to all streams in turn, each behind its own upload
too, and overlap however long they take.

Copies from the host are simulated one at a time, as a GPU makes them from page-locked memory. Then large ones are dealt
out to several streams. Each stream has a thread, which stages arrays of ordinary memory in page-locked memory, and that
takes longer than the copy. A plan cannot know which arrays are page-locked. Those lose nothing, as they take turns on
any streams.

With chains taken as single tasks, list scheduling on m equal machines is within 2 - 1/m of max(critical path,
work / m): R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969). His proof does not
cover holding leaves back. So if a schedule exceeds his bound, the third attempt is taken if it is any faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import compress, pairwise
from typing import Final, NamedTuple, final

from dagpu.common.places import here
from dagpu.common.wrong_arguments import check_flag, wrong_argument
from dagpu.plans.cost_model import (
    COMPUTE,
    DOWNLOAD,
    ENGINE_OF,
    ENGINES,
    PEER_IN,
    UPLOAD,
    CostModel,
    peer_of,
    without_engines,
)
from dagpu.plans.order_search import RUNS, OrderSearch, Worth, by_length, in_words, known_part
from dagpu.plans.policies import Placement, check_runs, check_settings, placed_by
from dagpu.plans.program import CopyDtoD, CopyHtoD, Launch, Program
from dagpu.plans.room import Room

# ---- dependences
#
# Dependences between the instructions of a program, by whole buffers, and the graph that list scheduling uses.


ANYWHERE: Final = -1
"""Pool of an instruction that another policy places, on an unknown stream: it starts as soon as it is ready."""


@final
class Dependences:
    """Dependence graph of a program, with the time and the pool of each instruction.

    Each engine of a device has a *pool* of streams.
    """

    def __init__(
        self,
        program: Program,
        times: list[float],
        own: Sequence[bool] | None = None,
        *,
        ports: int = 1,
        unknown: Sequence[bool] | None = None,
    ) -> None:
        """`own` says for each instruction whether the policy places it; None if it places all. `ports` is that of the
        links between devices."""
        self.times = times
        """Seconds of each instruction."""
        self.unknown = [False] * len(times) if unknown is None else unknown
        """For each instruction, whether it may take much longer than that."""
        self.count = count = len(times)
        self.devices = len(program.devices)
        self.ports = ports
        """Number of copies between devices that a device sends at once, and that it receives at once."""
        self.pool: list[int] = []
        """The pool of each instruction; `ANYWHERE` if another policy places it."""
        self.sender: dict[int, int] = {}
        """For each copy between two devices, the device that it comes from."""
        without = without_engines(program.devices)
        for index, instruction in enumerate(program.instructions):
            pool = instruction.device * ENGINES + COMPUTE
            if type(instruction) is not Launch:  # most are launches
                engine = ENGINE_OF.get(type(instruction), COMPUTE)
                if engine and not without[instruction.device]:
                    pool += engine - COMPUTE
                if type(instruction) is CopyDtoD and (peer := peer_of(instruction, program.buffers)) >= 0:
                    pool, self.sender[index] = instruction.device * ENGINES + PEER_IN, peer
            self.pool.append(pool if own is None or own[index] else ANYWHERE)
        self.after: list[list[int]] = [[] for _ in range(count)]
        """For each instruction, its direct successors; most transitive ones are left out."""
        self.producers = [0] * count
        """Number of direct predecessors of each instruction."""
        self.leaves_of: dict[int, list[int]] = {}
        """For an instruction, the leaves that are held back for it."""
        self.feeds: dict[int, list[int]] = {}
        """For an instruction, its consumers that have leaves held back."""
        self.gate: dict[int, int] = {}
        """For an instruction with leaves held back, the number of its other producers."""
        self.rest: list[float] = []
        """For each instruction, the seconds of the longest path from its start."""
        self.work: dict[int, float] = {}
        """For each pool that has work, the sum of its seconds."""
        self._connect(program)
        self._measure()

    def _connect(self, program: Program) -> None:
        """Fill in `after`, `producers`, and the tables of leaves."""
        after, producers = self.after, self.producers
        for index, found in enumerate(program.accesses.predecessors):
            if not found:
                continue
            before = found
            if len(found) > 1:
                before = list(dict.fromkeys(found))
                self._hold_back(index, before)
            producers[index] = len(before)
            for earlier in before:
                after[earlier].append(index)

    def _hold_back(self, index: int, before: list[int]) -> None:
        """Note the leaves among the producers `before` of an instruction: they wait until the others start.

        A leaf belongs to its first consumer. A copy is not a leaf, because it has a stream of its own to run ahead on.
        """
        leaves: list[int] = []
        others: list[int] = []
        for earlier in before:
            if self.producers[earlier]:
                others.append(earlier)
            elif not self.after[earlier] and self.pool[earlier] % ENGINES == COMPUTE:
                leaves.append(earlier)
        if leaves and others:
            self.leaves_of[index] = leaves
            self.gate[index] = len(others)
            for earlier in others:
                self.feeds.setdefault(earlier, []).append(index)

    def _measure(self) -> None:
        """Fill in `rest` and `work`."""
        work = dict.fromkeys(sorted(set(self.pool) - {ANYWHERE}), 0.0)
        for pool, seconds in zip(self.pool, self.times, strict=True):
            if pool >= 0:
                work[pool] += seconds
        self.work = work
        rest = self.rest = self.times.copy()
        after = self.after
        for index in range(self.count - 1, -1, -1):
            longest = 0.0
            for later in after[index]:
                if rest[later] > longest:
                    longest = rest[later]
            rest[index] += longest

    def bounds(self, streams: int) -> tuple[float, float]:
        """Return a lower bound on every makespan, and Graham's upper bound on that of list scheduling, in seconds.

        The lower bound is the larger of the critical path and the largest work of a pool, shared out over its streams.
        The upper bound applies Graham's argument to several pools. At any moment either the longest chain proceeds, or
        the pool that it needs is full. So it is the sum of the pools' shares and of the part (1 - 1 / `streams`) of the
        critical path.
        """
        path = lower = max(self.rest, default=0.0)
        upper = path * (1 - (0.0 if ANYWHERE in self.pool else 1 / streams))
        for pool, total in self.work.items():
            share = total / streams_of(pool, streams, self.ports)
            lower = max(lower, share)
            upper += share
        return lower, upper

    def by_path(self) -> list[int]:
        """Return the instructions sorted by descending `rest`, then in program order."""
        return by_length(self.rest)


def streams_of(pool: int, streams: int, ports: int = 1) -> int:
    """Return the number of streams of a pool: `streams` for kernels, one for each of the `ports` of a link, and one for
    the copies from the host and for those to it."""
    engine = pool % ENGINES
    return streams if engine == COMPUTE else ports if engine == PEER_IN else 1


# ---- the schedule


_ATTEMPT: Final = 3e-6
"""Predicted seconds of an attempt for each instruction (measured on one core of a Xeon server: 1.6 us for the
simulation, and 1.1 for an order by chance)."""
_STAY: Final = 0.7
"""The share of attempts by chance in which chains keep their streams, or do not, as in the best one so far."""
_GAIN: Final = 1e-3
"""The least part of its time by which an order has to be faster than program order, which holds little memory, or than
another before it."""
_GOOD: Final = 1.05
"""Factor of the lower bound within which a schedule needs no further attempt, whatever that takes. Also the factor by
which a schedule that holds back nothing, and so holds more memory, has to be faster."""

UPLOAD_STREAMS: Final = 2
"""Streams of a device for large copies from the host. While one stages an array of ordinary memory, the other copies.
Measured on an H200: eight kernels of 2.5 ms, each behind 16 MiB, take 14.4 ms with one stream, 11.3 with two, 11.8 with
three, 13.7 with four; sixteen of 1 ms behind 4 MiB take 17.8, 12.7, 11.7 and 13.0."""
PROMPT: Final = 4 << 20
"""Bytes of copies from the host up to which one stream has them all: on CUDA the thread that starts a run stages as
many by itself."""
_LARGE: Final = 2 << 20
"""Bytes of a copy from which on it may take another stream than the one before it. Smaller ones are slower so: 64
copies of 0.25 MiB took 15.4 ms over two streams, and 12.4 on one."""


@final
@dataclass(frozen=True, slots=True)
class ListSchedule:
    """List scheduling by critical path, on `streams` streams of each device; the default policy.

    Kernels, fills and host calls run on streams 0 to `streams - 1`. If a program is more than one chain, copies to a
    GPU and from it have streams of their own, so that they overlap with the rest: those from the host one, and four
    if they are large, those to the host one, and those from other devices one for each port of a link. A host device
    copies on its kernels' streams. An instruction runs on the stream of one of its producers if that is free.

    `costs` gives the times of instructions. Declare the times that you know: `CostModel().declare({"gemm": 3e-5})`.
    Kernels of which no time is known count as long as their share of the other work, and are dealt out to the streams
    in turn.

    Further orders are tried as long as that is worth its time: `runs` says how often a plan is to run. `memory_limit`
    is the most bytes that a run may take beyond its inputs.
    """

    streams: int = 4
    """Streams of each device, besides those for copies."""
    costs: CostModel = field(default_factory=CostModel)
    """The cost model that predicts the time of each instruction."""
    memory_limit: int | None = None
    """Most bytes that a run may take beyond its inputs. For that lanes wait for memory, instructions start
    in another order, or overlap is given up, whichever is predicted to be quickest. None for what the device has free
    when a plan is made that takes more; on a host for no limit."""
    runs: float = RUNS
    """The runs that a plan is made for. Planning tries further orders as long as it takes less time than so many runs
    could gain by them: at most by what their makespan is longer than its lower bound. 0 for a plan that is to be made
    soon, 1000 for one that runs all day."""
    recompute: bool = False
    """True if temporaries may be made again, by the same instructions, so that a run keeps its `memory_limit`. Results
    keep their bits. A feed recomputes nothing."""

    def __post_init__(self) -> None:
        check_settings("ListSchedule", self.streams, self.memory_limit)
        check_runs("ListSchedule", self.runs)
        check_flag(self.recompute, "ListSchedule", here(), "recompute")
        if not isinstance(self.costs, CostModel):
            cure = "Write costs=CostModel(), or leave it out"
            raise wrong_argument("ListSchedule", here(), "costs", self.costs, "a CostModel", cure)

    def place(self, program: Program) -> Placement:
        """Return the stream of each instruction and the order in which the instructions start.

        Time: O(n log n), with a small constant before the log.
        """
        if _is_chain(program):
            return Placement((0,) * len(program.instructions))
        return place_on_streams(program, self.streams, self.costs, placed_by(program, self), self.runs)


def place_on_streams(
    program: Program, streams: int, costs: CostModel, own: list[bool], runs: float = RUNS
) -> Placement:
    """Return the stream of each instruction and the order in which the instructions start, as `ListSchedule` chooses
    them. `own` says for each instruction whether the policy places it, `runs` how many runs the plan is made for."""
    times, unknown = costs.estimates(program)
    _fill_in(times, unknown)
    on = Dependences(program, times, own, ports=costs.links.peer.ports, unknown=unknown)
    best, about = _best_simulation(on, streams, program.accesses.predecessors, runs)
    uploads: dict[int, list[int]] = {pool: [] for pool in on.work if pool % ENGINES == UPLOAD}
    if uploads:
        for index in best.order:
            if on.pool[index] in uploads:
                uploads[on.pool[index]].append(index)
        for copies in uploads.values():
            _deal_out(copies, program, best.keys)
    return Placement(best.keys, best.order, about)


@final
class Roomy(NamedTuple):
    """A placement in which streams wait for memory."""

    placement: Placement
    most: int
    """The most bytes of temporaries that are held at once in its simulation."""


@final
class RoomySchedules:
    """Placements of a program by list scheduling in which streams wait for memory."""

    def __init__(self, program: Program, streams: int, costs: CostModel, own: list[bool]) -> None:
        self._program = program
        self._streams = streams
        times, unknown = costs.estimates(program)
        _fill_in(times, unknown)
        self._on = Dependences(program, times, own, ports=costs.links.peer.ports, unknown=unknown)
        self.bound, _ = self._on.bounds(streams)
        """A lower bound on the seconds of every schedule."""

    def place(self, order: Sequence[int], nbytes: float) -> Roomy:
        """Return a placement in which instructions start by their places in `order`, while the temporaries that are
        alive take at most so many bytes."""
        room = Room(self._program, nbytes)
        found = ListSimulation(self._on, self._streams, list(order), hold_back=False, pass_on=False, room=room)
        return Roomy(Placement(found.keys, found.order, ended=found.ended), room.most)


def _best_simulation(
    on: Dependences, streams: int, before: Sequence[Sequence[int]], runs: float
) -> "tuple[ListSimulation, str]":
    """Return the best of the attempts that are made, and how it was found. `before` has the predecessors of each
    instruction."""
    lower, graham = on.bounds(streams)
    best, name, count = ListSimulation(on, streams, list(range(on.count)), hold_back=True), "program order", 1
    if best.makespan <= lower * (1 + _GAIN):
        return best, f"{name}, the first attempt: no other order is sooner done"
    worth = Worth(runs, lower, on.count * _ATTEMPT, known_part(on.times, on.unknown))
    ranked: list[int] = []
    if best.makespan > _GOOD * lower or worth.another(best.makespan):
        ranked, count = on.by_path(), count + 1
        other = ListSimulation(on, streams, ranked, hold_back=True, limit=best.makespan)
        if _is_sooner(other, best):
            best, name = other, "longest path first"
    if ranked and on.gate and (best.makespan > _GOOD * lower or worth.another(best.makespan)):
        limit, count = best.makespan if best.makespan > graham else best.makespan / _GOOD, count + 1
        other = ListSimulation(on, streams, ranked, hold_back=False, limit=limit)
        if other.makespan <= limit:
            best, name = other, "longest path first, no leaf held back"
    search, least, pass_on = OrderSearch(on.times, before), best.makespan, True
    while worth.another(best.makespan):
        count += 1
        tried = pass_on if search.random.random() < _STAY else not pass_on
        other = ListSimulation(on, streams, search.next(), hold_back=best.hold_back, pass_on=tried, limit=least)
        if other.makespan <= least:
            least, pass_on = other.makespan, tried
            search.keep()
            if _is_sooner(other, best):
                best, name = other, "an order found by search"
    return best, in_words(name, count, worth)


def _is_sooner(one: "ListSimulation", other: "ListSimulation") -> bool:
    """Return whether an attempt is sooner done than another, by enough to be worth the memory that it may hold."""
    return one.makespan < other.makespan * (1 - _GAIN)


def _deal_out(copies: list[int], program: Program, keys: list[int]) -> None:
    """Deal out copies from the host, in the order of their starts, which are on the first of a device's streams for
    them. A large one goes on the stream with the least."""
    instructions = program.instructions
    sizes = [each.out.layout.nbytes if type(each := instructions[at]) is CopyHtoD else 0 for at in copies]
    if sum(sizes) <= PROMPT:
        return
    taken = [0] * UPLOAD_STREAMS
    for index, nbytes in zip(copies, sizes, strict=True):
        number = taken.index(min(taken)) if nbytes >= _LARGE else 0
        taken[number] += nbytes
        keys[index] += number


def _fill_in(times: list[float], unknown: list[bool]) -> None:
    """Take each piece of unknown work to be as long as its share of the known work, if its bytes take less."""
    guesses = sum(unknown)
    known = len(times) - guesses
    if guesses and known:
        share = (sum(times) - sum(compress(times, unknown))) / math.sqrt(known * guesses)
        for index in compress(range(len(times)), unknown):
            if times[index] < share:
                times[index] = share


def _is_chain(program: Program) -> bool:
    """Return whether each instruction reads or writes a buffer that the one before has written, all on one device."""
    if len(set(program.policy_of)) > 1:
        return False
    for before, instruction in pairwise(program.instructions):
        if instruction.device != before.device:
            return False
        for buffer in before.writes:
            if buffer in instruction.reads or buffer in instruction.writes:
                break
        else:
            return False
    return True


# ---- one attempt: a simulation of the program in the cost model


_LOOK: Final = 64
"""Number of starts after which an attempt checks again whether it can still keep its limit."""


@final
class ListSimulation:
    """A simulated run of the program. `ranked` holds the instructions, highest priority first. With `hold_back`, leaves
    wait for their siblings; with `pass_on`, a chain keeps its stream. With `room`, an instruction starts only when
    there is room for what it writes, or when nothing else runs; what is ranked below it waits too.

    The attempt stops with a makespan of `inf` once it is certain to take longer than `limit`. If streams are idle
    because copies are late, that is certain within the first third.
    """

    def __init__(
        self,
        on: Dependences,
        streams: int,
        ranked: list[int],
        *,
        hold_back: bool,
        pass_on: bool = True,
        limit: float = math.inf,
        room: Room | None = None,
    ) -> None:
        self._on = on
        self._room = room
        self._ranked = ranked
        self._rank = [0] * on.count
        for rank, index in enumerate(ranked):
            self._rank[index] = rank
        self._missing = on.producers.copy()
        self.hold_back = hold_back
        self._pass_on = pass_on
        self._gate = on.gate.copy() if hold_back else {}
        self._feeds = on.feeds if hold_back else {}
        self._toward = [-1] * on.count
        """For each instruction, the position in `order` of its latest producer in the same pool; -1 if none."""
        self._events: list[tuple[float, int]] = []
        """A heap of the running instructions: end time, and position in `order`."""
        self._ready: dict[int, list[int]] = {}
        """For each pool, a heap of the ranks of its ready instructions."""
        self._idle: dict[int, list[int]] = {}
        """For each pool, a stack of its free streams: the last freed is the first taken, so that few are used. A stream
        of unknown work goes to the bottom: it may be busy still, and the one that was freed first is the likeliest to
        be free by now."""
        self._doubted: set[tuple[int, int]] = set()
        """The pool and the key of each free stream that has run unknown work."""
        self._doubtful = bytearray(on.unknown)
        """For each instruction, whether it, or one before it that has passed its stream on to it, is unknown."""
        for pool in on.work:
            self._ready[pool] = []
            self._idle[pool] = _keys_of(pool % ENGINES, streams, on.ports)
        self._senders = [[0.0] * on.ports for _ in range(on.devices)]
        """For each device, when each of its ports can send another copy. The lane of the receiving device waits for
        that."""
        self._unbound: list[int] = []
        """Ready instructions that belong to no pool."""
        self._streams = streams
        self._limit = limit * (1 + 1e-9)  # sums in another order end in other last bits
        self._left = on.work.copy()
        """For each pool, the seconds of the instructions after the first `_counted` starts."""
        self._counted = 0
        self.keys = [0] * on.count
        self.ended = [0] * on.count
        """With `room`, for each instruction the number of those that start before it ends."""
        self.order: list[int] = []
        self.makespan = self._run()

    def _run(self) -> float:
        """Simulate the run, and return its makespan in seconds; `inf` if it exceeds the limit."""
        gated: set[int] = set()
        for index in self._gate:
            gated.update(self._on.leaves_of[index])
        for index, producers in enumerate(self._missing):
            if not producers and index not in gated:
                self._offer(index)
        events, now = self._events, 0.0
        pools = [(pool, self._ready[pool], self._idle[pool]) for pool in self._on.work]
        limited = self._limit < math.inf
        while True:
            if limited and len(self.order) >= self._counted + _LOOK and self._is_late(now):
                return math.inf
            while self._unbound:
                self._start(self._unbound.pop(), 0, now)
            if self._room is not None:
                self._dispatch_with_room(pools, now)
            else:
                for pool, ready, idle in pools:
                    if ready and idle:
                        self._dispatch(pool, now)
            if not events:
                return now
            now = events[0][0]
            while events and events[0][0] <= now:
                self._finish(heappop(events)[1], now)

    def _is_late(self, now: float) -> bool:
        """Return whether some pool has more work left than its streams can do within the limit."""
        left, pool_of, times = self._left, self._on.pool, self._on.times
        for index in self.order[self._counted :]:
            if pool_of[index] != ANYWHERE:
                left[pool_of[index]] -= times[index]
        self._counted = len(self.order)
        return any(
            now + seconds / streams_of(pool, self._streams, self._on.ports) > self._limit
            for pool, seconds in left.items()
        )

    def _offer(self, index: int) -> None:
        """Add an instruction to the ready instructions of its pool."""
        pool = self._on.pool[index]
        if pool == ANYWHERE:
            self._unbound.append(index)
        else:
            heappush(self._ready[pool], self._rank[index])

    def _start(self, index: int, key: int, now: float) -> None:
        """Start an instruction on a stream, and offer the leaves that were held back for its start."""
        on, seconds = self._on, self._on.times[index]
        if index in on.sender:
            ports = self._senders[on.sender[index]]
            first = min(ports)
            now = max(now, first)
            ports[ports.index(first)] = now + seconds
        heappush(self._events, (now + seconds, len(self.order)))
        if self._room is not None:
            self._room.start(index)
        self.order.append(index)
        self.keys[index] = key
        if index in self._feeds:
            for fed in self._feeds[index]:
                self._gate[fed] -= 1
                if not self._gate[fed]:
                    for leaf in on.leaves_of[fed]:
                        self._offer(leaf)

    def _finish(self, position: int, now: float) -> None:
        """End the instruction at `position` in `order`. Pass its stream on to its only consumer, or free the stream."""
        on, missing, toward, pools = self._on, self._missing, self._toward, self._on.pool
        index = self.order[position]
        pool, followers, room = pools[index], on.after[index], self._room
        if room is not None:
            self.ended[index] = len(self.order)
            room.end(index)
        for later in followers:
            left = missing[later] = missing[later] - 1
            there = pools[later]
            if there == pool:
                if toward[later] < position:
                    toward[later] = position
                if on.producers[later] == 1 == len(followers) and self._pass_on and (room is None or room.has(later)):
                    if self._doubtful[index]:
                        self._doubtful[later] = 1
                    self._start(later, self.keys[index], now)
                    return
            if not left:
                if there == ANYWHERE:
                    self._unbound.append(later)
                else:
                    heappush(self._ready[there], self._rank[later])
        if pool != ANYWHERE:
            key = self.keys[index]
            if self._doubtful[index]:
                self._doubted.add((pool, key))
                self._idle[pool].insert(0, key)
            elif self._doubted and (pool, key) in self._doubted:
                self._idle[pool].insert(0, key)
            else:
                self._idle[pool].append(key)

    def _dispatch_with_room(self, pools: Sequence[tuple[int, list[int], list[int]]], now: float) -> None:
        """Start ready instructions of all pools by rank while there is room: what is ranked first has it first."""
        room, ranked = self._room, self._ranked
        assert room is not None
        while True:
            first, chosen = len(ranked), -1
            for at, (_, ready, idle) in enumerate(pools):
                if ready and idle and ready[0] < first:
                    first, chosen = ready[0], at
            if chosen < 0 or (self._events and not room.has(ranked[first])):
                return
            _, ready, idle = pools[chosen]
            heappop(ready)
            index = ranked[first]
            producer = self._toward[index]
            key = self.keys[self.order[producer]] if producer >= 0 else -1
            if key in idle:
                idle.remove(key)
            else:
                key = idle.pop()
            self._start(index, key, now)
            while self._unbound:
                self._start(self._unbound.pop(), 0, now)

    def _dispatch(self, pool: int, now: float) -> None:
        """Start ready instructions by rank while streams are free, each on its producer's stream if that is free."""
        ready, idle = self._ready[pool], self._idle[pool]
        ranked, toward, order, keys = self._ranked, self._toward, self.order, self.keys
        while ready and idle:
            if len(idle) == 1:  # there is no choice
                self._start(ranked[heappop(ready)], idle.pop(), now)
                continue
            if len(ready) == 1:
                index = ranked[ready.pop()]
                producer = toward[index]
                key = keys[order[producer]] if producer >= 0 else -1
                if key in idle:
                    idle.remove(key)
                else:
                    key = idle.pop()
                self._start(index, key, now)
                continue
            elsewhere: list[int] = []
            for _ in range(min(len(ready), len(idle))):
                index = ranked[heappop(ready)]
                producer = toward[index]
                if producer >= 0 and (key := keys[order[producer]]) in idle:
                    idle.remove(key)
                    self._start(index, key, now)
                else:
                    elsewhere.append(index)
            for index in elsewhere:
                self._start(index, idle.pop(), now)


def _keys_of(engine: int, streams: int, ports: int) -> list[int]:
    """Return the keys of the streams of a pool, as a stack: the last is used first."""
    if engine == COMPUTE:
        return list(range(streams - 1, -1, -1))
    if engine == UPLOAD:
        return [streams]
    first = streams + UPLOAD_STREAMS
    return [first] if engine == DOWNLOAD else list(range(first + ports, first, -1))
