"""SAXPY in both its forms: an owned output that the run returns, and a borrowed output,
written in place."""

import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceOp, In, Out, Tile, f32, from_host, kernel, ones, zeros


@kernel(
    cuda="""
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""
)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None:
    """y += a * x; y and x have the same shape."""


@saxpy.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    y[...] += a * x[y.at]


def owned() -> NDArray[f32]:
    """Make the tensors, move them into the kernel and get them back, all in one op and
    one run.

    The kernel returns all of its arguments. `first()` picks the output, which is still
    a partition, and `unpartition()` returns its tensor.
    """
    x = from_host(np.arange(256, dtype=f32).reshape(16, 16))
    y = ones((16, 16)).partition((4, 4))
    result: DeviceOp[NDArray[f32]] = saxpy(y, 2.0, x).first().unpartition().to_host()
    return result.sync()


def borrowed() -> NDArray[f32]:
    """Keep the tensors: the run borrows them, and afterwards z has the result."""
    z = zeros((16, 16)).sync()
    x = ones((16, 16)).sync()

    saxpy(z.borrow_mut().partition((4, 4)), 2.0, x.borrow()).sync()
    saxpy(z.borrow_mut().partition((4, 4)), 0.5, x.borrow()).sync()
    return z.to_host().sync()


def main() -> None:
    y = owned()
    print(f"owned:    y[0, :4] = {y[0, :4]}")
    z = borrowed()
    print(f"borrowed: z[0, :4] = {z[0, :4]}")

    assert np.array_equal(y, 1 + 2 * np.arange(256, dtype=f32).reshape(16, 16))
    assert np.array_equal(z, np.full((16, 16), 2.5, f32))


if __name__ == "__main__":
    main()
