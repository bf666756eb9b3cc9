"""A value on several devices is used after it has moved, and a borrow of one outlives it."""

import numpy as np

from dagpu import (
    Blocks,
    Borrowed,
    DeviceOp,
    Mesh,
    Partials,
    Rank,
    Sharded,
    Tensor,
    all_reduce,
    as_partials,
    each,
    f32,
    gather,
    reshard,
    shard,
    shard_host,
    value,
)
from tests.typing.plugin.kernels import vector

mesh = Mesh(["host:0", "host:1"])


def shards(rows: int) -> Sharded[f32]:
    return shard_host(np.ones((rows, 4), f32), mesh).sync()


def kept(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return value(part)


def summands(rows: int) -> Partials[f32]:
    return as_partials(each(kept, shards(rows))).sync()


def gathered_twice() -> None:
    s = shards(4)
    print(gather(s).sync())
    print(gather(s).sync())  # E: dagpu-use-after-move


def reduced_twice() -> None:
    p = summands(4)
    all_reduce(p).sync()
    all_reduce(p, "max").sync()  # E: dagpu-use-after-move


def sent_to_the_host() -> None:
    s = shards(4)
    print(s.to_host().sync())
    print(gather(s.borrow()).sync())  # E: dagpu-use-after-move


def passed_to_each() -> None:
    s = shards(4)
    print(each(kept, s).sync())
    print(reshard(s, Blocks(1)).sync())  # E: dagpu-use-after-move


def cut_twice() -> None:
    t = vector()
    print(shard(t, mesh).sync())
    print(shard(t, mesh).sync())  # E: dagpu-use-after-move


def moved_while_lent() -> None:
    s = shards(4)
    lent = s.borrow()
    reshard(s, Blocks(1)).sync()  # E: dagpu-conflicting-borrow
    gather(lent).sync()


def lent_by_a_function() -> DeviceOp[Tensor[f32], Borrowed]:  # R: runs
    s = shards(4)
    return gather(s.borrow())  # E: dagpu-borrow-escape
