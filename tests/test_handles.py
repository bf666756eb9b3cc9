"""Handles: what moves, what is lent, what a moved handle says, and shapes against NumPy's."""

import gc
import inspect
import operator
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import dagpu
from dagpu import (
    BorrowError,
    DeviceOp,
    MovedError,
    NotReadyError,
    OwnershipError,
    PartitionError,
    ShapeError,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    convert,
    dup,
    empty,
    eye,
    f32,
    fill,
    from_host,
    full,
    memcpy,
    value,
    zeros,
)
from dagpu.handles import ARRAY_NAMES, HANDLE_NAMES, OP_NAMES

shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)


def line(back: int = 0) -> str:
    """The caller's `file:line`, or that of so many lines before."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{frame.f_back.f_code.co_filename}:{frame.f_back.f_lineno - back}"


def tensor(shape: tuple[int, ...] = (4, 6)) -> Tensor[Any]:
    return zeros(shape).sync()


def counted(shape: tuple[int, ...]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


# ---- moving

MOVES: list[tuple[str, Callable[[Any], object]]] = [
    ("partition()", lambda t: t.partition((2, 3))),
    ("share()", lambda t: t.share()),
    ("reshape()", lambda t: t.reshape((24,))),
    ("to_host()", lambda t: t.to_host()),
    ("value()", value),
    ("value()", lambda t: value(((1, [t]), {"k": 2}))),
    ("dup()", dup),
    ("convert()", lambda t: convert(t, np.float64)),
    ("fill()", lambda t: fill(t, 1)),
    ("memcpy()", lambda t: memcpy(tensor().borrow_mut(), t)),
]
USES: list[Callable[[Any], object]] = [
    lambda t: t.shape,
    lambda t: t.strides,
    lambda t: t.dtype,
    lambda t: t.ndim,
    lambda t: t.size,
    lambda t: t.nbytes,
    lambda t: t.device,
    lambda t: t.borrow(),
    lambda t: t.borrow_mut(),
    lambda t: t.view((24,)),
    lambda t: t.slice(slice(1)),
    *(move for _, move in MOVES),
]


@pytest.mark.parametrize(("how", "move"), MOVES, ids=[f"{how}-{i}" for i, (how, _) in enumerate(MOVES)])
def test_every_consuming_call_moves_a_tensor(how: str, move: Callable[[Any], object]) -> None:
    """After it any use is a MovedError that says where it was made, what moved it, and the cure."""
    made = line(-1)
    t = zeros((4, 6)).sync()
    kept = move(t)
    for use in USES:
        with pytest.raises(MovedError) as caught:
            use(t)
        said = str(caught.value)
        assert f"made at {made}" in said
        assert f"moved by {how} at {__file__}:" in said
        assert (".borrow_mut().partition(tile)" if how == "partition()" else ".borrow()") in said
    assert "gone" in repr(t)
    del kept


def test_a_moved_error_names_the_very_lines() -> None:
    """File and line of the making and of the moving."""
    t = zeros((2,)).sync()
    made = line(1)
    t.share()
    moved = line(1)
    with pytest.raises(MovedError, match=re.escape(f"made at {made} was moved by share() at {moved} and used")):
        t.borrow()


def test_a_refused_call_moves_nothing() -> None:
    """A call that raises leaves its handle as it was."""
    t = tensor()
    for wrong in (
        lambda: t.partition((3, 3)),
        lambda: t.reshape((5,)),
        lambda: fill(t, 1j),
        lambda: convert(t, object),  # type: ignore[type-var]  # reason: what is refused
        lambda: memcpy(t.borrow_mut(), zeros((2,)).sync()),
    ):
        with pytest.raises(ValueError, match=r"\."):
            wrong()
        assert t.shape == (4, 6)


def test_a_mutable_borrow_moves_and_a_shared_borrow_does_not() -> None:
    """`TensorMut` is exclusive, so it moves; `TensorRef` and `SharedTensor` may be passed on at will."""
    t = tensor()
    mut = t.borrow_mut()
    mut.partition((4, 6))
    moved = line(1)
    with pytest.raises(MovedError, match=re.escape(f"moved by partition() at {moved}")):
        mut.partition((4, 6))
    ref = t.borrow()
    assert value(ref).sync().shape == value(ref).sync().shape == (4, 6)
    shared = tensor().share()
    assert value(shared).sync().shape == value(shared).sync().shape == (4, 6)


USES_OF_A_PARTITION: list[Callable[[Any], object]] = [
    lambda p: p.shape,
    lambda p: p.tile,
    lambda p: p.grid,
    lambda p: p.dtype,
    lambda p: p.unpartition(),
]


def test_partition_and_back() -> None:
    """`.unpartition()` gives back what was cut, once, with its contents."""
    t = from_host(counted((4, 6))).sync()
    p = t.partition((2, 3))
    assert (p.shape, p.tile, p.grid, p.dtype) == ((4, 6), (2, 3), (2, 2), np.dtype(f32))
    back = p.unpartition()
    moved = line(1)
    assert isinstance(back, Tensor)
    for use in USES_OF_A_PARTITION:
        with pytest.raises(MovedError, match=re.escape(f"moved by unpartition() at {moved}")):
            use(p)
    assert_array_equal(back.to_host().sync(), counted((4, 6)))
    mut = tensor().borrow_mut().partition((4, 6)).unpartition()
    assert isinstance(mut, TensorMut)


def test_a_moved_partition_says_where_it_was_made() -> None:
    """As any other handle."""
    p = zeros((4,)).sync().partition((2,))
    made = line(1)
    p.unpartition()
    with pytest.raises(MovedError, match=re.escape(f"made at {made}")):
        p.shape


# ---- partitions


@given(shape=shapes, data=st.data())
def test_a_tile_must_divide_each_axis(shape: tuple[int, ...], data: st.DataObject) -> None:
    """The grid is ceil(extent / tile); without `partial` a remainder is refused, naming shape, tile and axis."""
    tile = tuple(data.draw(st.integers(1, 7)) for _ in shape)
    grid = tuple(-(-extent // step) for extent, step in zip(shape, tile, strict=True))
    assert tensor(shape).partition(tile, partial=True).grid == grid
    bad = [axis for axis, (extent, step) in enumerate(zip(shape, tile, strict=True)) if extent % step]
    if not bad:
        assert tensor(shape).partition(tile).grid == grid
        return
    with pytest.raises(PartitionError) as caught:
        tensor(shape).partition(tile)
    for part in (f"tile {tile}", f"shape {shape}", f"axis {bad[0]}", "partial=True"):
        assert part in str(caught.value)


def test_tile_is_checked_each_time() -> None:
    """A tile that has been refused, or that only equals one that was accepted, is refused again."""
    assert tensor((16,)).partition((16,)).grid == (1,)
    for wrong in ((16.0,), (3,), (0,)):
        for _ in range(2):
            with pytest.raises(PartitionError):
                tensor((16,)).partition(wrong)  # type: ignore[arg-type]  # reason: what a checker refuses


@pytest.mark.parametrize(
    ("tile", "message"),
    [
        ((2,), "tile (2,) has 1 axes, the tensor (4, 6) has 2. Give one tile extent for each axis."),
        ((2, 0), "tile (2, 0) has extent 0 along axis 1 of shape (4, 6). A tile has at least 1."),
        ((2, -3), "tile (2, -3) has a negative extent"),
        ((2, 1.5), "tile (2, 1.5) is no tuple of whole numbers"),
        (2, "tile 2 is no tuple of whole numbers"),
    ],
)
def test_a_tile_is_a_tuple_of_positive_extents(tile: Any, message: str) -> None:
    """Anything else is a PartitionError, which is a ValueError."""
    with pytest.raises(PartitionError, match=re.escape(message)) as caught:
        tensor().partition(tile)
    assert isinstance(caught.value, ValueError)


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
        (lambda: t.slice(1), "range 1 of axis 0 is no slice. Write slice(start, stop)."),  # type: ignore[arg-type]  # reason: refused
        (lambda: t.slice(slice(None, None, 0)), "slice step cannot be zero"),
        (lambda: t.slice(slice(None), slice(0, 2)).reshape((8,)), "Make them so with dup(...) first."),
        (lambda: t.view((-1,)), "shape (-1,) leaves an extent open. Write the number itself: (24,)."),
        (lambda: t.view((5, -1)), "shape (5, -1) has a negative extent"),
        (lambda: t.view((-1, -1)), "shape (-1, -1) has a negative extent"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(ShapeError, match=re.escape(message)):
            wrong()


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


@pytest.mark.parametrize("move", [move for _, move in MOVES])
@pytest.mark.parametrize("lend", [lambda t: t.borrow(), lambda t: t.borrow_mut(), lambda t: t.view((24,))])
def test_a_borrow_is_void_once_its_lender_has_moved(lend: Callable[[Any], Any], move: Callable[[Any], object]) -> None:
    """Its next use says where it was borrowed, where the tensor was made and moved, and the cure."""
    t = tensor()
    borrow = lend(t)
    kept = move(t)
    with pytest.raises(MovedError) as caught:
        borrow.shape
    said = str(caught.value)
    for part in (f"borrowed at {__file__}:", f"made at {__file__}:", "was moved by", "share() the tensor"):
        assert part in said
    del kept


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
    """And reads of the tensor afterwards see them."""
    t = tensor((4,))
    assert memcpy(t.borrow_mut(), from_host(counted((4,))).sync()).sync() is None
    assert_array_equal(t.borrow().to_host().sync(), counted((4,)))


# ---- contents


CONTENTS: list[Callable[[Any], object]] = [
    np.asarray,
    float,
    int,
    complex,
    bool,
    iter,
    len,
    operator.index,
    lambda h: h[0],
    lambda h: operator.setitem(h, 0, 1),
    lambda h: 3 in h,
]


@pytest.mark.parametrize("read", CONTENTS, ids=range(len(CONTENTS)))
@pytest.mark.parametrize(
    "handle",
    [lambda: tensor(), lambda: tensor().share(), lambda: tensor().borrow(), lambda: tensor().borrow_mut()],
    ids=["Tensor", "SharedTensor", "TensorRef", "TensorMut"],
)
def test_a_handle_never_yields_its_contents(read: Callable[[Any], object], handle: Callable[[], Any]) -> None:
    """Outside a closure and inside one it is NotReadyError, which says where it was made and `.to_host()`."""
    attempts: list[Callable[[], object]] = [lambda: read(handle()), lambda: zeros((2,)).map(read).sync()]
    for attempt in attempts:
        with pytest.raises(NotReadyError, match=r"\.to_host\(\)") as caught:
            attempt()
        assert __file__ in str(caught.value)


@pytest.mark.parametrize("read", [np.asarray, float, bool, iter, len, lambda h: h[0]], ids=range(6))
def test_nor_does_a_partition(read: Callable[[Any], object]) -> None:
    """Its cure begins with `.unpartition()`."""
    with pytest.raises(NotReadyError, match=r"\.unpartition\(\)"):
        read(tensor().partition((2, 2)))


def test_nor_does_a_partition_as_a_number() -> None:
    """int() and the like, as for the other handles."""
    reads: list[Callable[[Any], object]] = [int, complex, operator.index]
    for read in reads:
        with pytest.raises(NotReadyError):
            read(tensor().partition((2, 2)))


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


# ---- names that a handle lacks, and comparisons

KINDS: list[Callable[[Tensor[Any]], Any]] = [
    lambda t: t,
    lambda t: t.share(),
    lambda t: t.borrow(),
    lambda t: t.borrow_mut(),
    lambda t: t.partition((2, 3)),
]
"""Each kind of handle, made of a tensor."""

TOLD = HANDLE_NAMES.keys() | ARRAY_NAMES | OP_NAMES


def test_the_tables_have_every_name() -> None:
    """What ops have and handles lack, and what arrays have, is written down: the tables are as long as the classes."""
    assert {name for name in dir(DeviceOp) if name[0] != "_"} - HANDLE_NAMES.keys() == OP_NAMES
    assert all(hasattr(np.ndarray, name) or name in ("cpu", "get", "numpy") for name in ARRAY_NAMES)
    assert all(HANDLE_NAMES[name] == callable(getattr(Tensor, name)) for name in HANDLE_NAMES if hasattr(Tensor, name))


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_says_what_to_write_for_a_name_that_it_lacks(kind: Callable[[Tensor[Any]], Any]) -> None:
    """Whatever arrays, ops or other handles have: an AttributeError with the place where the handle was made, and a
    cure. For other names it is Python's own, so that protocols are looked for in vain."""
    lender = tensor()
    handle = kind(lender)
    made = rf"{re.escape(__file__)}:\d+"
    for name in sorted(TOLD - set(dir(handle))):
        with pytest.raises(AttributeError) as caught:
            getattr(handle, name)
        text = str(caught.value)
        assert re.fullmatch(rf"{re.escape(repr(handle))} made at {made} has no '{name}'\. [A-Z].*\.", text)
    for name in ("no_such", "__cuda_array_interface__", "_repr_png_", "__array_interface__"):
        assert not hasattr(handle, name)


@pytest.mark.parametrize("kind", KINDS)
def test_comparing_a_handle_with_contents_is_refused(kind: Callable[[Tensor[Any]], Any]) -> None:
    """With a number or an array: the contents are not there. Two handles are equal that are one object, and a handle
    differs from what has no contents."""
    handle = kind(tensor())
    for other in (1, 2.5, True, 1j, np.float32(3), np.ones((4, 6))):
        for compare in (operator.eq, operator.ne):
            with pytest.raises(NotReadyError):
                compare(handle, other)
            with pytest.raises(NotReadyError):
                compare(other, handle)
    same = handle
    assert handle == same
    assert handle != kind(tensor())
    assert handle != "text"
    assert handle is not None
    assert {handle: 1}[handle] == 1
    assert hash(handle) == object.__hash__(handle)


@pytest.mark.parametrize("kind", KINDS[:4])
def test_ordering_a_handle_is_refused(kind: Callable[[Tensor[Any]], Any]) -> None:
    """As its arithmetic is."""
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.mod, operator.floordiv):
        with pytest.raises(NotReadyError):
            compare(kind(tensor()), 1)


def test_awaiting_a_handle_says_that_it_is_there() -> None:
    """With the place of the await."""

    t: Any = tensor()

    async def main() -> None:
        await t

    with pytest.raises(TypeError) as caught:
        trio.run(main)
    assert re.match(rf"await at {re.escape(__file__)}:\d+ of Tensor\(float32, \(4, 6\), ", str(caught.value))


# ---- extents and steps beyond 64 bits


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


@pytest.mark.parametrize("name", EMPTY)
def test_an_array_without_elements_has_strides_of_64_bits(name: str) -> None:
    """Extents beside a 0 that no array has are refused where they are written, with the place and the cure."""
    with pytest.raises(ShapeError, match=rf" at {__file__}:\d+: shape .* Write smaller ones beside the 0\."):
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
