"""What a run on a cluster will be: its parts and their predicted times."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from dagpu.cluster.cutting import Part, cut
from dagpu.plans.cost_model import CostModel
from dagpu.plans.mesh import Link, Links, Mesh
from dagpu.plans.program import HOST, Program
from dagpu.plans.text import table


def report(program: Program, parts: Sequence[Part], costs: CostModel) -> str:
    """Return the description of a run of these parts."""
    if not parts:
        return "Nothing runs on the cluster: the op has its value already."
    times = simulate_parts(parts, program, costs)
    workers = sorted({part.worker for part in parts})
    rows = [_row(worker, [part for part in parts if part.worker == worker]) for worker in workers]
    moved = _moved(program, parts)
    lines = [
        f"{len(parts)} parts on {len(workers)} workers, {len(program.instructions)} instructions",
        *table(("worker", "parts", "work", "most memory"), rows),
        "",
    ]
    if moved:
        lines += [*table(("from", "to", "bytes"), [(a, b, f"{n:,}") for (a, b), n in sorted(moved.items())]), ""]
    bound = max(times.path, times.work / len(workers))
    lines.append(
        f"predicted {_ms(times.makespan)}; at best {_ms(bound)}: the longest path is {_ms(times.path)}, and all work "
        f"on {len(workers)} workers {_ms(times.work / len(workers))}"
    )
    lines.append(_held_up(times.waiting, times.makespan, bound, parts, times.busiest))
    return "\n".join(lines)


def _row(worker: str, parts: Sequence[Part]) -> tuple[str, ...]:
    peak = max([sum(part.peak_bytes.values()) for part in parts])
    return worker, str(len(parts)), _ms(sum([part.seconds for part in parts])), f"{peak:,}"


def _moved(program: Program, parts: Sequence[Part]) -> Counter[tuple[str, str]]:
    """Return the bytes of tensors that are sent from worker to worker."""
    home = {version: part.worker for part in parts for version in part.exports}
    moved: Counter[tuple[str, str]] = Counter()
    seen: set[tuple[str, tuple[int, int]]] = set()
    for part in parts:
        for version in part.imports:
            source = home.get(version, part.worker)
            about = program.buffers[version[0]]
            if source != part.worker and about.device != HOST and (part.worker, version) not in seen:
                seen.add((part.worker, version))
                moved[source, part.worker] += about.nbytes
    return moved


def _held_up(waiting: float, makespan: float, bound: float, parts: Sequence[Part], busiest: str) -> str:
    """Return a sentence on what keeps the run from being faster."""
    mean = sum([part.seconds for part in parts]) / len(parts)
    if mean < HOP:
        return (
            f"held up by the cluster itself: a part works for {_ms(mean)} and a change of workers takes {_ms(HOP)}. "
            "Give each worker more to do at once, or run the op on one device."
        )
    if waiting > 0.2 * makespan:
        return f"held up by values on their way: workers wait for {_ms(waiting)} together."
    if makespan > 1.2 * bound:
        return f"held up by {busiest}, which works longest."
    return "nothing holds it up: it is within 20 % of the bound."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms"


# ---- part times
#
# Predicts how long parts take together, and chooses how long one part is to be.
#
# A task of Dask that needs another one's value on another worker starts about 5.6 ms after it: scheduler and workers
# collect messages for some milliseconds. Parts much shorter than that would wait more than they work; parts much longer
# leave workers idle until a whole part is done.

HOP: Final = 5.6e-3
"""Seconds from the end of a part to the start of one that needs its value: measured with Dask distributed 2026.8 on two
processes of one machine."""
PART_COST: Final = 3.0e-3
"""Seconds that a part costs besides its work: the Python of the scheduler and the worker. Measured likewise."""
_HOPS: Final = (10, 30, 100)
"""The lengths of parts that are tried, in hops."""

CLUSTER_COSTS: Final = CostModel(links=Links(node=Link(HOP, 1e9)))
"""The costs of a cluster: those of one GPU, and between workers the latency of a hop, and 1 GB/s, as TCP on one machine
has (64 MiB took 70 ms)."""


@final
class PartTimes(NamedTuple):
    """The outcome of a simulation of parts."""

    makespan: float
    """Seconds until all parts are done."""
    path: float
    """Seconds of the longest way through the parts, if moves took no time."""
    work: float
    """Seconds of all parts together."""
    busiest: str
    """The worker that works longest."""
    waiting: float
    """Seconds that the workers wait for values, together."""


def simulate_parts(parts: Sequence[Part], program: Program, costs: CostModel) -> PartTimes:
    """Simulate parts, each worker running its own in order, one at a time."""
    link, nbytes = costs.links.node, [buffer.nbytes for buffer in program.buffers]
    free: dict[str, float] = {}
    busy: dict[str, float] = {}
    ends: list[float] = []
    paths: list[float] = []
    home = {version: index for index, part in enumerate(parts) for version in part.exports}
    waiting = 0.0
    for part in parts:
        begin = path = 0.0
        for version in part.imports:
            maker = home.get(version)
            if maker is not None:
                near = parts[maker].worker == part.worker
                begin = max(begin, ends[maker] + (0.0 if near else link.seconds(nbytes[version[0]])))
                path = max(path, paths[maker])
        idle = free.get(part.worker, 0.0)
        waiting += max(begin - idle, 0.0)
        end = max(begin, idle) + part.seconds + PART_COST
        free[part.worker] = end
        busy[part.worker] = busy.get(part.worker, 0.0) + part.seconds
        ends.append(end)
        paths.append(path + part.seconds)
    busiest = max(busy, key=busy.__getitem__, default="")
    return PartTimes(max(ends, default=0.0), max(paths, default=0.0), sum(busy.values()), busiest, waiting)


def choose_part_seconds(program: Program, mesh: Mesh, costs: CostModel) -> Sequence[Part]:
    """Return the parts of a program, of the length that the simulation finds fastest."""
    tried: list[tuple[float, Sequence[Part]]] = []
    for hops in _HOPS:
        parts = cut(program, mesh, part_seconds=hops * HOP, costs=costs)
        tried.append((simulate_parts(parts, program, costs).makespan, parts))
        if len(parts) == len({(part.worker, part.epoch) for part in parts}):
            break  # no part is full: longer ones are the same
    return min(tried, key=lambda each: each[0])[1]
