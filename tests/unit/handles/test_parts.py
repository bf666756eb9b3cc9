"""Parts of tensors by square brackets, against NumPy's: of handles of each kind and of ops, and what cannot be one."""

import gc
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import (
    BorrowError,
    MovedError,
    OwnershipError,
    ShapeError,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    bf16,
    bool_,
    dup,
    expr,
    f16,
    f32,
    f64,
    fill,
    from_host,
    i8,
    i16,
    i32,
    memcpy,
    ones,
    u8,
    value,
    zeros,
    zip_ops,
)
from dagpu.common.layout import share_bytes, slice_layout, view_layout
from dagpu.handles import live_state
from tests.support.handle_cases import counted, shapes, tensor

bounds = st.one_of(st.none(), st.integers(-8, 8))
ranges = st.builds(slice, bounds, bounds, st.one_of(st.none(), st.integers(-3, 3).filter(bool)))
double = expr(f32)(lambda x: x * 2)


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index of a tensor of this shape: numbers in range, slices, new axes, and perhaps one ellipsis."""
    items: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        numbers = [st.integers(-extent, extent - 1)] if extent else []
        items.append(draw(st.one_of(ranges, *numbers)))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), ...)
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    return tuple(items)


def index_of(array: Any, index: tuple[Any, ...]) -> Any:
    """NumPy's part; None if an ellipsis puts a number beyond its axis."""
    try:
        return array[index]
    except IndexError:
        return None


@given(shape=shapes, data=st.data())
def test_a_part_is_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Of a handle of each kind and of an op, with shape, strides and elements; a part of a part too."""
    index = data.draw(indices(shape))
    array = counted(shape)
    wanted = index_of(array, index)
    t = from_host(array).sync()
    if wanted is None:
        with pytest.raises(ShapeError, match="out of range"):
            t[index]
        return
    wanted = np.asarray(wanted)
    part, shared = t[index], dup(t.borrow()).sync().share()[index]
    assert isinstance(part, TensorRef)
    assert isinstance(shared, SharedTensor)
    assert part.shape == wanted.shape
    if wanted.size:
        assert all(n == 1 or one == two for n, one, two in zip(wanted.shape, part.strides, wanted.strides, strict=True))
    again = data.draw(indices(wanted.shape))
    inner = index_of(wanted, again)
    for given_part in (part, shared, t.borrow()[index]):
        assert_array_equal(given_part.to_host().sync(), wanted)
        assert_array_equal(dup(given_part).to_host().sync(), wanted)
        if inner is not None:
            assert_array_equal(given_part[again].to_host().sync(), inner)
    owned = from_host(array)[index]
    assert_array_equal(owned.to_host().sync(), wanted)
    assert isinstance(owned.sync(), Tensor)
    if inner is not None:
        assert_array_equal(owned[again].to_host().sync(), inner)


@given(shape=shapes.filter(bool), data=st.data())
def test_a_kernel_takes_and_writes_parts(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Strided ones, in an expression and as its output: the rest of the tensor stays as it is."""
    index, array = data.draw(indices(shape)), counted(shape).astype(f32)
    wanted = index_of(array, index)
    if wanted is None or np.asarray(wanted).ndim == 0:
        return
    t = from_host(array).sync()
    assert_array_equal(double(t[index]).to_host().sync(), wanted * 2)
    part = t.borrow_mut()[index]
    assert isinstance(part, TensorMut)
    tile = tuple(max(1, n) for n in part.shape)
    double.update(part.partition(tile)).sync()
    array[index] *= 2
    assert_array_equal(t.to_host().sync(), array)


TYPES = (i8, u8, i16, f16, bf16, i32, f32, f64)


@given(before=st.sampled_from(TYPES), after=st.sampled_from(TYPES), shape=shapes.filter(all), data=st.data())
def test_bytes_are_read_as_numpy_reads_them(
    before: Any, after: Any, shape: tuple[int, ...], data: st.DataObject
) -> None:
    """Of a whole tensor and of a part: the elements of NumPy's view, or an error where NumPy has one."""
    array = np.frombuffer(counted((*shape, 8)).astype(f64).tobytes(), np.dtype(before)).reshape((*shape, -1))
    index = data.draw(indices(array.shape))
    part = index_of(array, index)
    if part is None or np.asarray(part).size == 0:
        return
    t = from_host(array).sync()
    try:
        wanted = np.asarray(part).view(np.dtype(after))
    except ValueError:
        with pytest.raises(ShapeError, match=r"view\(\) at .*cannot read a tensor of "):
            t[index].view(after)
        return
    try:
        found = t[index].view(after)
    except ShapeError as error:  # a device would read elements across those that it can
        if "a row does not begin at a multiple of" not in str(error):
            raise
        return
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert_array_equal(found.to_host().sync().view(u8), np.ascontiguousarray(wanted).view(u8))


def test_a_view_keeps_the_kind_of_its_handle() -> None:
    """A tensor is lent; a shared one, a borrow and a loan stay what they are, and so does the result of an op."""
    t = ones((2, 4)).sync()
    bits = np.ones((2, 4), f32).view(i32)
    assert_array_equal(t.view(i32).to_host().sync(), bits)
    assert_array_equal(t.borrow().view(i32).to_host().sync(), bits)
    fill(t.borrow_mut().view(u8)[:, :8], 0).sync()
    assert_array_equal(t.borrow().to_host().sync(), [[0, 0, 1, 1]] * 2)
    assert_array_equal(t.share().view(bool_).to_host().sync()[:, :8], np.zeros((2, 8), bool))
    made: Tensor[i32] = ones((2, 4)).view(i32).sync()
    assert_array_equal(made.to_host().sync(), bits)
    assert_array_equal(ones((2, 4)).shared().view(i32).to_host().sync(), bits)


def test_a_part_keeps_its_owner() -> None:
    """A shared part keeps the memory alive; a borrowed part is void once its tensor has moved; an owned one owns all
    of the memory, and its run may be repeated."""
    part = from_host(np.arange(6, dtype=f32)).sync().share()[2:]
    gc.collect()
    assert_array_equal(part.to_host().sync(), [2, 3, 4, 5])
    t: Any = ones((4,)).sync()
    lent = t[1:]
    t.share()
    with pytest.raises(MovedError, match="was moved by share"):
        lent.to_host()
    op = ones((4,))[1:]
    assert op.sync().shape == op.sync().shape == (3,)


def test_what_no_part_is_named_by() -> None:
    """Numbers out of range, too many of them, masks and lists: ShapeError with the place and the cure, of a handle; of
    an op, when it is built as far as it can be known."""
    t, m = tensor(), np.ones((4, 6), bool)
    wrongs: list[tuple[Callable[[], object], str]] = [
        (lambda: t[4], "index 4 of axis 0 is out of range: it has 4 elements. Give -4 to 3."),
        (lambda: t[0, -7], "index -7 of axis 1 is out of range: it has 6 elements. Give -6 to 5."),
        (lambda: t[0, 0, 0], "3 ranges for a tensor of 2 axes (4, 6). Give at most one for each axis."),
        (lambda: t[..., 0, ...], "several ... in one index of a tensor of shape (4, 6). Write one of them."),
        (lambda: t[m], "Choose by a mask with array.where(mask, t, 0), which keeps the shape."),  # type: ignore[index]  # reason: refused
        (lambda: t[True], "Choose by a mask"),
        (lambda: t[[0, 1]], "Places in a list are for array.take(t, from_host(np.array(places)))."),  # type: ignore[index]  # reason: refused
        (lambda: t[ones((2,))], "Places in a tensor are for array.take(t, places)"),  # type: ignore[index]  # reason: refused
        (lambda: t[1.0], "index 1.0 of axis 0 is no whole number. Write a number, a slice such as 1:, ... or None."),  # type: ignore[index]  # reason: refused
        (lambda: t[::0], "slice step cannot be zero"),
        (lambda: ones((4,))[2.0], "index 2.0 of axis 0 is no whole number."),  # type: ignore[index]  # reason: refused
        (lambda: ones((4,))[7].sync(), "index 7 of axis 0 is out of range: it has 4 elements."),
    ]
    for wrong, message in wrongs:
        with pytest.raises(ShapeError, match=re.escape(message)) as caught:
            wrong()
        assert re.match(rf"\[\] at {re.escape(__file__)}:\d+", str(caught.value))
    with pytest.raises(ShapeError, match=r"Pick a part of it with \.first\(\) or \.unzip\(\)"):
        zip_ops(ones((4,)), ones((4,)))[0]  # type: ignore[misc]  # reason: refused
    with pytest.raises(OwnershipError, match=r"\[\] at .* of a value of type int"):
        value(3).map(lambda x: x)[0].sync()  # type: ignore[misc]  # reason: refused


# ---- parts that are written


@given(shape=st.sampled_from([(12,), (4, 6), (2, 3, 4)]), data=st.data())
def test_parts_are_written_at_once_exactly_if_they_share_nothing(shape: tuple[int, ...], data: st.DataObject) -> None:
    """One op writes any number of parts of one loan, if no element is in two; else it is a BorrowError, and nothing is
    written. NumPy says which parts share an element."""
    names = data.draw(st.lists(indices(shape), min_size=2, max_size=3))
    array = counted(shape).astype(f32)
    parts = [index_of(array, index) for index in names]
    if any(part is None for part in parts):
        return
    t = from_host(array).sync()
    m = t.borrow_mut()
    op = zip_ops(*[fill(m[index], 100 + n) for n, index in enumerate(names)])
    places = np.arange(array.size).reshape(shape)
    chosen = [set(np.ravel(places[index])) for index in names]
    if sum(map(len, chosen)) > len(set().union(*chosen)):
        with pytest.raises(BorrowError, match=re.escape("m[:4] and m[4:]")):
            op.sync()
    else:
        op.sync()
        for n, index in enumerate(names):
            array[index] = 100 + n
    assert_array_equal(t.to_host().sync(), array)


@given(shape=st.sampled_from([(9,), (4, 6)]), data=st.data())
def test_layouts_share_bytes_as_numpy_arrays_do(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Also where one is read as another type."""
    t = zeros(shape).sync()
    whole, array = live_state(t).layout, np.zeros(shape, f32)
    one, two = (data.draw(indices(shape)) for _ in range(2))
    if index_of(array, one) is None or index_of(array, two) is None:
        return
    layouts = slice_layout(whole, one), slice_layout(whole, two)
    first, second = array[one], array[two]
    if not (isinstance(first, np.ndarray) and isinstance(second, np.ndarray)):  # NumPy copies a lone element
        return
    assert share_bytes(*layouts) == np.shares_memory(first, second)
    if layouts[0].shape and layouts[0].size:
        assert share_bytes(view_layout(layouts[0], np.dtype(i32)), layouts[1]) == share_bytes(*layouts)


def test_one_allocation_holds_many_parameters() -> None:
    """A kernel writes one part and reads another; a copy goes from one to the other; the loan stays for further parts,
    and the same op runs again by its plan."""
    t = from_host(np.arange(8, dtype=f32)).sync()
    m = t.borrow_mut()
    double.into(m[:4].partition((4,)), m[4:]).sync()
    assert_array_equal(m[...].to_host().sync(), [8, 10, 12, 14, 4, 5, 6, 7])
    memcpy(m[4:], m[:4]).sync()
    for _ in range(3):
        zip_ops(double.update(m[::2].partition((4,))), fill(m[1::2], 1)).sync()
    assert_array_equal(m[...].to_host().sync(), [64, 1, 96, 1, 64, 1, 96, 1])
    with pytest.raises(BorrowError, match="the same tensor"):
        memcpy(m[4:], m[3:7])
    with pytest.raises(BorrowError, match=re.escape("m[:4] and m[4:]")):
        zip_ops(fill(m[:1], 0), fill(m, 0)).sync()
