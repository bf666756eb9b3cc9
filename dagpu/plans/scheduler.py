"""The scheduler: turns a `Program` into a `Plan`, within a limit of memory if there is one.

Dependences are by whole buffers: read after write, write after read, write after write. An instruction waits for an
earlier one on another lane only if neither its lane's clock nor another wait of the same instruction covers that one.
So every wait orders a pair of accesses that nothing else orders. Within a limit of memory, lanes also wait for memory:
see `Reuse`.

Time is linear in instructions and accesses; each wait also takes time linear in the number of lanes.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import final

from dagpu.plans.fitting import fit
from dagpu.plans.memory import lay_out
from dagpu.plans.plan import Allocate, Clock, Clocks, Execute, Lane, Plan, Record, Release, Step, Wait
from dagpu.plans.policies import Placement, is_limited, place_program, reordered, with_bodies_together
from dagpu.plans.program import HOST, If, Launch, Program, Role


def schedule(program: Program, placement: Placement | None = None) -> Plan:
    """Schedule a program: its instructions in the order of the placement, with the steps that they need around them.

    `placement` is the result of `place_program(program)`, which is called unless it is given.

    - `Allocate` comes right before the first write of a buffer, on the same lane. An output that nothing writes is
      allocated at the start. A temporary that nothing uses is not allocated.
    - `Record` comes after an instruction that other lanes wait for, and after the releases of the buffers that end with
      it. One event serves all waits.
    - `Release` comes after the last use of a buffer, if that happens after all other uses. Else it comes at the first
      point that happens after all uses without further waits: on a lane of one of the uses or, if these have no such
      point, on any other lane. Else it comes at the end, behind waits of its own, where it delays nothing.

    If the plan takes more bytes than the `memory_limit` of a policy, another one is taken: see `dagpu.plans.fitting`.

    Raises:
        PlanError: a policy does not place every instruction, or no plan is found within a limit.
    """
    placement = place_program(program) if placement is None else placement
    if is_limited(program):
        return fit(program, placement, as_placed).plan
    return as_placed(program, placement)


def as_placed(program: Program, placement: Placement) -> Plan:
    """Schedule a program as `schedule` does, whatever the limits of its policies are."""
    source, keys, order = program, placement.keys, placement.order
    if order is not None and list(order) != list(range(len(keys))):
        order = with_bodies_together(program, order)
        program, keys = reordered(program, order), [keys[at] for at in order]
    else:
        order = None
    number: dict[tuple[int, Hashable], int] = {}
    lane_of: list[int] = []
    for instruction, key in zip(program.instructions, keys, strict=True):
        slot = (instruction.device, key)
        lane = number.get(slot)
        if lane is None:
            lane = number[slot] = len(number)
        lane_of.append(lane)
    if len(number) <= 1:
        return _assemble(program, lane_of, number, _order_one_lane(program))
    ended = placement.ended
    if ended is None or If in map(type, program.instructions):
        return _assemble(program, lane_of, number, _order_lanes(source, order, lane_of, len(number)))
    ends = ended if order is None else [ended[at] for at in order]
    alone = _assemble(program, [0] * len(lane_of), {(0, 0): 0}, _order_one_lane(program, ends))
    around = _order_lanes(source, order, lane_of, len(number), Reuse(alone))
    return _assemble(program, lane_of, number, around, alone)


@final
@dataclass(slots=True)
class _Order:
    """Steps around the instructions, by the indices of these; sparse, since most instructions have none."""

    waits: dict[int, list[int]] = field(default_factory=dict)
    """For an instruction, the earlier instructions that its lane waits for before it."""
    recorded: set[int] = field(default_factory=set)
    """Instructions after which an event is recorded."""
    release_before: dict[int, list[int]] = field(default_factory=dict)
    """For an instruction, the buffers that its lane releases before it."""
    release_after: dict[int, list[int]] = field(default_factory=dict)
    """For an instruction, the buffers that its lane releases after it."""
    tail: list[tuple[int, list[int], int]] = field(default_factory=list)
    """Releases at the end of the plan: lane, instructions that it waits for, buffer."""

    def wait(self, clocks: Clocks, lane: int, late: list[int], lane_of: list[int], at: list[Clock]) -> list[int]:
        """Make `lane` wait for the instructions `late`, and return those that need a wait of their own.

        An instruction whose completion another wait implies needs none. Only a later instruction can imply an earlier
        one, so the latest are joined first.
        """
        if len(late) == 1:  # the usual case
            clocks.join(lane, lane_of[late[0]], late[0], at[late[0]])
            self.recorded.add(late[0])
            return late
        late.sort(reverse=True)
        chosen: list[int] = []
        clock = clocks.current[lane]
        for earlier in late:
            if clock[lane_of[earlier]] < earlier:
                chosen.append(earlier)
                clock = clocks.join(lane, lane_of[earlier], earlier, at[earlier])
        self.recorded.update(chosen)
        return chosen


def _temporaries(program: Program) -> list[int]:
    """Return the buffers of device memory that begin and end within the program."""
    return [
        number
        for number, buffer in enumerate(program.buffers)
        if buffer.role is Role.TEMPORARY and buffer.device != HOST
    ]


def _order_one_lane(program: Program, ends: Sequence[int] | None = None) -> _Order:
    """Find the releases of a program on one lane, where no wait is needed: each comes after the buffer's last use. With
    `ends` it comes when all uses have ended, by the number of instructions that start before each ends, unless the last
    of them may write over the buffer."""
    last = [-1] * len(program.buffers)
    for index, instruction in enumerate(program.instructions):
        for buffer in instruction.reads:
            last[buffer] = index
        for buffer in instruction.writes:
            last[buffer] = index
    order = _Order()
    for buffer in _temporaries(program):
        if last[buffer] >= 0:
            order.release_after.setdefault(last[buffer], []).append(buffer)
    return order if ends is None else _later(program, order, ends)


def _later(program: Program, order: _Order, ends: Sequence[int]) -> _Order:
    """Return an order of one lane with each release when all uses have ended."""
    accesses, later = program.accesses, _Order()
    for last, buffers in order.release_after.items():
        instruction = program.instructions[last]
        in_place = type(instruction) is Launch and instruction.kernel.in_place
        for buffer in buffers:
            users = accesses.readers[buffer] or [accesses.writer[buffer]]
            place = max([ends[user] for user in users])
            over = in_place and all(ends[user] <= last for user in users if user != last)
            if over or (place <= last + 1 and not in_place):
                later.release_after.setdefault(last, []).append(buffer)
                continue
            later.recorded.add(last)  # a step between: what follows a launch directly may be written over
            if place < len(ends):
                later.release_before.setdefault(place, []).append(buffer)
            else:
                later.tail.append((0, [], buffer))
    return later


@final
class Reuse:
    """The bytes that the instructions of a program use again on one lane, in its order.

    On several lanes they use the same bytes again. For that the lane of an instruction waits until the bytes that it
    takes have been given back. So the memory of a plan is what its order takes, whatever its lanes are.
    """

    def __init__(self, alone: Plan) -> None:
        """`alone` is the plan of the program on one lane, which may give bytes back later than it could."""
        self.taken: dict[int, list[int]] = {}
        """For an instruction, the temporaries whose bytes its outputs take, which have ended before it."""
        self.over: dict[int, list[int]] = {}
        """For an instruction, the temporaries over which it writes in place."""
        spans: list[list[tuple[int, int, int]]] = [[] for _ in alone.devices]
        """For each device, the bytes that have had a holder: start, end and last holder, sorted."""
        ended: set[int] = set()
        fresh: list[int] = []
        at = 0
        for step in alone.steps:
            if type(step) is Allocate:
                fresh.append(step.buffer)
            elif type(step) is Release:
                ended.add(step.buffer)
            elif type(step) is Execute:
                for buffer in fresh:
                    about, offset = alone.buffers[buffer], alone.offsets[buffer]
                    if offset >= 0 and about.nbytes:
                        for other in _put(spans[about.device], offset, offset + about.nbytes, buffer):
                            (self.taken if other in ended else self.over).setdefault(at, []).append(other)
                fresh = []
                at += 1


def _put(spans: list[tuple[int, int, int]], start: int, end: int, holder: int) -> list[int]:
    """Give bytes to a holder, and return those that had some of them last."""
    low = bisect_right(spans, (start,))
    if low and spans[low - 1][1] > start:
        low -= 1
    high = low
    while high < len(spans) and spans[high][0] < end:
        high += 1
    old = spans[low:high]
    kept = [(old[0][0], start, old[0][2])] if old and old[0][0] < start else []
    kept.append((start, end, holder))
    if old and old[-1][1] > end:
        kept.append((end, old[-1][1], old[-1][2]))
    spans[low:high] = kept
    return list(dict.fromkeys([who for _, _, who in old]))


def _order_lanes(
    program: Program, starts: Sequence[int] | None, lane_of: list[int], lanes: int, reuse: Reuse | None = None
) -> _Order:
    """Find the waits and releases of a program on several lanes. Its instructions start in the order `starts`, by which
    the result and `lane_of` number them; None for program order. With `reuse`, lanes wait for memory."""
    order, clocks = _Order(), Clocks(lanes)
    accesses, current = program.accesses, clocks.current
    position: Sequence[int] = range(len(lane_of))  # of each instruction in that order
    predecessors: Iterable[list[int]] = accesses.predecessors
    if starts is not None:
        position = [0] * len(lane_of)
        for at, index in enumerate(starts):
            position[index] = at
        predecessors = map(accesses.predecessors.__getitem__, starts)

    def last_users(buffer: int) -> Sequence[int]:
        users = accesses.readers[buffer] or [accesses.writer[buffer]]
        return users if starts is None else [position[user] for user in users]

    clock_at: list[Clock] = []
    handed_on: dict[int, int] = {}  # for a buffer that ends on no lane of its own: the instruction before which it does
    joins: list[list[int]] = [[] for _ in range(lanes)]  # for each lane, the instructions before which it waits
    for at, (before, lane) in enumerate(zip(predecessors, lane_of, strict=True)):
        late: list[int] = []
        for index in before:
            earlier = position[index]
            there = lane_of[earlier]
            if there != lane and current[lane][there] < earlier:
                late.append(earlier)
        if reuse is not None:
            needed = _before_reuse(reuse, at, last_users, lane_of, clock_at, handed_on)
            late += [
                earlier
                for earlier in sorted(needed)
                if lane_of[earlier] != lane and current[lane][lane_of[earlier]] < earlier and earlier not in late
            ]
        if late:
            order.waits[at] = order.wait(clocks, lane, late, lane_of, clock_at)
            joins[lane].append(at)
        clock_at.append(current[lane])
    after = order.release_after
    for buffer in _temporaries(program):
        if not accesses.readers[buffer] and accesses.writer[buffer] < 0:
            continue  # nothing uses it
        users = accesses.readers[buffer] or [accesses.writer[buffer]]
        places = users if starts is None else [position[user] for user in users]
        last = places[0] if len(places) == 1 else max(places)
        clock = clock_at[last]
        for place in places:
            if place != last and clock[lane_of[place]] < place:
                if buffer in handed_on:
                    order.release_before.setdefault(handed_on[buffer], []).append(buffer)
                else:
                    _release(order, sorted(places), buffer, lane_of, clock_at, joins, clocks)
                break
        else:
            after.setdefault(last, []).append(buffer)
    return order


def _before_reuse(
    reuse: Reuse,
    at: int,
    last_users: Callable[[int], Sequence[int]],
    lane_of: list[int],
    clock_at: list[Clock],
    handed_on: dict[int, int],
) -> set[int]:
    """Return the instructions that have to end before instruction `at` may take its bytes.

    A buffer ends after the last of its users if that follows all others. Else it ends before the first instruction that
    takes bytes of it, which waits for all of them; whatever takes other bytes of it later follows that instruction.
    """
    needed: set[int] = set()
    for buffer in reuse.taken.get(at, ()):
        users = last_users(buffer)
        last = max(users)
        clock = clock_at[last]
        if all(user == last or clock[lane_of[user]] >= user for user in users):
            needed.add(last)
        elif buffer in handed_on:
            needed.add(handed_on[buffer])
        else:
            needed.update(users)
            handed_on[buffer] = at
    for buffer in reuse.over.get(at, ()):
        needed.update([user for user in last_users(buffer) if user != at])
    return needed


def _release(
    order: _Order,
    users: list[int],
    buffer: int,
    lane_of: list[int],
    clock_at: list[Clock],
    joins: list[list[int]],
    clocks: Clocks,
) -> None:
    """Put the release of `buffer` at a point that happens after all of its last `users`, given in their order, of which
    the last does not follow all others."""
    last = users[-1]
    needs = {lane_of[user]: user for user in users}  # the latest on each lane implies those before it
    pairs = list(needs.items())
    found = _first_covering(clock_at, joins, needs, last, pairs)
    if found < 0:
        found = _first_covering(clock_at, joins, range(len(joins)), last, pairs)
    if found >= 0:
        order.release_before.setdefault(found, []).append(buffer)
        return
    lane = max(needs, key=lambda lane: sum(clocks.current[lane][other] >= user for other, user in pairs))
    late = [user for other, user in pairs if clocks.current[lane][other] < user]
    order.tail.append((lane, order.wait(clocks, lane, late, lane_of, clock_at), buffer))


def _covers(clock: Clock, pairs: list[tuple[int, int]]) -> bool:
    """Return whether a clock covers each pair of a lane and an instruction on it."""
    for lane, user in pairs:  # noqa: SIM110  # all() with a generator takes twice as long, and this is hot
        if clock[lane] < user:
            return False
    return True


def _first_covering(
    clock_at: list[Clock],
    joins: list[list[int]],
    lanes: Iterable[int],
    last: int,
    pairs: list[tuple[int, int]],
) -> int:
    """Return the first instruction on any of `lanes` whose clock covers `pairs`, the latest of which is `last`.

    The result is -1 if there is none. A lane can come to cover them only by a wait after `last`, so only the
    instructions in `joins` are searched. A lane's clock only grows, so the search is exponential and then binary. It
    begins in small steps because the result is usually among the first few, and it ends at the best result so far.
    """
    found = -1
    for lane in lanes:
        points = joins[lane]
        low = bisect_right(points, last)  # no point before `low` covers
        end = len(points) if found < 0 else bisect_right(points, found, low)
        step = 1
        while low + step <= end and not _covers(clock_at[points[low + step - 1]], pairs):
            low += step
            step *= 2
        high = min(low + step - 1, end)  # points[high] covers, or is past the end
        while low < high:
            middle = (low + high) // 2
            if _covers(clock_at[points[middle]], pairs):
                high = middle
            else:
                low = middle + 1
        if low < end:
            found = points[low]
    return found


def _assemble(
    program: Program,
    lane_of: list[int],
    number: dict[tuple[int, Hashable], int],
    order: _Order,
    memory: Plan | None = None,
) -> Plan:
    """Build the plan: steps in program order, events numbered in the order of their records, and the memory plan, which
    is that of `memory` if it is given."""
    buffers = program.buffers
    steps: list[Step] = []
    event_of: dict[int, int] = {}
    fresh = [buffer.device != HOST and buffer.role is not Role.INPUT for buffer in buffers]
    outputs = {at: buffers[at].nbytes for at, is_new in enumerate(fresh) if is_new and buffers[at].role is Role.OUTPUT}

    put = steps.append
    for buffer, lane in _unwritten_outputs(program, outputs, number) if outputs else ():
        fresh[buffer] = False
        put(Allocate(buffer, lane))
    waits, recorded = order.waits, order.recorded
    before, after = order.release_before, order.release_after
    for index, (instruction, lane) in enumerate(zip(program.instructions, lane_of, strict=True)):
        if index in waits:
            for earlier in waits[index]:
                put(Wait(event_of[earlier], lane))
        if index in before:
            for buffer in before[index]:
                put(Release(buffer, lane))
        for buffer in instruction.writes:
            if fresh[buffer]:
                fresh[buffer] = False
                put(Allocate(buffer, lane))
        put(Execute(instruction, lane))
        if index in after:
            for buffer in after[index]:
                put(Release(buffer, lane))
        if index in recorded:  # after the releases, so that a waiting lane may reuse that memory
            event = event_of[index] = len(event_of)
            put(Record(event, lane))
    for lane, late, buffer in order.tail:
        steps.extend([Wait(event_of[earlier], lane) for earlier in late])
        put(Release(buffer, lane))
    lanes = tuple(starmap(Lane, number))
    if memory is None:
        offsets, arenas = lay_out(buffers, steps, len(program.devices), len(lanes), len(event_of))
    else:
        offsets, arenas = memory.offsets, memory.arena_bytes
    peak = sum(arenas) + sum(outputs.values())
    return Plan(program.devices, lanes, buffers, tuple(steps), len(event_of), peak, offsets, arenas)


def _unwritten_outputs(
    program: Program, outputs: Iterable[int], number: dict[tuple[int, Hashable], int]
) -> list[tuple[int, int]]:
    """Return the outputs that no instruction writes, each with a lane of its device; adds missing lanes to `number`."""
    unwritten = set(outputs)
    for instruction in program.instructions:
        unwritten.difference_update(instruction.writes)
    found: list[tuple[int, int]] = []
    for output in sorted(unwritten):
        device = program.buffers[output].device
        lane = next((lane for (where, _), lane in number.items() if where == device), None)
        if lane is None:
            lane = number[device, 0] = len(number)
        found.append((output, lane))
    return found
