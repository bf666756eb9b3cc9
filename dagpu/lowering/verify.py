"""Proof that a plan is right, from its steps alone: nothing here knows how the scheduler reasons.

Steps stand in an order in which they may be submitted, and every `Record` before its `Wait`s, so one walk
over the steps meets each after all that happens before it. What is proved of every plan that passes:

1. Two accesses to one buffer, one of them a write, are ordered by happens-before. `Allocate` and `Release`
   count as writes. It is enough to hold each access against the *direct* ones before it: a read against the
   last write, a write against the last write and the reads since. Any earlier one lies before these, as was
   found when they were met.
2. Nothing is read that has not been written, but for inputs. Device memory of temporaries and outputs is
   allocated once, before all its accesses; that of temporaries is released once, after all of them; outputs
   and inputs are not released, inputs not allocated. An output cell has been written.
3. Each event is recorded once, before every wait for it. So happens-before has no cycle.
4. Every wait is needed: without it, some pair of (1) is unordered.

For (4), a wait is *settled* as needed where a direct access pair (a, b) meets these: b's lane does not know
of `a` when the wait's group begins, and of the waits in the group this one alone brings word of it. Every
path from `a` to b then leads through that wait. A group is the waits of one lane since the last of them were
all settled. This settles every wait that some step of its own lane needs, as all those are that `schedule`
makes. A wait that only passes word on to other lanes, or that is not needed, is left over, and decided
exactly: the proof is done again without it.

Cost: linear in steps and accesses, times lanes for each wait; each wait that is left over costs another walk.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never, final

from dagpu.errors import PlanError
from dagpu.lowering.order import Clock, Clocks
from dagpu.lowering.plan import Allocate, Execute, Plan, Record, Release, Wait
from dagpu.lowering.program import HOST, Role
from dagpu.lowering.show import label
from dagpu.origin import describe

_CURE: Final = (
    "The plan is at fault, not the program: place it with SingleStream() for now, "
    "and report it together with what print(plan) shows."
)

# What a buffer is, as the walk goes on.
_ABSENT: Final = 0  # device memory that is not allocated yet
_BLANK: Final = 1  # has memory, nothing written
_DEFINED: Final = 2
_RELEASED: Final = 3

_Moment: TypeAlias = tuple[int, int, Clock]
"""Lane and number of a step, and what its lane's clock was."""


def verify(plan: Plan) -> None:
    """Return if the plan keeps the invariants above; raise `PlanError`, naming the steps, if not."""
    _check_tables(plan)
    for wait in _Walk(plan).run():
        try:
            _Walk(plan, without=wait).run()
        except PlanError:
            continue  # without it something is unordered: it is needed
        raise PlanError(f"{_name(plan, wait)} is not needed: all is ordered without it. {_CURE}")


def _check_tables(plan: Plan) -> None:
    """The numbers in `lanes` and `buffers` refer to devices of the plan."""
    for index, lane in enumerate(plan.lanes):
        if not 0 <= lane.device < len(plan.devices):
            raise PlanError(f"lane {index} is on device {lane.device} of {len(plan.devices)}. {_CURE}")
    for number, buffer in enumerate(plan.buffers):
        if not HOST <= buffer.device < len(plan.devices) or buffer.nbytes < 0:
            raise PlanError(
                f"buffer {number} has {buffer.nbytes} bytes on device {buffer.device} of {len(plan.devices)}. {_CURE}"
            )


@final
@dataclass(slots=True)
class _Group:
    """Waits of one lane, some not settled yet. `base` is the lane's clock before the first of them."""

    base: Clock
    waits: dict[int, _Moment]
    unsettled: set[int]

    def credit(self, lane: int, earlier: int) -> None:
        """A step here needs step `earlier` of `lane`: settle the wait that brings it, if it is one."""
        if not self.unsettled or self.base[lane] >= earlier:
            return
        found = -1
        for wait, (other, at, clock) in self.waits.items():
            if (at if other == lane else clock[lane]) >= earlier:
                if found >= 0:
                    return
                found = wait
        self.unsettled.discard(found)


@final
class _Walk:
    """One walk over a plan's steps; `without` is the number of a wait to leave out."""

    __slots__ = (
        "_clocks",
        "_events",
        "_groups",
        "_leftover",
        "_plan",
        "_readers",
        "_state",
        "_without",
        "_writer",
    )

    def __init__(self, plan: Plan, without: int = -1) -> None:
        self._plan = plan
        self._without = without
        self._state = [
            _DEFINED if buffer.role is Role.INPUT else _BLANK if buffer.device == HOST else _ABSENT
            for buffer in plan.buffers
        ]
        self._writer = [-1] * len(plan.buffers)  # the step that last wrote or allocated it
        self._readers: list[list[int]] = [[] for _ in plan.buffers]  # the steps that read it since
        self._clocks = Clocks(len(plan.lanes))
        self._events: list[_Moment | None] = [None] * plan.events
        self._groups: list[_Group | None] = [None] * len(plan.lanes)
        self._leftover: list[int] = []

    def run(self) -> list[int]:
        """Raises `PlanError`, or gives back the waits that are not settled as needed."""
        lanes = len(self._plan.lanes)
        for at, step in enumerate(self._plan.steps):
            if not 0 <= step.lane < lanes:
                raise PlanError(f"{_name(self._plan, at)} is on lane {step.lane} of {lanes}. {_CURE}")
            match step:
                case Execute():
                    self._execute(at, step)
                case Record():
                    self._record(at, step)
                case Wait():
                    if at != self._without:
                        self._wait(at, step)
                case Allocate():
                    self._allocate(at, step)
                case Release():
                    self._release(at, step)
                case _:
                    assert_never(step)
        self._check_end()
        for group in self._groups:
            if group is not None:
                self._leftover.extend(group.unsettled)
        return sorted(self._leftover)

    def _execute(self, at: int, step: Execute) -> None:
        instruction, lane = step.instruction, step.lane
        plan, state, writer, readers = self._plan, self._state, self._writer, self._readers
        if instruction.device != plan.lanes[lane].device:
            raise PlanError(
                f"{_name(plan, at)} belongs on device {instruction.device}, but its lane is on device "
                f"{plan.lanes[lane].device}. {_CURE}"
            )
        clock = self._clocks.of[lane]
        group = self._groups[lane]
        steps = plan.steps
        for buffer in instruction.reads:
            if not 0 <= buffer < len(state) or state[buffer] != _DEFINED:
                raise self._no_access(at, "reads", buffer)
            earlier = writer[buffer]
            if earlier >= 0:
                other = steps[earlier].lane
                if other != lane:
                    if clock[other] < earlier:
                        raise self._unordered(earlier, at, buffer)
                    if group is not None:
                        group.credit(other, earlier)
        for buffer in instruction.writes:
            if not 0 <= buffer < len(state) or not _BLANK <= state[buffer] <= _DEFINED:
                raise self._no_access(at, "writes", buffer)
            self._after_all(at, lane, buffer)
        # Only now: an instruction that reads what it writes has nothing to wait for in itself.
        for buffer in instruction.reads:
            readers[buffer].append(at)
        for buffer in instruction.writes:
            writer[buffer] = at
            state[buffer] = _DEFINED
            if readers[buffer]:
                readers[buffer] = []

    def _after_all(self, at: int, lane: int, buffer: int) -> None:
        """Step `at` writes or releases a buffer: every access so far must lie before it."""
        steps, clock, group = self._plan.steps, self._clocks.of[lane], self._groups[lane]
        earlier = self._writer[buffer]
        if earlier >= 0:
            other = steps[earlier].lane
            if other != lane:
                if clock[other] < earlier:
                    raise self._unordered(earlier, at, buffer)
                if group is not None:
                    group.credit(other, earlier)
        for earlier in self._readers[buffer]:
            other = steps[earlier].lane
            if other != lane:
                if clock[other] < earlier:
                    raise self._unordered(earlier, at, buffer)
                if group is not None:
                    group.credit(other, earlier)

    def _record(self, at: int, step: Record) -> None:
        if not 0 <= step.event < len(self._events):
            raise PlanError(f"{_name(self._plan, at)}: the plan has {len(self._events)} events. {_CURE}")
        before = self._events[step.event]
        if before is not None:
            raise PlanError(
                f"event {step.event} is recorded twice: by {_name(self._plan, before[1])} and by "
                f"{_name(self._plan, at)}. {_CURE}"
            )
        self._events[step.event] = (step.lane, at, self._clocks.of[step.lane])

    def _wait(self, at: int, step: Wait) -> None:
        lane = step.lane
        moment = self._events[step.event] if 0 <= step.event < len(self._events) else None
        if moment is None:
            raise PlanError(f"{_name(self._plan, at)} comes before any record of event {step.event}. {_CURE}")
        other, recorded, clock = moment
        group = self._groups[lane]
        if group is None or not group.unsettled:
            group = self._groups[lane] = _Group(self._clocks.of[lane], {}, set())
        group.waits[at] = moment
        group.unsettled.add(at)
        self._clocks.join(lane, other, recorded, clock)

    def _allocate(self, at: int, step: Allocate) -> None:
        buffer = step.buffer
        if not 0 <= buffer < len(self._state) or self._state[buffer] != _ABSENT:
            raise self._no_access(at, "allocates", buffer)
        self._state[buffer] = _BLANK
        self._writer[buffer] = at

    def _release(self, at: int, step: Release) -> None:
        buffer = step.buffer
        if not 0 <= buffer < len(self._state) or not _BLANK <= self._state[buffer] <= _DEFINED:
            raise self._no_access(at, "releases", buffer)
        what = self._plan.buffers[buffer]
        if what.role is not Role.TEMPORARY or what.device == HOST:
            raise self._no_access(at, "releases", buffer)
        self._after_all(at, step.lane, buffer)
        self._state[buffer] = _RELEASED
        self._writer[buffer] = at

    def _check_end(self) -> None:
        """What can be said only when all steps have been met."""
        for event, moment in enumerate(self._events):
            if moment is None:
                raise PlanError(f"event {event} is never recorded. {_CURE}")
        for number, (buffer, state) in enumerate(zip(self._plan.buffers, self._state, strict=True)):
            if buffer.role is Role.OUTPUT and (state == _ABSENT or (state == _BLANK and buffer.device == HOST)):
                verb = "written" if buffer.device == HOST else "allocated"
                raise PlanError(f"buffer {number} is handed out but never {verb}. {_CURE}")
            if buffer.role is Role.TEMPORARY and buffer.device != HOST and _BLANK <= state <= _DEFINED:
                raise PlanError(
                    f"buffer {number}, allocated by {_name(self._plan, self._allocation(number))}, "
                    f"is never released. {_CURE}"
                )

    def _allocation(self, buffer: int) -> int:
        steps = self._plan.steps
        return next(at for at, step in enumerate(steps) if isinstance(step, Allocate) and step.buffer == buffer)

    def _unordered(self, earlier: int, at: int, buffer: int) -> PlanError:
        return PlanError(
            f"{_name(self._plan, earlier)} and {_name(self._plan, at)} both use buffer {buffer}, "
            f"not both to read it, and nothing orders them. {_CURE}"
        )

    def _no_access(self, at: int, verb: str, buffer: int) -> PlanError:
        """Why step `at` may not read, write, allocate or release a buffer that is as it is now."""
        step = f"{_name(self._plan, at)} {verb} buffer {buffer}"
        if not 0 <= buffer < len(self._state):
            return PlanError(f"{step}, but the plan has {len(self._state)} buffers. {_CURE}")
        what, state, writer = self._plan.buffers[buffer], self._state[buffer], self._writer[buffer]
        if state == _RELEASED:
            return PlanError(f"{step}, which {_name(self._plan, writer)} has released. {_CURE}")
        if verb in ("allocates", "releases") and (what.device == HOST or what.role is Role.INPUT):
            return PlanError(f"{step}, which {'is a cell' if what.device == HOST else 'is an input'}. {_CURE}")
        if verb == "releases" and what.role is Role.OUTPUT:
            return PlanError(f"{step}, which is handed out. {_CURE}")
        if state == _ABSENT:
            return PlanError(f"{step}, which is not allocated yet. {_CURE}")
        if verb == "allocates":
            first = _name(self._plan, self._allocation(buffer))
            return PlanError(f"{step}, which {first} has allocated already. {_CURE}")
        return PlanError(f"{step}, which nothing has written yet. {_CURE}")


def _name(plan: Plan, at: int) -> str:
    """A step for a message: `step 7 (Launch saxpy, lane 1, at file.py:12)`.

    A step that is no instruction has no origin of its own: it has that of the instruction it serves, which
    is, for a buffer, the first that uses it, and for an event, the one before the record or behind the wait.
    """
    step = plan.steps[at]
    served: Execute | None = None
    match step:
        case Execute(instruction, _):
            return f"step {at} ({label(instruction)}, lane {step.lane}, at {describe(instruction.origin)})"
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
    return f"step {at} ({what}, lane {step.lane}{where})"
