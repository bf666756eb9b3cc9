"""Small writes to parts of tensors on the simulated GPU: what they copy, what they leave, and what a refusal does."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DeviceError, from_host, source, use_device
from dagpu.backends.cuda.resources.part_writes import MOST
from tests.simulated.cuda import driver, installed
from tests.simulated.runs import assert_nothing_is_held

ROWS, COLUMNS = 12, 40

ends = st.tuples(st.integers(0, ROWS), st.integers(0, ROWS), st.integers(0, COLUMNS), st.integers(0, COLUMNS))


@settings(max_examples=20)
@given(parts=st.lists(ends, min_size=1, max_size=3))
def test_a_part_is_one_copy_in_and_at_most_one_of_rows(parts: list[tuple[int, int, int, int]]) -> None:
    """A part whose rows are 64 bytes or longer, or that is dense, needs no launch and no copy of the whole; its
    elements and no others change."""
    model = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    with installed(), use_device("cuda:0"):
        s, calls = source(from_host(model).sync()), driver().gpu.calls  # type: ignore[attr-defined]  # a simulated GPU
        for number, (a, b, c, d) in enumerate(parts):
            rows, columns = slice(min(a, b), max(a, b)), slice(min(c, d), max(c, d))
            before = calls.copy()
            model[rows, columns] = -number
            s.write((rows, columns), model[rows, columns])
            width = columns.stop - columns.start
            if model[rows, columns].size and (4 * width >= 64 or rows.stop - rows.start == 1):
                dense = width == COLUMNS or rows.stop - rows.start == 1
                made = calls - before
                assert made["cuMemcpyHtoDAsync"] == 1
                assert made["cuMemcpy2DAsync"] == (not dense)
                assert not made["cuLaunchKernel"]
                assert not made["cuMemcpyDtoDAsync"]
        value = s.get()
        assert np.array_equal(value.to_host().sync(), model)
        del value, s
        assert_nothing_is_held()


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync", "cuMemcpy2DAsync"])
def test_a_write_that_the_driver_refuses_holds_nothing(call: str) -> None:
    """The error arrives, no memory and no stream stays in use, and the next write succeeds."""
    start = np.zeros((ROWS, COLUMNS), np.float32)
    with installed(), use_device("cuda:0"):
        s, gpu = source(from_host(start).sync()), driver().gpu
        part, patch = (slice(2, 5), slice(4, 30)), np.ones((3, 26), np.float32)
        gpu.fail(call, 1)  # type: ignore[attr-defined]  # a simulated GPU
        with pytest.raises(DeviceError, match=call):
            s.write(part, patch)
        assert driver().pinned.used == 0
        s.write(part, patch)
        value = s.get()
        start[part] = 1
        assert np.array_equal(value.to_host().sync(), start)
        del value, s
        assert_nothing_is_held()


def test_a_large_part_is_staged_by_a_run() -> None:
    """More than 4 MiB go the way of other arrays."""
    start = np.zeros((2, MOST // 4 + 8), np.float32)
    with installed(), use_device("cuda:0"):
        s: Any = source(from_host(start).sync())
        start[1] = 3
        s.write(slice(1, 2), start[1:])
        value = s.get()
        assert np.array_equal(value.to_host().sync(), start)
        del value, s
        assert_nothing_is_held()
