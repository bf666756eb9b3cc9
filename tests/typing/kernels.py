"""Checked, not run: a kernel takes every form of argument that its annotations stand for, and no other."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    In,
    Kernel,
    KernelOp,
    Lazy,
    Out,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    Tile,
    f32,
    f64,
    kernel,
    value,
    zeros,
    zip_ops,
)


@kernel(cuda="__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {}", block=(32, 4))
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None: ...


@saxpy.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    assert_type(y.at, tuple[slice, ...])
    assert_type(y.index, tuple[int, ...])
    y[...] += a * x[y.at]


@kernel(cuda="__global__ void scale(Tile<float, 1> y, float by) {}")
def scale(y: Out[f32], by: Lazy[float]) -> None: ...


@kernel(cuda="__global__ void two_outputs(Tile<float, 1> y, Tile<float, 1> z, float by) {}")
def two_outputs(y: Out[f32], z: Out[f32], by: float) -> None: ...


@kernel(cuda="__global__ void reads(View<const float, 1> x) {}")
def reads(x: In[f32]) -> None: ...


def inputs(
    out: Partition[Tensor[f32]],
    own: Tensor[f32],
    many: SharedTensor[f32],
    lent: TensorRef[f32],
    lazy_own: DeviceOp[Tensor[f32]],
    lazy_many: DeviceOp[SharedTensor[f32]],
    lazy_lent: DeviceOp[TensorRef[f32]],
    excl: TensorMut[f32],
    lazy_excl: DeviceOp[TensorMut[f32], Borrowed],
) -> None:
    """An input is an owned, a shared or a lent tensor, lent for writing even, or an op whose result is one."""
    assert_type(saxpy(out, 2.0, own), KernelOp)
    assert_type(saxpy(out, 2.0, many), KernelOp)
    assert_type(saxpy(out, 2.0, lent), KernelOp)
    assert_type(saxpy(out, 2.0, lazy_own), KernelOp)
    assert_type(saxpy(out, 2.0, lazy_many), KernelOp)
    assert_type(saxpy(out, 2.0, lazy_lent), KernelOp)
    assert_type(saxpy(out, 2.0, excl), KernelOp)
    assert_type(saxpy(out, 2.0, lazy_excl), KernelOp)
    assert_type(saxpy(out, a=2.0, x=own.borrow().slice(slice(0, 4))), KernelOp)
    assert_type(saxpy(out, 2.0, zeros((4, 4)).shared()), KernelOp)


def outputs(own: Tensor[f32], excl: TensorMut[f32], lazy: DeviceOp[Partition[TensorMut[f32]]]) -> None:
    """An output is a partition of an owned or of an exclusively lent tensor, or an op whose result is one."""
    x = zeros((4, 4)).share()
    assert_type(saxpy(own.partition((2, 2)), 2.0, x), KernelOp)
    assert_type(saxpy(excl.partition((2, 2)), 2.0, x), KernelOp)
    assert_type(saxpy(zeros((4, 4)).partition((2, 2)), 2.0, x), KernelOp)
    assert_type(saxpy(lazy, 2.0, x), KernelOp)


def scalars(own: Tensor[f32], number: DeviceOp[float]) -> None:
    """A scalar that is annotated `Lazy` may be an op."""
    assert_type(scale(own.partition((4,)), 2.0), KernelOp)
    assert_type(scale(own.partition((4,)), number), KernelOp)
    assert_type(scale(own.partition((4,)), value(2.0)), KernelOp)


def results(op: KernelOp) -> None:
    """Without the plugin, the results of a kernel are `Any`, and compose like those of any op."""
    assert_type(op.unzip(), tuple[DeviceOp[Any, Any, Any], ...])
    assert_type(op.first(), DeviceOp[Any, Any, Any])
    typed: DeviceOp[Tensor[f32]] = op.first().unpartition()
    zip_ops(typed, op.first())


def tuned() -> None:
    """A kernel with another grid, block or amount of shared memory is a kernel with the same signature."""
    other = saxpy.grid(2, 2).block(16, 16).shared_memory(1024)
    assert_type(other(zeros((4, 4)).partition((2, 2)), 2.0, zeros((4, 4))), KernelOp)
    assert_type(other.compile(), None)
    assert_type(other.compile(arch="sm_90"), None)

    def same(k: Kernel[[Out[f32], float, In[f32]]]) -> None: ...

    del same


def into_new_tensors(own: Tensor[f32], lent: TensorRef[f32], by: DeviceOp[float]) -> None:
    """A kernel with one output gives the new tensor of that output's element type, by position or by name."""
    assert_type(saxpy.new((4, 4), (2, 2))(2.0, own), DeviceOp[Tensor[f32], Any])
    assert_type(saxpy.new((4, 4), (2, 2))(a=2.0, x=lent), DeviceOp[Tensor[f32], Any])
    assert_type(saxpy.grid(4).new((4, 3), (2, 2), partial=True)(2.0, zeros((4, 3))), DeviceOp[Tensor[f32], Any])
    assert_type(scale.new(shape=(4,), tile=(2,))(by).to_host(), DeviceOp[NDArray[f32], Any])
    saxpy.new((4, 4), (2, 2))(2.0, zeros((4, 4), f64))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy.new((4, 4), (2, 2))(2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    saxpy.new((4, 4))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(two_outputs.new((4,), (2,))(2.0), DeviceOp[tuple[Tensor[f32], Tensor[f32]], Any])
    assert_type(two_outputs.new([(4,), (8,)], [(2,), (4,)])(by=2.0), DeviceOp[tuple[Tensor[f32], Tensor[f32]], Any])
    two_outputs.new((4,), (2,))()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    reads.new((4,), (2,))  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def refused(
    own: Tensor[f32], wide: Tensor[f64], out: Partition[Tensor[f32]], excl: TensorMut[f32], wide_excl: TensorMut[f64]
) -> None:
    """Wrong forms, element types and counts are plain type errors."""
    saxpy(own, 2.0, own)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy(excl, 2.0, own)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy(out, 2.0, out)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy(out, 2.0, wide_excl)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy(out, 2.0, wide)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy(out, 2.0, zeros((4, 4), f64))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy(out, "2", own)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy(out, value(2.0), own)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy(out, 2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    saxpy(out, 2.0, own, own)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kernel("__global__ void f() {}")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# ---- existing CUDA: records, null pointers, lists of tensors
@kernel(
    "moved<float>",
    cuda="template <typename T> __global__ void moved(T* y, const T** xs, float2 by, const T* bias) {}",
    abi="pointers",
    block=32,
)
def existing(y: Out[f32], xs: list[In[f32]], by: np.void, bias: In[f32] | None = None) -> None: ...


def existing_calls(out: Partition[Tensor[f32]], a: Tensor[f32], b: SharedTensor[f32], other: Tensor[f64]) -> None:
    by = np.void((1.0, 2.0), [("x", "f4"), ("y", "f4")])
    assert_type(existing(out, [a, b], by, None), KernelOp)
    assert_type(existing(out, [zeros((4,)), b], by), KernelOp)
    existing(out, a, by)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # reason: not a list
    existing(out, [a], 1.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # reason: no record
    existing(out, [a], by, other)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # reason: f64
