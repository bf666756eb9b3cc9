"""Interleaves the commands of several lanes for submission, round robin.

A plan's own order may finish one branch before it begins the next. At some microseconds a launch, the last branch then
begins late by the launches of all the others. An order is correct if it keeps each lane's own order and records each
event before any wait for it.
"""

from collections import deque
from collections.abc import Sequence

from dagpu.backends.cuda.commands.command_list import Command, Kind


def round_robin(actions: Sequence[Command], lanes: int) -> list[Command]:
    """Return the same commands, interleaved. A lane whose next command waits for an event is skipped until the event is
    recorded."""
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
    """Append one instruction of a lane to `found`, and the events and marks around it.

    Return the event for which the lane has to wait, or None.
    """
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
