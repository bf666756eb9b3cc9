"""Overlap for memory: what is done with a program whose plan takes more than its policy's `memory_limit`.

What overlaps cannot share memory, so lanes are folded together, half of them each time; and an order that goes depth
first ends what it has begun before it begins more, so less is alive at once. At each number of lanes the given order is
tried first: it is the one that the policy has chosen for speed.
"""

from collections.abc import Callable, Hashable, Sequence

from dagpu.errors import PlanError
from dagpu.lowering.dependences import AccessHistory
from dagpu.lowering.memory import describe_peak
from dagpu.lowering.plan import Plan
from dagpu.lowering.policies import reordered
from dagpu.lowering.program import Program


def fit(
    program: Program, keys: Sequence[Hashable], plan: Plan, make: Callable[[Program, Sequence[Hashable]], Plan]
) -> Plan:
    """The plan, or the first that keeps the limits of the program's policies; `make` makes one of a placement.

    Only what a policy with a limit has placed changes lanes, and streams of the user's own stay theirs.

    Raises:
        PlanError: the last of them takes more as well.
    """
    limits = [getattr(policy, "memory_limit", None) for policy in program.policies]
    limit = min([limit for limit in limits if limit is not None], default=None)
    if limit is None or plan.peak_bytes <= limit:
        return plan
    free = [
        limits[policy] is not None and type(key) is int for policy, key in zip(program.policy_of, keys, strict=True)
    ]
    numbers: dict[Hashable, int] = {}
    for key, movable in zip(keys, free, strict=True):
        if movable:
            numbers.setdefault(key, len(numbers))
    left = max(len(numbers), 1)
    order = _depth_first(program)
    deep = reordered(program, order)
    best = plan
    while True:
        folded = [numbers[key] % left if movable else key for key, movable in zip(keys, free, strict=True)]
        for source, placed in ((program, folded), (deep, [folded[at] for at in order])):
            tried = make(source, placed)
            if tried.peak_bytes <= limit:
                return tried
            best = min(best, tried, key=lambda each: each.peak_bytes)
        if left == 1:
            raise _too_large(best, limit)
        left = (left + 1) // 2


def _depth_first(program: Program) -> list[int]:
    """The instructions, each right behind what it needs and nobody has needed before."""
    needs = _needs(program)
    needed = bytearray(len(needs))
    for each in needs:
        for earlier in each:
            needed[earlier] = True
    order: list[int] = []
    met = bytearray(len(needs))
    for last in range(len(needs)):
        if needed[last]:
            continue
        stack = [last]
        while stack:
            at = stack[-1]
            if met[at] == 0:
                met[at] = 1
                stack.extend([earlier for earlier in reversed(needs[at]) if not met[earlier]])
            else:
                stack.pop()
                if met[at] == 1:
                    met[at] = 2
                    order.append(at)
    return order


def _needs(program: Program) -> list[list[int]]:
    """For each instruction: the last writers of its buffers, in the order in which it names these, then the others
    that it depends on."""
    history = AccessHistory(len(program.buffers))
    needs: list[list[int]] = []
    for at, instruction in enumerate(program.instructions):
        before = history.last_writers(instruction)
        before += history.add(at, instruction)
        needs.append(list(dict.fromkeys(before)))
    return needs


def _too_large(plan: Plan, limit: int) -> PlanError:
    most = max(range(len(plan.devices)), key=plan.arena_bytes.__getitem__)
    return PlanError(
        f"this takes {plan.peak_bytes:,} bytes, and the policy's memory_limit is {limit:,}: no order and no number of "
        f"streams that was tried takes less. Alive at once: {describe_peak(plan, most)}. Raise the limit, or cut the "
        "work into smaller pieces."
    )
