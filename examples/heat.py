"""Heat in a plate that is cut into blocks, one on each device of a mesh; each step
exchanges the blocks' rims.

    halo: every block, with one row or column of its neighbours around it
        --> a step of the heat equation in each block

Beyond the plate's edge the temperature is 0, which is what `halo` puts there. A block
never leaves its device: only the rims travel. Twenty steps are one op, and a pipeline.
The devices are the GPUs, or otherwise four host devices in a square. The result is
compared with NumPy's on one array.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Blocks,
    DeviceOp,
    In,
    Mesh,
    Out,
    Rank,
    Sharded,
    SharedTensor,
    Tensor,
    Tile,
    as_shards,
    current_device,
    devices,
    each,
    f32,
    halo,
    kernel,
    pipeline,
    shard_host,
    value,
)

GPUS = [gpu.name for gpu in devices() if gpu.kind == current_device().kind == "cuda"]
DEVICES = tuple(GPUS[:4]) or ("host:0", "host:1", "host:2", "host:3")
ROWS, COLUMNS, STEPS, CALLS, RATE = 96, 128, 20, 5, 0.2
LAYOUT = Blocks({0: "down", 1: "across"}, partial=True)


@kernel(
    cuda="""
__global__ void conduct(Tile<float, 2> y, View<const float, 2> x, float rate) {
    for (auto i : y) {
        const int r = i[0] + 1, c = i[1] + 1;  // x has a rim of 1
        float around = x(r - 1, c) + x(r + 1, c) + x(r, c - 1) + x(r, c + 1);
        y[i] = x(r, c) + rate * (around - 4 * x(r, c));
    }
}
"""
)
def conduct(y: Out[f32], x: In[f32], rate: float) -> None:
    """One explicit step of the heat equation; x is y's block with a rim of 1, rate is
    dt / dx^2 <= 0.25."""


@conduct.host
def _(y: Tile[f32], x: NDArray[f32], rate: float) -> None:
    rows, columns = y.at
    top, left = rows.start, columns.start
    height, width = y.shape
    block = x[top : top + height + 2, left : left + width + 2]
    y[...] = stepped(block, f32(rate))


def stepped(x: NDArray[f32], rate: f32) -> NDArray[f32]:
    """Do the same in NumPy: return the interior of an array after one step."""
    around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    return x[1:-1, 1:-1] + rate * (around - 4 * x[1:-1, 1:-1])


def block_stepped(x: SharedTensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    """Return one device's block after one step, from the block with its rim."""
    height, width = x.shape
    made: DeviceOp[Tensor[f32]] = conduct.new(
        (height - 2, width - 2), (32, 32), partial=True
    )(x, RATE)
    return made


@pipeline
def advanced(plate: Sharded[f32]) -> DeviceOp[Sharded[f32]]:
    """Return the plate after some steps, as one op."""
    op: DeviceOp[Sharded[f32]] = value(plate)
    for _ in range(STEPS):
        op = as_shards(each(block_stepped, halo(op, 1)), (ROWS, COLUMNS), LAYOUT)
    return op


def main() -> None:
    start = np.zeros((ROWS, COLUMNS), f32)
    start[ROWS // 2 :, 10:40] = 100
    down = 2 if len(DEVICES) % 2 == 0 else 1
    mesh = Mesh(DEVICES, (down, len(DEVICES) // down), ("down", "across"))

    plate = shard_host(start, mesh, LAYOUT).sync()
    for _ in range(CALLS):
        plate = advanced(plate).sync()
    found = plate.to_host().sync()

    expected = start
    for _ in range(STEPS * CALLS):
        expected = stepped(np.pad(expected, 1), f32(RATE))
    print(
        f"{STEPS * CALLS} steps on {len(mesh)} devices: at most {found.max():.1f} "
        f"degrees, mean {found.mean():.2f}"
    )
    assert advanced.cache_info().currsize == 1, "all calls run by one plan"
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    main()
