"""The machine: executes the actions of lanes one after the other.

It implements the semantics of streams and events and nothing else: a lane's actions happen in their order, and a Wait
lets its lane go on only after its Record has been reached. A `Store` defines the effect of an action on memory, and a
`Choice` selects the lane of the next step. Records and waits are not steps: reaching a record early only allows more
orders.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol, final

from dagpu.backends.host.failures import Outcome
from dagpu.common.errors import PlanError
from dagpu.common.places import describe
from dagpu.plans.plan import Allocate, Execute, Plan, Record, Release, Wait, may_write_over
from dagpu.plans.program import HOST, Instruction, Launch, Role, label

# ---- scripts: a plan in the form that the machine executes, the actions of each lane in order -------------------
# An instruction is two actions. It *begins* by reading all of its inputs (and the buffers that it overwrites), and is
# *published* when its results become visible. Other lanes may go on between the two, as on a GPU: so of two unordered
# updates of one buffer, one gets lost. If each update were one action, none would.


ALLOCATE: Final = 0
RELEASE: Final = 1
BEGIN: Final = 2
PUBLISH: Final = 3
RECORD: Final = 4
WAIT: Final = 5


@final
class Action(NamedTuple):
    """One action of a lane; `number` is a buffer or an event, -1 for an action without one."""

    kind: int
    number: int
    step: int
    """Index of the step in the plan that the action belongs to."""
    instruction: Instruction | None


@final
@dataclass(frozen=True, slots=True)
class Script:
    """The actions of each lane of a plan."""

    plan: Plan
    lanes: tuple[tuple[Action, ...], ...]
    steps: int
    """Number of actions that touch memory: all but records and waits."""
    successor: dict[int, int]
    """Maps a buffer that is written over in place to the buffer that takes its bytes. The release of the first and the
    allocation of the second poison no memory."""


def script_of(plan: Plan) -> Script:
    """Convert a plan to a script."""
    lanes: list[list[Action]] = [[] for _ in plan.lanes]
    successor: dict[int, int] = {}
    steps = 0
    for at, step in enumerate(plan.steps):
        put = lanes[step.lane].append
        match step:
            case Execute(instruction, _):
                put(Action(BEGIN, -1, at, instruction))
                put(Action(PUBLISH, -1, at, instruction))
                if isinstance(instruction, Launch):
                    _find_successors(plan, instruction, successor)
                steps += 2
            case Allocate(buffer, _):
                put(Action(ALLOCATE, buffer, at, None))
                steps += 1
            case Release(buffer, _):
                put(Action(RELEASE, buffer, at, None))
                steps += 1
            case Record(event, _):
                put(Action(RECORD, event, at, None))
            case Wait(event, _):
                put(Action(WAIT, event, at, None))
    return Script(plan, tuple(map(tuple, lanes)), steps, successor)


def _find_successors(plan: Plan, launch: Launch, successor: dict[int, int]) -> None:
    """Record the outputs of a launch that are written in place, at the address of one of its inputs."""
    for out in launch.writes:
        for source in launch.reads:
            if (
                plan.offsets[out] >= 0
                and plan.offsets[out] == plan.offsets[source]
                and plan.buffers[out].device == plan.buffers[source].device
                and may_write_over(launch, source, out)
            ):
                successor[source] = out


@final
@dataclass(frozen=True, slots=True)
class Places:
    """A division of memory into numbered places.

    Arenas are cut wherever a buffer starts or ends. A buffer outside the arenas is one place. Two buffers overlap if
    and only if they have a place in common.
    """

    of: tuple[tuple[int, ...], ...]
    """The numbers of each buffer's places."""
    count: int


def places_of(plan: Plan) -> Places:
    """Divide the memory of a plan into places."""
    edges: list[set[int]] = [set() for _ in plan.devices]
    for buffer, offset in zip(plan.buffers, plan.offsets, strict=True):
        if buffer.device != HOST and offset >= 0 and buffer.role is Role.TEMPORARY:
            edges[buffer.device].update((offset, offset + buffer.nbytes))
    numbers: dict[tuple[int, int], int] = {}
    cuts = [sorted(edge) for edge in edges]
    for device, cut in enumerate(cuts):
        for start, _ in pairwise(cut):
            numbers[device, start] = len(numbers)
    count = len(numbers)
    found: list[tuple[int, ...]] = []
    for buffer, offset in zip(plan.buffers, plan.offsets, strict=True):
        if buffer.device != HOST and offset >= 0 and buffer.role is Role.TEMPORARY:
            stop = offset + buffer.nbytes
            found.append(tuple(numbers[buffer.device, at] for at in cuts[buffer.device] if offset <= at < stop))
        else:
            found.append((count,))
            count += 1
    return Places(tuple(found), count)


# ---- choices among ready lanes: an exploration chooses the lane of each step by a seed or from a list -----------


_FIXED: Final = 1 / 16
"""Probability that a seed keeps its priorities for the whole run. It is small, as only lanes! such orders exist."""
_SLOWEST: Final = 5
"""Other priorities last for 1 to 2**_SLOWEST steps on average; the exponent is uniformly distributed."""
_SLOW: Final = 1 / 2
"""Probability that a device is held, whenever that is drawn."""
_HELD: Final = 7
"""A device is held for 1 to 2**_HELD steps; the exponent is uniformly distributed."""


class Choice(Protocol):
    """Chooses the lane of the next step among the ready lanes. At least one lane is ready."""

    def __call__(self, ready: Sequence[int]) -> int: ...


@final
class Seeded:
    """Chooses by random priorities of the lanes, which are redrawn from time to time.

    A missing wait shows only if one lane runs far ahead of another. A fair choice at each step hardly ever does that.
    So the seed also determines how long priorities last. This follows Burckhardt et al., A Randomized Scheduler with
    Probabilistic Guarantees of Finding Bugs (ASPLOS 2010), where a race between two steps shows with a probability of
    at least 1 / lanes in a run with fixed priorities.
    """

    __slots__ = ("_devices", "_left", "_number", "_priority", "_random", "_rate", "_slow")

    def __init__(self, seed: int, lanes: int, devices: Sequence[int] = ()) -> None:
        """`devices` has the device of each lane. If there are several, one of them is slow from time to time: all its
        lanes are held for 1 to 2**_HELD steps, unless no other lane is ready."""
        self._random = random.Random(seed).random
        self._devices = devices
        self._number = len({*devices})
        self._slow, self._left = -1, 0
        self._rate = 0.0 if self._random() < _FIXED else 2.0 ** (-_SLOWEST * self._random())
        self._priority = [self._random() for _ in range(lanes)]

    def __call__(self, ready: Sequence[int]) -> int:
        if self._number > 1:
            ready = self._without_slow(ready)
        if len(ready) == 1:
            return ready[0]
        if self._random() < self._rate:
            draw = self._random
            self._priority = [draw() for _ in self._priority]
        return max(ready, key=self._priority.__getitem__)

    def _without_slow(self, ready: Sequence[int]) -> Sequence[int]:
        """Return the ready lanes without those of the slow device; all of them if there are no others."""
        if not self._left:
            draw, found = self._random, sorted({*self._devices})
            self._slow = found[int(draw() * len(found))] if draw() < _SLOW else -1
            self._left = int(2.0 ** (_HELD * draw()))
        self._left -= 1
        return [lane for lane in ready if self._devices[lane] != self._slow] or ready


@final
class Listed:
    """Chooses the lanes of a list, one for each step, and the lowest ready lane after the end of the list."""

    __slots__ = ("_lanes", "_taken")

    def __init__(self, lanes: Iterable[int]) -> None:
        self._lanes = tuple(lanes)
        self._taken = 0

    @property
    def coming(self) -> int:
        """The lane of the next step; -1 at the end of the list."""
        return self._lanes[self._taken] if self._taken < len(self._lanes) else -1

    def __call__(self, ready: Sequence[int]) -> int:
        lane = self.coming
        if lane < 0:
            return min(ready)
        self._taken += 1
        if lane not in ready:
            raise PlanError(
                f"choices[{self._taken - 1}] is lane {lane}, which may not go on there: it is at its end or waits for "
                f"an event. Those that may: {sorted(ready)}. Choices belong to the plan they were made for."
            )
        return lane


class Store(Protocol):
    """The memory that a machine works on."""

    def allocate(self, buffer: int) -> None: ...

    def release(self, buffer: int) -> None: ...

    def begin(self, lane: int, instruction: Instruction) -> None:
        """Compute the results of an instruction, without publishing them. Errors of the user's code are raised."""
        ...

    def publish(self, lane: int, instruction: Instruction) -> None:
        """Make the results of the instruction that began in this lane visible to all lanes."""
        ...

    def spoil(self, lane: int, instruction: Instruction) -> None:
        """Invalidate the outputs of an instruction that has failed."""
        ...


@final
class Machine:
    """One execution of a script. Deterministic: the same script, choices and faults give the same execution.

    Invariant: a lane is in `_ready` if its next action touches memory, in `_blocked` if that action is a Wait for an
    event that has not happened, and in neither at its end.
    """

    __slots__ = ("_at", "_blocked", "_choose", "_happened", "_outcome", "_ready", "_script", "_skipped", "_store")

    def __init__(self, script: Script, store: Store, outcome: Outcome, choose: Choice) -> None:
        self._script = script
        self._store = store
        self._outcome = outcome
        self._choose = choose
        self._at = [0] * len(script.lanes)
        self._happened = bytearray(script.plan.events)
        self._blocked: dict[int, list[int]] = {}
        self._ready: list[int] = []
        self._skipped: set[int] = set()
        self._go_on(range(len(script.lanes)))

    def step(self, fault: BaseException | None = None) -> int:
        """Do one action that touches memory. Return its lane; -1 if no lane can go on.

        With a `fault`, the action's instruction fails with it. A failed allocation or release is attributed to another
        instruction.
        """
        ready = self._ready
        if not ready:
            return -1
        lane = self._choose(ready)
        at = self._at[lane]
        self._do(lane, self._script.lanes[lane][at], fault)
        self._at[lane] = at + 1
        ready.remove(lane)
        self._go_on((lane,))
        return lane

    def run(self) -> bytes:
        """Run to the end without faults. Return the order of lanes, modulo 256. Made for many executions in a row."""
        order = bytearray()
        ready, at, choose, lanes = self._ready, self._at, self._choose, self._script.lanes
        while ready:
            lane = choose(ready)
            order.append(lane & 255)
            actions = lanes[lane]
            self._do(lane, actions[at[lane]], None)
            next_at = at[lane] = at[lane] + 1
            if next_at == len(actions) or actions[next_at].kind >= RECORD:
                ready.remove(lane)
                self._go_on((lane,))
        return bytes(order)

    def can_go_on(self) -> bool:
        """Return True if a lane is ready."""
        return bool(self._ready)

    def stuck(self) -> PlanError | None:
        """Return an error for a lane that waits forever; None if all lanes are at their end or can go on."""
        for event, lanes in self._blocked.items():
            lane = lanes[0]
            wait = self._script.lanes[lane][self._at[lane]]
            return PlanError(
                f"step {wait.step + 1} waits in lane {lane} for event {event}, which never happens: no lane can go on."
                f"{_after(self._script, lane, self._at[lane])} The plan is at fault, not the program."
            )
        return None

    def blocked(self) -> Instruction | None:
        """Return the first instruction behind a wait for an event that never happens; None without one."""
        for lanes in self._blocked.values():
            for action in self._script.lanes[lanes[0]][self._at[lanes[0]] :]:
                if action.instruction is not None:
                    return action.instruction
        return None

    def _go_on(self, moved: Iterable[int]) -> None:
        """Advance these lanes past records and fulfilled waits, and also the lanes that such a record unblocks."""
        happened, blocked, at, open_lanes = self._happened, self._blocked, self._at, list(moved)
        while open_lanes:
            lane = open_lanes.pop()
            actions = self._script.lanes[lane]
            place = at[lane]
            while place < len(actions):
                action = actions[place]
                if action.kind == RECORD:
                    happened[action.number] = 1
                    open_lanes += blocked.pop(action.number, ())
                elif action.kind == WAIT:
                    if not happened[action.number]:
                        blocked.setdefault(action.number, []).append(lane)
                        break
                else:
                    self._ready.append(lane)
                    break
                place += 1
            at[lane] = place

    def _do(self, lane: int, action: Action, fault: BaseException | None) -> None:
        kind, instruction = action.kind, action.instruction
        if instruction is not None:
            self._play(lane, action, instruction, fault)
        elif kind == ALLOCATE:
            if not self._outcome.cancelled:
                self._store.allocate(action.number)
            if fault is not None:
                self._fail_allocation(action.number, fault)
        else:
            self._store.release(action.number)
            if fault is not None:
                self._lose_device(action, fault)

    def _play(self, lane: int, action: Action, instruction: Instruction, fault: BaseException | None) -> None:
        outcome, store = self._outcome, self._store
        if action.kind == BEGIN:
            if outcome.abnormal and outcome.skips(instruction):
                self._skipped.add(action.step)
                return
            try:
                if fault is not None:
                    raise fault
                store.begin(lane, instruction)
            except BaseException as error:  # SystemExit and the like too, as on a worker thread
                self._skipped.add(action.step)
                store.spoil(lane, instruction)
                outcome.fail(instruction, error)
        elif action.kind == PUBLISH and action.step not in self._skipped:
            if fault is not None:
                store.spoil(lane, instruction)
                outcome.fail(instruction, fault)
            else:
                store.publish(lane, instruction)

    def _fail_allocation(self, buffer: int, fault: BaseException) -> None:
        """Fail the first instruction that would have written the buffer. A buffer without a writer needs no memory."""
        for step in self._script.plan.steps:
            if isinstance(step, Execute) and buffer in step.instruction.writes:
                self._outcome.fail(step.instruction, fault, (buffer,))
                return

    def _lose_device(self, action: Action, fault: BaseException) -> None:
        """Fail a release as a lost device: blame the last instruction before it, and begin no other."""
        steps = self._script.plan.steps
        last = next((s.instruction for s in reversed(steps[: action.step]) if isinstance(s, Execute)), None)
        if last is not None:
            self._outcome.fail(last, fault, ())
        self._outcome.lose_track()
        self._outcome.cancel()


def _after(script: Script, lane: int, at: int) -> str:
    """Return the part of a message that names the first instruction behind a wait; empty without one."""
    for action in script.lanes[lane][at:]:
        if action.instruction is not None:
            return f" Behind it is {label(action.instruction)}, at {describe(action.instruction.origin)}."
    return ""
