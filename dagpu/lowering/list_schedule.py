"""`ListSchedule`: places and orders a program by running it, in a cost model, on the streams that there are.

List scheduling: whenever a stream is free and something is ready, something starts. What is ready goes by rank:

1. The first attempt ranks by program order. A trace goes depth first, so this finishes one branch before it
   begins the next, and holds little memory. It stands if it comes within `_GOOD` of the lower bound.
2. The second ranks by the longest path that remains (critical path first), and the faster of the two stands.
3. In both of these a *leaf* (something with no producer, such as the `zeros` of the next step of a loop) is held back
   until the other producers of what takes it have started: sooner, it would only hold memory. Where that is too slow,
   a third attempt does not, and stands if that pays.

In all, an instruction whose one follower has no other producer hands its stream on to that follower: a chain stays
on one stream, with no wait.

With chains taken as single tasks, list scheduling on m equal machines is within 2 - 1/m of max(critical path,
work / m): R. L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969). Holding leaves
back is no part of his argument, so where his bound is passed, the third attempt stands if it is any faster.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, final

from dagpu.lowering.attempt import Attempt
from dagpu.lowering.cost import CostModel
from dagpu.lowering.dependences import Dependences
from dagpu.lowering.policies import Placement, check_settings, placed_by
from dagpu.lowering.program import Program
from dagpu.origin import here
from dagpu.wrong_arguments import wrong_argument

_GOOD: Final = 1.05
"""Of the lower bound: a schedule that is as fast as this needs no further attempt. Also by how much one that holds more
memory has to be faster."""


@final
@dataclass(frozen=True, slots=True)
class ListSchedule:
    """Critical path first, over `streams` streams of each device; the default policy.

    Kernels, fills and host calls run on streams 0 to `streams - 1`. Where a program is more than one chain, copies
    from the host have stream `streams` to themselves, and copies to the host the one after it, so that they overlap
    with the rest. Work goes on where one of its producers ran, if that is free.

    `costs` says how long instructions take: `CostModel().declare({"gemm": 3e-5})` where you know better.
    """

    streams: int = 4
    costs: CostModel = field(default_factory=CostModel)
    memory_limit: int | None = None
    """Bytes that a run may take beyond its inputs: streams are given up until it fits."""

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
        on = Dependences(program, self.costs.times(program), placed_by(program, self))
        lower, graham = on.bounds(self.streams)
        best = Attempt(on, self.streams, list(range(on.count)), hold_back=True)
        if best.makespan > _GOOD * lower:
            ranked = on.by_path()
            other = Attempt(on, self.streams, ranked, hold_back=True, limit=best.makespan)
            if other.makespan < best.makespan:
                best = other
            if on.gate and best.makespan > _GOOD * lower:
                limit = best.makespan if best.makespan > graham else best.makespan / _GOOD
                other = Attempt(on, self.streams, ranked, hold_back=False, limit=limit)
                if other.makespan <= limit:
                    best = other
        return Placement(best.keys, best.order)


def _is_chain(program: Program) -> bool:
    """Does each instruction take up what the one before has written, all on one device? Gives up at the first that
    does not."""
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
