"""Vector addition that is awaited: shared inputs, a lazy output, and a trio task that
sleeps until the run is done."""

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import DeviceOp, In, Out, SharedTensor, Tile, f32, kernel, ones, zeros


@kernel(
    cuda="""
__global__ void add(Tile<float, 2> z, View<const float, 2> x, View<const float, 2> y) {
    for (auto i : z) z[i] = x[i] + y[i];
}
"""
)
def add(z: Out[f32], x: In[f32], y: In[f32]) -> None:
    """z = x + y; all three have the same shape."""


@add.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32]) -> None:
    z[...] = x[z.at] + y[z.at]


async def add_ones() -> NDArray[f32]:
    # A shared tensor is immutable, and any number of ops may use it as an input any
    # number of times.
    x: SharedTensor[f32] = await ones((32, 32)).share()
    y: SharedTensor[f32] = await ones((32, 32)).share()

    # The output is an op itself: allocation, launch and copy are one run, and the task
    # wakes up once.
    z: DeviceOp[NDArray[f32]] = (
        add(zeros((32, 32)).partition((4, 4)), x, y).first().unpartition().to_host()
    )
    return await z


def main() -> None:
    z = trio.run(add_ones)
    print(f"z[0, 0] = {z[0, 0]} (expected 2.0)")
    assert np.array_equal(z, np.full((32, 32), 2, f32))


if __name__ == "__main__":
    main()
