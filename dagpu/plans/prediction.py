"""The predicted timeline of a plan, and a lower bound on its memory.

Lanes run concurrently, waits block on events, and each copy engine runs one copy at a time. Each instruction also has
its dependences and waits, so that the timeline can be reported, drawn and compared with measured times.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import final

from dagpu.common.frozen import plain
from dagpu.common.places import Origin
from dagpu.plans.cost_model import (
    COMPUTE,
    DEFAULT_COSTS,
    PEER_IN,
    CostModel,
    EngineTimes,
    engine_of,
    engines_of,
    peer_of,
    without_engines,
)
from dagpu.plans.plan import Execute, Plan, Record, Wait, lane_names, step_clocks
from dagpu.plans.program import HOST, Accesses, HostCall, Instruction, Launch, Role, label


@final
@plain
class PredictedStep:
    """One instruction of a plan with its predicted times. It references no object of the user."""

    number: int
    """Number of the instruction in reports and pictures: its place in the plan's order, counted from 1."""
    step: int
    """Index of its step in the plan."""
    label: str
    """Name of the instruction in texts: its kind, and the name of its kernel or function."""
    name: str
    """Name of the kernel or function; else the label."""
    kind: str
    """`Launch`, `Fill`, `CopyHtoD`, `CopyDtoH`, `CopyDtoD`, `HostCall` or `GraphLaunch`."""
    lane: int
    """Index of its lane in the plan."""
    engine: int
    """Engine of its device that it occupies: see `cost.engine_of`."""
    origin: Origin
    """Place in the user's code that built it."""
    nbytes: int
    """Bytes of the buffers that it writes on devices."""
    moved: int
    """Bytes that it reads and writes, as `CostModel.nbytes` counts them."""
    begin: float
    """Start in seconds from the start of the run."""
    end: float
    """End in seconds from the start of the run."""
    inputs: tuple[int, ...]
    """Its direct predecessors by the buffers that they and it read and write, as indices of pieces."""
    waits: tuple[int, ...]
    """Pieces of other lanes that its lane waits for between the previous piece of the lane and this one."""
    peer: int = -1
    """Index of the device that a copy between two devices comes from; -1 for other instructions."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.end - self.begin


@final
@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted timeline of a plan. Other tables refer to a piece by its index in `pieces`."""

    pieces: tuple[PredictedStep, ...]
    """The instructions, in the plan's order."""
    lanes: tuple[str, ...]
    """Name of each lane, as `device/number`."""
    device_of_lane: tuple[int, ...]
    """Index of the device of each lane."""
    clocks: tuple[list[int], ...]
    """For each piece, the vector clock of its lane when the piece starts; work is numbered by the plan's steps."""
    critical: tuple[int, ...]
    """Critical path: the pieces of a longest chain of dependences, in order."""
    critical_seconds: float
    """Length of the critical path in seconds."""
    work_seconds: float
    """Largest work of one device's lanes with kernels (shared out evenly over them), or of one of its copy engines."""
    ports: int = 1
    """Number of copies between devices that a device sends at once, and that it receives at once."""
    mesh: tuple[int, int] | None = None
    """The devices of the mesh that the work is spread over, and the streams of each; None for work that is not."""

    @property
    def makespan(self) -> float:
        """Seconds from the start of the run to the end of the last piece."""
        return max((piece.end for piece in self.pieces), default=0.0)

    @property
    def bound(self) -> float:
        """Lower bound in seconds for every schedule on these lanes, or on all devices of the mesh that the work is
        spread over: max(critical path, work / lanes)."""
        return max(self.critical_seconds, self.work_seconds)

    @property
    def overlap(self) -> float:
        """Part of the work that is hidden behind other work: see `overlap_of`."""
        return overlap_of((piece.begin, piece.end) for piece in self.pieces)

    def timed(self, seconds: Sequence[float], *, engines: bool = True) -> "Prediction":
        """Return the timeline of the same plan with other durations of the pieces, in seconds.

        With `engines`, each device has one copy engine for each direction. Without, copies overlap freely.
        """
        free = [0.0] * len(self.lanes)
        busy = EngineTimes(self.ports)
        spans: list[tuple[float, float]] = []
        for piece, takes in zip(self.pieces, seconds, strict=True):
            begin = max([free[piece.lane], *[spans[other][1] for other in piece.waits]])
            if engines and piece.engine != COMPUTE:
                begin = busy.claim(begin, takes, engines_of(self.device_of_lane[piece.lane], piece.engine, piece.peer))
            free[piece.lane] = begin + takes
            spans.append((begin, begin + takes))
        return self.at(spans)

    def at(self, spans: Sequence[tuple[float, float]]) -> "Prediction":
        """Return the timeline of the same plan with these begins and ends of the pieces, predicted or measured."""
        pieces = [replace(piece, begin=begin, end=end) for piece, (begin, end) in zip(self.pieces, spans, strict=True)]
        critical, length = _critical(pieces)
        work = _work(pieces, self.device_of_lane, self.ports, self.mesh)
        return replace(self, pieces=tuple(pieces), critical=critical, critical_seconds=length, work_seconds=work)


def overlap_of(spans: Iterable[tuple[float, float]]) -> float:
    """Return the part of the work that is hidden behind other work, from the begin and end of each piece of work.

    It is 1 - (time in which anything runs) / (sum of all durations): 0 if nothing overlaps, (k - 1) / k if k spans run
    concurrently throughout.
    """
    total, covered, until = 0.0, 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += end - begin
        if end > until:
            covered += end - max(begin, until)
            until = end
    return 1 - covered / total if total > 0 else 0.0


def forecast(plan: Plan, costs: CostModel | None = None, mesh: tuple[int, int] | None = None) -> Prediction:
    """Predict the timeline of a plan, with instruction times from `costs` (`CostModel()` unless given). `mesh` has the
    number of devices that the work is spread over, and of the streams of each; None if it is not spread."""
    model = DEFAULT_COSTS if costs is None else costs
    inputs = dependencies(plan)
    latest = [-1] * len(plan.lanes)
    pending: list[list[int]] = [[] for _ in plan.lanes]
    recorded = [-1] * plan.events
    pieces: list[PredictedStep] = []
    for at, step in enumerate(plan.steps):
        lane = step.lane
        match step:
            case Execute(instruction, _):
                latest[lane] = len(pieces)
                moved, before = model.nbytes(instruction, plan), inputs[len(pieces)]
                number = len(pieces) + 1
                pieces.append(_piece(plan, number, at, instruction, lane, moved, before, tuple(pending[lane])))
                pending[lane] = []
            case Record(event, _):
                recorded[event] = latest[lane]
            case Wait(event, _):
                if recorded[event] >= 0:
                    pending[lane].append(recorded[event])
            case _:
                pass
    names = tuple(lane_names(plan))
    devices = tuple([lane.device for lane in plan.lanes])
    clocks = step_clocks(plan.steps, len(plan.lanes), plan.events)
    bare = Prediction(
        tuple(pieces),
        names,
        devices,
        tuple([clocks[piece.step] for piece in pieces]),
        (),
        0.0,
        0.0,
        model.links.peer.ports,
        mesh,
    )
    return bare.timed(model.times(plan.program))


def _piece(
    plan: Plan,
    number: int,
    step: int,
    instruction: Instruction,
    lane: int,
    moved: int,
    inputs: tuple[int, ...],
    waits: tuple[int, ...],
) -> PredictedStep:
    peer = peer_of(instruction, plan.buffers)
    text = label(instruction) if peer < 0 else f"{label(instruction)} from {plan.devices[peer]}"
    written = sum([plan.buffers[buffer].nbytes for buffer in instruction.writes if plan.buffers[buffer].device != HOST])
    name = text.split(" ", 1)[1] if isinstance(instruction, Launch | HostCall) else text
    kind, origin = type(instruction).__name__, instruction.origin
    engine = engine_of(instruction, plan.buffers, without_engines(plan.devices))
    return PredictedStep(
        number, step, text, name, kind, lane, engine, origin, written, moved, 0.0, 0.0, inputs, waits, peer
    )


def dependencies(plan: Plan) -> list[tuple[int, ...]]:
    """Return the direct predecessors of each executed instruction: read after write, write after read or write."""
    executed = [step.instruction for step in plan.steps if type(step) is Execute]
    return [tuple(sorted(set(before))) for before in Accesses(plan.buffers, executed).predecessors]


def _critical(pieces: Sequence[PredictedStep]) -> tuple[tuple[int, ...], float]:
    """Return a longest chain of dependences, and its length in seconds."""
    finish: list[float] = []
    before: list[int] = []
    for piece in pieces:
        last = max(piece.inputs, key=finish.__getitem__, default=-1)
        before.append(last)
        finish.append(piece.seconds + (finish[last] if last >= 0 else 0.0))
    chain: list[int] = []
    at = max(range(len(finish)), key=finish.__getitem__, default=-1)
    length = finish[at] if at >= 0 else 0.0
    while at >= 0:
        chain.append(at)
        at = before[at]
    return tuple(reversed(chain)), length


def _work(
    pieces: Sequence[PredictedStep], device_of_lane: Sequence[int], ports: int, mesh: tuple[int, int] | None
) -> float:
    """Return the largest work of one engine, shared out over its lanes or ports, in seconds. Work that is spread over a
    mesh could be on any of its devices, and is shared out over all of them."""
    if mesh is not None:
        each = {engine: sum([p.seconds for p in pieces if p.engine == engine]) for engine in {p.engine for p in pieces}}
        at_once = {COMPUTE: mesh[1], PEER_IN: ports}
        return max([seconds / (mesh[0] * at_once.get(engine, 1)) for engine, seconds in each.items()], default=0.0)
    work: dict[tuple[int, int], float] = {}
    lanes: dict[tuple[int, int], set[int]] = {}
    for piece in pieces:
        place = device_of_lane[piece.lane], piece.engine
        work[place] = work.get(place, 0.0) + piece.seconds
        lanes.setdefault(place, set()).add(piece.lane)
    shared = {
        place: len(lanes[place]) if place[1] == COMPUTE else ports if place[1] == PEER_IN else 1 for place in work
    }
    shares = [seconds / shared[place] for place, seconds in work.items()]
    return max(shares, default=0.0)


# ---- memory bound
#
# A lower bound on the memory of a plan, for every memory plan; `explain` compares the peak with it.
#
# While an instruction runs, a buffer is alive in every execution exactly if its first write happens before that
# instruction (or is it), and the instruction happens before a use of the buffer (or is one). On each lane such
# instructions are consecutive, so each buffer is one interval on each lane. The largest sum of bytes over any one
# instruction is a prefix sum over the begins and ends of the intervals.


def least_bytes(plan: Plan) -> int:
    """Return the most bytes beyond the inputs that every execution of the plan holds at once; `peak_bytes` is no lower.

    The bytes of each device are counted alone, while one instruction runs, and added up, because the arenas of two
    devices share no memory.
    """
    walk = _Walk(plan)
    return sum([walk.most_alive(device) for device in range(len(plan.devices))])


@final
class _Walk:
    """The clock of each instruction, and the uses of each buffer."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._clock = step_clocks(plan.steps, len(plan.lanes), plan.events)
        self._of_lane: list[list[int]] = [[] for _ in plan.lanes]
        """For each lane, the steps that execute an instruction."""
        self._first: list[int] = [-1] * len(plan.buffers)
        """For each buffer, the step that first writes it."""
        self._uses: list[dict[int, tuple[int, bool]]] = [{} for _ in plan.buffers]
        """For each buffer, by lane: the last step that uses it, and whether that step writes over it."""
        for at, step in enumerate(plan.steps):
            if type(step) is Execute:
                self._add(at, step.instruction, step.lane)

    def _add(self, at: int, instruction: Instruction, lane: int) -> None:
        self._of_lane[lane].append(at)
        taken = {self._plan.offsets[buffer] for buffer in instruction.writes}
        for buffer in instruction.reads:
            offset = self._plan.offsets[buffer]
            self._uses[buffer][lane] = at, offset >= 0 and offset in taken and buffer not in instruction.writes
        for buffer in instruction.writes:
            self._uses[buffer][lane] = at, False
            if self._first[buffer] < 0:
                self._first[buffer] = at

    def most_alive(self, device: int) -> int:
        """Return the most bytes of one device that are alive while one instruction runs."""
        changes = [[0] * (len(steps) + 1) for steps in self._of_lane]
        results = 0
        for buffer, about in enumerate(self._plan.buffers):
            if about.device != device or device == HOST or about.role is Role.INPUT:
                continue
            results += about.nbytes if about.role is Role.OUTPUT else 0
            if self._first[buffer] >= 0:
                for lane, change in enumerate(changes):
                    begin = self._begin(buffer, lane)
                    end = len(change) - 1 if about.role is Role.OUTPUT else self._end(buffer, lane)
                    if begin < end:
                        change[begin] += about.nbytes
                        change[end] -= about.nbytes
        return max([results, *[max(accumulate(change)) for change in changes]])

    def _begin(self, buffer: int, lane: int) -> int:
        """Return the first position on a lane that happens after the buffer's first write, or is it."""
        first, steps = self._first[buffer], self._of_lane[lane]
        home = self._plan.steps[first].lane
        if home == lane:
            return bisect_left(steps, first)
        return bisect_left(steps, first, key=lambda at: self._clock[at][home])

    def _end(self, buffer: int, lane: int) -> int:
        """Return the position after the last one on a lane that happens before a use of the buffer, or is one."""
        steps, last = self._of_lane[lane], 0
        for home, (use, written_over) in self._uses[buffer].items():
            if home == lane:
                last = max(last, bisect_right(steps, use) - written_over)
            else:
                last = max(last, bisect_right(steps, self._clock[use][lane]))
        return last


# ---- makespan alone


def makespan_of(plan: Plan, costs: CostModel) -> float:
    """Return the predicted seconds of a plan: those of `forecast`, in a tenth of its time."""
    without = without_engines(plan.devices)
    seconds = iter(costs.times(plan.program))
    free, recorded = [0.0] * len(plan.lanes), [0.0] * plan.events
    busy = EngineTimes(costs.links.peer.ports)
    for step in plan.steps:
        lane = step.lane
        if type(step) is Execute:
            takes, begin = next(seconds), free[lane]
            engine = engine_of(step.instruction, plan.buffers, without)
            if engine != COMPUTE:
                peer = peer_of(step.instruction, plan.buffers)
                begin = busy.claim(begin, takes, engines_of(plan.lanes[lane].device, engine, peer))
            free[lane] = begin + takes
        elif type(step) is Record:
            recorded[step.event] = free[lane]
        elif type(step) is Wait and free[lane] < recorded[step.event]:
            free[lane] = recorded[step.event]
    return max(free, default=0.0)
