"""`ListSchedule`: list scheduling, which simulates the program in a cost model on a given number of streams.

Whenever a stream is free and an instruction is ready, an instruction starts. Ready instructions start by rank:

1. The first attempt ranks by program order. A trace goes depth first, so this order finishes one branch before it
   begins the next, and holds little memory. The attempt is taken if it comes within `_GOOD` of the lower bound.
2. The second attempt ranks by the longest remaining path (critical path first). The faster of the two is taken.
3. Both of these hold back each *leaf*, an instruction with no producer, such as the `zeros` of the next step of a loop.
   A leaf waits until the other producers of its consumer have started, because until then it would only hold memory.
   If the result is too slow, a third attempt holds back nothing, and is taken if it gains enough.

In all attempts, an instruction whose only consumer has no other producer passes its stream on to that consumer. So a
chain stays on one stream and needs no wait.

With chains taken as single tasks, list scheduling on m equal machines is within 2 - 1/m of max(critical path,
work / m): R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969). His proof does not
cover holding leaves back. So if a schedule exceeds his bound, the third attempt is taken if it is any faster.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, final

from dagpu.common.origin import here
from dagpu.common.wrong_arguments import wrong_argument
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.dependences import Dependences
from dagpu.lowering.schedule.list_simulation import ListSimulation
from dagpu.lowering.schedule.policies import Placement, check_settings, placed_by

_GOOD: Final = 1.05
"""Factor of the lower bound within which a schedule needs no further attempt. Also the factor by which a schedule that
holds more memory has to be faster."""


@final
@dataclass(frozen=True, slots=True)
class ListSchedule:
    """List scheduling by critical path, on `streams` streams of each device; the default policy.

    Kernels, fills and host calls run on streams 0 to `streams - 1`. If a program is more than one chain, copies from
    the host have stream `streams` to themselves, copies to the host the next one, and copies from other devices those
    after that, so that they overlap with the rest. An instruction runs on the stream of one of its producers if that
    is free.

    `costs` gives the times of instructions. Declare the times that you know: `CostModel().declare({"gemm": 3e-5})`.
    """

    streams: int = 4
    """Streams of each device, besides those for copies."""
    costs: CostModel = field(default_factory=CostModel)
    """The cost model that predicts the time of each instruction."""
    memory_limit: int | None = None
    """Most bytes that a run may take beyond its inputs: overlap is given up until the plan fits."""

    def __post_init__(self) -> None:
        check_settings("ListSchedule", self.streams, self.memory_limit)
        if not isinstance(self.costs, CostModel):
            cure = "Write costs=CostModel(), or leave it out"
            raise wrong_argument("ListSchedule", here(), "costs", self.costs, "a CostModel", cure)

    def place(self, program: Program) -> Placement:
        """Return the stream of each instruction and the order in which the instructions start.

        Time: O(n log n), with a small constant before the log.
        """
        if _is_chain(program):
            return Placement((0,) * len(program.instructions))
        return place_on_streams(program, self.streams, self.costs, placed_by(program, self))


def place_on_streams(program: Program, streams: int, costs: CostModel, own: list[bool]) -> Placement:
    """Return the stream of each instruction and the order in which the instructions start, as `ListSchedule` chooses
    them. `own` says for each instruction whether the policy places it."""
    on = Dependences(program, costs.times(program), own, ports=costs.links.peer.ports)
    lower, graham = on.bounds(streams)
    best = ListSimulation(on, streams, list(range(on.count)), hold_back=True)
    if best.makespan > _GOOD * lower:
        ranked = on.by_path()
        other = ListSimulation(on, streams, ranked, hold_back=True, limit=best.makespan)
        if other.makespan < best.makespan:
            best = other
        if on.gate and best.makespan > _GOOD * lower:
            limit = best.makespan if best.makespan > graham else best.makespan / _GOOD
            other = ListSimulation(on, streams, ranked, hold_back=False, limit=limit)
            if other.makespan <= limit:
                best = other
    return Placement(best.keys, best.order)


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
