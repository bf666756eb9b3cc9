"""`UpdatePlans`: the plans of one stage, by what has changed.

A change that was not seen before may take a plan at hand that covers it: one for the same change and more sources. To
run more than is stale leaves the same values, and the checker of updates has proved it: its proof for the larger change
holds whatever the new values of the sources are, so also where some of them are the old ones. It takes that plan if
what runs in excess is predicted to take less time than the making of a plan of its own. The feed makes the own plan
when it waits for the next change, and at the latest when this change is there a second time.
"""

from collections import OrderedDict
from typing import Any, Final, NamedTuple, final

from dagpu.handles.storage import Storage
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.cost_model import CostModel
from dagpu.lowering.schedule.list_schedule import ListSchedule
from dagpu.lowering.updates.staleness import Change
from dagpu.lowering.updates.subprogram import Subprogram
from dagpu.reactive.plans.plan_maker import PlanMaker
from dagpu.runtime.calls.loaded_plan import LoadedPlan

MOST_PLANS: Final = 32
"""The most sets of changed sources whose plans a feed keeps, those used last."""

PLAN_SECONDS: Final = 150e-6
"""Seconds to make the plan of an update, beside `INSTRUCTION_SECONDS` for each of its instructions. Measured from 1 to
1,000 launches, on the host and on a CUDA driver that does nothing, with the proof and the encoding of commands."""

INSTRUCTION_SECONDS: Final = 80e-6

HOST_COSTS: Final = CostModel(launch=12e-6, bandwidth=1e10)
"""The cost model of the host backend: a launch of a whole-array kernel on 8 numbers, and copies, measured there."""


@final
class UpdatePlan:
    """The plan of one change: what runs, and the memory of the op that each run locks."""

    __slots__ = ("loaded", "locks", "ran", "subprogram", "targets")

    def __init__(
        self, subprogram: Subprogram, targets: set[int], loaded: LoadedPlan | None, locks: list[Storage]
    ) -> None:
        self.subprogram = subprogram
        self.ran = len(subprogram.chosen)
        """The number of instructions that each run runs."""
        self.targets = frozenset([buffer for buffer, _ in subprogram.outputs if buffer in targets])
        """The targets that the plan makes."""
        self.loaded = loaded
        """None where nothing runs."""
        self.locks = dict.fromkeys(locks, False)


@final
class NewSet(NamedTuple):
    """What a change that was new could have taken: a plan of its own, or that of a larger change."""

    instructions: int
    """The instructions that depend on the change."""
    more: int
    """The instructions that the larger plan runs beside them."""
    seconds: float
    """The predicted time of these."""

    @property
    def seconds_to_plan(self) -> float:
        """The time that it takes to make a plan of its own."""
        return PLAN_SECONDS + self.instructions * INSTRUCTION_SECONDS

    @property
    def takes_larger(self) -> bool:
        """True if the larger plan serves the change the first time."""
        return self.seconds <= self.seconds_to_plan

    def __str__(self) -> str:
        larger = f"{self.more:,} instructions more, about {self.seconds * 1e6:,.0f} us"
        own = f"about {self.seconds_to_plan * 1e6:,.0f} us to make"
        if self.takes_larger:
            return f"the last new set of sources took the plan of a larger set: {larger}; its own takes {own}"
        return f"the last new set of sources got its own plan at once, {own}; that of a larger set runs {larger}"


@final
class UpdatePlans:
    """The plans of one stage, those used last.

    No larger plan serves a change if it makes one of the buffers `common` that the change does not make stale: these
    are computed once, for several feeds.
    """

    def __init__(self, maker: PlanMaker, common: frozenset[int], locks: dict[int, Storage]) -> None:
        self._maker = maker
        self._staleness = maker.staleness
        self._common = common
        self._locks = locks
        self._plans: OrderedDict[Change, UpdatePlan] = OrderedDict()
        self._owed: OrderedDict[Change, None] = OrderedDict()
        """The changes that a larger plan has served, and whose own plans are not made yet."""
        self.newest: NewSet | None = None
        """The last change that was new and that a larger plan covered."""
        self.latest: tuple[int, UpdatePlan] | None = None
        """The bits and the plan that `repeated` has returned, while no other plan was used after it."""

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def owes(self) -> bool:
        """True if a change that was seen has no plan of its own yet."""
        return bool(self._owed)

    def repeated(self, mask: int) -> UpdatePlan | None:
        """Return the plan of its own for a change of these bits, if nothing but its inputs has to be bound before its
        next run; else None."""
        latest = self.latest
        if latest is not None and latest[0] == mask:
            return latest[1]
        change = Change(mask)
        plan = self._plans.get(change)
        if plan is None or plan.loaded is None or not plan.loaded.graph_is_ready:
            return None
        self._plans.move_to_end(change)
        self.latest = mask, plan
        return plan

    def find(self, change: Change) -> UpdatePlan:
        """Return the plan for a change: its own, or that of a larger one the first time, if that is quicker than to
        make its own."""
        self.latest = None
        if change in self._plans:
            self._plans.move_to_end(change)
            return self._plans[change]
        if change not in self._owed and (larger := self._smallest_covering(change)) is not None:
            new = self._compare(change, self._plans[larger].subprogram)
            if not new.more:  # both are one plan
                return self._keep(change, self._plans[larger])
            self.newest = new
            if new.takes_larger:
                self._owed[change] = None
                if len(self._owed) > MOST_PLANS:
                    self._owed.popitem(last=False)
                self._plans.move_to_end(larger)
                return self._plans[larger]
        return self._make(change)

    def _compare(self, change: Change, larger: Subprogram) -> NewSet:
        """Compare a change with the subprogram of a larger one."""
        staleness, policy = self._staleness, self._maker.settings.policy
        own = staleness.instructions_for(staleness.stale_targets(change))
        whole = staleness.program.instructions  # after these come comparisons, which both plans make
        more = [whole[each] for each in set(larger.chosen) - set(own) if each < len(whole)]
        costs = costs_of(staleness.program, policy)
        return NewSet(len(own), len(more), sum([costs.seconds(each, staleness.program) for each in more]))

    def make_owed(self) -> None:
        """Make the plan of the newest change that has none of its own."""
        if self._owed:
            self._make(next(reversed(self._owed)))

    def _smallest_covering(self, change: Change) -> Change | None:
        """Return the change with the fewest instructions whose plan covers this one; None if there is none, or if the
        change makes nothing stale."""
        stale = self._staleness.stale_targets(change)
        if not stale:
            return None
        fresh = self._common - stale
        covering = [
            each for each, plan in self._plans.items() if each.covers(change) and fresh.isdisjoint(plan.targets)
        ]
        return min(covering, key=lambda each: len(self._plans[each].subprogram.chosen), default=None)

    def _make(self, change: Change) -> UpdatePlan:
        """Make the plan of a change, and store it."""
        self._owed.pop(change, None)
        self.latest = None
        staleness, maker = self._staleness, self._maker
        chosen = staleness.instructions_for(staleness.stale_targets(change))
        subprogram = maker.comparisons.extract(chosen, change.compare, staleness.targets)
        maker.verify(change, subprogram)
        locks = [self._locks[b] for b, _ in subprogram.inputs if b in self._locks]
        return self._keep(change, UpdatePlan(subprogram, staleness.targets, maker.prepare(subprogram), locks))

    def _keep(self, change: Change, plan: UpdatePlan) -> UpdatePlan:
        """Store the plan of a change, and return it."""
        self._plans[change] = plan
        while len(self._plans) > MOST_PLANS:
            self._plans.popitem(last=False)
        return plan


def costs_of(program: Program, policy: Any) -> CostModel:
    """Return the cost model for a program: that of the scheduling policy, but for a program of the host."""
    if all(device.partition(":")[0] == "host" for device in program.devices):
        return HOST_COSTS
    return policy.costs if type(policy) is ListSchedule else CostModel()
