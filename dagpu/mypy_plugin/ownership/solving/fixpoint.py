"""The facts at the entry of each block: the least fixed point of the effects of all blocks."""

import heapq
from collections.abc import Iterable, Iterator

from dagpu.mypy_plugin.ownership.control_flow import BasicBlock, Body, Lend, Move, Place, Share
from dagpu.mypy_plugin.ownership.solving.dataflow import Dataflow, WholeBody


def derived_moves(body: Body) -> Iterable[Move]:
    """Return the moves out of places that share a handle with the place of a move in this body."""
    if not any(isinstance(i, Share) for block in body.blocks for i in block.instructions):
        return ()
    derived: dict[tuple[Move, Place], Move] = {}
    for block, state in entry_states(body, [-1] * len(body.blocks)):
        for i in block.instructions:
            state.step(i)
        derived = state.whole.derived
    return derived.values()


def entry_states(body: Body, live: list[int]) -> Iterator[tuple[BasicBlock, Dataflow]]:
    """Iterate over the blocks, each with the state at its entry, which the caller must `step` through the block."""
    lent = 0
    for block in body.blocks:
        for i in block.instructions:
            if isinstance(i, Lend):
                lent |= 1 << i.place.slot
    states: list[Dataflow | None] = [None] * len(body.blocks)
    states[0] = Dataflow(WholeBody(lent))
    if any(follower.index <= block.index for block in body.blocks for follower in block.next):
        _solve(body, live, states)
        for block in body.blocks:
            state = states[block.index]
            assert state is not None, "every block is reachable"
            yield block, state
        return
    for block in body.blocks:
        state = states[block.index]
        assert state is not None, "a predecessor has been visited"
        yield block, state
        for follower in block.next:
            _join_into(state, follower, live, states)


def _join_into(state: Dataflow, to: BasicBlock, live: list[int], states: list[Dataflow | None]) -> bool:
    """Join the state at the end of a block into the entry state of a successor. Return True if that one changed."""
    coming = state.pruned(live[to.index])
    known = states[to.index]
    if known is None:
        states[to.index] = coming
        return True
    return known.join(coming)


def _solve(body: Body, live: list[int], states: list[Dataflow | None]) -> None:
    """Compute the least fixed point of the entry states; needed for bodies with loops."""
    todo, waiting = [0], {0}
    while todo:
        index = heapq.heappop(todo)
        waiting.discard(index)
        block, begin = body.blocks[index], states[index]
        assert begin is not None
        state = begin.pruned(-1)
        for i in block.instructions:
            state.step(i)
        for follower in block.next:
            if _join_into(state, follower, live, states) and follower.index not in waiting:
                waiting.add(follower.index)
                heapq.heappush(todo, follower.index)
