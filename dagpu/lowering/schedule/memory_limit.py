"""The memory limit of a policy: trades overlap for memory if a plan takes more bytes than the limit.

Buffers of instructions that overlap cannot share memory, so the number of lanes is halved until the plan fits. A
depth-first order ends a branch before it begins the next one, so fewer buffers are alive at once. For each number of
lanes the policy's own order is tried first, because it was chosen for speed.
"""

from collections.abc import Callable, Hashable, Sequence

from dagpu.common.errors import PlanError
from dagpu.lowering.memory.planner import describe_peak
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.dependences import AccessHistory
from dagpu.lowering.schedule.policies import reordered


def fit(
    program: Program, keys: Sequence[Hashable], plan: Plan, make: Callable[[Program, Sequence[Hashable]], Plan]
) -> Plan:
    """Return the plan if it keeps the limits of the program's policies, or else the first variant that does.

    `make` schedules a program with one lane key for each instruction. Only instructions that a policy with a limit has
    placed change lanes. Streams of the user stay as they are.

    Raises:
        PlanError: no variant keeps the limits.
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
    """Return the instructions in depth-first postorder: each follows its predecessors that are not yet in the order."""
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
    """Return the predecessors of each instruction: first the last writers of its buffers, then those that read them."""
    history = AccessHistory(len(program.buffers))
    return [
        list(dict.fromkeys([*history.last_writers(instruction), *before]))
        for instruction, before in zip(program.instructions, history.scan(program.instructions), strict=True)
    ]


def _too_large(plan: Plan, limit: int) -> PlanError:
    """Build the error for the smallest plan that was found."""
    most = max(range(len(plan.devices)), key=plan.arena_bytes.__getitem__)
    return PlanError(
        f"this takes {plan.peak_bytes:,} bytes, and the policy's memory_limit is {limit:,}: no order and no number of "
        f"streams that was tried takes less. Alive at once: {describe_peak(plan, most)}. Raise the limit, or cut the "
        "work into smaller pieces."
    )
