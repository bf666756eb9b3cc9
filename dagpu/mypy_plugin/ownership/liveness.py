"""Liveness of slots: a slot is live if it is read later. A loan counts only while a live slot holds it.

A set of slots is an integer with one bit for each slot. On bodies with thousands of slots, that is fast enough to
recompute the set at every instruction.
"""

from dagpu.mypy_plugin.ownership.control_flow import (
    AskFeed,
    BasicBlock,
    Body,
    Build,
    CloseFeed,
    Escape,
    Forget,
    Instruction,
    Keep,
    Lend,
    Move,
    Read,
    Run,
    Store,
    Touch,
)


def live_before(i: Instruction, live: int) -> int:
    """Return the slots that are live before an instruction, given those that are live after it."""
    match i:
        case Read():
            if i.into is not None:
                live &= ~(1 << i.into)
            return live | 1 << i.place.slot
        case Build():
            if i.into is not None:
                live &= ~(1 << i.into)
            for part in i.parts:
                live |= 1 << part
            return live
        case Move() | Lend():
            return live & ~(1 << i.into) | 1 << i.place.slot
        case Store():
            if not i.place.path:
                live &= ~(1 << i.place.slot)
            return live if i.part is None else live | 1 << i.part
        case Touch() | AskFeed():
            return live | 1 << i.place.slot
        case Keep():
            for part in i.parts:
                live |= 1 << part
            return live
        case Escape() | Run():
            return live | 1 << i.part
        case Forget() | CloseFeed():
            return live


def liveness(body: Body) -> list[int]:
    """Return the live slots at the entry of each block. Blocks are in reverse postorder, so few rounds suffice."""
    at_entry = [0] * len(body.blocks)
    comes_from: list[list[int]] = [[] for _ in body.blocks]
    for block in body.blocks:
        for follower in block.next:
            comes_from[follower.index].append(block.index)
    todo = list(range(len(body.blocks)))
    waiting = set(todo)
    while todo:
        index = todo.pop()
        waiting.discard(index)
        block = body.blocks[index]
        live = live_at_exit(block, at_entry)
        for i in reversed(block.instructions):
            live = live_before(i, live)
        if live != at_entry[index]:
            at_entry[index] = live
            for earlier in comes_from[index]:
                if earlier not in waiting:
                    waiting.add(earlier)
                    todo.append(earlier)
    return at_entry


def live_at_exit(block: BasicBlock, at_entry: list[int]) -> int:
    """Return the slots that are live at the end of a block."""
    live = 0
    for follower in block.next:
        live |= at_entry[follower.index]
    return live


def live_after_each(block: BasicBlock, at_entry: list[int]) -> list[int]:
    """Return the slots that are live after each instruction of a block."""
    live = live_at_exit(block, at_entry)
    found = []
    for i in reversed(block.instructions):
        found.append(live)
        live = live_before(i, live)
    found.reverse()
    return found
