"""The machine: executes the actions of lanes one after the other.

It implements the semantics of streams and events and nothing else: a lane's actions happen in their order, and a Wait
lets its lane go on only after its Record has been reached. A `Store` defines the effect of an action on memory, and a
`Choice` selects the lane of the next step. Records and waits are not steps: reaching a record early only allows more
orders.
"""

from collections.abc import Iterable
from typing import Protocol, final

from dagpu.backends.common.failures import Outcome
from dagpu.backends.explore.choice import Choice
from dagpu.backends.explore.script import ALLOCATE, BEGIN, PUBLISH, RECORD, WAIT, Action, Script
from dagpu.common.errors import PlanError
from dagpu.common.places import describe
from dagpu.plans.plan import Execute
from dagpu.plans.program import Instruction, label


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
