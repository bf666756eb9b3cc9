"""The orders and devices that `Spread` tries for a program on a mesh, all of which one simulation compares.

Always: the longest paths and program order, each instruction where it is done soonest (HEFT: Topcuoglu, Hariri and Wu,
"Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE TPDS 13, 2002), and one
device for everything. The second of them only if the first is not near the lower bound, and the third only if the
others take as long as one device's work.

As long as it is worth it, by the rule of `order_search`: longest paths with the copies counted in; HEFT and PEFT as
their papers have them (PEFT: Arabnejad and Barbosa, "List scheduling algorithm for heterogeneous systems by an
optimistic cost table", IEEE TPDS 25, 2014), which know of no contention for links, but put an instruction in a gap
between two others; and orders by chance. A run is taken to gain no more by them than it has gained so far beside one
device: a bound without copies says little where copies take most of the time.

A kernel of unknown cost is taken to be short, `UNKNOWN`. Beside long uploads all such kernels then meet on the devices
that have no upload. So the run is simulated once more with long kernels, as they may be. If it is far from the bound
then, runs are tried that longer kernels lead to. The one is taken whose multiple of the bound is the least at worst, be
the kernels short or long. So the first run of a program spreads, before anything is known of its kernels.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf
from operator import sub
from typing import Final, NamedTuple, final

from dagpu.plans.mesh_simulation import MeshSimulation, SimulatedRun
from dagpu.plans.order_search import OrderSearch, Worth, by_length, in_words, known_part, longest_paths

_GOOD: Final = 1.05
"""Factor of the lower bound within which a placement needs no further attempt, whatever that takes."""

_MANY: Final = 4
"""The number of devices from which on the longest paths are tried before program order. On fewer devices program order
is often good enough, and moves less: tiled Cholesky of 20 x 20 tiles takes 2,181 and 2,838 instructions on 2."""

_INSTRUCTION: Final = 4e-6
"""Predicted seconds of an attempt for each instruction (measured on one core of a Xeon server: 4.0 us on 2 devices)."""
_LOOK: Final = 0.5e-6
"""Predicted seconds of an attempt for each device that is looked at for an instruction (7.3 us on 8)."""

_LONGER: Final = (1e-3, 10e-3)
"""Seconds for which a kernel of unknown cost is taken in further runs; the last is a long kernel. Without the first, 9
of 10,000 random programs, on 2 to 5 devices with kernels of 10 to 100 ms, had over twice their share of the kernels on
one device; with both none had, without either 674."""
_FAR: Final = 1.5
"""Factor of the lower bound from which on a run is far from it, with long kernels."""

_SHUN: Final = (0.0, 0.3, 1.0)
"""Weights of the time of copies that the search tries."""
_STAY: Final = 0.7
"""The share of attempts by chance that keep the weight of the best run so far."""


@final
class Chosen(NamedTuple):
    """The best run that was found, and how."""

    run: SimulatedRun
    about: str
    """The way in which it was found, in words."""


def best_run(simulation: MeshSimulation, shun: float, runs: float) -> Chosen:
    """Return the run of the least makespan among those that are worth being tried for a plan that is made for `runs`
    runs; where times are unknown, one that is good if they are long, too. `shun` is the weight of the time of copies
    that a policy asks for.

    Time: O(n log n + n d), with d devices, for each of the runs that are tried.
    """
    found = _soonest(simulation, shun, runs)
    longer = [simulation.if_unknown_take(seconds) for seconds in _LONGER]
    long = longer[-1]
    if simulation.versions.free == 1 or long is None:
        return found
    bound, bound_if_long = _bound(simulation), _bound(long)

    def if_long(run: SimulatedRun) -> float:
        """Return the multiple of the lower bound that a run takes with long kernels."""
        return long.run(run.order, run.devices).makespan / bound_if_long

    ratio = if_long(found.run)
    if ratio <= _FAR:
        return found
    least = max(found.run.makespan / bound, ratio)
    for other in filter(None, longer):
        spread = _soonest(other, shun, 0)
        run = simulation.run(spread.run.order, spread.run.devices)
        worst = max(run.makespan / bound, if_long(run))
        if worst < least:
            least, found = worst, Chosen(run, f"{spread.about}, with unknown kernels that take long")
    return found


def _bound(simulation: MeshSimulation) -> float:
    """Return the least seconds in which the devices could be done: the longest path, or an equal share of the work."""
    versions = simulation.versions
    return max(versions.by_path(simulation.times)[1], simulation.work() / versions.free)


def _soonest(simulation: MeshSimulation, shun: float, runs: float) -> Chosen:
    """Return the run of the least makespan among those that are tried."""
    versions, order = simulation.versions, range(len(simulation.times))
    devices, work = versions.free, simulation.work()
    if devices == 1:
        return Chosen(simulation.run(order, shun=shun), "")
    ranked, path = versions.by_path(simulation.times)
    bound, tried = max(path, work / devices), _Tried()
    for name, each in _first(order, ranked, devices):
        tried.offer(name, simulation.run(each, shun=shun))
        if tried.best.makespan <= _GOOD * bound:
            break
    if tried.best.makespan >= work:
        tried.offer("all on one device", simulation.run(order, only=versions.start_place()), or_equal=True)
    known = known_part(simulation.times, simulation.unknown)
    worth = Worth(runs, bound, len(order) * (_INSTRUCTION + _LOOK * devices), known)
    further = _further(simulation, shun)
    while worth.another(tried.best.makespan, most=work - tried.best.makespan):
        tried.offer(*next(further))
    return Chosen(tried.best, in_words(tried.name, tried.count, worth))


@final
class _Tried:
    """The runs that were tried."""

    def __init__(self) -> None:
        self.best = SimulatedRun((), inf, [], {}, {})
        """The run of the least makespan."""
        self.name = ""
        """The way in which it was found, in words."""
        self.count = 0

    def offer(self, name: str, run: SimulatedRun, *, or_equal: bool = False) -> None:
        """Take a run if it is sooner done, or as soon with `or_equal`."""
        self.count += 1
        if run.makespan < self.best.makespan or (or_equal and run.makespan == self.best.makespan):
            self.best, self.name = run, name


def _first(order: Sequence[int], ranked: Sequence[int], devices: int) -> list[tuple[str, Sequence[int]]]:
    """Return the orders that are tried for every program."""
    found = [("program order", order), ("longest path first", ranked)]
    return found if devices < _MANY else found[::-1]


def _further(simulation: MeshSimulation, shun: float) -> Iterator[tuple[str, SimulatedRun]]:
    """Yield further runs, without end."""
    times, before, edges = simulation.times, simulation.versions.before, simulation.copy_seconds()
    ranked = by_length(longest_paths(times, before, edges))
    best, weight = simulation.run(ranked, shun=shun), shun
    yield "longest path first, copies included", best
    yield "HEFT", _inserted(simulation, ranked)
    # The optimistic costs of devices that are alike are equal: the longest path after the instruction, without copies.
    costs = list(map(sub, longest_paths(times, before), times))
    yield "PEFT", _inserted(simulation, by_length(costs))
    for other in _SHUN:
        if other != shun:
            run = simulation.run(ranked, shun=other)
            if run.makespan < best.makespan:
                best, weight = run, other
            yield f"longest path first, copies weighed {other:g}", run
    search = OrderSearch(times, before, edges)
    while True:
        tried = weight if search.random.random() < _STAY else search.random.choice(_SHUN)
        run = simulation.run(search.next(), shun=tried)
        if run.makespan <= best.makespan:
            best, weight = run, tried
            search.keep()
        yield "an order found by search", run


# ---- insertion


def _inserted(simulation: MeshSimulation, ranked: Sequence[int]) -> SimulatedRun:
    """Return the run in the order and on the devices that HEFT gives with this ranking: each instruction where it ends
    first, in a gap that is long enough, and as if every copy had a link of its own."""
    versions, before = simulation.versions, simulation.versions.before
    gaps: dict[tuple[int, int], _Gaps] = {}
    home = list(versions.start)
    begins, ends = [0.0] * len(ranked), [0.0] * len(ranked)
    devices = [0] * len(ranked)
    for index in ranked:
        engine, busy, fixed = simulation.engine[index], simulation.busy[index], versions.fixed[index]
        after = max([ends[earlier] for earlier in before[index]], default=0.0)
        used = [version for version in versions.uses[index] if home[version] >= 0]
        best, chosen = inf, 0
        for place in range(versions.free) if fixed < 0 else (fixed,):
            ready = after
            for version in used:
                if home[version] != place:
                    made = versions.maker[version]
                    there = simulation.seconds_of(version, home[version], place) + (ends[made] if made >= 0 else 0.0)
                    if there > ready:
                        ready = there
            begin = gaps.setdefault((engine, place), _Gaps()).find(ready, busy)
            if begin < best:
                best, chosen = begin, place
        gaps[engine, chosen].take(best, busy)
        begins[index], ends[index], devices[index] = best, best + simulation.times[index], chosen
        for version in versions.makes[index]:
            home[version] = chosen
    rank = {index: number for number, index in enumerate(ranked)}
    return simulation.run(sorted(ranked, key=lambda index: (begins[index], rank[index])), devices)


@final
class _Gaps:
    """The times at which a queue is idle, each as its end and begin, in order."""

    __slots__ = ("_idle",)

    def __init__(self) -> None:
        self._idle = [(inf, 0.0)]

    def find(self, ready: float, seconds: float) -> float:
        """Return the first time from `ready` on at which the queue is idle for so many seconds."""
        idle = self._idle
        for at in range(bisect_left(idle, (ready + seconds,)), len(idle)):
            end, begin = idle[at]
            if ready > begin:
                begin = ready
            if begin + seconds <= end:
                return begin
        return ready  # not reached: the last gap has no end

    def take(self, begin: float, seconds: float) -> None:
        """Occupy the queue for so many seconds from a time on that `find` has returned."""
        idle = self._idle
        at = bisect_left(idle, (begin + seconds,))
        end, start = idle[at]
        idle[at : at + 1] = [(begin, start)] * (begin > start) + [(end, begin + seconds)] * (begin + seconds < end)
