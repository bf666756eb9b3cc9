"""Checked, not run: arrays of other libraries give handles of exact types, with no plugin."""

from collections.abc import Mapping
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    KernelOp,
    Lent,
    Out,
    SharedTensor,
    Stream,
    Tensor,
    TensorMut,
    TensorRef,
    Tile,
    adopt,
    cutile_kernel,
    f32,
    foreign,
    from_array,
    i64,
    lend,
    lend_mut,
    lent_out,
    numba_kernel,
    share_array,
    stream_of,
    triton_kernel,
    unversioned,
    zeros,
    zip_ops,
)
from dagpu.interop import ForeignArray, Lane, SupportsDLPack, View, current_lane, extent, new, require, reserve

array: NDArray[np.float32] = np.zeros(4, np.float32)
speaks: SupportsDLPack = array  # NumPy fits the protocol
tensor: ForeignArray = zeros((4,)).sync()  # and so do handles


class TorchLike:
    """The signature of torch.Tensor."""

    def __dlpack__(
        self,
        *,
        stream: Any | None = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class NumbaLike:
    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        return {}


class StreamLike:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 1


t, n = TorchLike(), NumbaLike()
assert_type(from_array(array), DeviceOp[Tensor[np.float32]])
assert_type(from_array(t, f32, stream=1), DeviceOp[Tensor[f32]])
assert_type(from_array(n), DeviceOp[Tensor[Any]])
assert_type(adopt(TorchLike(), f32), Tensor[f32])
assert_type(share_array(n, f32, stream=StreamLike()), SharedTensor[f32])
assert_type(share_array(t), SharedTensor[Any])
with lend(t, f32) as r:
    assert_type(r, TensorRef[f32])
with lend_mut(n, f32) as m, lent_out(zeros((4,)).sync().borrow()) as x:
    assert_type(m, TensorMut[f32])
    assert_type(x, Lent[np.float32])
    again: SupportsDLPack = x
assert_type(unversioned(zeros((4,)).sync().share()), Lent[np.float32])
assert_type(stream_of(StreamLike()), Stream)
assert_type(stream_of(1, "cuda:0").__cuda_stream__(), tuple[int, int])

from_array(3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
lent_out(zeros((4,)).sync())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
foreign(verify="always")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
unversioned(zeros((4,)).sync())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# ---- foreign ops
@foreign
def product(a: In[f32], b: In[f32], by: float = 1.0) -> Tensor[f32]:
    require(extent(a, 1) == extent(b, 0), "the inner extents differ")
    assert_type(new(a), Tensor[np.float32])
    return new((extent(a, 0), extent(b, 1)), f32)


@foreign(capture="never", verify="none", cost=3e-5, checked=True)
def halves(x: In[f32]) -> tuple[Tensor[f32], Tensor[i64]]:
    return new(x), new((1,), i64)


@foreign
def written(y: Out[f32], x: In[f32]) -> None:
    reserve(1 << 20)


@product.on("torch", host=True)
def _(a: TorchLike, b: TorchLike, by: float, out: TorchLike) -> None: ...


@product.raw
def _(lane: Lane, a: View[f32], b: View[f32], by: float, out: View[f32]) -> None:
    assert_type(lane.handle, int)
    assert_type(out.address, int)
    assert_type(from_array(out, f32), DeviceOp[Tensor[f32]])


@product.host
def _(a: NDArray[np.float32], b: NDArray[np.float32], by: float, out: NDArray[np.float32]) -> None:
    out[...] = a @ b * by


ones4 = zeros((4, 4))
assert_type(product(zeros((4, 4)), zeros((4, 4)), by=2.0), DeviceOp[Tensor[f32], Any])
assert_type(product(zeros((4, 4)), zeros((4, 4))).sync(), Tensor[f32])
assert_type(halves(ones4), DeviceOp[tuple[Tensor[f32], Tensor[i64]], Any])
assert_type(
    zip_ops(product(ones4, ones4), halves(ones4)), DeviceOp[tuple[Tensor[f32], tuple[Tensor[f32], Tensor[i64]]], Any]
)
assert_type(zip_ops(from_array(array), from_array(t)), DeviceOp[tuple[Tensor[np.float32], Tensor[Any]]])
assert_type(zip_ops(*[zeros((4, 4))] * 2), DeviceOp[tuple[Any, ...]])
op: KernelOp = written(zeros((4,)).partition((4,)), zeros((4,)))
assert_type(current_lane(), Lane)

product(zeros((4, 4))).sync()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
product(zeros((4, 4), i64), zeros((4, 4))).sync()  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
product.on("jax")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
foreign(capture="maybe")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


# ---- kernels in Python
@triton_kernel(object(), num_warps=8, constexprs=lambda tile: {"BLOCK": tile[0]})
def by_triton(y: Out[f32], x: In[f32], a: float) -> None: ...


@numba_kernel(lambda y, x: None, block=(16, 16))
def by_numba(y: Out[f32], x: In[i64]) -> None: ...


@cutile_kernel(object(), constants={"T": 16})
def by_cutile(y: Out[f32], x: In[f32]) -> None: ...


@by_triton.host
def _(y: Tile[f32], x: NDArray[np.float32], a: float) -> None:
    y[...] += a * x[y.at]


kernel_op: KernelOp = by_triton(zeros((4,)).partition((4,)), zeros((4,)), 2.0)
assert_type(by_triton.new((4,), (4,))(zeros((4,)), 2.0), DeviceOp[Tensor[f32], Any])
kernel_op = by_numba.grid(4)(zeros((4,)).partition((4,)), zeros((4,), i64))
kernel_op = by_cutile(zeros((4,)).partition((4,)), zeros((4,)))

by_triton(zeros((4,)), zeros((4,)), 2.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
by_numba(zeros((4,)).partition((4,)), zeros((4,), f32))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
by_cutile(zeros((4,)).partition((4,)))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
triton_kernel(object(), num_warps="8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
