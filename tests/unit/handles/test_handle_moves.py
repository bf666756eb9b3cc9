"""Handles: what moves them, what a moved handle says, and how they are cut into partitions."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import (
    MovedError,
    PartitionError,
    Tensor,
    TensorMut,
    convert,
    dup,
    f32,
    fill,
    from_host,
    memcpy,
    value,
    zeros,
)
from tests.support import handle_cases
from tests.support.handle_cases import counted, line, shapes, tensor

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


# ---- moving


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
    """The message for a moved partition says where it was made, as for any other handle."""
    p = zeros((4,)).sync().partition((2,))
    made = line(1)
    p.unpartition()
    with pytest.raises(MovedError, match=re.escape(f"made at {made}")):
        p.shape


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
    for part in (f"borrowed at {__file__}:", f"made at {handle_cases.__file__}:", "was moved by", "share() the tensor"):
        assert part in said
    del kept


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
        ((2, 1.5), "tile (2, 1.5) is not a tuple of whole numbers"),
        (2, "tile 2 is not a tuple of whole numbers"),
    ],
)
def test_a_tile_is_a_tuple_of_positive_extents(tile: Any, message: str) -> None:
    """Anything else is a PartitionError, which is a ValueError."""
    with pytest.raises(PartitionError, match=re.escape(message)) as caught:
        tensor().partition(tile)
    assert isinstance(caught.value, ValueError)
