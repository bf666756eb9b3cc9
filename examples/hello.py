"""Hello, world: a kernel, its grid, and one run.

A kernel's output is always a partition, and its grid is the partition's: one block for
each tile. Here every tile of a 2 x 2 grid writes its own number into its elements.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceOp, Out, Tile, i32, kernel


@kernel(
    cuda="""
__global__ void hello(Tile<int, 2> out) {
    for (auto i : out) out[i] = 2 * out.tile_index(0) + out.tile_index(1);
}
"""
)
def hello(out: Out[i32]) -> None:
    """Write each tile's number, counted row by row, into its elements."""


@hello.host
def _(out: Tile[i32]) -> None:
    row, column = out.index
    out[...] = 2 * row + column


def main() -> None:
    # An op is a description of work: nothing is allocated or launched on this line.
    greeting: DeviceOp[NDArray[i32]] = hello.new((4, 6), (2, 3))().to_host()

    signed = greeting.sync()
    for number in np.unique(signed):
        print(
            f"Hello from tile {number}: {np.count_nonzero(signed == number)} elements"
        )

    expected = np.repeat(np.repeat([[0, 1], [2, 3]], 2, axis=0), 3, axis=1)
    assert np.array_equal(signed, expected)


if __name__ == "__main__":
    main()
