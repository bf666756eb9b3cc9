"""`UpdatePlans`: the plans of one stage, by what has changed. Each runs exactly what its change makes stale."""

from collections import OrderedDict
from typing import Final, final

from dagpu.handles.storage import Storage
from dagpu.lowering.updates.claims import Change, Subprogram
from dagpu.reactive.plans.plan_maker import PlanMaker
from dagpu.runtime.calls.loaded_plan import LoadedPlan

MOST_PLANS: Final = 32
"""The most sets of changed sources whose plans a feed keeps, those used last."""


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
class UpdatePlans:
    """The plans of one stage, those used last."""

    def __init__(self, maker: PlanMaker, locks: dict[int, Storage]) -> None:
        self._maker = maker
        self._staleness = maker.staleness
        self._locks = locks
        self._plans: OrderedDict[Change, UpdatePlan] = OrderedDict()
        self.latest: tuple[int, UpdatePlan] | None = None
        """The bits and the plan that `repeated` has returned, while no other plan was used after it."""

    def __len__(self) -> int:
        return len(self._plans)

    def repeated(self, mask: int) -> UpdatePlan | None:
        """Return the plan for a change of these bits, if nothing but its inputs has to be bound before its
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
        """Return the plan for a change."""
        self.latest = None
        plan = self._plans.get(change)
        if plan is None:
            return self._make(change)
        self._plans.move_to_end(change)
        return plan

    def _make(self, change: Change) -> UpdatePlan:
        """Make the plan of a change, and store it."""
        staleness, maker = self._staleness, self._maker
        chosen = staleness.instructions_for(staleness.stale_targets(change))
        subprogram = maker.comparisons.extract(chosen, change.compare, staleness.targets)
        maker.verify(change, subprogram)
        locks = [self._locks[b] for b, _ in subprogram.inputs if b in self._locks]
        plan = UpdatePlan(subprogram, staleness.targets, maker.prepare(subprogram), locks)
        self._plans[change] = plan
        if len(self._plans) > MOST_PLANS:
            self._plans.popitem(last=False)
        return plan
