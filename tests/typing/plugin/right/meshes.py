"""Values on several devices move, are lent, and are read any number of times."""

import numpy as np

from dagpu import (
    Blocks,
    Borrowed,
    DeviceOp,
    Mesh,
    Rank,
    Replicated,
    Sharded,
    SharedTensor,
    Tensor,
    TensorRef,
    all_gather,
    all_reduce,
    as_partials,
    as_shards,
    broadcast,
    dup,
    each,
    f32,
    gather,
    halo,
    reshard,
    shard_host,
    value,
)
from tests.typing.plugin.kernels import vector

mesh = Mesh(["host:0", "host:1"])


def shards() -> Sharded[f32]:
    return shard_host(np.ones((4, 4), f32), mesh).sync()


def kept(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return value(part)


def copied(part: TensorRef[f32], rank: Rank) -> DeviceOp[Tensor[f32], Borrowed]:
    return dup(part)


def read(part: SharedTensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return dup(part)


def lent_and_then_moved() -> None:
    s = shards()
    print(gather(s.borrow()).sync(), all_gather(s.borrow()).sync(), each(copied, s.borrow()).sync())
    print(s.shape, s.mesh, s.layout)
    print(s.to_host().sync())


def replicas_are_read_again() -> None:
    r = broadcast(vector(), mesh).sync()
    print(each(read, r).sync(), each(read, r).sync(), r.to_host().sync(), r.to_host().sync())


def what_the_move_gave_back() -> None:
    s = shards()
    for _ in range(3):
        s = reshard(s, Blocks(1)).sync()
        s = reshard(s, Blocks(0)).sync()
    print(halo(s, 1).sync())


def trained() -> None:
    w = shards()
    for _ in range(3):
        full: Replicated[f32] = all_gather(w.borrow()).sync()
        total = all_reduce(as_partials(each(read, full))).sync()
        print(total.to_host().sync())
        w = as_shards(each(kept, w), (4, 4)).sync()


def passed_on() -> Sharded[f32]:
    s = shards()
    print(s.nbytes)
    return s
