"""Step 8: a stream of your own pictures, in and out, and a timeline of the runs."""

# docs: imports
import numpy as np
import trio
from numpy.typing import NDArray
from tutorial_kernels import blur, brighten, edges, overlay

import dagpu
from dagpu import DeviceOp, Tensor, f32, from_host, value

SHAPE, TILE = (256, 384), (64, 384)


def cartoon(picture: Tensor[f32]) -> DeviceOp[NDArray[f32]]:
    """Draw the cartoon of step 5 from a picture that is on the device already."""
    x = value(picture).shared()
    soft = blur.new(SHAPE, TILE)(x)
    found = edges.new(SHAPE, TILE)(x)
    lines = brighten.new(SHAPE, TILE)(3.0, found)
    return overlay.new(SHAPE, TILE)(soft, lines).to_host()


# docs: load
def load(number: int) -> NDArray[f32]:
    """Load one picture. This example computes it; your program reads a file."""
    rows, columns = np.mgrid[0 : SHAPE[0], 0 : SHAPE[1]]
    picture: NDArray[f32] = (
        0.5 + 0.5 * np.sin((rows + 20 * number) / 30) * np.cos(columns / 40)
    ).astype(np.float32)
    return picture


def loaded(number: int) -> DeviceOp[Tensor[f32]]:
    return value(number).host_map(load).then(from_host)


# docs: stream
async def load_all(count: int, ready: trio.MemorySendChannel[Tensor[f32]]) -> None:
    async with ready:
        for number in range(count):
            await ready.send(await loaded(number))


async def draw_all(
    ready: trio.MemoryReceiveChannel[Tensor[f32]], means: list[float]
) -> None:
    async for picture in ready:
        drawn = await cartoon(picture)  # while the next one is loaded
        means.append(float(drawn.mean()))


# docs: main
async def main() -> None:
    means: list[float] = []
    with dagpu.trace("cartoons.json") as timeline:
        async with trio.open_nursery() as nursery:
            # at most one picture waits
            send, receive = trio.open_memory_channel[Tensor[f32]](1)
            nursery.start_soon(load_all, 4, send)
            nursery.start_soon(draw_all, receive, means)
    print(len(means), "pictures in", len(timeline.runs), "runs")
    print(timeline)


trio.run(main)
# docs: end
