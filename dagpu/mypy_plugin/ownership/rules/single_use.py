"""The rule that an op is used once in a run: two parts of one op must not both be built of it.

One op is followed at a time, from the call that builds it, with all sets of slots that may hold it on some path. So two
slots count only if one path puts the op into both. Ops in containers and in closures are not followed.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from dagpu.mypy_plugin.ownership.control_flow import (
    SPENDABLE,
    BasicBlock,
    Body,
    Build,
    Instruction,
    Read,
    Slot,
    Store,
)

_Holders: TypeAlias = frozenset[Slot]
_MOST_STATES: Final = 64
"""Sets of holders that are followed at one point. Beyond that, the op is not checked."""


def used_twice(body: Body) -> Iterator[tuple[Build, Build]]:
    """Iterate over the ops that use another op twice, each with that op."""
    builds = [i for block in body.blocks for i in block.instructions if isinstance(i, Build) and i.single]
    if not any(len(build.parts) > 1 for build in builds):
        return
    named = {
        i.part: i.place.slot
        for block in body.blocks
        for i in block.instructions
        if isinstance(i, Store) and not i.place.path
    }
    often = _read_often(body)
    reported: set[Build] = set()
    for op in builds:
        if named.get(op.into) in often:
            for user in _users_of(body, op):
                if user not in reported:
                    reported.add(user)
                    yield user, op


def _read_often(body: Body) -> set[Slot]:
    """Return the variables that are read twice, or where a loop may come by several times."""
    loops = [
        range(follower.index, block.index + 1)
        for block in body.blocks
        for follower in block.next
        if follower.index <= block.index
    ]
    once: set[Slot] = set()
    often: set[Slot] = set()
    for block in body.blocks:
        repeated = any(block.index in loop for loop in loops)
        for i in block.instructions:
            if isinstance(i, Read):
                (often if repeated or i.place.slot in once else once).add(i.place.slot)
    return often


def _users_of(body: Body, op: Build) -> set[Build]:
    """Return the ops that may use an op twice."""
    users: set[Build] = set()
    states: list[set[_Holders]] = [set() for _ in body.blocks]
    todo: list[tuple[BasicBlock, _Holders]] = [(body.blocks[0], frozenset())]
    states[0].add(frozenset())
    while todo:
        block, holders = todo.pop()
        for i in block.instructions:
            if isinstance(i, Build) and i.single and len(holders.intersection(i.parts)) > 1:
                users.add(i)
            holders = _after(i, op, holders)
        for follower in block.next:
            known = states[follower.index]
            if holders not in known:
                if len(known) >= _MOST_STATES:
                    return set()
                known.add(holders)
                todo.append((follower, holders))
    return users


def _after(i: Instruction, op: Build, holders: _Holders) -> _Holders:
    match i:
        case Build() if i is op:
            return frozenset() if i.into is None else frozenset((i.into,))
        case Build():
            holds, into = i.single and not holders.isdisjoint(i.parts), i.into
        case Read():
            holds, into = i.place.slot in holders and not i.place.path and bool(i.keeps & SPENDABLE), i.into
        case Store() if not i.place.path:
            holds, into = i.part in holders, i.place.slot
        case _:
            return holders
    if into is None or holds == (into in holders):
        return holders
    return holders | {into} if holds else holders - {into}
