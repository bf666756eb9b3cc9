"""The least memory that a plan's order allows, whatever the memory plan: what `explain` holds the peak against.

While an instruction runs, a buffer is alive in every execution exactly if its first write happens before that
instruction (or is it), and the instruction happens before a use of the buffer (or is one). On each lane such
instructions are consecutive, so each buffer is one interval for each lane, and the most bytes over any one
instruction are found by adding up where intervals begin and end.
"""

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import final

from dagpu.lowering.order import Clock, Clocks
from dagpu.lowering.plan import Execute, Plan, Record, Wait
from dagpu.lowering.program import HOST, Instruction, Role


def least_bytes(plan: Plan) -> int:
    """The most bytes beyond the inputs that every execution of the plan holds at once; no `peak_bytes` is lower.

    Counted while one instruction runs, for each device alone, and added up: arenas of two devices share nothing.
    """
    walk = _Walk(plan)
    return sum([walk.most(device) for device in range(len(plan.devices))])


@final
class _Walk:
    """When each instruction runs, as clocks, and who uses each buffer."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._of_lane: list[list[int]] = [[] for _ in plan.lanes]
        self._lane: list[int] = []
        self._clock: list[Clock] = []
        self._first: list[int] = [-1] * len(plan.buffers)
        self._uses: list[dict[int, tuple[int, bool]]] = [{} for _ in plan.buffers]
        """Of each buffer, by lane: the last piece that uses it, and whether that writes over it."""
        clocks = Clocks(len(plan.lanes))
        events: dict[int, tuple[int, int, Clock]] = {}
        for step in plan.steps:
            lane = step.lane
            match step:
                case Execute(instruction, _):
                    self._add(instruction, lane, clocks.of[lane])
                case Record(event, _):
                    at = self._of_lane[lane][-1] if self._of_lane[lane] else -1
                    events[event] = lane, at, clocks.of[lane]
                case Wait(event, _):
                    clocks.join(lane, *events[event])
                case _:
                    pass

    def _add(self, instruction: Instruction, lane: int, clock: Clock) -> None:
        piece = len(self._lane)
        self._lane.append(lane)
        self._of_lane[lane].append(piece)
        self._clock.append(clock)
        taken = {self._plan.offsets[buffer] for buffer in instruction.writes}
        for buffer in instruction.reads:
            offset = self._plan.offsets[buffer]
            self._uses[buffer][lane] = piece, offset >= 0 and offset in taken and buffer not in instruction.writes
        for buffer in instruction.writes:
            self._uses[buffer][lane] = piece, False
            if self._first[buffer] < 0:
                self._first[buffer] = piece

    def most(self, device: int) -> int:
        """Bytes on one device."""
        changes = [[0] * (len(pieces) + 1) for pieces in self._of_lane]
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
        """The first place on a lane that comes after the buffer's first write, or is it."""
        first, pieces = self._first[buffer], self._of_lane[lane]
        home = self._lane[first]
        if home == lane:
            return bisect_left(pieces, first)
        return bisect_left(pieces, first, key=lambda piece: self._clock[piece][home])

    def _end(self, buffer: int, lane: int) -> int:
        """Behind the last place on a lane that comes before a use of the buffer, or is one."""
        pieces, last = self._of_lane[lane], 0
        for home, (use, written_over) in self._uses[buffer].items():
            if home == lane:
                last = max(last, bisect_right(pieces, use) - written_over)
            else:
                last = max(last, bisect_right(pieces, self._clock[use][lane]))
        return last
