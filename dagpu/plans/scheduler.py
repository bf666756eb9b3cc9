"""The scheduler: turns a `Program` into a `Plan`, within a limit of memory if there is one.

Dependences are by whole buffers: read after write, write after read, write after write. An instruction waits for an
earlier one on another lane only if neither its lane's clock nor another wait of the same instruction covers that one.
So every wait orders a pair of accesses that nothing else orders.

Time is linear in instructions and accesses; each wait also takes time linear in the number of lanes.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import final

from dagpu.common.errors import PlanError
from dagpu.plans.memory import describe_peak, lay_out
from dagpu.plans.plan import Allocate, Clock, Clocks, Execute, Lane, Plan, Record, Release, Step, Wait, peak_bytes_on
from dagpu.plans.policies import Placement, place_program, reordered
from dagpu.plans.program import HOST, If, Program, Role, bodies_of


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

    If the plan takes more bytes than the `memory_limit` of a policy, overlap is given up for memory: see
    `dagpu.plans.scheduler`.

    Raises:
        PlanError: a policy does not place every instruction, or no plan is found within a limit.
    """
    placement = place_program(program) if placement is None else placement
    keys = placement.keys
    if placement.order is not None and list(placement.order) != list(range(len(keys))):
        order = with_bodies_together(program, placement.order)
        program, keys = reordered(program, order), [keys[at] for at in order]
    plan = _schedule(program, keys)
    limited = [p for p in program.policies if getattr(p, "memory_limit", None) is not None or hasattr(p, "limit_on")]
    return fit(program, keys, plan, _schedule) if limited else plan


def _schedule(program: Program, keys: Sequence[Hashable]) -> Plan:
    """Schedule the instructions in program order on the lanes that `keys` names, one key for each instruction."""
    number: dict[tuple[int, Hashable], int] = {}
    lane_of: list[int] = []
    for instruction, key in zip(program.instructions, keys, strict=True):
        slot = (instruction.device, key)
        lane = number.get(slot)
        if lane is None:
            lane = number[slot] = len(number)
        lane_of.append(lane)
    order = _order_one_lane(program) if len(number) <= 1 else _order_lanes(program, lane_of, len(number))
    return _assemble(program, lane_of, number, order)


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


def _order_one_lane(program: Program) -> _Order:
    """Find the releases of a program on one lane, where no wait is needed: each comes after the buffer's last use."""
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
    return order


def _order_lanes(program: Program, lane_of: list[int], lanes: int) -> _Order:
    """Find the waits and releases of a program on several lanes."""
    order, clocks = _Order(), Clocks(lanes)
    accesses = program.accesses
    clock_at: list[Clock] = []
    joins: list[list[int]] = [[] for _ in range(lanes)]  # for each lane, the instructions before which it waits
    for index, (before, lane) in enumerate(zip(accesses.predecessors, lane_of, strict=True)):
        clock = clocks.current[lane]
        late: list[int] = []
        for earlier in before:
            if clock[lane_of[earlier]] < earlier:
                late.append(earlier)  # noqa: PERF401  # there is usually one, and it is rarely late
        if late:
            order.waits[index] = order.wait(clocks, lane, late, lane_of, clock_at)
            joins[lane].append(index)
            clock = clocks.current[lane]
        clock_at.append(clock)
    for buffer in _temporaries(program):
        users = accesses.readers[buffer] or [accesses.writer[buffer]]
        if users[-1] >= 0:
            _release(order, buffer, users, lane_of, clock_at, joins, clocks)
    return order


def _release(
    order: _Order,
    buffer: int,
    users: list[int],
    lane_of: list[int],
    clock_at: list[Clock],
    joins: list[list[int]],
    clocks: Clocks,
) -> None:
    """Put the release of `buffer` at a point that happens after all of its last `users`, given in program order."""
    last = users[-1]
    if len(users) == 1:
        order.release_after.setdefault(last, []).append(buffer)
        return
    needs = {lane_of[user]: user for user in users}  # the latest on each lane implies those before it
    pairs = list(needs.items())
    if _covers(clock_at[last], pairs):
        order.release_after.setdefault(last, []).append(buffer)
        return
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


def _assemble(program: Program, lane_of: list[int], number: dict[tuple[int, Hashable], int], order: _Order) -> Plan:
    """Build the plan: steps in program order, events numbered in the order of their records, and the memory plan."""
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
    offsets, arenas = lay_out(buffers, steps, len(program.devices), len(lanes), len(event_of))
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


# ---- body order
#
# Keeps the bodies of `If`s together, in whatever order a policy starts the instructions of a program.


def with_bodies_together(program: Program, order: Sequence[int]) -> Sequence[int]:
    """Return an order of the instructions with each `If` before its body, and nothing else between or in them.

    Within a body, and between bodies, it is the given order, in which each instruction comes after all that it depends
    on. What is before, in and after a body in the program stays there, so that holds for the result too.
    """
    instructions = program.instructions
    if If not in map(type, instructions):
        return order
    part, parts, before = 0, list[int](), -1
    for instruction, body in zip(instructions, bodies_of(instructions), strict=True):
        part += type(instruction) is If or body != before
        parts.append(part)
        before = body
    return sorted(order, key=parts.__getitem__)


# ---- memory limit
#
# The memory limit of a policy: trades overlap for memory if a plan takes more bytes than the limit.
#
# Buffers of instructions that overlap cannot share memory, so the number of lanes is halved until the plan fits. A
# depth-first order ends a branch before it begins the next one, so fewer buffers are alive at once. For each number of
# lanes the policy's own order is tried first, because it was chosen for speed. A limit of one device gives up overlap
# on that device alone.


def fit(
    program: Program, keys: Sequence[Hashable], plan: Plan, make: Callable[[Program, Sequence[Hashable]], Plan]
) -> Plan:
    """Return the plan if it keeps the limits of the program's policies, or else the first variant that does.

    `make` schedules a program with one lane key for each instruction. Only instructions that a policy with a limit has
    placed change lanes. Streams of the user stay as they are.

    Raises:
        PlanError: no variant keeps the limits.
    """
    limits = _Limits(program)
    over = limits.exceeded(plan)
    if not over:
        return plan
    free = [
        limits.limited[policy] and type(key) is int and instruction.device in over
        for policy, key, instruction in zip(program.policy_of, keys, program.instructions, strict=True)
    ]
    numbers: dict[Hashable, int] = {}
    for key, movable in zip(keys, free, strict=True):
        if movable:
            numbers.setdefault(key, len(numbers))
    left = max(len(numbers), 1)
    order = with_bodies_together(program, _depth_first(program))
    deep = reordered(program, order)
    best = plan
    while True:
        folded = [numbers[key] % left if movable else key for key, movable in zip(keys, free, strict=True)]
        for source, placed in ((program, folded), (deep, [folded[at] for at in order])):
            tried = make(source, placed)
            if not limits.exceeded(tried):
                return tried
            best = min(best, tried, key=lambda each: each.peak_bytes)
        if left == 1:
            raise _too_large(best, limits)
        left = (left + 1) // 2


@final
class _Limits:
    """The memory limits of the policies of a program: of whole runs, and of single devices."""

    def __init__(self, program: Program) -> None:
        self._whole: int | None = None
        """The smallest limit of the whole run."""
        self._of_devices: dict[int, int] = {}
        """The limit of each device that has one, by its index."""
        self.limited: list[bool] = []
        """For each policy, whether it has a limit."""
        for policy in program.policies:
            whole: int | None = getattr(policy, "memory_limit", None)
            self.limited.append(whole is not None)
            if callable(getattr(policy, "limit_on", None)):
                for device, name in enumerate(program.devices):
                    limit = policy.limit_on(name)
                    if limit is not None:
                        self._of_devices[device] = min(limit, self._of_devices.get(device, limit))
            elif whole is not None:
                self._whole = whole if self._whole is None else min(whole, self._whole)

    def exceeded(self, plan: Plan) -> dict[int, int]:
        """Return the devices whose limits a plan exceeds, with the limits; all of them for a limit of the run."""
        if self._whole is not None and plan.peak_bytes > self._whole:
            return dict.fromkeys(range(len(plan.devices)), self._whole)
        if not self._of_devices:
            return {}
        held = peak_bytes_on(plan)
        return {at: limit for at, limit in self._of_devices.items() if held[plan.devices[at]] > limit}

    def bytes_over(self, plan: Plan, device: int) -> tuple[int, str]:
        """Return the bytes that a limit of this device is about, and where they are, in words."""
        if device in self._of_devices:
            return peak_bytes_on(plan)[plan.devices[device]], f" on {plan.devices[device]}"
        return plan.peak_bytes, ""


def _depth_first(program: Program) -> list[int]:
    """Return the instructions in depth-first postorder: each follows its predecessors that are not yet in the order."""
    needs = _needs(program)
    needed = bytearray(len(needs))
    for each in needs:
        for earlier in each:
            needed[earlier] = True
    order: list[int] = []
    met = bytearray(len(needs))
    for last in range(len(needs)):
        if needed[last]:
            continue
        stack = [last]
        while stack:
            at = stack[-1]
            if met[at] == 0:
                met[at] = 1
                stack.extend([earlier for earlier in reversed(needs[at]) if not met[earlier]])
            else:
                stack.pop()
                if met[at] == 1:
                    met[at] = 2
                    order.append(at)
    return order


def _needs(program: Program) -> list[list[int]]:
    """Return the predecessors of each instruction: first the last writers of its buffers, then those that read them."""
    accesses, found = program.accesses, list[list[int]]()
    for index, reads in enumerate(accesses.reads):
        values = [*reads, *[accesses.before[value] for value in accesses.makes(index)]]
        last = [made for value in values if (made := accesses.maker[value]) >= 0]
        found.append(list(dict.fromkeys([*last, *accesses.predecessors[index]])))
    return found


def _too_large(plan: Plan, limits: _Limits) -> PlanError:
    """Build the error for the smallest plan that was found."""
    over = limits.exceeded(plan)
    most = max(over, key=plan.arena_bytes.__getitem__)
    held, where = limits.bytes_over(plan, most)
    return PlanError(
        f"this takes {held:,} bytes{where}, and the policy's memory_limit is {over[most]:,}: no order and no number of "
        f"streams that was tried takes less. Alive at once: {describe_peak(plan, most)}. Raise the limit, or cut the "
        "work into smaller pieces."
    )
