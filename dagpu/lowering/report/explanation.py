"""The text report of a plan: its instructions and waits, predicted times, memory, and branches that do not overlap."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from dagpu.common.origin import describe
from dagpu.handles.library_bodies import STAGED_BYTES, UserBody
from dagpu.lowering.plan import Execute, Plan, peak_bytes_on
from dagpu.lowering.program import Launch, Role
from dagpu.lowering.report.memory_bound import least_bytes
from dagpu.lowering.report.missed_overlap import MOST_BRANCHES, Branch, Branches, branches_apart
from dagpu.lowering.report.prediction import PredictedStep, Prediction, forecast
from dagpu.lowering.schedule.cost_model import BY_BYTES, CostModel
from dagpu.lowering.text import OriginColumn, counted, table

MOST_ROWS: Final = 400
"""Most instructions in the table, by default."""
MOST_PAIRS: Final = 40
"""Most pairs of branches in the report, by default."""
_KERNELS: Final = 12
"""Most kernels in the table of kernels."""
_ON_A_LINE: Final = 12
"""Most instructions of the critical path that are named one by one."""
_WIDTH: Final = 88
"""Width of the lines of prose, in characters."""
_HOW_TO_READ: Final = (
    "Each row is an instruction, in the order of submission. It begins after the last row",
    "above it on the same lane (a stream of a device), and after those that it waits on.",
    "Times are predicted by bytes and launches, of an H200 or of NumPy on a host, but for",
    "kernels whose time was declared, learnt by the policy's CostModel, or measured.",
)


def explain(
    plan: Plan,
    costs: CostModel | None = None,
    *,
    rows: int = MOST_ROWS,
    pairs: int = MOST_PAIRS,
    legend: bool = True,
    mesh: tuple[int, int] | None = None,
) -> str:
    """Return a report of the plan. Times are predictions of `costs`, `CostModel()` unless given. `mesh` has the
    number of devices that the work is spread over, and of the streams of each; None if it is not spread.

    - With `legend`, sentences that say how to read the table. Then a table of the instructions, in the plan's order:
      the number, counted from 1 (as in `print(plan)`), the lane (`device/stream`), the instructions of other lanes that
      it waits for, the bytes that it writes on devices, the predicted begin and end, and the place in the user's code
      that built it. At most `rows` instructions are shown.
    - The critical path; the makespan compared with the lower bound max(critical path, work / lanes); the peak of memory
      beyond the inputs compared with the bytes that every execution of the plan holds at once.
    - If there are several devices: for each device its instructions, their time, and the bytes that it takes beyond the
      inputs; and for each link between two devices its copies, their bytes and their time.
    - The origin of the times of kernels that dagpu has not written: declared, learnt, measured in earlier runs, or
      unknown. A kernel of unknown cost is shown with the time of its bytes, and spread over the streams.
    - Each foreign op: the origin of its predicted time; the reason if it keeps the plan from being a CUDA graph, else
      the operands that a graph copies, and those for which it captures the body again.
    - If a kernel is launched more than once: for each kernel its launches, the bytes that they read and write, their
      time, and its share of the time of all instructions; those with the largest share first.
    - Each pair of independent branches that is predicted not to overlap, with the reason. At most `pairs` pairs are
      shown, those that lose most time first.
    """
    found = forecast(plan, costs, mesh)
    parts = [
        counted(len(found.pieces), "instruction"),
        counted(len(found.lanes), "lane"),
        counted(plan.events, "event"),
    ]
    lines = [f"Plan: {', '.join(parts)}, devices: {', '.join(plan.devices) or 'none'}"]
    if found.pieces:
        lines += [
            *(_HOW_TO_READ if legend else ()),
            "",
            *_instructions(found, rows),
            "",
            *_time(found),
            *_memory(plan),
            *_costs(plan, costs or CostModel()),
            *_foreign(plan, costs or CostModel()),
            *_devices(plan, found),
            "",
            *_kernels(found),
        ]
        lines += _overlap(found, pairs)
    return "\n".join(lines)


def _instructions(found: Prediction, most: int) -> list[str]:
    places = OriginColumn()
    pieces = found.pieces
    left_out = max(0, len(pieces) - most)
    shown = pieces if not left_out else (*pieces[: most - most // 2], *pieces[len(pieces) - most // 2 :])
    lines = table(
        ("#", "instruction", "lane", "waits on", "bytes", "from", "to", "origin"),
        [
            (
                str(piece.number),
                piece.label,
                found.lanes[piece.lane],
                " ".join([f"#{pieces[other].number}" for other in piece.waits]),
                f"{piece.nbytes:,}" if piece.nbytes else "",
                duration(piece.begin),
                duration(piece.end),
                places.text_of(piece.origin),
            )
            for piece in shown
        ],
    )
    if left_out:
        lines.insert(1 + most - most // 2, f"... {left_out:,} more instructions ...")
    return lines


def _time(found: Prediction) -> list[str]:
    steps = [f"#{found.pieces[index].number} {found.pieces[index].name}" for index in found.critical]
    path, work, bound = (duration(t) for t in (found.critical_seconds, found.work_seconds, found.bound))
    against = f"{_ratio(found.makespan, found.bound)} the lower bound {bound}"
    return [
        *_wrapped(f"Critical path, predicted: {path} in {counted(len(steps), 'instruction')}:", _ends_of(steps), " ->"),
        f"Makespan, predicted: {duration(found.makespan)}, {against}",
        f"  (critical path {path}, work / {'lanes' if found.mesh is None else 'lanes of the whole mesh'} {work})",
    ]


@final
class _KernelRow(NamedTuple):
    name: str
    launches: int
    nbytes: int
    seconds: float


def _kernels(found: Prediction) -> list[str]:
    """Return the lines that say which kernels take the time; none if each is launched once."""
    grouped: dict[str, list[PredictedStep]] = {}
    for piece in found.pieces:
        grouped.setdefault(piece.name, []).append(piece)
    if len(grouped) == len(found.pieces):
        return []
    rows = [
        _KernelRow(name, len(pieces), sum([piece.moved for piece in pieces]), sum([piece.seconds for piece in pieces]))
        for name, pieces in grouped.items()
    ]
    rows.sort(key=lambda row: -row.seconds)
    total = sum([row.seconds for row in rows]) or 1.0
    if len(rows) > _KERNELS:
        rest = rows[_KERNELS - 1 :]
        launches, nbytes, seconds = (sum(column) for column in list(zip(*rest, strict=True))[1:])
        rows[_KERNELS - 1 :] = [_KernelRow(f"({len(rest):,} more)", launches, nbytes, seconds)]
    texts = [
        (row.name, f"{row.launches:,}", f"{row.nbytes:,}", duration(row.seconds), f"{row.seconds / total:.1%}")
        for row in rows
    ]
    return ["Predicted time by kernel:", *table(("kernel", "launches", "bytes", "time", "share"), texts), ""]


def _memory(plan: Plan) -> list[str]:
    least = least_bytes(plan)
    against = f"{_ratio(plan.peak_bytes, least)} the lower bound {least:,}"
    return [
        f"Memory beyond the inputs: {plan.peak_bytes:,} bytes, {against}",
        "  (what every execution of this plan holds at once)",
    ]


def _devices(plan: Plan, found: Prediction) -> list[str]:
    """Return a table of the devices and one of the links between them; nothing for a plan on one device."""
    if len(plan.devices) == 1:
        return []
    held = peak_bytes_on(plan)
    work: list[list[float]] = [[] for _ in plan.devices]
    links: dict[tuple[int, int], list[PredictedStep]] = {}
    for piece in found.pieces:
        device = found.device_of_lane[piece.lane]
        work[device].append(piece.seconds)
        if piece.peer >= 0:
            links.setdefault((piece.peer, device), []).append(piece)
    rows = [
        (name, f"{len(work[at]):,}", duration(sum(work[at])), f"{held[name]:,}") for at, name in enumerate(plan.devices)
    ]
    lines = ["", "By device:", *table(("device", "instructions", "time", "bytes beyond the inputs"), rows)]
    if links:
        routes = [
            (
                f"{plan.devices[source]} -> {plan.devices[target]}",
                f"{len(copies):,}",
                f"{sum([copy.nbytes for copy in copies]):,}",
                duration(sum([copy.seconds for copy in copies])),
            )
            for (source, target), copies in sorted(links.items())
        ]
        lines += ["", "By link:", *table(("link", "copies", "bytes", "time"), routes)]
    return lines


def _costs(plan: Plan, costs: CostModel) -> list[str]:
    """Return a line for each origin of times, with its kernels; none for those of which the bytes tell the time."""
    found = costs.bases(plan)
    found.pop(BY_BYTES, None)
    return [
        line
        for basis, labels in sorted(found.items())
        for line in _wrapped(f"Times of kernels, {basis}:", _ends_of(labels), ",")
    ]


def _foreign(plan: Plan, costs: CostModel) -> list[str]:
    """Return the lines about foreign ops: the origin of each predicted time, what keeps a plan from being a CUDA graph,
    and remarks of the audit."""
    lines: dict[str, None] = {}
    for step in plan.steps:
        instruction = step.instruction if isinstance(step, Execute) else None
        body = instruction.kernel.library if isinstance(instruction, Launch) else None
        if not (isinstance(instruction, Launch) and isinstance(body, UserBody)):
            continue
        kernel = instruction.kernel
        named = f"{kernel.label} at {describe(instruction.origin)}"
        time = duration(costs.seconds(instruction, plan))
        lines[f"Foreign op {named}: {time} predicted, {costs.basis(instruction, plan)}"] = None
        why = 'it is declared with capture="never"' if body.capture == "never" else body.refused
        if why is None and kernel.checked and body.capture != "required":
            why = "its calls are checked (checked=True, or DAGPU_CHECKED=1)"
        if why is not None:
            lines[f"No CUDA graph, every run goes through streams: the body of {named} is not captured: {why}"] = None
        else:
            lines |= dict.fromkeys(_moving_operands(plan, instruction, named))
        if body.noted is not None:
            lines[f"Audit of {named}: {body.noted}"] = None
    return list(lines)


def _moving_operands(plan: Plan, launch: Launch, named: str) -> list[str]:
    """Return the line that says what a CUDA graph does with operands of a foreign op whose addresses differ between
    runs; none if there are none."""
    if not plan.devices[launch.device].startswith("cuda"):
        return []
    copied: list[str] = []
    captured: list[str] = []
    kernel = launch.kernel
    for index, view in launch.views:
        if plan.buffers[view.buffer].role is not Role.TEMPORARY:
            number = index - (len(kernel.params) - kernel.results)
            name = kernel.params[index].name if number < 0 else f"new tensor {number}"
            (copied if view.layout.nbytes <= STAGED_BYTES else captured).append(name)
    parts = [f"{', '.join(copied)} {_are(copied)} copied once their addresses move"] if copied else []
    parts += [f"{', '.join(captured)} {_are(captured)} captured again for another address"] if captured else []
    return [f"If captured, {named}: {'; '.join(parts)}"] if parts else []


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _overlap(found: Prediction, most: int) -> list[str]:
    branches = branches_apart(found)
    apart = branches.apart
    lines = [
        f"Overlap, predicted: {found.overlap:.0%} of the work is hidden behind other work",
        _branches_line(branches),
    ]
    width = max([len(_pair(found, pair.first, pair.second)) for pair in apart[:most]], default=0)
    lines += [f"  {_pair(found, pair.first, pair.second).ljust(width)}  {pair.why}" for pair in apart[:most]]
    if len(apart) > most:
        causes = Counter([pair.cause for pair in apart[most:]])
        text = ", ".join([f"{cause}: {count:,}" for cause, count in causes.most_common()])
        lines.append(f"  ... and {len(apart) - most:,} pairs more that lose less ({text})")
    return lines


def _branches_line(branches: Branches) -> str:
    count, apart = branches.count, len(branches.apart)
    among = f"; of them the {MOST_BRANCHES} longest" if count > MOST_BRANCHES else ""
    line = f"Branches: {count:,}{among}; independent pairs: {branches.pairs:,}, of which {apart:,} do not overlap"
    return line + (":" if apart else "")


def _pair(found: Prediction, first: Branch, second: Branch) -> str:
    return f"{_branch(found, first)} before {_branch(found, second)}"


def _branch(found: Prediction, branch: Branch) -> str:
    """Name a branch: `#3 gemm`, or `#3..#9 gemm..add`."""
    first: PredictedStep = found.pieces[branch.pieces[0]]
    last: PredictedStep = found.pieces[branch.pieces[-1]]
    if first is last:
        return f"#{first.number} {first.name}"
    return f"#{first.number}..#{last.number} {first.name}..{last.name}"


def _ends_of(parts: Sequence[str]) -> list[str]:
    """Return the parts; of more than `_ON_A_LINE` the first and the last, and the number of the others."""
    if len(parts) <= _ON_A_LINE:
        return list(parts)
    half = _ON_A_LINE // 2
    return [*parts[:half], f"({len(parts) - 2 * half:,} more)", *parts[len(parts) - half :]]


def _wrapped(title: str, parts: Sequence[str], between: str) -> list[str]:
    """Return lines of at most `_WIDTH` characters: the title, then the parts, none of which is broken."""
    lines = [title]
    for number, part in enumerate(parts, 1):
        words = part + between * (number < len(parts))
        if len(lines[-1]) + 1 + len(words) > _WIDTH:
            lines.append(" ")
        lines[-1] += f" {words}"
    return lines


def _ratio(amount: float, least: float) -> str:
    return f"{amount / least:.2f}x" if least else "1.00x"


def duration(seconds: float) -> str:
    """Format seconds: `12.3 us`, `4.56 ms`, `1.23 s`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
