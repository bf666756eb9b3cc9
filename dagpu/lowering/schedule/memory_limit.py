"""The memory limit of a policy: trades overlap for memory if a plan takes more bytes than the limit.

Buffers of instructions that overlap cannot share memory, so the number of lanes is halved until the plan fits. A
depth-first order ends a branch before it begins the next one, so fewer buffers are alive at once. For each number of
lanes the policy's own order is tried first, because it was chosen for speed. A limit of one device gives up overlap on
that device alone.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import final

from dagpu.common.errors import PlanError
from dagpu.lowering.memory.planner import describe_peak
from dagpu.lowering.plan import Plan, peak_bytes_on
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.body_order import with_bodies_together
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
    limits = _Limits(program)
    over = limits.exceeded(plan)
    if not over:
        return plan
    free = [
        limits.limited[policy] and type(key) is int and instruction.device in over
        for policy, key, instruction in zip(program.policy_of, keys, program.instructions, strict=True)
    ]
    numbers: dict[Hashable, int] = {}
    for key, movable in zip(keys, free, strict=True):
        if movable:
            numbers.setdefault(key, len(numbers))
    left = max(len(numbers), 1)
    order = with_bodies_together(program, _depth_first(program))
    deep = reordered(program, order)
    best = plan
    while True:
        folded = [numbers[key] % left if movable else key for key, movable in zip(keys, free, strict=True)]
        for source, placed in ((program, folded), (deep, [folded[at] for at in order])):
            tried = make(source, placed)
            if not limits.exceeded(tried):
                return tried
            best = min(best, tried, key=lambda each: each.peak_bytes)
        if left == 1:
            raise _too_large(best, limits)
        left = (left + 1) // 2


@final
class _Limits:
    """The memory limits of the policies of a program: of whole runs, and of single devices."""

    def __init__(self, program: Program) -> None:
        self._whole: int | None = None
        """The smallest limit of the whole run."""
        self._of_devices: dict[int, int] = {}
        """The limit of each device that has one, by its index."""
        self.limited: list[bool] = []
        """For each policy, whether it has a limit."""
        for policy in program.policies:
            whole: int | None = getattr(policy, "memory_limit", None)
            self.limited.append(whole is not None)
            if callable(getattr(policy, "limit_on", None)):
                for device, name in enumerate(program.devices):
                    limit = policy.limit_on(name)
                    if limit is not None:
                        self._of_devices[device] = min(limit, self._of_devices.get(device, limit))
            elif whole is not None:
                self._whole = whole if self._whole is None else min(whole, self._whole)

    def exceeded(self, plan: Plan) -> dict[int, int]:
        """Return the devices whose limits a plan exceeds, with the limits; all of them for a limit of the run."""
        if self._whole is not None and plan.peak_bytes > self._whole:
            return dict.fromkeys(range(len(plan.devices)), self._whole)
        if not self._of_devices:
            return {}
        held = peak_bytes_on(plan)
        return {at: limit for at, limit in self._of_devices.items() if held[plan.devices[at]] > limit}

    def bytes_over(self, plan: Plan, device: int) -> tuple[int, str]:
        """Return the bytes that a limit of this device is about, and where they are, in words."""
        if device in self._of_devices:
            return peak_bytes_on(plan)[plan.devices[device]], f" on {plan.devices[device]}"
        return plan.peak_bytes, ""


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
    accesses, found = program.accesses, list[list[int]]()
    for index, reads in enumerate(accesses.reads):
        values = [*reads, *[accesses.before[value] for value in accesses.makes(index)]]
        last = [made for value in values if (made := accesses.maker[value]) >= 0]
        found.append(list(dict.fromkeys([*last, *accesses.predecessors[index]])))
    return found


def _too_large(plan: Plan, limits: _Limits) -> PlanError:
    """Build the error for the smallest plan that was found."""
    over = limits.exceeded(plan)
    most = max(over, key=plan.arena_bytes.__getitem__)
    held, where = limits.bytes_over(plan, most)
    return PlanError(
        f"this takes {held:,} bytes{where}, and the policy's memory_limit is {over[most]:,}: no order and no number of "
        f"streams that was tried takes less. Alive at once: {describe_peak(plan, most)}. Raise the limit, or cut the "
        "work into smaller pieces."
    )
