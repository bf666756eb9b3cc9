"""Liveness of slots: a slot is live if it is read later. A loan counts only while a live slot holds it.

A set of slots is an integer with one bit for each slot. On bodies with thousands of slots, that is fast enough to
recompute the set at every instruction.
"""

from collections.abc import Callable
from typing import Any, Final

from dagpu.mypy_plugin.ownership.control_flow import (
    AskFeed,
    BasicBlock,
    BlockLoan,
    Body,
    Build,
    Escape,
    Instruction,
    Keep,
    Lend,
    Move,
    OpenFeed,
    Read,
    Run,
    Share,
    Slot,
    Store,
    Touch,
)


def _masks_of_place(i: Read | Move | Lend) -> tuple[int, int]:
    return 0 if i.into is None else 1 << i.into, 1 << i.place.slot


def _masks_of_build(i: Build) -> tuple[int, int]:
    return 0 if i.into is None else 1 << i.into, _slots(i.parts)


def _masks_of_store(i: Store) -> tuple[int, int]:
    return 0 if i.place.path else 1 << i.place.slot, 0 if i.part is None else 1 << i.part


def _slots(parts: tuple[Slot, ...]) -> int:
    live = 0
    for part in parts:
        live |= 1 << part
    return live


_MASKS: Final[dict[type[Instruction], Callable[[Any], tuple[int, int]]]] = {
    Read: _masks_of_place,
    Move: _masks_of_place,
    Lend: _masks_of_place,
    BlockLoan: _masks_of_place,
    OpenFeed: _masks_of_place,
    Build: _masks_of_build,
    Store: _masks_of_store,
    Share: lambda i: (0, 1 << i.other.slot),
    Touch: lambda i: (0, 1 << i.place.slot),
    AskFeed: lambda i: (0, 1 << i.place.slot),
    Keep: lambda i: (0, _slots(i.parts)),
    Escape: lambda i: (0, 1 << i.part),
    Run: lambda i: (0, 1 << i.part),
}
"""For each class of instructions: the slots that it fills, and those that it reads. The others have neither."""


def live_before(i: Instruction, live: int) -> int:
    """Return the slots that are live before an instruction, given those that are live after it."""
    masks = _MASKS.get(type(i))
    if masks is None:
        return live
    filled, read = masks(i)
    return live & ~filled | read


def _masks_of_block(block: BasicBlock) -> tuple[int, int]:
    """Return the slots that a block fills before it reads them, and those that it reads first."""
    filled = read = 0
    for i in reversed(block.instructions):
        masks = _MASKS.get(type(i))
        if masks is not None:
            fills, reads = masks(i)
            filled = filled & ~reads | fills
            read = read & ~fills | reads
    return filled, read


def liveness(body: Body) -> list[int]:
    """Return the live slots at the entry of each block. Blocks are in reverse postorder, so few rounds suffice."""
    at_entry = [0] * len(body.blocks)
    masks = [_masks_of_block(block) for block in body.blocks]
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
        filled, read = masks[index]
        live = live_at_exit(block, at_entry) & ~filled | read
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
