"""Shapes, slices and metadata of handles, against NumPy's."""

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import dagpu
from dagpu import ShapeError, SharedTensor, Tensor, TensorRef, dup, empty, eye, f32, from_host, full, zeros
from tests.support.handle_cases import counted, shapes, tensor

# ---- shapes against NumPy


@given(shape=shapes, data=st.data())
def test_reshape_and_view_are_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Same elements in C order; a count that differs is a ShapeError, and NumPy's ValueError."""
    new = data.draw(st.one_of(shapes, st.permutations(shape).map(tuple)))
    array = counted(shape)
    t = from_host(array).sync()
    try:
        wanted = array.reshape(new)
    except ValueError:
        for refused in (t.view, t.reshape, t.borrow().reshape):
            with pytest.raises(ShapeError, match="Give a shape with as many elements"):
                refused(new)
        return
    view = t.view(new)
    assert (view.shape, view.size, view.nbytes, view.ndim) == (new, wanted.size, wanted.nbytes, wanted.ndim)
    if wanted.size:  # of nothing, the strides mean nothing
        assert view.strides == wanted.strides
    assert_array_equal(view.to_host().sync(), wanted)
    assert_array_equal(t.borrow().reshape(new).to_host().sync(), wanted)
    moved = t.reshape(new)
    assert isinstance(moved, Tensor)
    shared = moved.share()
    assert isinstance(shared.reshape(shape), SharedTensor)
    assert_array_equal(shared.reshape(shape).to_host().sync(), array)
    assert_array_equal(shared.to_host().sync(), wanted)


bounds = st.one_of(st.none(), st.integers(-8, 8))
ranges = st.builds(slice, bounds, bounds, st.one_of(st.none(), st.integers(-3, 3).filter(bool)))


@given(shape=shapes, data=st.data())
def test_slice_is_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    """By Python's rules for bounds and steps, of the first axes; a slice of a slice too; all of it is a borrow."""
    first = data.draw(st.lists(ranges, max_size=len(shape)).map(tuple))
    second = data.draw(st.lists(ranges, max_size=len(shape)).map(tuple))
    array = counted(shape)
    t = from_host(array).sync()
    ref = t.slice(*first)
    assert isinstance(ref, TensorRef)
    wanted = np.asarray(array[first])
    assert ref.shape == wanted.shape
    if wanted.size:
        assert all(
            extent == 1 or have == want
            for extent, have, want in zip(wanted.shape, ref.strides, wanted.strides, strict=True)
        )
    assert_array_equal(ref.to_host().sync(), wanted)
    assert_array_equal(ref.slice(*second).to_host().sync(), wanted[second])
    assert_array_equal(dup(ref).to_host().sync(), wanted)


def test_what_cannot_be_sliced_or_reshaped() -> None:
    """Too many ranges, a range that is none, a strided view under another shape: ShapeError with the cure."""
    t = tensor()
    wrongs: list[tuple[Callable[[], object], str]] = [
        (lambda: t.slice(*[slice(1)] * 3), "3 ranges for a tensor of 2 axes (4, 6). Give at most one for each axis."),
        (lambda: t.slice(slice(None, None, 0)), "slice step cannot be zero"),
        (lambda: t.slice(slice(None), slice(0, 2)).reshape((8,)), "Make them so with dup(...) first."),
        (lambda: t.view((5, -1)), "cannot reshape (4, 6) (24 elements) to (5, -1): no one number in the place of -1"),
        (lambda: t.view((0, -1)), "no one number in the place of -1 gives as many elements. Write extents whose"),
        (lambda: t.view((-1, -1)), "shape (-1, -1) leaves several extents open. Write -1 for one of them at most."),
        (lambda: t.view((-2, -1)), "shape (-2,) has a negative extent"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(ShapeError, match=re.escape(message)):
            wrong()


@given(shape=shapes, open_at=st.integers(0, 3), extents=shapes)
def test_one_extent_may_be_left_open(shape: tuple[int, ...], open_at: int, extents: tuple[int, ...]) -> None:
    """It is what NumPy makes of it, for handles of every kind and for ops; -1 alone is (-1,)."""
    wanted: Any = (*extents[:open_at], -1, *extents[open_at:])
    array = np.zeros(shape, np.int8)
    t = from_host(array).sync()
    try:
        expected = array.reshape(wanted).shape
    except ValueError:
        with pytest.raises(ShapeError, match="gives as many elements"):
            t.reshape(wanted)
        return
    assert t.view(wanted).shape == t.borrow().reshape(wanted).shape == expected
    assert from_host(array).reshape(wanted).sync().shape == expected
    assert t.reshape(-1).share().reshape(wanted).shape == expected


# ---- metadata


@given(shape=shapes, dtype=st.sampled_from([np.float32, np.int8, np.float64, np.bool_]))
def test_metadata_is_numpys(shape: tuple[int, ...], dtype: Any) -> None:
    """Shape, strides, dtype, ndim, size and nbytes of a fresh tensor are those of a fresh C-ordered array."""
    t = zeros(shape, dtype).sync()
    array = np.zeros(shape, dtype)
    for name in ("shape", "dtype", "ndim", "size", "nbytes"):
        assert getattr(t, name) == getattr(array, name)
    if array.size:
        assert t.strides == array.strides
    assert t.device == dagpu.current_device()


def test_metadata_is_there_while_tracing_and_never_waits() -> None:
    """A closure reads it of handles whose contents nobody has made yet: nothing has been launched by then."""
    seen: list[object] = []

    def look(t: Tensor[Any]) -> Tensor[Any]:
        borrow, view = t.borrow(), t.view((6,))
        seen.extend([t.shape, t.strides, t.dtype, t.size, t.nbytes, t.ndim, t.device, borrow.shape, view.shape])
        return t

    zeros((2, 3)).map(look).explain()
    assert seen == [(2, 3), (12, 4), np.dtype(f32), 6, 24, 2, dagpu.current_device(), (2, 3), (6,)]


def test_handles_can_be_referred_to_weakly_and_die_at_once() -> None:
    """No cycle keeps a handle, nor its memory, waiting for the garbage collector."""
    where = dagpu.current_device()
    gc.collect()
    gc.disable()
    try:
        gc.collect()  # what earlier tests left in cycles
        before = where.memory_used()
        t = zeros((8,)).sync()
        gone: list[weakref.ref[Any]] = [weakref.ref(t)]
        shared = t.share()
        clone = shared.clone()
        gone += [weakref.ref(shared), weakref.ref(clone)]
        assert where.memory_used() == before + 32
        del t, shared
        assert where.memory_used() == before + 32
        del clone
        assert [ref() for ref in gone] == [None] * 3
        assert where.memory_used() == before
    finally:
        gc.enable()


EMPTY: dict[str, Callable[[], object]] = {
    "zeros": lambda: zeros((1 << 70, 0)),
    "empty": lambda: empty((0, 1 << 62)),
    "several extents": lambda: full((1 << 30, 0, 1 << 31), 1.0),
    "eye": lambda: eye(0, 1 << 61),
    "reshape": lambda: zeros((0,)).sync().reshape((1 << 70, 0)),
    "reshape of an op": lambda: zeros((0,)).reshape((1 << 70, 0)).sync(),
    "view": lambda: zeros((0,)).sync().view((0, 1 << 70)),
    "reshape of a borrow": lambda: [t := zeros((0,)).sync(), t.borrow().reshape((0, 1 << 70))],
}


# ---- extents and steps beyond 64 bits


@pytest.mark.parametrize("name", EMPTY)
def test_an_array_without_elements_has_strides_of_64_bits(name: str) -> None:
    """Extents beside a 0 that no array has are refused where they are written, with the place and the cure."""
    with pytest.raises(ShapeError, match=rf" at {__file__}:\d+: shape .* Write smaller extents beside the 0\."):
        EMPTY[name]()
    assert zeros((1 << 40, 0)).to_host().sync().shape == (1 << 40, 0)


far_steps = st.sampled_from([1, 2, 7, 8, 9, 1 << 31, 1 << 61, 1 << 62, 1 << 63, 1 << 70])
far_bounds = st.one_of(st.none(), st.integers(-9, 9), st.sampled_from([1 << 63, -(1 << 63), 1 << 70, -(1 << 70)]))


@given(far_bounds, far_bounds, far_steps, st.booleans(), st.sampled_from([(8,), (8, 3), (1,), (0,)]))
def test_a_slice_may_have_any_bounds_and_steps(
    start: int | None, stop: int | None, step: int, backwards: bool, shape: tuple[int, ...]
) -> None:
    """It has the elements that Python's rules say, however far beyond the axis a bound or a step goes."""
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    part = slice(start, stop, -step if backwards else step)
    tensor = from_host(array).sync()
    wanted = array[list(range(*part.indices(shape[0])))]
    np.testing.assert_array_equal(tensor.slice(part).to_host().sync(), wanted)
    np.testing.assert_array_equal(dup(tensor.slice(part)).to_host().sync(), wanted)
