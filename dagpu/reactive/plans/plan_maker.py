"""`PlanMaker`, which proves the updates of one stage and prepares their plans."""

from collections.abc import Callable
from typing import final

from dagpu.lowering.updates.claims import Change, ConditionalUpdate, Subprogram
from dagpu.lowering.updates.comparing.cutoff_comparisons import CutoffComparisons
from dagpu.lowering.updates.staleness import Staleness
from dagpu.lowering.verify.verify_conditional import verify_conditional
from dagpu.lowering.verify.verify_update import UpdateVerifier
from dagpu.plans.plan import Plan
from dagpu.runtime.calls.loaded_plan import LoadedPlan, plan_program
from dagpu.runtime.calls.settings import Settings


@final
class PlanMaker:
    """Makes the plans of one stage. `on_plan` is called with each new one. With `keeps_memory` each may keep a little
    memory of its own between updates."""

    def __init__(
        self,
        staleness: Staleness,
        comparisons: CutoffComparisons,
        settings: Settings,
        on_plan: Callable[[Plan], None],
        keeps_memory: bool,
    ) -> None:
        self.staleness = staleness
        self.comparisons = comparisons
        self.settings = settings
        self._on_plan = on_plan
        self._keeps_memory = keeps_memory
        self._verifier: UpdateVerifier | None = None
        """The checker of updates; None until the first proof."""

    def with_staleness(self, staleness: Staleness) -> "PlanMaker":
        """Return the same for another analysis of the program."""
        return PlanMaker(staleness, self.comparisons, self.settings, self._on_plan, self._keeps_memory)

    def verify(self, change: Change, update: Subprogram, unchanged: frozenset[int] = frozenset()) -> None:
        """Prove an update, if the settings ask for that; see `UpdateVerifier.verify`."""
        if self.settings.verify:
            self._checker().verify(change, update, unchanged)

    def verify_conditional(self, update: ConditionalUpdate) -> None:
        """Prove each outcome of an update that decides cutoffs, if the settings ask for that."""
        if self.settings.verify:
            verify_conditional(self._checker(), self.comparisons, update)

    def _checker(self) -> UpdateVerifier:
        if self._verifier is None:
            self._verifier = UpdateVerifier(self.staleness, self.comparisons)
        return self._verifier

    def prepare(self, update: Subprogram, *, decides: bool = False) -> LoadedPlan | None:
        """Schedule an update and prepare its plan. Return None where nothing runs. See
        `LoadedPlan.keep_for_updates`."""
        if not update.chosen:
            return None
        plan = plan_program(update.program, self.settings.verify)
        self._on_plan(plan)
        loaded = LoadedPlan(plan, self.settings)
        loaded.keep_for_updates(self._keeps_memory, decides=decides)
        return loaded
