"""`check_update`: an update of `observe(check=True)`, held against a run from scratch of the same snapshot."""

from typing import Any

from dagpu.common.places import Origin, StartedAt, describe
from dagpu.ops.base import DeviceOp
from dagpu.ops.drawing import name_of_call
from dagpu.ops.versions import Snapshot
from dagpu.reactive.incremental import IncrementalRun
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.checked_runs import CheckedRuns
from dagpu.runtime.waiting.trio_waits import TrioWaits

AnyOp = DeviceOp[Any, Any, Any]


async def check_update(
    op: AnyOp, run: IncrementalRun, value: Any, snapshot: Snapshot, settings: Settings, where: Origin
) -> None:
    """Compare the value that an update of `run` has made with that of a run from scratch, bit for bit. Where a cutoff
    has let an earlier value through, which it takes for equal, the run from scratch gets that value too. `where` is the
    place of `observe`.

    Raises:
        UpdateError: they differ.
    """
    with StartedAt(where):
        scratch = IncrementalRun(op, settings, None, where)
        scratch.cutoffs = run.let_through()
        wanted = await scratch.update(snapshot, TrioWaits())
        newest = max(run.sources, key=lambda node: node.cell.history.at(snapshot).instant, default=None)
        when = "of an op that reads no source"
        if newest is not None:
            when = f"at revision {newest.cell.history.at(snapshot).revision} of {newest!r}"
        differs = f"{name_of_call(op)} at {describe(op.origin)} differs from a run from scratch {when}"
        runs = CheckedRuns(settings, TrioWaits(), where)
        await runs.compare(value, wanted, differs, "Make what it reads a source, and return values that cannot change")
