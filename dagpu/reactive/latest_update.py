"""`LatestUpdate`, the last update of a feed, where it may be made again with nothing but another number."""

from collections.abc import Mapping
from typing import Any, final

from dagpu.lowering.updates.live_inputs import LiveInput
from dagpu.ops.source_op import Source
from dagpu.ops.versions import CLOCK, PLAIN, Version
from dagpu.reactive.plans.conditional_plans import ConditionalPlan
from dagpu.reactive.plans.prepared_tiles import TiledPlan
from dagpu.reactive.plans.update_plans import UpdatePlan
from dagpu.reactive.stages.live_stage import LiveStage
from dagpu.runtime.calls.loaded_plan import LEAVES, LoadedPlan


@final
class LatestUpdate:
    """An update by a direct call after a change of one number, with its plan."""

    __slots__ = ("_others", "history", "loaded", "made", "node", "reads_sources", "stage", "update")

    def __init__(
        self,
        node: Source[Any],
        stage: LiveStage,
        update: UpdatePlan | ConditionalPlan,
        loaded: LoadedPlan,
        inputs: Mapping[Source[Any], LiveInput],
    ) -> None:
        self.node = node
        """The number that has changed."""
        self.history = node.cell.history
        self.made = inputs[node]
        """The input of the trace that is this number."""
        self.stage = stage
        self.update = update
        self.loaded = loaded
        self._others = [(other.cell.history, found) for other, found in inputs.items() if other is not node]
        memory = stage.leaves.bits_of_sources()
        self.reads_sources = any(buffer in memory for buffer, _ in update.subprogram.inputs)
        """True if the update reads memory of a source, a part of which may be written in place while no snapshot
        exists. Then one must exist before `newer` is called, until the update is over."""

    def newer(self) -> Version | None:
        """Return the newest version of the number if that alone has changed since the last update; else None.

        The others are looked at after it: what has not changed by then had not changed when this version was the
        newest. So all of them together are one snapshot. A batch gives its sources their versions before the clock
        reaches them, so a version that the clock has reached is not a part of a batch.
        """
        version = self.history.versions[-1]
        made = self.made
        if version is made.version or version.instant > CLOCK.now or type(version.value) is not type(made.value):
            return None
        for history, other in self._others:
            if history.versions[-1] is not other.version:
                return None
        return version


def latest_update(
    stage: LiveStage,
    update: UpdatePlan | TiledPlan | ConditionalPlan,
    newer: Mapping[Source[Any], Version],
    inputs: Mapping[Source[Any], LiveInput],
) -> LatestUpdate | None:
    """Return the update that was made after these changes, if one number has changed and the update has a direct call;
    else None."""
    if len(newer) != 1 or type(update) is TiledPlan or update.loaded is None or LEAVES not in update.loaded.direct:
        return None
    (node,) = newer
    is_number = type(inputs[node].value) in PLAIN
    return LatestUpdate(node, stage, update, update.loaded, inputs) if is_number else None
