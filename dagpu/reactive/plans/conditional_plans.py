"""`ConditionalPlans`: the plans of one stage whose graphs decide cutoffs themselves, by what has changed.

Such a plan runs as one CUDA graph or not at all. Where no graph can be launched, and where an update cannot be one
program, the update runs in parts, and the host decides the cutoffs between them; `why` says for what reason.
"""

from collections import OrderedDict
from typing import final

from dagpu.handles.device_handles import driver_of
from dagpu.handles.storage import Storage
from dagpu.lowering.updates.claims import ConditionalUpdate
from dagpu.lowering.updates.comparing.conditional_updates import NOTHING_AFTER, conditional_update
from dagpu.reactive.plans.plan_maker import PlanMaker
from dagpu.reactive.plans.update_plans import MOST_PLANS
from dagpu.runtime.calls.loaded_plan import LoadedPlan
from dagpu.runtime.device_lookup import find_device


@final
class Outcomes:
    """What the outcomes of a conditional update mean, and the last one."""

    __slots__ = ("_about", "ran")

    def __init__(self, update: ConditionalUpdate) -> None:
        self._about = {each: (update.compared(each), update.count(each)) for each in update.outcomes()}
        self.ran = 0
        """The number of instructions of the op that the last run has run."""

    def note(self, differing: int) -> int:
        """Note that a run has found the tensors of these cutoffs to differ. Return the bits of those compared."""
        compared, self.ran = self._about[differing]
        return compared


@final
class ConditionalPlan:
    """The plan of one conditional update, and the memory of the op that each run locks."""

    __slots__ = ("cutoffs", "guards", "loaded", "locks", "outcomes", "subprogram", "targets")

    def __init__(self, update: ConditionalUpdate, loaded: LoadedPlan, locks: list[Storage]) -> None:
        self.subprogram = update.subprogram
        self.cutoffs = update.cutoffs
        """The bits of the cutoffs that the plan may decide."""
        self.loaded = loaded
        self.locks = dict.fromkeys(locks, False)
        self.outcomes = Outcomes(update)
        self.guards = {buffer: guard for buffer, _, guard in update.made}
        """For each target that the plan may make, the cutoffs of which one must differ for that."""
        self.targets = frozenset(self.guards)
        """The targets that the plan may make."""

    @property
    def ran(self) -> int:
        """The number of instructions of the op that the last run has run."""
        return self.outcomes.ran


@final
class ConditionalPlans:
    """The conditional plans of one stage, those used last."""

    def __init__(self, maker: PlanMaker, locks: dict[int, Storage]) -> None:
        self._maker = maker
        self._locks = locks
        self._plans: OrderedDict[tuple[int, int], ConditionalPlan | str] = OrderedDict()
        """By the bits that have changed, and those of the cutoffs: the plan, or the reason why there is none."""
        self.why: str | None = None
        """The reason why the last update that had cutoffs to decide was run in parts; empty if it was one graph; None
        if there was none."""

    def describe(self) -> str:
        """Say how the last update decided cutoffs."""
        if self.why is None or self.why == NOTHING_AFTER:
            return "the device compares the bits"
        if not self.why:
            return "one graph compares the bits, and decides what runs"
        return f"the device compares the bits, and a second run does the rest, since {self.why}"

    def find(self, mask: int, wait: int) -> ConditionalPlan | None:
        """Return the plan for a change of the bits `mask` that decides the cutoffs `wait`; None if there can be none,
        for the reason that `why` has then."""
        key = mask, wait
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._make(mask, wait)
            if len(self._plans) > MOST_PLANS:
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
        self.why = found if type(found) is str else ""
        return found if type(found) is ConditionalPlan else None

    def refuse(self, loaded: LoadedPlan) -> None:
        """Note that no graph of a plan could be launched."""
        self.why = loaded.prepared.lacks_graph or "no graph can be launched now"

    def _make(self, mask: int, wait: int) -> ConditionalPlan | str:
        maker = self._maker
        devices = maker.staleness.program.devices
        lacking = [driver_of(find_device(name)).lacks_conditions for name in devices]
        if any(lacking):
            return next(filter(None, lacking))
        update = conditional_update(maker.staleness, maker.comparisons, mask, wait)
        if type(update) is str:
            return update
        assert type(update) is ConditionalUpdate
        maker.verify_conditional(update)
        loaded = maker.prepare(update.subprogram, decides=True)
        assert loaded is not None, "it runs comparisons at least"
        locks = [self._locks[b] for b, _ in update.subprogram.inputs if b in self._locks]
        return ConditionalPlan(update, loaded, locks)
