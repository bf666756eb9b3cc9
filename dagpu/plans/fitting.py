"""The memory limit of a policy: the quickest plan that keeps it, among those that are tried.

Four means are tried, none of which changes a result. *Waits*: a lane waits until bytes that it takes have been given
back, so a plan takes what its order takes on one lane. *Orders*: the policy's own, a depth-first one, which ends a
branch before it begins the next one, and one that is searched for little memory (`dagpu.plans.memory_order`). *Room*:
list scheduling in which an instruction starts once there is room for what it writes, for several rooms between what the
least of these orders takes and what the plan takes without a limit. *Fewer lanes*: half of them, a quarter, and so on,
which do not wait for memory. This is all that is done for instructions in bodies of `If`. For a limit of one device it
comes first, since it gives up overlap on that device alone.

What is tried for a limit is tried for each larger one too. So a larger limit never takes longer, in the cost model, for
a policy that has one. Recomputation, the fifth means, is a step before the schedule: `dagpu.plans.recomputing`.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias, final

from dagpu.common.errors import PlanError
from dagpu.plans.cost_model import DEFAULT_COSTS
from dagpu.plans.list_schedule import ListSchedule, RoomySchedules
from dagpu.plans.memory import describe_peak
from dagpu.plans.memory_order import order_for_memory
from dagpu.plans.plan import Plan, peak_bytes_on
from dagpu.plans.policies import Placement, placed_by, with_bodies_together
from dagpu.plans.prediction import makespan_of
from dagpu.plans.program import If, Program
from dagpu.plans.text import counted, duration

Make: TypeAlias = Callable[[Program, Placement], Plan]
"""Makes the plan of a placement, whatever it takes."""

_GAIN: Final = 1e-9
"""The part of its lower bound within which a plan that fits needs no other one."""
_ROOMS: Final = 5
"""Rooms that are tried for each order."""
_SMALL: Final = 1000
"""The most instructions of a program whose own order is tried in each room, beside the order of the least memory."""


@final
class Fitted(NamedTuple):
    """A plan within the limits."""

    plan: Plan
    placement: Placement
    about: str
    """What was paid for what, in words; empty if the policy's own plan is taken."""


def fit(program: Program, placement: Placement, make: Make, *, briefly: bool = False) -> Fitted:
    """Return the plan of a placement if it keeps the limits of the program's policies, or else the quickest that does.

    Only instructions that a policy with a limit has placed change lanes. Streams of the user stay as they are. With
    `briefly`, only waits and rooms are tried, in the policy's order, the program's and a depth-first one.

    Raises:
        PlanError: no plan that was tried keeps the limits. The message says what the least of them takes.
    """
    limits = _Limits(program)
    plan = make(program, placement)
    fits = not limits.exceeded(plan)
    policy = _list_schedule_of(program)
    # A plan that was fitted before is taken as it is; one whose order was not chosen by its time, if it fits.
    if fits and (policy is None or placement.ended is not None):
        return Fitted(plan, placement, "")
    model = DEFAULT_COSTS if policy is None else policy.costs
    before = makespan_of(plan, model)
    schedules = policy and RoomySchedules(program, policy.streams, policy.costs, placed_by(program, policy))
    if fits and schedules is not None and before <= schedules.bound * (1 + _GAIN):
        return Fitted(plan, placement, "")
    best, best_time, least = (Fitted(plan, placement, "") if fits else None), before, plan
    latest = [plan, plan]
    room = limits.whole(plan)
    tries = _waiting(program, placement, latest, schedules, room, briefly=briefly)
    if not briefly:
        tries = chain(_fewer_lanes(program, placement, limits, plan), tries)
    for tried, how in tries if placement.ended is None else ():
        found = latest[-1] = make(program, tried)
        least = min(least, found, key=lambda each: each.peak_bytes)
        if limits.exceeded(found):
            continue
        time = makespan_of(found, model)
        if best is None or (time, found.peak_bytes) < (best_time, best.plan.peak_bytes):
            best, best_time = Fitted(found, tried, how), time
        if limits.of_devices:
            break
    if best is None:
        raise _too_large(least, limits)
    if best.plan is plan:
        return best
    paid = f"{best.about}: {best.plan.peak_bytes:,} bytes, where the plan without a limit takes {plan.peak_bytes:,}; "
    longer = best_time / before - 1 if before else 0.0
    paid += f"predicted {duration(best_time)}, {abs(longer):.1%} {'more' if longer >= 0 else 'less'} than without"
    return best._replace(about=paid)


def _waiting(
    program: Program,
    placement: Placement,
    latest: Sequence[Plan],
    schedules: RoomySchedules | None,
    most: float,
    *,
    briefly: bool,
) -> Iterator[tuple[Placement, str]]:
    """Yield the placements in which lanes wait for memory, and how each was found. `latest` has the policy's own plan,
    and then the plan of the placement that was yielded last. What holds more than `most` bytes of temporaries when it
    is simulated is left out."""
    if If in map(type, program.instructions):
        return
    own = list(range(len(program.instructions))) if placement.order is None else list(placement.order)
    given, name = list(range(len(own))), "the policy's order"
    orders = {tuple(own): name, tuple(given): "program order"}
    orders.setdefault(tuple(depth_first(program)), "a depth-first order")
    if not briefly:
        orders.setdefault(tuple(order_for_memory(program)), "an order for little memory")
    plans: list[tuple[int, tuple[int, ...]]] = []
    for order, how in orders.items():
        tried = Placement(placement.keys, order).one_by_one()
        yield tried, f"lanes wait for memory, {how}"
        plans.append((sum(latest[-1].arena_bytes), order))
    if schedules is None:
        return
    low, order = min(plans)
    high = max(sum(latest[0].arena_bytes), low)
    for source in dict.fromkeys((order, tuple(given) if len(given) <= _SMALL else order)):
        for number in range(_ROOMS):
            room = low * (high / low) ** (number / (_ROOMS - 1)) if low else 0.0
            if room > most * (1 + _GAIN):
                break  # with as little room as there is it is no sooner done
            found = schedules.place(source, room)
            if found.most <= most:
                yield found.placement, f"instructions wait for {room / 2**20:,.1f} MiB, {orders[source]}"


def _list_schedule_of(program: Program) -> ListSchedule | None:
    """Return the policy if it places the whole program by list scheduling."""
    used = set(program.policy_of)
    policy: Any = program.policies[next(iter(used))] if len(used) == 1 else None
    return policy if type(policy) is ListSchedule else None


# ---- fewer lanes


def _fewer_lanes(
    program: Program, placement: Placement, limits: "_Limits", plan: Plan
) -> Iterator[tuple[Placement, str]]:
    """Yield the placements on all lanes, half of them, and so on, in the policy's order and depth first. Instructions
    on devices whose limits the plan keeps stay on their lanes."""
    over = limits.exceeded(plan) if limits.of_devices else range(len(program.devices))
    movable = [
        limits.limited[policy] and type(key) is int and each.device in over
        for policy, key, each in zip(program.policy_of, placement.keys, program.instructions, strict=True)
    ]
    names: dict[Hashable, int] = {}
    for key, moves in zip(placement.keys, movable, strict=True):
        if moves:
            names.setdefault(key, len(names))
    left = max(len(names), 1)
    deep = tuple(with_bodies_together(program, depth_first(program)))
    while True:
        keys = [names[key] % left if moves else key for key, moves in zip(placement.keys, movable, strict=True)]
        words = counted(left, "lane") if left < len(names) else "all lanes"
        yield Placement(keys, placement.order), f"{words}, the policy's order"
        yield Placement(keys, deep), f"{words}, a depth-first order"
        if left == 1:
            return
        left = (left + 1) // 2


# ---- the limits


@final
class _Limits:
    """The memory limits of the policies of a program: of whole runs, and of single devices."""

    def __init__(self, program: Program) -> None:
        self._whole: int | None = None
        """The smallest limit of the whole run."""
        self.of_devices: dict[int, int] = {}
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
                        self.of_devices[device] = min(limit, self.of_devices.get(device, limit))
            elif whole is not None:
                self._whole = whole if self._whole is None else min(whole, self._whole)

    def exceeded(self, plan: Plan) -> dict[int, int]:
        """Return the devices whose limits a plan exceeds, with the limits; all of them for a limit of the run."""
        if self._whole is not None and plan.peak_bytes > self._whole:
            return dict.fromkeys(range(len(plan.devices)), self._whole)
        if not self.of_devices:
            return {}
        held = peak_bytes_on(plan)
        return {at: limit for at, limit in self.of_devices.items() if held[plan.devices[at]] > limit}

    def whole(self, plan: Plan) -> float:
        """Return the most bytes of temporaries that keep the limit of the whole run, beside a plan's results."""
        return inf if self._whole is None else self._whole - (plan.peak_bytes - sum(plan.arena_bytes))

    def bytes_over(self, plan: Plan, device: int) -> tuple[int, str]:
        """Return the bytes that a limit of this device is about, and where they are, in words."""
        if device in self.of_devices:
            return peak_bytes_on(plan)[plan.devices[device]], f" on {plan.devices[device]}"
        return plan.peak_bytes, ""


def depth_first(program: Program) -> list[int]:
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
