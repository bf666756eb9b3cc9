"""Bounds violations, read from the reports of kernels that are compiled with `checked=True`."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.common.checks.tile_sight import index_error, index_of_tile, sight_error
from dagpu.backends.common.failures import Outcome
from dagpu.backends.cuda.commands.error_context import instructions_of
from dagpu.backends.cuda.kernels.launch_params import REPORT
from dagpu.common.errors import KernelBoundsError
from dagpu.common.places import describe
from dagpu.plans.plan import Plan
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


def fail_violations(plan: Plan, launches: Sequence[Launch], reports: NDArray[np.uint8], outcome: Outcome) -> None:
    """Fail the launches that went out of bounds. A launch that depends on a failed one is not blamed: its indices may
    come from wrong results."""
    found = {id(launch): error for launch, error in violations(launches, reports)}
    if not found:
        return
    for instruction in instructions_of(plan):
        if not (outcome.abnormal and outcome.skips(instruction)) and (error := found.get(id(instruction))):
            outcome.fail(instruction, error)


def violations(launches: Sequence[Launch], reports: NDArray[np.uint8]) -> Iterator[tuple[Launch, KernelBoundsError]]:
    """Yield each launch that went out of bounds, with its error."""
    for launch, report in zip(launches, reports.view(LAYOUT), strict=True):
        if report["state"]:
            yield launch, _error(launch, report)


def _error(launch: Launch, report: Any) -> KernelBoundsError:
    spec, rank = launch.kernel, int(report["rank"])
    if int(report["kind"]) == OUT_OF_SIGHT:
        seen = tuple(int(n) for n in report["index"][:rank])
        return sight_error(launch, int(report["argument"]), seen, index_of_tile(int(report["extent"][0]), launch.grid))
    name = spec.params[int(report["argument"])].name
    index, extent = (tuple(int(n) for n in report[what][:rank]) for what in ("index", "extent"))
    if spec.indexed is not None:
        return index_error(launch, index[spec.indexed.axis], extent[spec.indexed.axis])
    where = _KINDS[int(report["kind"])].format(extent=extent)
    return KernelBoundsError(
        f"kernel {spec.name!r}, launched at {describe(launch.origin)}: argument {name!r} was accessed at {index}, "
        f"{where}. That access was not made. Correct the index in the kernel, declared at {describe(spec.origin)}."
    )
