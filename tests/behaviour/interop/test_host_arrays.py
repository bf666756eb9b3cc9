"""Arrays of NumPy as handles, and handles as arrays of NumPy, on the devices that compute on the host."""

import gc
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import (
    BorrowError,
    ExportError,
    InteropError,
    MovedError,
    OwnershipError,
    Tensor,
    TensorRef,
    adopt,
    bf16,
    current_device,
    dup,
    expr,
    f32,
    fill,
    from_array,
    lend,
    lend_mut,
    lent_out,
    share_array,
    unversioned,
    use_device,
    zeros,
)
from tests.simulated.foreign_arrays import counted_exports
from tests.support.paths import ROOT

PLACES = pytest.mark.parametrize("place", ["host", "host:1", "explore"])


@expr(f32)
def plus_one(x: Any) -> Any:
    return x + 1.0


def address_of(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@pytest.fixture(autouse=True)
def nothing_left() -> Any:
    """Each capsule is deleted once, and none is left."""
    with counted_exports() as held:
        yield
        gc.collect()
        assert held() == 0


@PLACES
def test_an_adopted_array_is_the_tensors_memory(place: str) -> None:
    """`adopt` copies nothing and takes no memory of dagpu's; runs read and write the array itself."""
    array = np.arange(6, dtype=f32).reshape(2, 3)
    same = array  # which the test looks at, in spite of its promise
    references = sys.getrefcount(array)
    with use_device(place):
        used = current_device().memory_used()
        tensor = adopt(same, f32)
        assert current_device().memory_used() == used
        assert_array_equal(plus_one(tensor.borrow()).to_host().sync(), array + 1)
        fill(tensor.borrow_mut(), 5.0).sync()
        assert_array_equal(array, np.full((2, 3), 5.0, f32))
        del tensor
        gc.collect()
    assert sys.getrefcount(array) == references


@PLACES
def test_a_shared_array_may_have_any_strides_and_be_read_only(place: str) -> None:
    """`share_array` takes transposed, reversed, broadcast and read-only arrays as they are."""
    base = np.arange(24, dtype=f32).reshape(4, 6)
    fixed = base.copy()
    fixed.flags.writeable = False
    with use_device(place):
        for array in (base.T, base[::-1, ::2], np.broadcast_to(base[0], (3, 6)), fixed, base[:0], base[1, 2]):
            shared = share_array(np.asarray(array))
            assert_array_equal(dup(shared).to_host().sync(), array)
            del shared
            gc.collect()


def test_two_owners_of_one_memory_are_refused() -> None:
    """Readers may share an array. A handle that may write it is alone."""
    array = np.zeros(8, f32)
    with use_device("host"):
        first, second = share_array(array), share_array(array[2:])
        for second_owner in (adopt, lambda x: lend_mut(x).__enter__()):
            with pytest.raises(InteropError, match="known to dagpu already"):
                second_owner(array[1:3])
        del first, second
        same = array  # which the test hands out again, in spite of its promise
        tensor = adopt(same)
        for other in (adopt, share_array, lambda x: lend(x).__enter__()):
            with pytest.raises(InteropError, match="known to dagpu already"):
                other(array[7:])
        del tensor
        adopt(array)


def test_a_loan_ends_with_its_block() -> None:
    """After `with lend` and `with lend_mut` the borrow is void, and the array is the program's again."""
    array = np.arange(4, dtype=f32)
    with use_device("host"):
        with lend(array.reshape(2, 2).T) as lent:
            assert_array_equal(plus_one(lent).to_host().sync(), array.reshape(2, 2).T + 1)
        with pytest.raises(MovedError, match=r"the end of lend\(\)"):
            lent.to_host().sync()
        with lend_mut(array) as lent_mut:
            fill(lent_mut, 7.0).sync()
        assert_array_equal(array, np.full(4, 7.0, f32))
        with lend_mut(array):
            pass
        with pytest.raises(ZeroDivisionError), lend_mut(array):
            raise ZeroDivisionError
        adopt(array)


def test_a_tensor_moves_out_once() -> None:
    """NumPy gets a tensor's own memory, writable. The tensor is moved."""
    with use_device("host"):
        tensor = zeros((2, 3), f32).sync()
        array = np.from_dlpack(tensor)
        array[...] = 4
        with pytest.raises(MovedError, match="__dlpack__"):
            np.from_dlpack(tensor)
        again = adopt(array)  # and it may come back
        assert_array_equal(again.to_host().sync(), np.full((2, 3), 4, f32))


def test_a_tensor_that_a_consumer_refuses_stays() -> None:
    """A request that cannot be met moves nothing."""
    with use_device("host"):
        tensor = zeros((2,), f32).sync()
        for request in ({"dl_device": (2, 0)}, {"copy": True}):
            with pytest.raises(ExportError):
                tensor.__dlpack__(**request)
        assert tensor.__dlpack__(dl_device=(1, 0), copy=False, stream=None) is not None


def test_shared_tensors_go_out_read_only() -> None:
    """Consumers of a `SharedTensor` cannot write it, and count as holders."""
    with use_device("host"):
        shared = zeros((3,), f32).sync().share()
        first, second = np.from_dlpack(shared), np.from_dlpack(shared)
        assert not first.flags.writeable
        assert address_of(first) == address_of(second)
        with pytest.raises(InteropError, match="read-only"):
            adopt(first)
        with pytest.raises(OwnershipError, match="2 more handles"):
            shared.try_unwrap()
        del first, second
        gc.collect()
        with pytest.raises(ExportError, match=r"unversioned\(t\)"):
            shared.__dlpack__()
        assert unversioned(shared).__dlpack__() is not None
        gc.collect()
        fill(shared.try_unwrap().borrow_mut(), 1.0).sync()


def test_a_loan_to_a_consumer_locks_the_tensor() -> None:
    """In the block of `lent_out`, and as long as a consumer holds what it took, conflicting runs are refused."""
    with use_device("host"):
        tensor = zeros((4,), f32).sync()
        with lent_out(tensor.borrow_mut()) as x:
            assert (x.shape, x.dtype) == ((4,), np.dtype(f32))
            array = np.from_dlpack(x)
            array[:] = 3
            with pytest.raises(BorrowError, match="lent out"):
                tensor.borrow().to_host().sync()
        with pytest.raises(BorrowError, match="lent out"):
            tensor.borrow().to_host().sync()
        with pytest.raises(ExportError, match="has ended"):
            np.from_dlpack(x)
        del array
        gc.collect()
        assert_array_equal(tensor.borrow().to_host().sync(), np.full(4, 3, f32))
        with lent_out(tensor.borrow()) as y:
            array = np.from_dlpack(y)
            assert not array.flags.writeable
            assert_array_equal(tensor.borrow().to_host().sync(), array)  # both read
            with pytest.raises(BorrowError, match="lent out"):
                fill(tensor.borrow_mut(), 1.0).sync()
            with pytest.raises(BorrowError, match="lent out"):
                np.from_dlpack(tensor)  # it would be written by its new owner
            del array
        gc.collect()
        fill(tensor.borrow_mut(), 1.0).sync()


def test_a_copy_leaves_the_array_alone() -> None:
    """`from_array` reads the array when it runs, and each run reads it again."""
    array = np.arange(4, dtype=f32)
    with use_device("host"):
        op = from_array(array)
        array[0] = 9
        assert_array_equal(op.to_host().sync(), array)


@pytest.mark.parametrize("element", [f32, bf16, np.float64, np.float16, np.int8, np.uint64, np.bool_])
def test_every_element_type_goes_through(element: Any) -> None:
    """Handles of every kind of element type come in and go out with the same bits."""
    array = np.arange(6).reshape(2, 3).astype(element)
    with use_device("host"):
        shared = share_array(array)
        assert shared.dtype == array.dtype
        assert_array_equal(dup(shared).to_host().sync(), array)
        if element is not bf16:  # NumPy has no bfloat16 of its own to consume
            assert_array_equal(np.from_dlpack(shared), array)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), place=st.sampled_from(["host", "explore"]))
def test_any_sequence_of_exchanges_keeps_one_owner(data: st.DataObject, place: str) -> None:
    """Whatever goes out and comes in, in any order: contents are NumPy's, a moved handle is refused, nothing leaks."""
    array = np.arange(12, dtype=f32).reshape(3, 4)
    wanted = array.copy()
    with use_device(place), counted_exports() as exports:
        held: Any = array
        for _ in range(data.draw(st.integers(1, 6))):
            if isinstance(held, Tensor):
                step = data.draw(st.sampled_from(["out", "fill", "lent", "shared"]))
                if step == "out":
                    moved, held = held, np.from_dlpack(held)  # type: ignore[dagpu-use-after-move]  # as it should be
                    with pytest.raises(MovedError):
                        moved.borrow()
                elif step == "fill":
                    number = float(data.draw(st.integers(-5, 5)))
                    fill(held.borrow_mut(), number).sync()
                    wanted[...] = number
                elif step == "lent":
                    with lent_out(held.borrow()) as x:
                        assert_array_equal(np.from_dlpack(x), wanted)
                else:
                    shared = held.share()
                    assert_array_equal(np.from_dlpack(shared), wanted)
                    gc.collect()
                    held = shared.try_unwrap()
            else:
                step = data.draw(st.sampled_from(["adopt", "lend", "lend_mut", "copy"]))
                if step == "adopt":
                    held = adopt(held)
                elif step == "lend":
                    with lend(held) as lent:
                        assert_array_equal(plus_one(lent).to_host().sync(), wanted + 1)
                    del lent
                elif step == "lend_mut":
                    with lend_mut(held) as writable:
                        fill(writable, 2.0).sync()
                    del writable
                    wanted[...] = 2
                else:
                    assert_array_equal(from_array(held).to_host().sync(), wanted)
            contents = held.borrow().to_host().sync() if isinstance(held, Tensor) else held
            assert_array_equal(contents, wanted)
            assert_array_equal(array, wanted)
        del held, contents
        gc.collect()
        assert exports() == 0


Lending = Callable[[NDArray[Any]], AbstractContextManager[TensorRef[Any]]]


def test_wrong_arrays_are_refused_with_their_place() -> None:
    """What cannot be used without a copy is refused at the call."""
    strided = np.zeros((4, 4), f32)[:, ::2]
    with use_device("host"):
        with pytest.raises(InteropError, match=r"test_host_arrays.py:\d+: the array of shape \(4, 2\) has strides"):
            adopt(strided)
        with pytest.raises(InteropError, match="has elements of float32, and float64 was said"):
            share_array(strided, np.float64)
        with pytest.raises(InteropError, match="neither DLPack"):
            adopt([1.0])  # type: ignore[call-overload]
        with pytest.raises(InteropError, match="dagpu's already"):
            adopt(zeros((2,)).sync())
        with pytest.raises(InteropError, match="no tensor has"):
            share_array(np.zeros(3, np.clongdouble))
        with pytest.raises(OwnershipError, match="a borrow is wanted"):
            lent_out(zeros((2,)).sync())  # type: ignore[arg-type]
        with pytest.raises(OwnershipError, match="a SharedTensor is wanted"):
            unversioned(zeros((2,)).sync())  # type: ignore[arg-type]
        tensor = zeros((2,), f32).sync()
        with pytest.raises(ExportError, match="lent_out"):
            np.from_dlpack(tensor.borrow())  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match="__cuda_array_interface__"):
            _ = tensor.share().__cuda_array_interface__


HELD_AT_EXIT = """
import numpy as np
from dagpu import In, Out, f32, kernel, ones

@kernel(cuda="__global__ void k(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = x[i]; }")
def k(y: Out[f32], x: In[f32]) -> None: ...

@k.host
def _(y, x):  # its globals are freed with the interpreter, after all modules
    y[...] = x[y.at]

theirs = np.from_dlpack(k.new((4,), (4,))(ones((4,))).sync())
raw = ones((4,)).sync().share().__dlpack__(max_version=(1, 0))
"""


def test_an_array_may_outlive_the_interpreter() -> None:
    """What consumers hold at the exit is left to the process: nothing of dagpu is called any more."""
    done = subprocess.run(
        [sys.executable, "-c", HELD_AT_EXIT], check=False, cwd=ROOT, timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
