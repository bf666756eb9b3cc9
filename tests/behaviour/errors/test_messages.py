"""The first mistakes of new users, and their messages: what happened, where, and the cure."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    KernelArgumentError,
    KernelBoundsError,
    MovedError,
    Out,
    OwnershipError,
    PartitionError,
    ShapeError,
    Tensor,
    Tile,
    arange,
    convert,
    empty,
    f32,
    f64,
    fill,
    kernel,
    memcpy,
    ones,
    value,
    zeros,
    zip_ops,
)
from tests.behaviour.errors import message_kernels
from tests.behaviour.errors.message_kernels import add, refused

HERE = re.escape(__file__) + r":\d+"


@kernel(cuda="__global__ void row(Tile<float, 1> y, View<const float, 2> x, int from, int to) {}")
def row(y: Out[f32], x: In[f32], start: int, stop: int) -> None:
    """y = x[1, start:stop], whatever y's tiles."""


@row.host
def _(y: Tile[f32], x: NDArray[f32], start: int, stop: int) -> None:
    y[...] = x[1, start:stop]


@kernel(cuda="__global__ void look(Tile<float, 1> y, View<const float, 2> x) {}")
def look(y: Out[f32], x: In[f32]) -> None:
    """Reads x in many ways that are right."""


@look.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    plain = np.arange(12, dtype=f32).reshape(3, 4)
    keys: list[Any] = [..., 2, (1, slice(0, 4)), (slice(None), slice(1, 4)), (None, slice(0, 3)), slice(-9, None)]
    keys += [(..., slice(0, 4)), slice(None, None, -1), [0, 2], plain > 3, (slice(2, 1), 0), slice(0, np.int64(3))]
    for key in keys:
        assert np.array_equal(x[key], plain[key])
        assert type(x[key]) is np.ndarray
    assert np.array_equal(x.T[0:9], plain.T)
    for made in (x + 1, x @ x.T, np.exp(x), x.sum(axis=0)):
        assert type(made) is np.ndarray
    assert x.sum() == 66
    assert type(x.max()) is np.float32
    assert np.array_equal([list(part) for part in x], plain)
    with pytest.raises(IndexError):
        x[3]
    with pytest.raises(IndexError):
        x[0:3, 0:4, 0:9]
    with pytest.raises(ValueError, match="read-only"):
        x[0, 0] = 1
    y[...] = x[0]


loose_add: Any = add
"""The same to a type checker that shall not see what is wrong with a call."""


def tensor(n: int = 4) -> Tensor[f32]:
    return zeros((n,)).sync()


# ---- slices of an input in a host body


def test_an_input_shorter_than_the_output() -> None:
    """NumPy would shorten the slice and broadcast it: here it names kernel, input, slice, launch and cure."""
    text = refused(KernelBoundsError, lambda: add(ones((4,)).partition((2,)), ones((3,))).sync())
    assert "kernel 'add', input 'x' of shape (3,): the slice 2:4 along axis 0 goes beyond its 3 elements." in text
    assert "Give the kernel an input that covers the output" in text
    assert "min(4, x.shape[0])" in text
    assert re.search(rf"launched at {HERE}", text)


def test_an_input_of_one_element_is_not_broadcast() -> None:
    """The worst case: a wrong result of the right shape."""
    assert "the slice 0:2 along axis 0" in refused(
        KernelBoundsError, lambda: add(ones((4,)).partition((2,)), ones((1,))).sync()
    )


def test_a_slice_beside_an_index() -> None:
    """An axis is counted past an index, and a slice that lacks its start is read as from 0."""
    x = arange(12).reshape((3, 4)).shared()
    result = row(empty((4,)).partition((4,)), x, 0, 4).first().unpartition().to_host().sync()
    assert result.tolist() == [4, 5, 6, 7]
    text = refused(KernelBoundsError, lambda: row(empty((4,)).partition((4,)), x, 1, 5).sync())
    assert "shape (3, 4): the slice 1:5 along axis 1 goes beyond its 4 elements" in text


def test_what_lies_inside_is_numpys() -> None:
    """Every other way of reading an input gives what NumPy gives, as a plain array or scalar."""
    look(empty((4,)).partition((4,)), arange(12).reshape((3, 4))).sync()


# ---- moved handles


def test_a_tensor_that_was_cut_and_used_again() -> None:
    """The cure is the borrow that writes, for a partition is for writing."""
    t = tensor()
    t.partition((2,))
    text = refused(MovedError, lambda: t.shape)
    assert re.search(rf"made at {HERE} was moved by partition\(\) at {HERE} and used again", text)
    assert "lend it for writing: .borrow_mut().partition(tile)" in text
    assert ".share()" not in text


def test_a_mutable_borrow_that_was_cut_and_used_again() -> None:
    """It is lent anew; a borrow has no .borrow()."""
    lent = tensor().borrow_mut()
    lent.partition((2,))
    text = refused(MovedError, lambda: lent.partition((2,)))
    assert "use what the move gave back, or lend the tensor again with .borrow_mut()" in text
    assert ".borrow()," not in text


def test_a_tensor_that_a_kernel_took() -> None:
    """Reading twice is cured by lending or sharing."""
    x = tensor()
    add(ones((4,)).partition((2,)), x)
    text = refused(MovedError, lambda: x.to_host())
    assert re.search(rf"was moved by being passed to a kernel at {HERE}", text)
    assert "lend it with .borrow(), or share it with .share()" in text


def test_a_shared_tensor_that_was_unwrapped() -> None:
    """Its cure is its own: it has neither .borrow() nor .share()."""
    shared = tensor().share()
    kept = shared.try_unwrap()
    text = refused(MovedError, lambda: shared.shape)
    assert "moved by try_unwrap()" in text
    assert "use what the move gave back, or share that again with .share()" in text
    assert kept.shape == (4,)


def wrong_op(op: DeviceOp[Any, Any, Any]) -> Any:
    return op


TUPLE = (
    "of a value of type tuple. A kernel call gives a tuple of all its arguments: pick one with .first() or .unzip()."
)


# ---- partition, unpartition and share of something else


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: add(ones((4,)).partition((2,)), ones((4,))), TUPLE),
        (lambda: zip_ops(zeros((4,)).partition((2,))), TUPLE),
        (lambda: value(tensor()), "type Tensor. It is whole already. Leave that out, or pick the output"),
        (lambda: value(tensor().share()), "type SharedTensor. It is whole already."),
        (lambda: add(ones((4,)).partition((2,)), ones((4,))).last(), "type Tensor. It is whole already."),
        (lambda: value(None), "type NoneType. Only tensors on a device have that"),
    ],
)
def test_unpartition_of_what_is_no_partition(wrong: Callable[[], DeviceOp[Any, Any, Any]], says: str) -> None:
    """A forgotten `.first()` above all."""
    text = refused(OwnershipError, lambda: wrong_op(wrong()).unpartition().sync())
    assert re.match(rf"unpartition\(\) at {HERE} of a value of type ", text)
    assert says in text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: add(ones((4,)).partition((2,)), ones((4,))), TUPLE),
        (
            lambda: add(ones((4,)).partition((2,)), ones((4,))).first(),
            "Partition. It is cut already. To cut it otherwise, put it together: .unpartition().partition(tile)",
        ),
        (lambda: zeros((4,)).share(), "SharedTensor. It is immutable: write to a copy, dup(t)"),
        (lambda: value(np.ones(4)), "type ndarray. Only tensors on a device have that; from_host(array) makes one."),
    ],
)
def test_partition_of_what_cannot_be_cut(wrong: Callable[[], DeviceOp[Any, Any, Any]], says: str) -> None:
    """The value's kind, where the method was called, and what that kind needs."""
    text = refused(OwnershipError, lambda: wrong_op(wrong()).partition((2,)).sync())
    assert re.match(rf"partition\(\) at {HERE} of a value of type ", text)
    assert says in text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: zip_ops(zeros((4,))), TUPLE),
        (lambda: zeros((4,)).partition((2,)), "Partition. Put it together first: .unpartition()"),
        (lambda: zeros((4,)).share(), "SharedTensor. It is shared already: .clone() makes one more handle"),
        (lambda: value(tensor().borrow()), "TensorRef. It is only lent: share the tensor that it was lent from"),
    ],
)
def test_share_of_what_is_no_owned_tensor(wrong: Callable[[], DeviceOp[Any, Any, Any]], says: str) -> None:
    """A shared tensor, a borrow, a partition and a tuple each have a cure of their own."""
    text = refused(OwnershipError, lambda: wrong_op(wrong()).share().sync())
    assert re.match(rf"share\(\) at {HERE} of a value of type ", text)
    assert says in text


@pytest.mark.parametrize(
    ("handle", "says"),
    [
        (lambda: tensor().borrow(), "TensorRef. It is lent for reading: lend the tensor for writing, .borrow_mut()"),
        (lambda: tensor().view((2, 2)), "TensorRef. It is lent for reading"),
        (lambda: tensor().share(), "SharedTensor. It is immutable: write to a copy, dup(t)"),
    ],
)
def test_the_method_of_a_handle_that_cannot_be_cut(handle: Callable[[], Any], says: str) -> None:
    """`partition` on a handle for reading is no AttributeError: it says what to do."""
    text = refused(OwnershipError, lambda: handle().partition((2,)))
    assert re.match(rf"partition\(\) at {HERE} of a value of type ", text)
    assert says in text


# ---- arguments of ops


@pytest.mark.parametrize(
    ("shape", "cure"),
    [
        (3, "Write it as (3,), or with all extents in one tuple: (3, ...)."),
        (2.5, "Write it as (rows, columns), or (n,) for one axis."),
        ("3", "(n,) for one axis"),
        ((True, 4), "(rows, columns)"),
    ],
)
def test_a_shape_that_is_no_tuple(shape: Any, cure: str) -> None:
    """The cure for a bare number is that number as a shape. A truth value is no extent."""
    text = refused(ShapeError, lambda: zeros(shape))
    assert f"shape {shape!r} is not a tuple of whole numbers." in text
    assert cure in text


def test_a_truth_value_is_no_extent() -> None:
    """Neither beside -1 nor in a tile, for a handle and for an op."""
    for wrong in (
        lambda: ones((4,)).sync().reshape((True, -1)),
        lambda: ones((4,)).reshape((-1, True)).sync(),
        lambda: ones((4,)).sync().view((True, 4)),
    ):
        assert "is not a tuple of whole numbers." in refused(ShapeError, wrong)
    assert "is not a tuple of whole numbers." in refused(PartitionError, lambda: ones((4,)).sync().partition((True,)))


def test_an_op_where_a_handle_is_wanted() -> None:
    """The cure is the closure to write, with the tensor where it belongs in the call."""
    op: Any = ones((4,))
    text = refused(ShapeError, lambda: memcpy(tensor().borrow_mut(), op))
    assert re.match(rf"memcpy at {HERE}: an op is nothing to copy from. Run it before, t = op.sync\(\)", text)
    assert text.endswith("op.then(lambda t: memcpy(dst, t)).")


def test_fill_of_an_op() -> None:
    """An op is refused as the target of `fill`, and the cure that the message names works."""
    op: Any = zeros((2,))
    text = refused(ShapeError, lambda: fill(op, 1))
    assert re.match(rf"fill at {HERE}: an op cannot be written.", text)
    assert text.endswith("op.then(lambda t: fill(t, fill_value)).")
    assert op.then(lambda t: fill(t, 3)).to_host().sync().tolist() == [3, 3]


@pytest.mark.parametrize("lazy", [False, True])
def test_an_element_type_that_the_kernel_does_not_take(lazy: bool) -> None:
    """For a handle at the call, for an op when it is traced; the cure is one for both, and works."""
    made = ones((4,), f64)
    out = ones((4,)).partition((2,))
    text = refused(KernelArgumentError, lambda: loose_add(out, made if lazy else made.sync()).sync())
    assert "kernel 'add', argument 'x': got a Tensor of float64, shape (4,), but elements of float32 are wanted" in text
    assert re.search(rf"Called at {HERE}; the kernel is declared at {re.escape(message_kernels.__file__)}:\d+\.", text)
    assert "Convert it: convert(t, f32)." in text
    cured = convert(made if lazy else made.sync(), f32)
    assert add(out, cured).first().unpartition().to_host().sync().tolist() == [2, 2, 2, 2]
