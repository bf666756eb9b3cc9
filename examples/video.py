"""Frames of a camera, softened on the device with three in flight, over a background
that stays there.

    camera --frame--> copy in --> blur --> mix with the background --> copy out --> show
                                             |              ^
                                             `--------------'  the next background

`run` works on three frames at once: while one is blurred, the next is copied in. `fold`
hands the background from step to step without a copy to the host. Nothing is queued:
when three frames are in flight, the camera is not asked.

The first part takes every frame of a recording, and compares each picture with NumPy.
The second part follows a camera that is faster than its consumer: `latest` skips the
frames that nobody would see.
"""

from collections.abc import AsyncIterator, Iterator

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    Feed,
    In,
    Out,
    SharedTensor,
    Tensor,
    Tile,
    current_device,
    f32,
    flow,
    from_host,
    kernel,
    value,
    zeros,
    zip_ops,
)

SHAPE, TILE = (120, 160), (30, 160)
FRAMES = 60
RADIUS = 3
SHARE = 0.25  # of the new frame, in the running mean

BLUR_CU = """
__global__ void blur(Tile<float, 2> y, View<const float, 2> x, int radius) {
    const int last = x.extent(1) - 1;
    for (auto i : y) {
        const int row = i[0], column = i[1];
        float sum = 0;
        for (int k = -radius; k <= radius; ++k)
            sum += x(row, min(max(column + k, 0), last));
        y[i] = sum / (2 * radius + 1);
    }
}
"""

MIX_CU = """
__global__ void mix(
    Tile<float, 2> y, View<const float, 2> a, View<const float, 2> b, float share
) {
    for (auto i : y) y[i] = (1 - share) * a[i] + share * b[i];
}
"""


@kernel(cuda=BLUR_CU, block=256)
def blur(y: Out[f32], x: In[f32], radius: int) -> None:
    """y = the mean of x over 2 radius + 1 columns.

    Beyond the edge, the nearest column is repeated.
    """


@blur.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32], radius: int) -> None:
    y[...] = blurred(x, radius)


@kernel(cuda=MIX_CU, block=256)
def mix(y: Out[f32], a: In[f32], b: In[f32], share: float) -> None:
    """y = (1 - share) a + share b."""


@mix.host
def _(y: Tile[f32], a: NDArray[f32], b: NDArray[f32], share: float) -> None:
    y[...] = f32(1 - share) * a[y.at] + f32(share) * b[y.at]


def blurred(x: NDArray[f32], radius: int) -> NDArray[f32]:
    """Compute the result of `blur` with NumPy."""
    columns = x.shape[1]
    wide = np.pad(x, ((0, 0), (radius, radius)), mode="edge")
    shifted = [wide[:, k : k + columns] for k in range(2 * radius + 1)]
    return np.asarray(np.sum(shifted, axis=0, dtype=f32) / f32(2 * radius + 1), f32)


# ---- the pipeline -----------------------------------------------------------


def softened(frame: NDArray[f32]) -> DeviceOp[Tensor[f32]]:
    soft: DeviceOp[Tensor[f32]] = blur.new(SHAPE, TILE)(from_host(frame), RADIUS)
    return soft


def trail(
    background: SharedTensor[f32], frame: Tensor[f32]
) -> DeviceOp[tuple[SharedTensor[f32], NDArray[f32]]]:
    """Return the next background, which stays on the device, and a picture of it."""
    new: DeviceOp[Tensor[f32]] = mix.new(SHAPE, TILE)(background, frame, SHARE)
    return new.share().then(lambda t: zip_ops(value(t.clone()), t.to_host()))


# ---- the camera -------------------------------------------------------------


def recording() -> Iterator[NDArray[f32]]:
    """Iterate over frames in which a bright disc moves across noise."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[: SHAPE[0], : SHAPE[1]]
    for number in range(FRAMES):
        disc = (rows - 60) ** 2 + (columns - 2 * number) ** 2 < 20**2
        yield (disc + 0.1 * random.random(SHAPE)).astype(f32)


async def camera() -> AsyncIterator[NDArray[f32]]:
    """Iterate over the same frames, 500 of them in a second."""
    for frame in recording():
        await trio.sleep(0.002)
        yield frame


# ---- the job ----------------------------------------------------------------


async def every_frame() -> Feed[NDArray[f32]]:
    """Show each frame of the recording, and compare it with NumPy."""
    expected = np.zeros(SHAPE, f32)
    frames = recording()
    async with (
        flow(recording())
        .run(softened, in_flight=3)
        .fold(zeros(SHAPE).share(), trail) as feed
    ):
        async for shown in feed:
            expected = f32(1 - SHARE) * expected + f32(SHARE) * blurred(
                next(frames), RADIUS
            )
            np.testing.assert_allclose(shown, expected, atol=1e-5)
        print(feed.explain())
    return feed


async def newest_frames() -> Feed[NDArray[f32]]:
    """Show what a consumer sees that takes longer for a picture than the camera."""
    async with (
        flow(camera())
        .latest()
        .run(softened, in_flight=3)
        .fold(zeros(SHAPE).share(), trail) as feed
    ):
        async for shown in feed:
            assert shown.shape == SHAPE
            await trio.sleep(0.006)
    return feed


async def main() -> None:
    whole = await every_frame()
    print(
        f"{whole.stats.values} frames on {current_device().name}, "
        f"{whole.stats.rate:.0f} in a second"
    )
    assert whole.stats.values == FRAMES
    live = await newest_frames()
    late = f"p99 {live.stats.latency(0.99) * 1e3:.0f} ms from the camera to the screen"
    skipped = live.stats.skipped
    print(f"live: {live.stats.values} frames shown, {skipped} skipped, {late}")
    assert live.stats.values + live.stats.skipped == FRAMES


if __name__ == "__main__":
    trio.run(main)
