"""The worklist that solves all analyses of a graph, and the liveness of slots: a slot is live if it is read later.

A set of slots is an integer with one bit for each slot. On bodies with thousands of slots, that is fast enough to
recompute the set at every instruction. A loan counts only while a live slot holds it.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import or_
from typing import Generic, Protocol, Self, TypeVar

from dagpu.mypy_plugin.analysis.graph import MASKS, BasicBlock, Body, Instruction

# ---- the worklist


class Facts(Protocol):
    """What holds at one point of a body: an element of a lattice."""

    def copy(self) -> Self:
        """Return a copy."""
        ...

    def join(self, other: Self) -> bool:
        """Add what comes by another way. Return True if that changed anything."""
        ...


_F = TypeVar("_F", bound=Facts)
_S = TypeVar("_S")


@dataclass(eq=False, repr=False, slots=True)
class OnAnyWay(Generic[_S]):
    """What holds on one way at least: a set, or an integer with one bit for each."""

    items: _S

    def copy(self) -> "OnAnyWay[_S]":
        """Return a copy."""
        return OnAnyWay(self.items)

    def join(self, other: "OnAnyWay[_S]") -> bool:
        """Add what comes by another way. Return True if any of it was new."""
        before = self.items
        self.items = or_(before, other.items)
        return self.items != before


def at_entry_of(body: Body, facts: _F) -> list[_F | None]:
    """Return the states of the blocks of a body before the first visit: facts at its entry alone."""
    return [facts, *[None] * (len(body.blocks) - 1)]


def visits(
    blocks: list[BasicBlock],
    states: list[_F | None],
    arriving: Callable[[_F, BasicBlock], _F] | None = None,
    *,
    backwards: bool = False,
) -> Iterator[tuple[BasicBlock, _F]]:
    """Visit blocks until the facts at their beginnings change no more: the least fixed point.

    `states` are these facts, None for a block that nothing has come to yet. The caller takes the facts that it gets
    through the block before it asks for the next one. `arriving` returns a copy of what of them arrives at a follower,
    all by default. Blocks are visited in their order: the first visit to a block of a loop is that of the first round,
    and the first one to a block behind the loop comes after its last round. `backwards`: the facts are those at the
    ends of blocks, and go to the blocks before.
    """
    sign = -1 if backwards else 1
    edges = [block.next for block in blocks]
    if backwards:
        edges = [[] for _ in blocks]
        for block in blocks:
            for follower in block.next:
                edges[follower.index].append(block)
    todo = sorted(sign * index for index, state in enumerate(states) if state is not None)
    waiting = set(todo)
    while todo:
        number = heapq.heappop(todo)
        waiting.discard(number)
        index = sign * number
        begin = states[index]
        assert begin is not None, "something has come to it"
        block = blocks[index]
        facts = begin.copy() if block.in_loop else begin
        yield block, facts
        for to in edges[index]:
            coming = facts if arriving is None else arriving(facts, to)
            known = states[to.index]
            if known is None:
                states[to.index] = coming.copy() if arriving is None and len(edges[index]) > 1 else coming
            elif not known.join(coming):
                continue
            if sign * to.index not in waiting:
                waiting.add(sign * to.index)
                heapq.heappush(todo, sign * to.index)


# ---- liveness


def live_before(i: Instruction, live: int) -> int:
    """Return the slots that are live before an instruction, given those that are live after it."""
    masks = MASKS.get(type(i))
    if masks is None:
        return live
    filled, read = masks(i)
    return live & ~filled | read


def _masks_of_block(block: BasicBlock) -> tuple[int, int]:
    """Return the slots that a block fills before it reads them, and those that it reads first."""
    filled = read = 0
    for i in reversed(block.instructions):
        masks = MASKS.get(type(i))
        if masks is not None:
            fills, reads = masks(i)
            filled = filled & ~reads | fills
            read = read & ~fills | reads
    return filled, read


def liveness(body: Body) -> list[int]:
    """Return the live slots at the beginning of each block."""
    masks = [_masks_of_block(block) for block in body.blocks]
    at_entry = [0] * len(body.blocks)
    at_exit: list[OnAnyWay[int] | None] = [OnAnyWay(0) for _ in body.blocks]
    for block, live in visits(body.blocks, at_exit, backwards=True):
        filled, read = masks[block.index]
        live.items = at_entry[block.index] = live.items & ~filled | read
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
