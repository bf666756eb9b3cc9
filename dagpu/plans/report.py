"""The text report of a plan, with the branches that do not overlap.

A *branch* is a chain of instructions: each is the only successor of the one before it, and has no other predecessor.
Two branches are independent if neither depends on the other.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from textwrap import wrap
from typing import Final, NamedTuple, final

from dagpu.common.places import describe
from dagpu.handles.device_handles import STAGED_BYTES, UserBody
from dagpu.plans.cost_model import BY_BYTES, COMPUTE, DEFAULT_COSTS, CostModel
from dagpu.plans.plan import Execute, Plan, peak_bytes_on
from dagpu.plans.prediction import PredictedStep, Prediction, forecast, least_bytes
from dagpu.plans.program import Buffer, Launch, Role, label
from dagpu.plans.text import OriginColumn, counted, duration, table

MOST_BRANCHES: Final = 400
"""Most branches that are compared with each other, longest first; 400 give about 80,000 pairs, a second's work."""


@final
@dataclass(frozen=True, slots=True)
class Branch:
    """A chain of pieces of a forecast."""

    pieces: tuple[int, ...]
    """Indices of the pieces, in order."""
    begin: float
    """Begin of the first piece, in seconds from the start of the run."""
    end: float
    """End of the last piece, in seconds from the start of the run."""


@final
@dataclass(frozen=True, slots=True)
class Serialized:
    """Two independent branches that do not overlap: the second begins after the first has ended."""

    first: Branch
    second: Branch
    cause: str
    """`same stream`, `wait`, `memory`, `copy engine`, `busy stream` or `input`."""
    why: str
    """The reason in words, with the numbers of the instructions."""
    lost: float
    """Seconds that they could have overlapped: the work of the shorter one."""


@final
@dataclass(frozen=True, slots=True)
class Branches:
    """Branches of a plan, and the independent pairs among the longest that do not overlap."""

    longest: tuple[Branch, ...]
    """The longest branches, at most `MOST_BRANCHES`, in the plan's order."""
    count: int
    """Number of all branches."""
    pairs: int
    """Number of independent pairs among the longest branches."""
    apart: tuple[Serialized, ...]
    """The independent pairs that do not overlap, most lost first. Pairs of cause `input` come last."""


def branches_apart(plan: Prediction) -> Branches:
    """Find the independent branches of a plan that do not overlap."""
    chains, of_piece = _chains(plan)
    by_length = sorted(range(len(chains)), key=lambda chain: -_work(plan, chains[chain]))
    chosen = sorted(by_length[:MOST_BRANCHES])
    above = _above(plan, chains, of_piece, chosen)
    reasons = _Reasons(plan)
    found: list[Serialized] = []
    pairs = 0
    branches = {chain: _branch(plan, chains[chain]) for chain in chosen}
    for (bit, one), (other_bit, other) in combinations(enumerate(chosen), 2):
        if above[one] >> other_bit & 1 or above[other] >> bit & 1:
            continue
        pairs += 1
        first, second = sorted((branches[one], branches[other]), key=lambda branch: (branch.begin, branch.end))
        if second.begin >= first.end:
            cause, why = reasons.find(first, second)
            lost = min(_work(plan, first.pieces), _work(plan, second.pieces))
            found.append(Serialized(first, second, cause, why, lost))
    found.sort(key=lambda apart: (apart.cause == "input", -apart.lost))
    return Branches(tuple(branches.values()), len(chains), pairs, tuple(found))


def _work(plan: Prediction, pieces: Sequence[int]) -> float:
    """Return the sum of the durations of pieces, in seconds."""
    return sum([plan.pieces[piece].seconds for piece in pieces])


def _branch(plan: Prediction, pieces: Sequence[int]) -> Branch:
    return Branch(tuple(pieces), plan.pieces[pieces[0]].begin, plan.pieces[pieces[-1]].end)


def _chains(plan: Prediction) -> tuple[list[list[int]], list[int]]:
    """Return all branches, and for each piece the index of its branch."""
    followers = [0] * len(plan.pieces)
    for piece in plan.pieces:
        for earlier in piece.inputs:
            followers[earlier] += 1
    chains: list[list[int]] = []
    of_piece: list[int] = []
    for index, piece in enumerate(plan.pieces):
        if len(piece.inputs) == 1 and followers[piece.inputs[0]] == 1:
            chain = of_piece[piece.inputs[0]]
        else:
            chain = len(chains)
            chains.append([])
        chains[chain].append(index)
        of_piece.append(chain)
    return chains, of_piece


def _above(plan: Prediction, chains: list[list[int]], of_piece: list[int], chosen: Sequence[int]) -> list[int]:
    """Return, for each branch, the chosen branches that it depends on, as a set of bits.

    Branches are numbered in the plan's order. Others depend only on the last piece of a branch, and only its first
    piece depends on others.
    """
    bit = {chain: 1 << number for number, chain in enumerate(chosen)}
    above: list[int] = []
    for pieces in chains:
        needed = 0
        for earlier in plan.pieces[pieces[0]].inputs:
            chain = of_piece[earlier]
            needed |= above[chain] | bit.get(chain, 0)
        above.append(needed)
    return above


@final
class _Reasons:
    """Finds the reason why the second of two branches begins after the first."""

    def __init__(self, plan: Prediction) -> None:
        self._plan = plan
        self._of_lane: list[list[int]] = [[] for _ in plan.lanes]
        """For each lane, its pieces in order."""
        self._place: list[int] = []
        """For each piece, its position on its lane."""
        self._engine: list[int] = []
        """For each piece, the previous copy on its copy engine; -1 if there is none."""
        latest: dict[tuple[int, int], int] = {}
        for index, piece in enumerate(plan.pieces):
            self._place.append(len(self._of_lane[piece.lane]))
            self._of_lane[piece.lane].append(index)
            engine = plan.device_of_lane[piece.lane], piece.engine
            self._engine.append(-1 if piece.engine == COMPUTE else latest.get(engine, -1))
            latest[engine] = index

    def find(self, first: Branch, second: Branch) -> tuple[str, str]:
        """Return the cause, and the reason in words."""
        pieces = self._plan.pieces
        last, head = first.pieces[-1], second.pieces[0]
        piece = pieces[head]
        late = max(piece.inputs, key=lambda other: pieces[other].end, default=-1)
        if late >= 0 and piece.begin <= pieces[late].end:
            return "input", f"#{piece.number} begins as soon as its input #{pieces[late].number} is there"
        engine = self._engine[head]
        if engine >= 0 and pieces[engine].end == piece.begin:
            busy = f"#{pieces[engine].number}"
            return "copy engine", f"the copy engine for #{piece.number} is busy with {busy} until then"
        if pieces[last].lane == piece.lane:
            return "same stream", f"same stream {self._plan.lanes[piece.lane]}, {self._elsewhere(head)}"
        if self._comes_after(head, last):
            return self._wait(last, head)
        before = self._of_lane[piece.lane][: self._place[head]]
        busy = f"with #{pieces[before[-1]].number}" if before else "waiting"
        return "busy stream", f"nothing orders them, but {self._plan.lanes[piece.lane]} is busy {busy} until then"

    def _elsewhere(self, head: int) -> str:
        """Say whether the piece could have begun earlier on another lane of its device."""
        plan, piece = self._plan, self._plan.pieces[head]
        device = plan.device_of_lane[piece.lane]
        ready = max([plan.pieces[other].end for other in piece.inputs], default=0.0)
        others = [lane for lane, at in enumerate(plan.device_of_lane) if at == device and lane != piece.lane]
        for lane in others:
            if self._idle(lane, ready, min(ready + piece.seconds, piece.begin)):
                return f"though {plan.lanes[lane]} is idle when #{piece.number} could begin"
        return "and every other stream is busy when it could begin" if others else "the only one"

    def _idle(self, lane: int, begin: float, end: float) -> bool:
        """Return whether a lane is idle for this time."""
        pieces, of_lane = self._plan.pieces, self._of_lane[lane]
        later = bisect_right(of_lane, begin, key=lambda piece: pieces[piece].end)
        return later == len(of_lane) or pieces[of_lane[later]].begin >= end

    def _wait(self, last: int, head: int) -> tuple[str, str]:
        """Name the latest wait on the lane of `head`, at or before it, that orders it after `last`."""
        pieces = self._plan.pieces
        of_lane = self._of_lane[pieces[head].lane]
        for place in range(self._place[head], -1, -1):
            piece = pieces[of_lane[place]]
            for earlier in piece.waits:
                if self._comes_after(earlier, last):
                    if earlier not in piece.inputs:
                        return "memory", f"memory: #{piece.number} waits for #{pieces[earlier].number} to release bytes"
                    name = self._plan.lanes[pieces[earlier].lane]
                    return "wait", f"a wait through #{piece.number}, which needs #{pieces[earlier].number} on {name}"
        return "wait", "a wait of the stream"

    def _comes_after(self, piece: int, other: int) -> bool:
        """True if `piece` is on the lane of piece `other`, or starts after that in every execution."""
        earlier = self._plan.pieces[other]
        return self._plan.clocks[piece][earlier.lane] >= earlier.step


# ---- explanation
#
# The text report of a plan: its instructions and waits, predicted times, memory, and branches that do not overlap.

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
    choices: Sequence[str] = (),
    kept: Collection[int] = (),
) -> str:
    """Return a report of the plan. Times are predictions of `costs`, `CostModel()` unless given. `mesh` has the
    number of devices that the work is spread over, and of the streams of each; None if it is not spread. `choices` are
    the words of `how_chosen`, `kept` the outputs that are not in the result.

    - With `legend`, sentences that say how to read the table. Then a table of the instructions, in the plan's order:
      the number, counted from 1 (as in `print(plan)`), the lane (`device/stream`), the instructions of other lanes that
      it waits for, the bytes that it writes on devices, the predicted begin and end, and the place in the user's code
      that built it. At most `rows` instructions are shown.
    - The critical path; the makespan compared with the lower bound max(critical path, work / lanes); the peak of memory
      beyond the inputs compared with the bytes that every execution of the plan holds at once. Between the two, how
      the policies have found the order and the devices, and why they have tried no more.
    - The outputs that are not in the result, since a handle to them is held elsewhere. The bytes that every execution
      holds are counted as if they ended with their last use.
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
            *chain.from_iterable([wrap(choice, _WIDTH, subsequent_indent="  ") for choice in choices]),
            *_memory(plan, kept),
            *_costs(plan, costs or DEFAULT_COSTS),
            *_foreign(plan, costs or DEFAULT_COSTS),
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


def _memory(plan: Plan, kept: Collection[int]) -> list[str]:
    ended = [Buffer(b.nbytes, b.device, Role.TEMPORARY) if n in kept else b for n, b in enumerate(plan.buffers)]
    least = least_bytes(replace(plan, buffers=tuple(ended)) if kept else plan)
    against = f"{_ratio(plan.peak_bytes, least)} the lower bound {least:,}"
    return [
        f"Memory beyond the inputs: {plan.peak_bytes:,} bytes, {against}",
        "  (what every execution of this plan holds at once)",
        *(_kept(plan, kept) if kept else ()),
    ]


def _kept(plan: Plan, kept: Collection[int]) -> list[str]:
    """Return the lines about outputs that are not in the result."""
    named: list[str] = []
    executed = [step.instruction for step in plan.steps if type(step) is Execute]
    for number, instruction in enumerate(executed, 1):
        for buffer in instruction.writes:
            if buffer in kept:
                place = describe(instruction.origin)
                named.append(f"#{number} {label(instruction)} at {place} ({plan.buffers[buffer].nbytes:,} bytes)")
    total = sum([plan.buffers[buffer].nbytes for buffer in kept])
    return [
        *_wrapped(f"Alive to the end, {total:,} bytes, and not in the result:", _ends_of(named), ","),
        "  (a handle is still held, by a closure or a list say; drop it, and the memory is",
        "  free after its last use)",
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
    """Return the lines about calls of libraries: for foreign ops the origin of each predicted time and remarks of the
    audit, and for all what keeps a plan from being a CUDA graph."""
    lines: dict[str, None] = {}
    for step in plan.steps:
        instruction = step.instruction if isinstance(step, Execute) else None
        body = instruction.kernel.library if isinstance(instruction, Launch) else None
        if isinstance(instruction, Launch) and body is not None and body.waits:
            if plan.devices[instruction.device].startswith("cuda"):
                what = f"{instruction.kernel.name} at {describe(instruction.origin)} waits for the device"
                lines[f"No CUDA graph, every run goes through streams: the library that computes {what}"] = None
            continue
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
    return f"{_branch_text(found, first)} before {_branch_text(found, second)}"


def _branch_text(found: Prediction, branch: Branch) -> str:
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
