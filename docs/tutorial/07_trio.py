"""Step 7: runs in trio tasks: await, spawn, cancellation, errors."""

# docs: imports
import numpy as np
import trio
from numpy.typing import NDArray
from tutorial_kernels import blur, brighten

from dagpu import DeviceOp, OperationCancelled, f32, from_host, spawn, value, zip_ops

SHAPE, TILE = (64, 96), (16, 32)


def brightened(gain: float, picture: NDArray[f32]) -> DeviceOp[NDArray[f32]]:
    return brighten.new(SHAPE, TILE)(gain, from_host(picture)).to_host()


def blurred(picture: NDArray[f32]) -> DeviceOp[NDArray[f32]]:
    return blur.new(SHAPE, TILE)(from_host(picture)).to_host()


# docs: await
async def one_after_the_other(picture: NDArray[f32]) -> None:
    bright = await brightened(2.0, picture)
    blurry = await blurred(bright)
    print(blurry.max())


# docs: spawn
async def side_by_side(picture: NDArray[f32]) -> None:
    async with trio.open_nursery() as nursery:
        bright = spawn(nursery, brightened(2.0, picture))
        blurry = spawn(nursery, blurred(picture))
        print(type(bright).__name__)  # both are under way
        print((await bright).max(), (await blurry).max())


# docs: cancel
async def in_time(picture: NDArray[f32]) -> None:
    with trio.move_on_after(0) as scope:  # seconds
        await blurred(picture)
    print("cancelled:", scope.cancelled_caught)

    async with trio.open_nursery() as nursery:
        pending = spawn(nursery, blurred(picture))
        pending.cancel()
        try:
            await pending
        except OperationCancelled as error:
            print(type(error).__name__)


# docs: errors
def parse(text: str) -> float:
    return float(text)


async def broken() -> None:
    try:
        await value("bright").host_map(parse)
    except ValueError as error:
        print(error)
    try:
        await zip_ops(value("bright").host_map(parse), value("dark").host_map(parse))
    except* ValueError as group:
        print(sorted(str(error) for error in group.exceptions))


# docs: main
async def main() -> None:
    picture = np.full(SHAPE, 0.25, np.float32)
    await one_after_the_other(picture)
    await side_by_side(picture)
    await in_time(picture)
    await broken()


trio.run(main)
# docs: end
