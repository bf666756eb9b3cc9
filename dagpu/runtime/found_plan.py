"""Runs an op by the plan of an earlier run."""

from typing import Any

from dagpu.common.places import Origin
from dagpu.handles.storage import Locks
from dagpu.runtime.calls.direct_call import MISS
from dagpu.runtime.calls.loaded_plan import LEAVES, LoadedPlan
from dagpu.runtime.calls.run_call import run_bound
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.plan_lookup import PlanLookup
from dagpu.runtime.waiting.waits import BlockingWaits, Waits
from dagpu.tracing.signature import BoundArguments


async def run_by_a_plan(
    lookup: PlanLookup, settings: Settings, waits: Waits, origin: Origin, locks: Locks | None = None
) -> Any:
    """Run an op by the plan of an earlier run that its key finds. Return `MISS` if it needs a trace. The run of a part
    of another op has the `locks` of that."""
    found = lookup.bind()
    if found is None:
        return MISS
    loaded, bound = found
    if bound is None:
        assert lookup.inputs is not None
        again, leaves = loaded.direct[LEAVES], lookup.inputs.leaves
        if type(waits) is BlockingWaits:
            result = again.now(loaded, leaves, (), settings, origin)
        else:
            result = await again.in_task(loaded, leaves, (), settings, origin)
        if result is not MISS:
            return result
        bound = lookup.bind_again(loaded)
    if bound is not None and (bound.claims is None or bound.claims.claim()):
        return await _run_found(loaded, bound, settings, waits, origin, locks)
    return MISS


async def _run_found(
    loaded: LoadedPlan, bound: BoundArguments, settings: Settings, waits: Waits, origin: Origin, locks: Locks | None
) -> Any:
    """Run a plan of an earlier run. The run has claimed the values of `Shared` and `Unzip` that it computes."""
    claims = bound.claims
    if claims is None:
        return await run_bound(loaded, bound, settings, waits, origin, locks)
    try:
        return claims.publish(await run_bound(loaded, bound, settings, waits, origin, locks))
    finally:
        claims.abandon()
