"""Checked, not run: the types of values on several devices. A forgotten reduction is an error in any checker."""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Blocks,
    Borrowed,
    Cyclic,
    DeviceOp,
    Each,
    Haloed,
    Layout,
    Mesh,
    NoAlloc,
    Partials,
    Rank,
    Replicated,
    Sharded,
    ShardedRef,
    SharedTensor,
    Static,
    Tensor,
    TensorRef,
    all_gather,
    all_reduce,
    as_partials,
    as_shards,
    broadcast,
    each,
    f32,
    f64,
    gather,
    halo,
    reduce_scatter,
    reshard,
    shard,
    shard_host,
    sharded_empty,
    unzip_each,
    value,
    zeros,
)

mesh = Mesh(["cuda:0", "cuda:1"])
x = np.ones((64, 8), np.float32)
layouts: list[Layout] = [Blocks(), Blocks({0: "rows"}, partial=True), Cyclic((8, 8))]


def local(part: Tensor[f32], w: SharedTensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    assert_type(rank.boxes[0], tuple[slice, ...])
    return zeros((8, 8))


def both(part: Tensor[f32], rank: Rank) -> DeviceOp[tuple[Tensor[f32], Tensor[f64]]]:
    raise NotImplementedError


def lent(part: TensorRef[f32], rank: Rank) -> DeviceOp[Tensor[f32], Borrowed]:
    raise NotImplementedError


def kept(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32], Static, NoAlloc]:
    raise NotImplementedError


def eight(
    a: Tensor[f32],
    b: TensorRef[f32],
    c: SharedTensor[f64],
    d: Tensor[f32],
    e: Tensor[f32],
    f: Tensor[f32],
    g: Tensor[f32],
    h: SharedTensor[f32],
    rank: Rank,
) -> DeviceOp[int]:
    raise NotImplementedError


def step(w: Replicated[f32], xs: Sharded[f32]) -> DeviceOp[Replicated[f32]]:
    gradients = as_partials(each(local, xs, w))
    assert_type(gradients, DeviceOp[Partials[f32]])
    assert_type(all_reduce(gradients, "mean", axis="devices"), DeviceOp[Replicated[f32]])
    return all_reduce(gradients, "mean")


xs = shard_host(x, mesh)
assert_type(xs, DeviceOp[Sharded[f32]])
assert_type(xs.then(lambda s: step(broadcast(zeros((8, 8)), mesh).sync(), s)), DeviceOp[Replicated[f32]])
first, second = unzip_each(each(both, xs))
assert_type(first, DeviceOp[Each[Tensor[f32]]])
assert_type(second, DeviceOp[Each[Tensor[f64]]])
assert_type(reduce_scatter(as_partials(second)), DeviceOp[Sharded[f64]])
assert_type(gather(as_shards(first, (64, 8))), DeviceOp[Tensor[f32]])
assert_type(gather(as_shards(first, (64, 8)), "cuda:1"), DeviceOp[Tensor[f32]])
assert_type(sharded_empty((4,), f64, mesh), DeviceOp[Sharded[f64]])
assert_type(each(kept, xs), DeviceOp[Each[Tensor[f32]], Static, NoAlloc])


def values(s: Sharded[f32], r: Replicated[f32], p: Partials[f32], e: Each[Tensor[f32]], t: Tensor[f32]) -> None:
    assert_type(s.mesh, Mesh)
    assert_type(s.layout, Layout)
    assert_type(s.borrow(), ShardedRef[f32])
    assert_type(s.to_host(), DeviceOp[NDArray[f32]])
    assert_type(r.to_host(), DeviceOp[NDArray[f32]])
    assert_type(p.shape, tuple[int, ...])
    assert_type(list(e), list[Tensor[f32]])
    assert_type(all_reduce(p), DeviceOp[Replicated[f32]])
    assert_type(reduce_scatter(p, Blocks(1), "max"), DeviceOp[Sharded[f32]])
    assert_type(all_gather(s), DeviceOp[Replicated[f32]])
    assert_type(shard(t, mesh), DeviceOp[Sharded[f32]])
    assert_type(broadcast(t, mesh), DeviceOp[Replicated[f32]])
    assert_type(as_shards(e, (4,)), DeviceOp[Sharded[f32]])
    assert_type(reshard(s, Blocks(1)), DeviceOp[Sharded[f32]])
    assert_type(halo(s, (1, 0), wrap=True), DeviceOp[Haloed[f32]])


def static(op: DeviceOp[object, Static]) -> None:
    """Take only ops that hold no borrow, as `spawn` does."""


def borrows(s: Sharded[f32], t: Tensor[f32], r: Replicated[f64], h: Haloed[f32]) -> None:
    """An op on something lent is not `Static`, nor is one that is made of such an op."""
    assert_type(shard(t.borrow(), mesh), DeviceOp[Sharded[f32], Borrowed])
    assert_type(broadcast(t.borrow(), mesh), DeviceOp[Replicated[f32], Borrowed])
    assert_type(gather(s.borrow()), DeviceOp[Tensor[f32], Borrowed])
    assert_type(reshard(s.borrow(), Blocks(1), mesh), DeviceOp[Sharded[f32], Borrowed])
    assert_type(all_gather(s.borrow()), DeviceOp[Replicated[f32], Borrowed])
    assert_type(halo(s.borrow(), 1), DeviceOp[Haloed[f32], Borrowed])
    assert_type(all_gather(shard(t.borrow(), mesh)), DeviceOp[Replicated[f32], Borrowed])
    lazy: DeviceOp[Sharded[f32], Borrowed] = shard(t.borrow(), mesh)
    static(each(lent, s.borrow()))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    static(as_partials(each(lent, s.borrow())))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    static(all_reduce(as_partials(each(lent, s.borrow()))))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    static(each(kept, lazy))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    static(each(kept, xs))
    one = value(s)
    found: DeviceOp[Each[int], Borrowed] = each(eight, s, s.borrow(), r, one, lazy, xs, xs, h)
    print(found)


def wrong(p: Partials[f32], r: Replicated[f32], s: Sharded[f32], e: Each[Tensor[f32]]) -> None:
    all_gather(p)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # never reduced
    all_reduce(s)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # shards
    gather(p)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # summands
    all_reduce(r)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # reduced already
    all_reduce(e)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # not yet summands
    each(both, r)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # shared, not owned
    all_reduce(p, "median")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
