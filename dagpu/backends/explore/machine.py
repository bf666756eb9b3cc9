"""The machine: lanes, events, and one action after the other.

It knows the semantics of streams and events and nothing else: a lane's actions happen in their order, and a Wait lets
its lane go on only after its Record has been reached. What an action does to memory is up to a `Store`, which lane goes
on to a `Choice`. Records and waits are no choices of their own: reaching a record early only allows more.
"""

from collections.abc import Iterable
from typing import Protocol, final

from dagpu.backends.explore.choice import Choice
from dagpu.backends.explore.script import ALLOCATE, BEGIN, PUBLISH, RECORD, WAIT, Action, Script
from dagpu.backends.outcome import Outcome
from dagpu.errors import PlanError
from dagpu.lowering.plan import Execute
from dagpu.lowering.program import Instruction, label
from dagpu.origin import describe


class Store(Protocol):
    """The memory that a machine works on."""

    def allocate(self, buffer: int) -> None: ...

    def release(self, buffer: int) -> None: ...

    def begin(self, lane: int, instruction: Instruction) -> None:
        """Compute what the instruction writes. Raises what the user's code raises."""
        ...

    def publish(self, lane: int, instruction: Instruction) -> None:
        """Let others see what the instruction that began in this lane has written."""
        ...

    def spoil(self, lane: int, instruction: Instruction) -> None:
        """The instruction failed: what it should have written is worth nothing."""
        ...


@final
class Machine:
    """One execution of a script. Deterministic: the same script, choices and faults give the same execution.

    Invariant: a lane stands in `_ready` if its next action touches memory, in `_blocked` if it is a Wait for an event
    that has not happened, and in neither at its end.
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
        """Do one action that touches memory, and give back its lane; -1 where no lane can go on.

        With a `fault` the action fails with it, as far as it can: in what it would have written.
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
        """To the end, with nothing injected; gives back the order. For many executions in a row."""
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
        """Is there a lane that may?"""
        return bool(self._ready)

    def stuck(self) -> PlanError | None:
        """Why no lane can go on, though some are not at their end; None where all are."""
        for event, lanes in self._blocked.items():
            lane = lanes[0]
            wait = self._script.lanes[lane][self._at[lane]]
            return PlanError(
                f"step {wait.step} waits in lane {lane} for event {event}, which never happens: no lane can go on."
                f"{_after(self._script, lane, self._at[lane])} The plan is at fault, not the program."
            )
        return None

    def blocked(self) -> Instruction | None:
        """The first instruction that can never begin."""
        for lanes in self._blocked.values():
            for action in self._script.lanes[lanes[0]][self._at[lanes[0]] :]:
                if action.instruction is not None:
                    return action.instruction
        return None

    def _go_on(self, moved: Iterable[int]) -> None:
        """These lanes have a new next action: pass records and waits, and see who that lets go on."""
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
        """No memory: blamed on what would have written it, which is skipped. Nobody misses what nobody writes."""
        for step in self._script.plan.steps:
            if isinstance(step, Execute) and buffer in step.instruction.writes:
                self._outcome.fail(step.instruction, fault, (buffer,))
                return

    def _lose_device(self, action: Action, fault: BaseException) -> None:
        """A release has no instruction that could fail: the device is taken to be lost, and no more is begun."""
        steps = self._script.plan.steps
        last = next((s.instruction for s in reversed(steps[: action.step]) if isinstance(s, Execute)), None)
        if last is not None:
            self._outcome.fail(last, fault, ())
        self._outcome.cancel()


def _after(script: Script, lane: int, at: int) -> str:
    """What stands behind a wait, for a message."""
    for action in script.lanes[lane][at:]:
        if action.instruction is not None:
            return f" Behind it is {label(action.instruction)}, at {describe(action.instruction.origin)}."
    return ""
