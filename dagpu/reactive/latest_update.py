"""`LatestUpdate`, the last update of a feed, where it may be made again with nothing but another number."""

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from dagpu.lowering.updates.live_inputs import LiveInput
from dagpu.ops.live.changes import PLAIN
from dagpu.ops.live.source_op import Source
from dagpu.ops.live.versions import Version
from dagpu.reactive.live_stage import LiveStage
from dagpu.reactive.prepared_tiles import TiledPlan
from dagpu.reactive.update_plans import UpdatePlan
from dagpu.runtime.calls.loaded_plan import LoadedPlan


@final
class LatestUpdate(NamedTuple):
    """An update by a direct call after a change of one number, with its plan."""

    node: Source[Any]
    made: LiveInput
    """The input of the trace that is this number."""
    stage: LiveStage
    update: UpdatePlan
    loaded: LoadedPlan

    def take(self, newer: Mapping[Source[Any], Version]) -> bool:
        """Give the trace the newer number if that alone has changed. Else return False, and change nothing."""
        made, version = self.made, newer.get(self.node)
        if version is None or len(newer) != 1 or type(version.value) is not type(made.value):
            return False
        made.version, made.value = version, version.value
        return True


def latest_update(
    stage: LiveStage,
    update: UpdatePlan | TiledPlan,
    newer: Mapping[Source[Any], Version],
    inputs: Mapping[Source[Any], LiveInput],
) -> LatestUpdate | None:
    """Return the update that was made after these changes, if one number has changed and the update has a direct call;
    else None."""
    if len(newer) != 1 or type(update) is not UpdatePlan or update.loaded is None or update.loaded.again is None:
        return None
    (node,) = newer
    made = inputs[node]
    return LatestUpdate(node, made, stage, update, update.loaded) if type(made.value) in PLAIN else None
