"""What a run on a cluster will be, in words: its parts, what is sent, the predicted time, and what holds it up."""

from collections import Counter
from collections.abc import Sequence

from dagpu.cluster.parts.part import Part
from dagpu.cluster.parts.part_times import HOP, simulate_parts
from dagpu.lowering.program import HOST, Program
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.text import table


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
