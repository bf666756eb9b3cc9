"""The reports of kernels that are compiled with `checked=True`: each has the first access out of bounds of a launch."""

from typing import Any, Final

import numpy as np

from dagpu.backends.host.body_checks import index_error, index_of_tile, sight_error
from dagpu.backends.kernel_text.launch_params import REPORT
from dagpu.common.errors import KernelBoundsError
from dagpu.common.places import describe
from dagpu.ops.kernel_spec import IndexBeyond
from dagpu.plans.program import Launch

LAYOUT: Final = np.dtype(
    [("state", "i4"), ("argument", "i4"), ("rank", "i4"), ("kind", "i4"), ("index", "i8", (8,)), ("extent", "i8", (8,))]
)
"""Layout of `Report` in kernels/prelude/dagpu.cuh. `state` is 2 once the report is complete."""
assert LAYOUT.itemsize == REPORT

OUT_OF_SIGHT: Final = 3
"""The kind of a report of an input that a tile may not see there; `extent[0]` is the number of the tile."""

_KINDS: Final = {
    0: "outside its extents {extent}",
    1: "outside the tensor, of shape {extent}",
    2: "outside this block's tile, of extents {extent}",
}


def bounds_error(launch: Launch, report: Any) -> KernelBoundsError:
    """Return the error for the report of a launch, an item of an array of `LAYOUT`."""
    spec, rank = launch.kernel, int(report["rank"])
    if int(report["kind"]) == OUT_OF_SIGHT:
        seen = tuple(int(n) for n in report["index"][:rank])
        return sight_error(launch, int(report["argument"]), seen, index_of_tile(int(report["extent"][0]), launch.grid))
    name = spec.params[int(report["argument"])].name
    index, extent = (tuple(int(n) for n in report[what][:rank]) for what in ("index", "extent"))
    if spec.indexed is not None:
        return index_error(launch, IndexBeyond(index[spec.indexed.axis], extent[spec.indexed.axis]))
    where = _KINDS[int(report["kind"])].format(extent=extent)
    return KernelBoundsError(
        f"kernel {spec.name!r}, launched at {describe(launch.origin)}: argument {name!r} was accessed at {index}, "
        f"{where}. That access was not made. Correct the index in the kernel, declared at {describe(spec.origin)}."
    )
