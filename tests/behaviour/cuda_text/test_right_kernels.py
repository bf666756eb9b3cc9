"""Right kernels run without a report, whatever the order of threads and blocks."""

import numpy as np
import pytest

from dagpu.testing import Mode, Order, texts_run
from tests.behaviour.cuda_text.right_kernels import QUICK, RIGHT
from tests.behaviour.cuda_text.texts import declared, result
from tests.conftest import MARKS

CASES = [pytest.param(name, marks=() if name in QUICK else MARKS) for name in RIGHT]


@pytest.mark.host_only("the texts run on the host")
@pytest.mark.parametrize("name", CASES)
def test_a_right_kernel_runs(name: str) -> None:
    """It makes the same in three orders with checks, and in one without."""
    right = RIGHT[name]
    which = declared(right.body, right.before, right.block)
    wanted = np.asarray(right.made()).ravel()
    for order in range(3):
        with texts_run(order=Order(order, order, 5), mode=Mode()):
            assert np.array_equal(result(which, **right.run).ravel(), wanted), order
    with texts_run(mode=Mode(checked=False)):
        assert np.array_equal(result(which, **right.run).ravel(), wanted)


def test_the_table() -> None:
    """It has forty kernels."""
    assert len(RIGHT) >= 40
    assert set(QUICK) <= set(RIGHT)
