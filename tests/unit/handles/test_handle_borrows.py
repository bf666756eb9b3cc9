"""Handles: sharing and borrowing."""

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import dagpu
from dagpu import (
    BorrowError,
    MovedError,
    OwnershipError,
    SharedTensor,
    Tensor,
    TensorRef,
    dup,
    from_host,
    memcpy,
    value,
    zeros,
)
from tests.support.handle_cases import counted, line, tensor

# ---- sharing


def test_clones_read_the_same_memory_and_only_the_last_unwraps() -> None:
    """`try_unwrap` says how many others hold it; the last holder gets the Tensor back, and is moved by it."""
    shared = from_host(counted((3,))).sync().share()
    made = line(1)
    clone = shared.clone()
    used = clone.device.memory_used()
    with pytest.raises(OwnershipError) as caught:
        shared.try_unwrap()
    said = str(caught.value)
    for part in (f"made at {made}", "1 more handle", "Drop the clones", "dup(t)"):
        assert part in said
    del clone
    t = shared.try_unwrap()
    moved = line(1)
    assert isinstance(t, Tensor)
    assert t.device.memory_used() == used
    with pytest.raises(MovedError, match=re.escape(f"moved by try_unwrap() at {moved}")):
        shared.clone()
    assert_array_equal(t.to_host().sync(), counted((3,)))


@given(st.lists(st.sampled_from(["clone", "reshape", "drop", "value"]), max_size=12))
def test_try_unwrap_counts_holders(steps: list[str]) -> None:
    """It succeeds exactly when one handle is left, whatever was cloned and dropped before."""
    handles: list[SharedTensor[Any]] = [tensor().share()]
    ops = []
    for step in steps:
        if step == "clone":
            handles.append(handles[0].clone())
        elif step == "reshape":
            handles.append(handles[-1].reshape((24,)))
        elif step == "value":
            ops.append(value(handles[-1].clone()))
        elif len(handles) > 1:
            handles.pop()
    others = len(handles) - 1 + len(ops)
    if others:
        with pytest.raises(OwnershipError, match=f"{others} more handle"):
            handles[0].try_unwrap()
        ops.clear()
        del handles[1:]
    assert isinstance(handles[0].try_unwrap(), Tensor)


def test_an_op_that_remembers_counts_as_a_holder() -> None:
    """A `shared()` op keeps its value; once it is gone, the handle it gave may be unwrapped."""
    op = zeros((2,)).shared()
    got = op.sync()
    with pytest.raises(OwnershipError, match=re.escape("shared() op")):
        got.try_unwrap()
    del op
    assert isinstance(got.try_unwrap(), Tensor)


# ---- borrowing


@pytest.mark.parametrize(
    "lend",
    [
        lambda t: t.borrow(),
        lambda t: t.view((24,)),
        lambda t: t.slice(slice(0, 2)),
        lambda t: t.borrow().slice(slice(0, 2)).reshape((12,)),
    ],
)
def test_a_borrow_keeps_its_lender_alive(lend: Callable[[Any], TensorRef[Any]]) -> None:
    """The memory stays while a borrow does, and goes with the last."""
    where = dagpu.current_device()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    ref = lend(from_host(counted((4, 6))).sync())
    gc.collect()
    assert where.memory_used() == before + 96
    assert_array_equal(ref.to_host().sync().ravel(), counted((4, 6)).ravel()[: ref.size])
    del ref
    assert where.memory_used() == before


def test_a_void_borrow_in_an_op_is_found_before_anything_runs() -> None:
    """An op that holds a borrow whose tensor has moved since fails at its start."""
    ran: list[int] = []
    t = tensor()
    op = dagpu.zip_ops(value(1).host_map(ran.append), dup(t.borrow()))
    t.share()
    with pytest.raises(MovedError, match=re.escape("was moved by share() at")):
        op.sync()
    assert ran == []


def test_a_tensor_lent_for_writing_and_reading_in_one_op_is_refused() -> None:
    """Two borrows of one tensor in one op, one of them mutable, conflict; two that read do not."""
    t = from_host(counted((4,))).sync()
    source = zeros((4,)).sync()
    both = dagpu.zip_ops(dup(t.borrow()), dup(t.borrow())).sync()
    assert len(both) == 2
    with pytest.raises(BorrowError) as caught:
        dagpu.zip_ops(dup(t.borrow()), memcpy(t.borrow_mut(), source.borrow())).sync()
    for part in (f"borrowed at {__file__}:", "for writing", "Lend it once, m = t.borrow_mut()"):
        assert part in str(caught.value)
    with pytest.raises(BorrowError, match="borrowed at"):
        dagpu.zip_ops(memcpy(t.borrow_mut(), source.borrow()), memcpy(t.borrow_mut(), source.borrow())).sync()
    assert_array_equal(t.to_host().sync(), counted((4,)))


def test_writes_through_a_mutable_borrow_land_in_the_tensor() -> None:
    """A write through a mutable borrow changes the tensor, and later reads of the tensor see it."""
    t = tensor((4,))
    assert memcpy(t.borrow_mut(), from_host(counted((4,))).sync()).sync() is None
    assert_array_equal(t.borrow().to_host().sync(), counted((4,)))
