"""Checked, not run: what the creation ops and the copies yield; the element type defaults to f32."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    NoAlloc,
    Partition,
    SharedTensor,
    Static,
    Tensor,
    TensorMut,
    TensorRef,
    arange,
    bf16,
    bool_,
    convert,
    dup,
    empty,
    eye,
    f16,
    f32,
    f64,
    fill,
    from_host,
    full,
    i32,
    i64,
    linspace,
    memcpy,
    ones,
    rand,
    randn,
    u8,
    zeros,
)

# ---- no dtype: f32 -----------------------------------------------------------------------------------
assert_type(empty((2, 3)), DeviceOp[Tensor[f32]])
assert_type(zeros((2, 3)), DeviceOp[Tensor[f32]])
assert_type(ones((2, 3)), DeviceOp[Tensor[f32]])
assert_type(full((2, 3), 7), DeviceOp[Tensor[f32]])
assert_type(arange(6), DeviceOp[Tensor[f32]])
assert_type(linspace(0, 1, 5), DeviceOp[Tensor[f32]])
assert_type(eye(3), DeviceOp[Tensor[f32]])
assert_type(rand((2, 3), seed=1), DeviceOp[Tensor[f32]])
assert_type(randn((2, 3), mean=1.0, std=2.0, seed=1), DeviceOp[Tensor[f32]])

# ---- a dtype, by position and by name ----------------------------------------------------------------
assert_type(empty((2, 3), f64), DeviceOp[Tensor[f64]])
assert_type(zeros((2, 3), dtype=i32), DeviceOp[Tensor[i32]])
assert_type(ones((2, 3), f16), DeviceOp[Tensor[f16]])
assert_type(ones((2, 3), bf16), DeviceOp[Tensor[bf16]])
assert_type(full((2, 3), 7, u8), DeviceOp[Tensor[u8]])
assert_type(arange(6, i64), DeviceOp[Tensor[i64]])
assert_type(arange(2, 6), DeviceOp[Tensor[f32]])
assert_type(arange(0, 1, 0.25, f64), DeviceOp[Tensor[f64]])
assert_type(arange(start=6, stop=0, step=-2, dtype=i64), DeviceOp[Tensor[i64]])
assert_type(arange(6).reshape((2, -1)), DeviceOp[Tensor[f32]])
assert_type(arange(6).reshape(-1), DeviceOp[Tensor[f32]])
assert_type(linspace(0, 1, 5, f64), DeviceOp[Tensor[f64]])
assert_type(eye(3, 4, f64), DeviceOp[Tensor[f64]])
assert_type(rand((2, 3), f64), DeviceOp[Tensor[f64]])
assert_type(randn((2, 3), dtype=f64), DeviceOp[Tensor[f64]])
assert_type(from_host(np.arange(3, dtype=np.int32)), DeviceOp[Tensor[i32]])

zeros("4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
zeros((4,), float)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


# ---- copies ------------------------------------------------------------------------------------------
def copies(own: Tensor[f32], many: SharedTensor[f32], lent: TensorRef[f32], excl: TensorMut[f32]) -> None:
    """A copy of an owned or shared tensor is free of borrows; one of a lent tensor is not."""
    assert_type(dup(own), DeviceOp[Tensor[f32]])
    assert_type(dup(many), DeviceOp[Tensor[f32]])
    assert_type(dup(lent), DeviceOp[Tensor[f32], Borrowed])
    assert_type(convert(own, f16), DeviceOp[Tensor[f16]])
    assert_type(convert(lent, f64), DeviceOp[Tensor[f64], Borrowed])
    assert_type(dup(excl), DeviceOp[Tensor[f32], Borrowed])
    assert_type(convert(excl, f64), DeviceOp[Tensor[f64], Borrowed])
    assert_type(fill(own, 0.5), DeviceOp[Tensor[f32], Static, NoAlloc])
    assert_type(fill(excl, 0.5), DeviceOp[TensorMut[f32], Borrowed, NoAlloc])
    fill(lent, 0.5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(memcpy(excl, many), DeviceOp[None, Borrowed, NoAlloc])


# ---- handles -----------------------------------------------------------------------------------------
def handles(own: Tensor[f32], many: SharedTensor[f64], lent: TensorRef[i32], excl: TensorMut[f32]) -> None:
    """Each way of handing a tensor on has a type of its own, which keeps the element type."""
    assert_type(own.shape, tuple[int, ...])
    assert_type(own.dtype, np.dtype[Any])
    assert_type(own.nbytes, int)
    assert_type(own.borrow(), TensorRef[f32])
    assert_type(own.borrow_mut(), TensorMut[f32])
    assert_type(own.partition((2, 2)), Partition[Tensor[f32]])
    assert_type(own.partition((2, 2)).unpartition(), Tensor[f32])
    assert_type(excl.partition((2, 2)), Partition[TensorMut[f32]])
    assert_type(excl.partition((2, 2)).unpartition(), TensorMut[f32])
    assert_type(excl.reshape((4,)), TensorMut[f32])
    assert_type(excl.to_host(), DeviceOp[NDArray[f32], Borrowed])
    assert_type(own.share(), SharedTensor[f32])
    assert_type(own.reshape((4,)), Tensor[f32])
    assert_type(many.clone(), SharedTensor[f64])
    assert_type(many.try_unwrap(), Tensor[f64])
    assert_type(many.reshape((4,)), SharedTensor[f64])
    assert_type(many.to_host(), DeviceOp[NDArray[f64]])
    assert_type(lent.reshape((4,)), TensorRef[i32])
    lent.borrow_mut()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    own.sum()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    many.borrow()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    assert_type(own == 1, DeviceOp[Tensor[bool_]])


def refused_extents(own: Tensor[f32]) -> None:
    """A whole number other than -1 is not a shape, and an element type is not a step."""
    own.reshape(24)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    arange(1, 2, f32)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
