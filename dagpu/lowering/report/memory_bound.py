"""A lower bound on the memory of a plan, for every memory plan; `explain` compares the peak with it.

While an instruction runs, a buffer is alive in every execution exactly if its first write happens before that
instruction (or is it), and the instruction happens before a use of the buffer (or is one). On each lane such
instructions are consecutive, so each buffer is one interval on each lane. The largest sum of bytes over any one
instruction is a prefix sum over the begins and ends of the intervals.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import final

from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import HOST, Instruction, Role
from dagpu.lowering.vector_clock import step_clocks


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
