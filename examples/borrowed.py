"""Borrowed inputs and outputs: tensors that a run may use without owning them, and
refused conflicts.

A borrow is a lock for the length of a run. `borrow()` takes a read lock, of which there
may be many; `borrow_mut()` takes a write lock, which is exclusive. Both are released
when the run ends, and the tensor stays its owner's. A run that outlives its owner's
scope must own the tensors that it uses. A `SharedTensor` serves this purpose.
"""

from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    BorrowError,
    DeviceOp,
    In,
    Out,
    OwnershipError,
    SharedTensor,
    Tensor,
    Tile,
    f32,
    from_host,
    kernel,
    ones,
    spawn,
    zeros,
    zip_ops,
)

N, TILE = 1024, (256,)


@kernel(
    cuda="""
__global__ void saxpy(Tile<float, 1> y, float a, View<const float, 1> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""
)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None:
    """y += a * x."""


@saxpy.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    y[...] += a * x[y.at]


async def lend(weights: Tensor[f32]) -> None:
    """Lend one tensor to two branches of a run.

    Their outputs are lent too. After the run, all are free again.
    """
    y = await zeros((N,))
    z = await zeros((N,))
    await zip_ops(
        saxpy(y.borrow_mut().partition(TILE), 2.0, weights.borrow()),
        saxpy(z.borrow_mut().partition(TILE), 3.0, weights.borrow()),
    )
    in_y, in_z = await zip_ops(y.to_host(), z.to_host())
    assert (in_y == 2).all()
    assert (in_z == 3).all()
    print(f"lent: {weights.size} weights to two branches")


async def refuse_conflict(x: Tensor[f32]) -> None:
    """Try to write and read a tensor in two unordered branches: this is refused before
    any launch."""
    y = await zeros((N,))
    try:
        await zip_ops(
            saxpy(x.borrow_mut().partition(TILE), 1.0, y.borrow()),
            x.borrow().to_host(),
        )
    except BorrowError as error:
        print(f"conflict: {error}")
    else:
        raise AssertionError("a conflicting borrow was let through")
    assert (await x.borrow().to_host() == 1).all()  # nothing ran, and no lock is held


async def refuse_spawn(weights: Tensor[f32]) -> None:
    """Try to spawn an op that borrows: this is refused, because it may outlive the
    tensor.

    `Any` hides the mistake from the type checker, to show that the run also refuses it.
    """
    async with trio.open_nursery() as nursery:
        borrowing: Any = saxpy(zeros((N,)).partition(TILE), 2.0, weights.borrow())
        try:
            _ = spawn(nursery, borrowing)
        except OwnershipError as error:
            print(f"spawn: {error}")
        else:
            raise AssertionError("an op that borrows was spawned")


def scaled(a: float, x: SharedTensor[f32]) -> DeviceOp[NDArray[f32]]:
    return saxpy(zeros((N,)).partition(TILE), a, x).first().unpartition().to_host()


async def share_instead(weights: Tensor[f32]) -> None:
    """Do it right: share the tensor, spawn any number of ops, and take it back with the
    last share."""
    shared: SharedTensor[f32] = weights.share()
    async with trio.open_nursery() as nursery:
        results = [spawn(nursery, scaled(a, shared.clone())) for a in (2.0, 3.0)]
        twofold, threefold = [await result for result in results]
    assert (twofold == 2).all()
    assert (threefold == 3).all()
    results.clear()

    other = shared.clone()
    try:
        shared.try_unwrap()
    except OwnershipError as error:
        print(f"try_unwrap: {error}")
    else:
        raise AssertionError("a tensor was unwrapped that somebody else shares")
    assert (await other.to_host() == 1).all()

    del other  # now `shared` is the last handle
    owned = shared.try_unwrap()
    await saxpy(
        owned.borrow_mut().partition(TILE), 1.0, from_host(np.arange(N, dtype=f32))
    )
    assert np.array_equal(await owned.to_host(), 1 + np.arange(N, dtype=f32))
    print("try_unwrap: owned and writable again, once the last share was ours")


async def borrow_everything() -> None:
    weights = await ones((N,))
    await lend(weights)
    await refuse_conflict(weights)
    await refuse_spawn(weights)
    await share_instead(weights)


def main() -> None:
    trio.run(borrow_everything)


if __name__ == "__main__":
    main()
