"""`check_update`: an update of `observe(check=True)`, held against a run from scratch of the same snapshot."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dagpu.common.containers import values_in
from dagpu.common.errors import UpdateError
from dagpu.common.origin import Origin, StartedAt, describe
from dagpu.handles import SharedTensor
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import ToHost, Value, Zip
from dagpu.ops.drawing.op_names import name_of
from dagpu.ops.live.source_op import Source
from dagpu.ops.live.versions import Snapshot
from dagpu.reactive.incremental import IncrementalRun
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.execute import execute
from dagpu.runtime.waiting.trio_waits import TrioWaits

AnyOp = DeviceOp[Any, Any, Any]


async def check_update(
    op: AnyOp, sources: Sequence[Source[Any]], value: Any, snapshot: Snapshot, settings: Settings, where: Origin
) -> None:
    """Compare the value that an update has made with that of a run from scratch, bit for bit. `sources` are those that
    the op reads, and `where` is the place of `observe`.

    Raises:
        UpdateError: they differ.
    """
    with StartedAt(where):
        wanted = await IncrementalRun(op, settings, None, where).update(snapshot, TrioWaits())
        if _equal(await _on_host(value, settings, where), await _on_host(wanted, settings, where)):
            return
    newest = max(sources, key=lambda node: node.cell.history.at(snapshot).instant, default=None)
    when = "of an op that reads no source"
    if newest is not None:
        revision = newest.cell.history.at(snapshot).revision
        when = f"at revision {revision} of the source made at {describe(newest.origin)}"
    raise UpdateError(
        f"{name_of(op)} at {describe(op.origin)} differs from a run from scratch {when}: a closure of it reads what "
        "it is not given. Make what it reads a source."
    )


async def _on_host(value: Any, settings: Settings, where: Origin) -> list[Any]:
    """Return the contents of a value: its host values, and the arrays of its tensors."""
    items = list(values_in(value))
    tensors = [item for item in items if type(item) is SharedTensor]
    copies: AnyOp = Zip(tuple([ToHost(Value(each, where), where) for each in tensors]), where)
    arrays = iter(await execute(copies, settings, TrioWaits(), where) if tensors else ())
    return [next(arrays) if type(item) is SharedTensor else item for item in items]


def _equal(a: list[Any], b: list[Any]) -> bool:
    """Return true if two lists of host values have the same bits."""
    return len(a) == len(b) and all(map(_equal_items, a, b))


def _equal_items(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    return bool(a == b or (a != a and b != b))  # NaN
