"""The verifier: the proof that a plan has no data race, no use after free and no needless wait.

Steps are in an order in which they may be submitted, with every `Record` before its `Wait`s. So one walk over the steps
meets each step after all that happens before it. Every plan that passes has these properties:

1. Two accesses to one buffer, one of them a write, are ordered by happens-before. `Allocate` and `Release` count as
   writes. It is enough to check each access against its *direct* predecessors: a read against the last write, a write
   against the reads since the last write, or against that write if there are none. Any earlier access happens before
   these, which was proved when they were met.
2. Every read of a buffer other than an input follows a write. Device memory of temporaries and outputs is allocated
   once, before all its accesses. That of temporaries is released once, after all accesses. Outputs and inputs are not
   released, and inputs are not allocated. An output cell has been written.
3. Two temporaries that share bytes follow each other in every execution: the release of the first happens before the
   allocation of the second. It is enough to check an allocation against the last holder of each of its bytes. Only a
   launch whose kernel may work in place writes over a buffer that it reads. Then the two buffers have the same size and
   offset, and the launch counts as a write of both: the last access of the one, the first access of the other.
4. Each event is recorded once, before every wait for it. So happens-before has no cycle. Every wait is needed: without
   it, some pair of (1) or (3) is unordered, or (2) is violated.
5. Every temporary that is allocated lies inside its device's arena, and no other buffer lies in an arena. Each arena
   ends where its last temporary ends. `peak_bytes` is the sum of the arenas and the outputs.
6. What the body of an `If` writes is read only where the body has run; see `verify_bodies`. So the other properties
   hold whether a body runs or not: a body that does not run has no accesses, and takes no order from the others.

For (4), a direct access pair (a, b) *settles* a wait, which means that it proves the wait to be needed, under two
conditions: the clock of b's lane does not cover `a` when the wait's group begins, and only this wait of the group
covers it. Then every path from `a` to b leads through that wait. A group is the waits of one lane since all earlier
ones were settled. This settles every wait that some step of its own lane needs, which all waits of `schedule` are. A
wait that orders steps of other lanes only, or that is not needed, is left over. For each of these, the proof is
repeated without the wait.

Cost: linear in steps and accesses, times lanes for each wait. A temporary that does not lie exactly where one lay
before takes a binary search, and each wait that is left over takes another walk.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import Final, TypeAlias, assert_never, final

from dagpu.common.errors import PlanError
from dagpu.common.places import describe
from dagpu.plans.plan import ALIGNMENT, Allocate, Clock, Clocks, Execute, Plan, Record, Release, Wait, may_write_over
from dagpu.plans.program import HOST, Buffer, If, Instruction, Launch, Role, bodies_of, label

# State of a buffer during the walk.
_ABSENT: Final = 0  # device memory that is not allocated yet
_BLANK: Final = 1  # has memory, nothing written
_DEFINED: Final = 2
_OVERWRITTEN: Final = 3  # in place, by the launch that read it last
_RELEASED: Final = 4

_TEMPORARY: Final = Role.TEMPORARY


def verify(plan: Plan) -> None:
    """Check the properties above.

    Raises:
        PlanError: the plan violates one of them; the message names the steps.
    """
    check_tables(plan)
    if If in [type(step.instruction) for step in plan.steps if type(step) is Execute]:
        verify_bodies(plan)
    walk = _Walk(plan)
    for wait in walk.run():
        try:
            _Walk(plan, without=wait).run()
        except PlanError:
            continue  # without the wait a pair is unordered: it is needed
        raise PlanError(f"{name_of(plan, wait)} is not needed: all is ordered without it. {CURE}")


@final
class _Walk:
    """One walk over a plan's steps; `without` is the number of a wait to leave out."""

    def __init__(self, plan: Plan, without: int = -1) -> None:
        self._plan = plan
        self._buffers = plan.buffers
        self._lane_of = list(map(attrgetter("lane"), plan.steps))
        self._without = without
        self._state = [
            _DEFINED if buffer.role is Role.INPUT else _BLANK if buffer.device == HOST else _ABSENT
            for buffer in plan.buffers
        ]
        self._writer = [-1] * len(plan.buffers)  # the step that last wrote or allocated it
        nobody: tuple[int, ...] = ()
        self._readers = list(map(list[int], repeat(nobody, len(plan.buffers))))  # the steps that read it since
        self._clocks = Clocks(len(plan.lanes))
        self._events: list[Moment | None] = [None] * plan.events
        self._groups: list[WaitGroup | None] = [None] * len(plan.lanes)
        self._leftover: list[int] = []
        self._holders = [ByteOwners() for _ in plan.devices]
        self._over: dict[int, int] = {}  # buffer to the living one whose bytes it takes, until its first write
        self._under: dict[int, int] = {}  # buffer to the one that it was written over, until its release

    def run(self) -> list[int]:
        """Walk over all steps, and return the waits that are not settled.

        Raises:
            PlanError: the plan violates a property.
        """
        lanes, lane_of = len(self._plan.lanes), self._lane_of
        if lane_of and not 0 <= min(lane_of) <= max(lane_of) < lanes:
            at = next(at for at, lane in enumerate(lane_of) if not 0 <= lane < lanes)
            raise PlanError(f"{name_of(self._plan, at)} is on lane {lane_of[at]} of {lanes}. {CURE}")
        for at, step in enumerate(self._plan.steps):  # `match` takes twice as long to dispatch on the class
            if type(step) is Execute:
                self._execute(at, step)
            elif type(step) is Wait:
                if at != self._without:
                    self._wait(at, step)
            elif type(step) is Record:
                self._record(at, step)
            elif type(step) is Release:
                self._release(at, step)
            elif type(step) is Allocate:
                self._allocate(at, step)
            else:
                assert_never(step)
        self._check_end()
        for group in self._groups:
            if group is not None:
                self._leftover.extend(group.unsettled)
        return sorted(self._leftover)

    def _execute(self, at: int, step: Execute) -> None:
        """Check the accesses of an instruction."""
        instruction, lane = step.instruction, step.lane
        state, writer, readers, lane_of = self._state, self._writer, self._readers, self._lane_of
        if instruction.device != self._plan.lanes[lane].device:
            raise PlanError(
                f"{name_of(self._plan, at)} belongs on device {instruction.device}, but its lane is on device "
                f"{self._plan.lanes[lane].device}. {CURE}"
            )
        count = len(state)
        for buffer in instruction.reads:
            if not 0 <= buffer < count or state[buffer] != _DEFINED:
                raise self._no_access(at, "reads", buffer)
            earlier = writer[buffer]
            if earlier >= 0 and (other := lane_of[earlier]) != lane:
                if self._clocks.current[lane][other] < earlier:
                    raise self._unordered(earlier, at, buffer)
                group = self._groups[lane]
                if group is not None and group.unsettled:
                    group.credit(other, earlier)
            readers[buffer].append(at)
        for buffer in instruction.writes:
            if not 0 <= buffer < count or not _BLANK <= state[buffer] <= _DEFINED:
                raise self._no_access(at, "writes", buffer)
            # An instruction that reads what it writes is among the readers, on its own lane: it was checked as one.
            if readers[buffer]:
                self._after_all(at, lane, buffer)
                readers[buffer] = []
            elif lane_of[writer[buffer]] != lane:  # else the order of the lane is enough
                self._after_all(at, lane, buffer)
            writer[buffer] = at
            state[buffer] = _DEFINED
        if self._over:
            self._write_over(at, lane, instruction)

    def _after_all(self, at: int, lane: int, buffer: int) -> None:
        """Check that every access to a buffer so far happens before step `at`, which writes or releases it.

        The reads since the last write happen after it, so if there are any, only they are checked. A wait that covers
        one of them also covers the write. So checking the reads alone settles the same waits.
        """
        lane_of = self._lane_of
        for earlier in self._readers[buffer] or (self._writer[buffer],):
            if earlier >= 0 and (other := lane_of[earlier]) != lane:
                if self._clocks.current[lane][other] < earlier:
                    raise self._unordered(earlier, at, buffer)
                group = self._groups[lane]
                if group is not None and group.unsettled:
                    group.credit(other, earlier)

    def _record(self, at: int, step: Record) -> None:
        """Note the clock of an event."""
        if not 0 <= step.event < len(self._events):
            raise PlanError(f"{name_of(self._plan, at)}: the plan has {len(self._events)} events. {CURE}")
        before = self._events[step.event]
        if before is not None:
            raise PlanError(
                f"event {step.event} is recorded twice: by {name_of(self._plan, before[1])} and by "
                f"{name_of(self._plan, at)}. {CURE}"
            )
        self._events[step.event] = (step.lane, at, self._clocks.current[step.lane])

    def _wait(self, at: int, step: Wait) -> None:
        """Join the clock of an event, and add the wait to the group of its lane."""
        lane = step.lane
        moment = self._events[step.event] if 0 <= step.event < len(self._events) else None
        if moment is None:
            raise PlanError(f"{name_of(self._plan, at)} comes before any record of event {step.event}. {CURE}")
        other, recorded, clock = moment
        group = self._groups[lane]
        if group is None or not group.unsettled:
            self._groups[lane] = WaitGroup(self._clocks.current[lane], {at: moment}, {at})
        else:
            group.waits[at] = moment
            group.unsettled.add(at)
        self._clocks.join(lane, other, recorded, clock)

    def _allocate(self, at: int, step: Allocate) -> None:
        """Check that a buffer is allocated once, and that its bytes are free."""
        buffer, state = step.buffer, self._state
        if not 0 <= buffer < len(state) or state[buffer] != _ABSENT:
            raise self._no_access(at, "allocates", buffer)
        state[buffer] = _BLANK
        self._writer[buffer] = at
        about = self._buffers[buffer]
        if about.role is _TEMPORARY:
            offset = self._plan.offsets[buffer]
            if offset < 0:
                raise PlanError(f"{name_of(self._plan, at)}, but no place is set for it in an arena. {CURE}")
            nbytes = about.nbytes
            if nbytes:
                before = self._holders[about.device].put(offset, offset + nbytes, buffer)
                if before:
                    self._take_over(at, step, before)

    def _take_over(self, at: int, step: Allocate, before: list[tuple[int, bool]]) -> None:
        """Check that the last holders of a temporary's bytes are released before, or may be written over in place."""
        state, clock = self._state, self._clocks.current[step.lane]
        for other, whole in before:
            if state[other] == _RELEASED:
                released = self._writer[other]
                if clock[self._lane_of[released]] < released:
                    raise self._shared(
                        at, step.buffer, f"and nothing orders {name_of(self._plan, released)} before that", other
                    )
                group = self._groups[step.lane]
                if group is not None and self._lane_of[released] != step.lane:
                    group.credit(self._lane_of[released], released)
            elif whole:
                self._over[step.buffer] = other  # in place: the launch that writes the buffer must allow that
            else:
                raise self._shared(at, step.buffer, "which is still alive", other)

    def _write_over(self, at: int, lane: int, instruction: Instruction) -> None:
        """Check outputs that are first written over an input of the same instruction, which ends that input."""
        ended: list[int] = []
        for buffer in instruction.writes:
            other = self._over.pop(buffer, -1)
            if other < 0:
                continue
            if not isinstance(instruction, Launch) or not may_write_over(instruction, other, buffer):
                raise self._shared(
                    self._allocation(buffer),
                    buffer,
                    f"which is still alive, and {name_of(self._plan, at)} may not write the one over the other",
                    other,
                )
            ended.append(other)
            self._under[buffer] = other
        for other in ended:
            self._after_all(at, lane, other)
            self._state[other] = _OVERWRITTEN

    def _release(self, at: int, step: Release) -> None:
        """Check that a temporary is released once, after all its accesses."""
        buffer, state = step.buffer, self._state
        if not 0 <= buffer < len(state) or not _BLANK <= state[buffer] <= _OVERWRITTEN:
            raise self._no_access(at, "releases", buffer)
        about = self._buffers[buffer]
        if about.role is not _TEMPORARY or about.device == HOST:
            raise self._no_access(at, "releases", buffer)
        self._after_all(at, step.lane, buffer)
        if self._over or self._under:
            self._end_in_place(at, step)
        state[buffer] = _RELEASED
        self._writer[buffer] = at

    def _end_in_place(self, at: int, step: Release) -> None:
        """Check that the buffer under this one is released before it.

        So a later holder of the bytes has to be checked against this buffer alone.
        """
        buffer = step.buffer
        other = self._over.get(buffer, -1)
        if other >= 0:
            raise self._shared(self._allocation(buffer), buffer, "which is still alive", other)
        other = self._under.pop(buffer, -1)
        if other >= 0:
            released = self._writer[other]
            known = self._clocks.current[step.lane][self._lane_of[released]]
            if self._state[other] != _RELEASED or known < released:
                raise PlanError(
                    f"{name_of(self._plan, at)} gives back bytes of buffer {other}, which it was written over, and "
                    f"nothing orders the release of that before. {CURE}"
                )

    def _check_end(self) -> None:
        """Check the properties that hold only after all steps."""
        for event, moment in enumerate(self._events):
            if moment is None:
                raise PlanError(f"event {event} is never recorded. {CURE}")
        for number, (buffer, state) in enumerate(zip(self._plan.buffers, self._state, strict=True)):
            if state == _RELEASED:
                continue  # a temporary, and its end
            role = buffer.role
            if role is Role.OUTPUT and (state == _ABSENT or (state == _BLANK and buffer.device == HOST)):
                verb = "written" if buffer.device == HOST else "allocated"
                raise PlanError(f"buffer {number} is handed out but never {verb}. {CURE}")
            if state == _ABSENT and self._plan.offsets[number] >= 0:
                raise PlanError(f"buffer {number} has a place in an arena, but is never allocated. {CURE}")
            if role is Role.TEMPORARY and _BLANK <= state <= _OVERWRITTEN and buffer.device != HOST:
                raise PlanError(
                    f"buffer {number}, allocated by {name_of(self._plan, self._allocation(number))}, "
                    f"is never released. {CURE}"
                )

    def _allocation(self, buffer: int) -> int:
        """Return the step that allocates a buffer."""
        steps = self._plan.steps
        return next(at for at, step in enumerate(steps) if isinstance(step, Allocate) and step.buffer == buffer)

    def _shared(self, at: int, buffer: int, why: str, other: int) -> PlanError:
        """Build the error for step `at`, which allocates a buffer in the bytes of another one."""
        plan = self._plan
        low = max(plan.offsets[buffer], plan.offsets[other])
        high = min(plan.offsets[b] + plan.buffers[b].nbytes for b in (buffer, other))
        arena = f"the arena of {plan.devices[plan.buffers[buffer].device]}"
        return PlanError(
            f"{name_of(plan, at)} takes bytes {low:,} to {high:,} of {arena} from buffer {other}, allocated by "
            f"{name_of(plan, self._allocation(other))}, {why}. {CURE}"
        )

    def _unordered(self, earlier: int, at: int, buffer: int) -> PlanError:
        """Build the error for two accesses that are not ordered."""
        return PlanError(
            f"{name_of(self._plan, earlier)} and {name_of(self._plan, at)} both use buffer {buffer}, "
            f"not both to read it, and nothing orders them. {CURE}"
        )

    def _no_access(self, at: int, verb: str, buffer: int) -> PlanError:
        """Build the error for step `at`, which may not access, allocate or release a buffer in its present state."""
        step = f"{name_of(self._plan, at)} {verb} buffer {buffer}"
        if not 0 <= buffer < len(self._state):
            return PlanError(f"{step}, but the plan has {len(self._state)} buffers. {CURE}")
        what, state, writer = self._plan.buffers[buffer], self._state[buffer], self._writer[buffer]
        if state == _OVERWRITTEN:
            return PlanError(f"{step}, which a launch before it has written over in place. {CURE}")
        if state == _RELEASED:
            return PlanError(f"{step}, which {name_of(self._plan, writer)} has released. {CURE}")
        if verb in ("allocates", "releases") and (what.device == HOST or what.role is Role.INPUT):
            return PlanError(f"{step}, which {'is a cell' if what.device == HOST else 'is an input'}. {CURE}")
        if verb == "releases" and what.role is Role.OUTPUT:
            return PlanError(f"{step}, which is handed out. {CURE}")
        if state == _ABSENT:
            return PlanError(f"{step}, which is not allocated yet. {CURE}")
        if verb == "allocates":
            first = name_of(self._plan, self._allocation(buffer))
            return PlanError(f"{step}, which {first} has allocated already. {CURE}")
        return PlanError(f"{step}, which nothing has written yet. {CURE}")


# ---- tables
#
# Checks of a plan that need no walk over its steps: the indices are in range, and the sums of bytes are right.


def check_tables(plan: Plan) -> None:
    """Check that `lanes` and `buffers` refer to devices of the plan, and that the sums of bytes are right.

    Raises:
        PlanError: an index is out of range, or a sum is wrong.
    """
    for index, lane in enumerate(plan.lanes):
        if not 0 <= lane.device < len(plan.devices):
            raise PlanError(f"lane {index} is on device {lane.device} of {len(plan.devices)}. {CURE}")
    devices = len(plan.devices)
    if len(plan.offsets) != len(plan.buffers) or len(plan.arena_bytes) != devices:
        raise PlanError(
            f"{len(plan.offsets)} offsets for {len(plan.buffers)} buffers, and {len(plan.arena_bytes)} arenas for "
            f"{devices} devices. {CURE}"
        )
    ends, handed_out = [0] * devices, 0
    for number, (buffer, offset) in enumerate(zip(plan.buffers, plan.offsets, strict=True)):
        device, nbytes, role = buffer.device, buffer.nbytes, buffer.role
        if not HOST <= device < devices or nbytes < 0:
            raise PlanError(f"buffer {number} has {nbytes} bytes on device {device} of {devices}. {CURE}")
        if offset >= 0 and role is _TEMPORARY and device != HOST and offset % ALIGNMENT == 0:
            if ends[device] < offset + nbytes:
                ends[device] = offset + nbytes
        elif offset != -1:
            raise PlanError(f"buffer {number}, {_a(buffer)}, has the offset {offset} in an arena. {CURE}")
        if role is Role.OUTPUT and device != HOST:
            handed_out += nbytes
    for name, end, nbytes in zip(plan.devices, ends, plan.arena_bytes, strict=True):
        if end != nbytes:
            raise PlanError(f"the arena of {name} has {nbytes:,} bytes, and what lies in it takes {end:,}. {CURE}")
    if plan.peak_bytes != sum(ends) + handed_out:
        raise PlanError(
            f"peak_bytes is {plan.peak_bytes:,}, but the arenas take {sum(ends):,} and the outputs {handed_out:,}. "
            f"{CURE}"
        )


def _a(buffer: Buffer) -> str:
    """Name the kind of a buffer for a message."""
    return "a cell" if buffer.device == HOST else "a temporary" if buffer.role is Role.TEMPORARY else "not a temporary"


# ---- byte owners
#
# The last holder of each byte of an arena, while the verifier walks over a plan.
#
# Invariant: `_starts` is sorted, and `_spans[start]` is the end of the span that begins there, and its holder; spans do
# not overlap. A new span removes the spans that it covers, so the total work is linear in the number of spans put.


@final
class ByteOwners:
    """The last holder of each byte of one arena."""

    __slots__ = ("_spans", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: dict[int, tuple[int, int]] = {}

    def put(self, start: int, end: int, holder: int) -> list[tuple[int, bool]]:
        """Give bytes to a holder, and return their previous holders.

        Each comes with True if the bytes are exactly the span that it held.
        """
        spans, starts = self._spans, self._starts
        there = spans.get(start)
        if there is not None:
            if there[0] == end:  # the usual case: a buffer of the same size reuses the place
                spans[start] = end, holder
                return [(there[1], True)]
            if there[0] > end:  # a smaller buffer takes its first bytes
                spans[start] = end, holder
                spans[end] = there
                insort(starts, end)
                return [(there[1], False)]
        elif not starts or start >= spans[starts[-1]][0]:
            spans[start] = end, holder
            starts.append(start)
            return []
        return self._put_over(start, end, holder)

    def _put_over(self, start: int, end: int, holder: int) -> list[tuple[int, bool]]:
        """Put a span over any other spans; the parts of those outside it keep their holders."""
        spans, starts = self._spans, self._starts
        low = bisect_right(starts, start) - 1
        if low < 0 or spans[starts[low]][0] <= start:
            low += 1
        high = bisect_left(starts, end)
        before = [(at, *spans.pop(at)) for at in starts[low:high]]
        after = [(start, end, holder)]
        if before:
            first, _, who = before[0]
            if first < start:
                after.insert(0, (first, start, who))
            _, last, who = before[-1]
            if last > end:
                after.append((end, last, who))
        for at, to, who in after:
            spans[at] = to, who
        starts[low:high] = [at for at, _, _ in after]
        return [(who, False) for _, _, who in before]


# ---- needed waits
#
# Finds the one `Wait` of a group that orders an earlier step before the next step of its lane.

Moment: TypeAlias = tuple[int, int, Clock]
"""Lane and number of a step, and the clock of its lane at that step."""


@final
@dataclass(slots=True)
class WaitGroup:
    """Waits of one lane, some of which are not yet proved to be needed."""

    base: Clock
    """Clock of the lane before the first of the waits."""
    waits: dict[int, Moment]
    """For each wait, by its step, the record of its event."""
    unsettled: set[int]
    """Waits that are not yet proved to be needed."""

    def credit(self, lane: int, earlier: int) -> None:
        """Settle the wait that orders step `earlier` of `lane` before this lane's next step, if exactly one does."""
        if not self.unsettled or self.base[lane] >= earlier:
            return
        found = -1
        for wait, (other, at, clock) in self.waits.items():
            if (at if other == lane else clock[lane]) >= earlier:
                if found >= 0:
                    return
                found = wait
        self.unsettled.discard(found)


# ---- step names
#
# Names of the steps of a plan in the verifier's messages.

CURE: Final = (
    "The plan is at fault, not the program: place it with SingleStream() for now, "
    "and report it together with what print(plan) shows."
)


def name_of(plan: Plan, at: int) -> str:
    """Name a step for a message: `step 7 (Launch saxpy, lane 1, at file.py:12)`. Steps count from 1, as in
    `print(plan)`.

    A step that executes no instruction has no origin of its own, so the message names the instruction that it serves.
    For a buffer this is the first instruction that uses it. For an event it is the one before the record or after the
    wait, on the same lane.
    """
    step = plan.steps[at]
    served: Execute | None = None
    match step:
        case Execute(instruction, _):
            return f"step {at + 1} ({label(instruction)}, lane {step.lane}, at {describe(instruction.origin)})"
        case Allocate(buffer, _) | Release(buffer, _):
            what = f"{type(step).__name__} of buffer {buffer}"
            for other in plan.steps:
                if isinstance(other, Execute) and buffer in (
                    *other.instruction.reads,
                    *other.instruction.writes,
                ):
                    served = other
                    break
        case Record(event, _) | Wait(event, _):
            what = f"{type(step).__name__} of event {event}"
            nearby = plan.steps[at:] if isinstance(step, Wait) else reversed(plan.steps[:at])
            for other in nearby:
                if isinstance(other, Execute) and other.lane == step.lane:
                    served = other
                    break
    where = "" if served is None else f", for {label(served.instruction)} at {describe(served.instruction.origin)}"
    return f"step {at + 1} ({what}, lane {step.lane}{where})"


# ---- verify bodies
#
# Checks the bodies of a plan's `If`s: nothing reads what a body writes, unless the body has run then.
#
# It knows nothing of cutoffs. A body has run where one of its flags is set. A flag that is written in a body is set
# only if that body has run, because whoever starts a run clears all flags.


def verify_bodies(plan: Plan) -> None:
    """Check the bodies of a plan with an `If`.

    Raises:
        PlanError: a body is not complete, or contains an `If`, or something reads what a body writes that may not have
            run.
    """
    steps = [at for at, step in enumerate(plan.steps) if type(step) is Execute]
    _BodyWalk(plan, steps, [step.instruction for step in plan.steps if type(step) is Execute]).run()


@final
class _BodyWalk:
    """One walk over the instructions of a plan with bodies."""

    def __init__(self, plan: Plan, steps: Sequence[int], instructions: Sequence[Instruction]) -> None:
        self._plan = plan
        self._steps = steps
        self._instructions = instructions
        self._bodies = bodies_of(instructions)
        """For each instruction the index of the `If` in whose body it is; -1 for none."""
        self._written_in: dict[int, dict[int, int]] = {}
        """For each buffer the bodies that have written it, each with the last instruction that did."""

    def run(self) -> None:
        """Check all instructions in order."""
        for index, instruction in enumerate(self._instructions):
            body = self._bodies[index]
            if isinstance(instruction, If):
                if body >= 0:
                    raise PlanError(f"{self._name(index)} is in the body of {self._name(body)}. {CURE}")
                if index + instruction.body >= len(self._instructions):
                    raise PlanError(f"the body of {self._name(index)} ends after the plan does. {CURE}")
            else:
                self._check_reads(index, instruction, body)
            for buffer in instruction.writes:
                self._written_in.setdefault(buffer, {})[body] = index

    def _check_reads(self, index: int, instruction: Instruction, body: int) -> None:
        """Check that all bodies have run that write what an instruction reads. A kernel may read what it writes."""
        reads = [*instruction.reads, *(instruction.writes if type(instruction) is Launch else ())]
        for buffer in reads:
            for other, writer in self._written_in.get(buffer, {}).items():
                if other >= 0 and not self._has_run(other, body):
                    raise PlanError(
                        f"{self._name(index)} reads buffer {buffer}, which {self._name(writer)} writes only if "
                        f"{self._name(other)} lets it. {CURE}"
                    )

    def _has_run(self, other: int, body: int) -> bool:
        """Return true if the body `other` has run wherever something in `body` runs; -1 is outside of all bodies."""
        if body < 0:
            return False
        own = self._instructions[other].reads
        return other == body or all(
            flags in own or self._are_set_after(other, flags) for flags in self._instructions[body].reads
        )

    def _are_set_after(self, other: int, flags: int) -> bool:
        """Return true if these flags are set only where the body `other` has run."""
        setting = self._written_in.get(flags, {})
        return bool(setting) and all(self._has_run(other, body) for body in setting)

    def _name(self, index: int) -> str:
        return name_of(self._plan, self._steps[index])
