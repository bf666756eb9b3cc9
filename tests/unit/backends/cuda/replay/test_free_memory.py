"""Plans on simulated GPUs that take more than the device has free are fitted into that, before a run is refused."""

import gc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import DeviceOp, ListSchedule, OutOfMemoryError, device, expr, f32, full, plan_of, zeros, zip_ops
from tests.programs.taped import taped_op, taped_results
from tests.simulated.cuda import installed

EDGE, MIB = 1024, 1 << 20  # 4 MiB of f32
_twice = expr(f32)(lambda x: 2.0 * x)


def branches(count: int) -> DeviceOp[tuple[NDArray[f32], ...], Any]:
    """Branches that overlap, and hold 4 MiB each."""
    return zip_ops(*[_twice(_twice(full((EDGE, EDGE), float(each)))).to_host() for each in range(count)])


def _check(found: tuple[NDArray[f32], ...]) -> None:
    for each, array in enumerate(found):
        assert np.array_equal(array, np.full((EDGE, EDGE), 4.0 * each, f32))


def test_a_plan_that_does_not_fit_is_fitted() -> None:
    """It takes at most what the device has free, by the driver, and its results are the same; `explain()` says so. A
    plan that fits is left as it is."""
    with installed(memory=64 * MIB):
        roomy = plan_of(branches(4))
        assert roomy.peak_bytes == 16 * MIB
        assert "had free" not in branches(4).explain()
    with installed(memory=20 * MIB) as machine:
        kept = zeros((2 * EDGE, EDGE)).sync()
        op = branches(4)
        assert plan_of(op).peak_bytes <= 12 * MIB
        assert "Memory limit 12,582,912: what cuda:0 had free;" in op.explain().replace("\n", " ")
        _check(op.sync())
        assert machine.gpus[0].total - machine.gpus[0].used >= 0
        del kept


def test_idle_memory_of_the_pool_counts_as_free() -> None:
    """A run of the same op leaves its memory in the pool, and the next plan is made as the first one was."""
    with installed(memory=20 * MIB):
        _check(branches(4).sync())
        gc.collect()
        assert device("cuda:0").memory_info()[0] < 16 * MIB
        assert plan_of(branches(4)).peak_bytes == 16 * MIB


def test_what_fits_in_no_way_is_refused_by_the_run() -> None:
    """Then the error is that of a run without memory. A limit of the user's own is an error of the plan still."""
    with installed(memory=3 * MIB), pytest.raises(OutOfMemoryError, match="no room for"):
        branches(4).sync()


def test_recomputation_is_a_means_if_the_policy_allows_it() -> None:
    """Without it this step is refused; with it it runs in what is free, and has the same bits."""
    seed, depth, size = 5, 30, 1 << 18  # 1 MiB
    policy = ListSchedule(1, recompute=True)
    with installed(memory=200 * MIB):
        whole = plan_of(taped_op(seed, depth, size).schedule(policy)).peak_bytes
    with installed(memory=int(0.8 * whole)):
        op = taped_op(seed, depth, size)
        with pytest.raises(OutOfMemoryError):
            op.schedule(ListSchedule(1)).sync()
        fitted = taped_op(seed, depth, size).schedule(policy)
        assert plan_of(fitted).peak_bytes <= 0.8 * whole
        assert "made again" in fitted.explain()
        found = fitted.sync()
        want = taped_results(seed, depth, size)
        assert [each.to_host().sync().tobytes() for each in found] == [each.tobytes() for each in want]
