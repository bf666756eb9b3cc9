"""Small writes to parts of tensors on the simulated GPU: what they copy, what they leave, and what a refusal does."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DeviceError, batch, from_host, full, source, use_device
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
                assert not made["cuLaunchKernelEx"]
                assert not made["cuMemcpyDtoDAsync"]
        value = s.get()
        assert np.array_equal(value.to_host().sync(), model)
        del value, s
        assert_nothing_is_held()


@settings(max_examples=12)
@given(parts=st.lists(ends, min_size=1, max_size=3), refused=st.booleans())
def test_a_part_in_a_batch_is_copied_once_on_the_host(parts: list[tuple[int, int, int, int]], refused: bool) -> None:
    """The batch has the data of the call, in page-locked memory from which the part is copied; or in other memory, if
    there is no more of that."""
    model = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    with installed(), use_device("cuda:0"):
        s = source(from_host(model).sync())
        pinned, gpu = driver().pinned, driver().gpu
        with batch():
            for number, (a, b, c, d) in enumerate(parts):
                rows, columns = slice(min(a, b), max(a, b)), slice(min(c, d), max(c, d))
                model[rows, columns] = -number
                data = model[rows, columns].copy()
                if refused:
                    with gpu.current():
                        pinned.trim()
                    gpu.fail("cuMemHostAlloc", 2, 1)  # type: ignore[attr-defined]  # a simulated GPU
                used = pinned.used
                s.write((rows, columns), data)
                assert (pinned.used - used) in (data.nbytes, 0 if refused else data.nbytes)
                data[...] = 99
            used = pinned.used
        value = s.get()
        assert np.array_equal(value.to_host().sync(), model)
        gpu.heal()  # type: ignore[attr-defined]  # a simulated GPU
        del value, s
        assert_nothing_is_held()


@pytest.mark.parametrize("batched", [False, True])
def test_a_large_part_goes_to_the_device_in_the_call(batched: bool) -> None:
    """More than 4 MiB are staged by a run, and copied to the part on the device. A batch ends without another copy from
    the host, and has the data of the call."""
    start = np.zeros((2, MOST // 4 + 8), np.float32)
    patch = np.full((1, MOST // 4 + 4), 3, np.float32)
    with installed(), use_device("cuda:0"):
        s, calls = source(from_host(start).sync()), driver().gpu.calls  # type: ignore[attr-defined]  # a simulated GPU
        with batch() if batched else nullcontext():
            s.write((slice(1, 2), slice(0, patch.shape[1])), patch)
            before = calls.copy()
            patch[...] = 99
        made = calls - before
        assert not made["cuMemcpyHtoDAsync"]
        assert not made["cuLaunchKernelEx"]
        assert made["cuMemcpyDtoDAsync"] == batched
        start[1, : patch.shape[1]] = 3
        value = s.get()
        assert np.array_equal(value.to_host().sync(), start)
        del value, s
        assert_nothing_is_held()


def test_a_tensor_is_copied_to_a_part_without_a_run() -> None:
    """A dense tensor of the device is one copy on the device; a tensor of which the rows are short needs a kernel."""
    model = np.zeros((ROWS, COLUMNS), np.float32)
    with installed(), use_device("cuda:0"):
        s, calls = source(from_host(model).sync()), driver().gpu.calls  # type: ignore[attr-defined]  # a simulated GPU
        for columns, launches in ((slice(0, COLUMNS), 0), (slice(4, 30), 0), (slice(3, 5), 1)):
            patch = full((3, columns.stop - columns.start), float(columns.stop)).sync()
            before = calls.copy()
            s.write((slice(2, 5), columns), patch)
            assert (calls - before)["cuLaunchKernelEx"] == launches
            model[2:5, columns] = columns.stop
        value = s.get()
        assert np.array_equal(value.to_host().sync(), model)
        del value, s, patch
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
