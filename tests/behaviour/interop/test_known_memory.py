"""The table of the memory that dagpu and other libraries have in common: who may have it at the same time."""

import gc
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import InteropError, adopt, expr, f32, lend, lend_mut, lent_out, share_array, use_device, zeros
from dagpu.backends.host.arrays import array_at
from dagpu.interop import memory as known_memory
from dagpu.interop.capsules import CPU, CUDA
from dagpu.interop.memory import FEW, MANY, tables
from tests.simulated.cuda import installed
from tests.simulated.foreign_arrays import Library

ITEMS = 64
"""The elements of the array of which parts are taken."""


@expr(f32)
def plus_one(x: Any) -> Any:
    return x + 1.0


PARTS = st.tuples(st.integers(0, ITEMS), st.one_of(st.integers(0, 4), st.integers(0, ITEMS)))
STEPS = st.one_of(
    st.tuples(st.sampled_from(["adopt", "share", "lend", "lend_mut"]), PARTS),
    st.tuples(st.just("drop"), st.tuples(st.integers(0, 100), st.just(0))),
    st.tuples(st.just("drop"), st.tuples(st.integers(0, 100), st.just(0))),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=60), few=st.sampled_from([0, 3, known_memory.FEW]))
def test_a_part_that_one_side_may_write_has_one_handle(steps: list[tuple[str, tuple[int, int]]], few: int) -> None:
    """A part of an array is refused exactly if it overlaps with one that a handle has, and one of the two is
    writable."""
    whole = np.zeros(ITEMS, f32)
    held: list[tuple[int, int, bool, Any]] = []
    void: list[object] = []  # borrows that live on after their blocks
    tables.clear()
    with use_device("host"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_memory, "FEW", few)
        patch.setattr(known_memory, "MANY", few + 3)
        for step, (first, length) in steps:
            if step == "drop":
                if held:
                    _, _, _, handle = held.pop(first % len(held))
                    if isinstance(handle, ExitStack):
                        handle.close()
                    del handle
                continue
            stop, writable = min(first + length, ITEMS), step in ("adopt", "lend_mut")
            part = whole[first:stop]
            refused = any(
                (writable or other) and start < stop and first < end and start < end and first < stop
                for start, end, other, _ in held
            )
            taken: Any = ExitStack()
            try:
                if step == "adopt":
                    taken = adopt(part)
                elif step == "share":
                    taken = share_array(part)
                else:
                    void.append(taken.enter_context((lend if step == "lend" else lend_mut)(part)))
            except InteropError:
                assert refused
            else:
                assert not refused
                held.append((first, stop, writable, taken))


def test_a_table_that_was_long_is_right_when_it_is_short_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges are sorted when they are many. What was sorted is found, and what is forgotten is not, also afterwards."""
    monkeypatch.setattr(known_memory, "FEW", 3)
    monkeypatch.setattr(known_memory, "MANY", 6)
    tables.clear()
    whole = np.zeros((12, 4), f32)
    with use_device("host"):
        with lend(whole[0]) as void:
            kept = [share_array(row) for row in whole[1:6]]
            adopt(whole[6])  # it is compared with many, which are sorted
        adopt(whole[0])  # although the borrow, which is void, is still there
        del kept[1:]
        for _ in range(5):
            others = [share_array(row) for row in whole[2:6]]
            del others
            adopt(whole[6])
        assert len(tables[CPU, 0].readers) <= 12
        with pytest.raises(InteropError, match="known to dagpu already"):
            adopt(whole[1])
        assert "TensorRef" in repr(void)  # type: ignore[dagpu-use-after-move]  # a void borrow may be shown


def test_who_is_gone_is_forgotten() -> None:
    """The table is not much longer than the number of handles that live."""
    tables.clear()
    with installed() as machine:
        library = Library(machine)
        contents = np.arange(12, dtype=f32)
        arrays = [library.array(contents) for _ in range(FEW + 6)]
        kept = [share_array(array, f32) for array in arrays]
        for _ in range(2 * MANY):
            share_array(library.array(contents), f32)
        table = tables[CUDA, 0]
        assert len(kept) <= len(table.readers) <= len(kept) + MANY
        with pytest.raises(InteropError, match="known to dagpu already"):
            adopt(arrays[0], f32)
        assert_array_equal(plus_one(kept[0]).to_host().sync(), contents + 1)


def test_the_range_of_a_tensor_grows_with_what_goes_out_of_it() -> None:
    """Of a tensor two parts go out, one after the other: both, and what is between them, are its memory."""
    with use_device("host"):
        tensor = zeros((12,), f32).sync()
        with lent_out(tensor.borrow().slice(slice(0, 2))) as first, lent_out(tensor.borrow().slice(slice(10, 12))):
            seen = np.from_dlpack(first)
            between = array_at(seen.ctypes.data + 16, (2,), f32, (4,), None)
            with pytest.raises(InteropError, match="known to dagpu already"):
                adopt(between)
            assert share_array(between).shape == (2,)
            del seen


def test_what_is_refused_on_its_way_out_is_not_known() -> None:
    """A tensor whose memory another handle has cannot be lent out. Once that handle is gone, the memory is free."""
    with use_device("host"):
        tensor = zeros((4,), f32).sync()
        with lent_out(tensor.borrow()) as lent:
            same = array_at(np.from_dlpack(lent).ctypes.data, (4,), f32, (4,), None)
        tables.clear()  # as if it had never been out
        shared = share_array(same)
        with pytest.raises(InteropError, match="known to dagpu already"), lent_out(tensor.borrow_mut()):
            pass
        del shared
        adopt(same)
        with lent_out(tensor.borrow_mut()) as writable:
            np.from_dlpack(writable)[...] = 2
        assert_array_equal(tensor.to_host().sync(), np.full(4, 2, f32))


def test_a_void_borrow_does_not_keep_its_array() -> None:
    """After the block of a loan the array is free, although a name still has the borrow."""
    array = np.zeros(4, f32)
    with use_device("host"):
        with lend(array) as lent:
            pass
        with lend_mut(array) as lent_mut:
            pass
        assert adopt(array).shape == (4,)
    assert "TensorRef" in repr(lent)  # type: ignore[dagpu-use-after-move]  # a void borrow may be shown
    assert "TensorMut" in repr(lent_mut)  # type: ignore[dagpu-use-after-move]  # a void borrow may be shown
    gc.collect()
    assert (CPU, 0) in tables
