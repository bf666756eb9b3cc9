"""The order in which the actions of several lanes are submitted: one of each lane in turn.

A plan's own order may finish one branch before it begins the next; at some microseconds a launch, the last branch then
begins late by the launches of all the others. Any order does that keeps each lane's own and has each event recorded
before anybody waits for it.
"""

from collections import deque
from collections.abc import Sequence

from dagpu.backends.cuda.commands.command_list import Command, Kind


def in_turn(actions: Sequence[Command], lanes: int) -> list[Command]:
    """The same actions. A lane whose next one waits for an event gets no turn until that is recorded."""
    queues: list[deque[Command]] = [deque() for _ in range(lanes)]
    for action in actions:
        queues[action.lane].append(action)
    turns = deque(queue for queue in queues if queue)
    recorded: set[int] = set()
    blocked: dict[int, list[deque[Command]]] = {}
    found: list[Command] = []
    while turns:
        queue = turns.popleft()
        if (event := _submit_one(queue, found, recorded, blocked, turns)) is not None:
            blocked.setdefault(event, []).append(queue)
        elif queue:
            turns.append(queue)
    return found


def _submit_one(
    queue: deque[Command],
    found: list[Command],
    recorded: set[int],
    blocked: dict[int, list[deque[Command]]],
    turns: deque[deque[Command]],
) -> int | None:
    """One instruction of a lane, and the events and marks around it. Gives back the event that it has to wait for."""
    submitted = False
    while queue:
        action = queue[0]
        if action.kind is Kind.WAIT and action.a not in recorded:
            return int(action.a)
        if action.instruction is not None:
            if submitted:
                return None
            submitted = True
        found.append(queue.popleft())
        if action.kind is Kind.RECORD:
            recorded.add(action.a)
            turns.extend(blocked.pop(action.a, ()))
    return None
