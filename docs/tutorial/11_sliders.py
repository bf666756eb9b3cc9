"""Step 11: inputs that change, and a feed that runs again only what depends on them."""

# docs: imports
import numpy as np
import trio
from numpy.typing import NDArray
from tutorial_kernels import blur

from dagpu import (
    DeviceOp,
    Feed,
    In,
    Lazy,
    Out,
    SharedTensor,
    Tile,
    batch,
    cutoff,
    f32,
    from_host,
    kernel,
    observe,
    source,
    zip_ops,
)

SHAPE, TILE = (64, 96), (16, 96)


@kernel(
    cuda="""__global__ void fade(Tile<float, 2> y, View<const float, 2> x, float by) {
    for (auto i : y) y[i] = x[i] * by;
}"""
)
def fade(y: Out[f32], x: In[f32], by: Lazy[float]) -> None:
    """y = x * by"""


@fade.host
def _(y: Tile[f32], x: NDArray[f32], by: float) -> None:
    y[...] = x[y.at] * f32(by)


# docs: sources
picture = source(np.full(SHAPE, 0.5, np.float32))
light = source(1.0)


def shown(x: DeviceOp[SharedTensor[f32]], by: Lazy[float]) -> DeviceOp[NDArray[f32]]:
    soft = blur.new(SHAPE, TILE)(x)
    return fade.new(SHAPE, TILE)(soft, by).to_host()


op = shown(picture.then(from_host).shared(), light)
print(op.sync().max())
light.set(0.5)
print(op.sync().max())


# docs: feed
async def ask(feed: Feed[NDArray[f32]]) -> None:
    before = feed.stats.launched
    value = await feed.next()
    print(value.max(), feed.stats.launched - before)


async def slide() -> None:
    async with observe(op) as feed:
        await ask(feed)
        light.set(1.5)
        await ask(feed)
        picture.set(np.full(SHAPE, 0.25, np.float32))
        await ask(feed)


trio.run(slide)


# docs: batch
async def together() -> None:
    low, high = source(0), source(10)
    async with observe(zip_ops(low, high)) as feed:
        print(await feed.next())
        with batch():
            low.set(20)
            high.set(30)
        print(await feed.next())


trio.run(together)


# docs: cutoff
async def coarse() -> None:
    steps = cutoff(light.map(lambda x: round(x, 1)))
    async with observe(shown(picture.then(from_host).shared(), steps)) as feed:
        await ask(feed)
        light.set(1.52)
        await ask(feed)


trio.run(coarse)
# docs: end

assert op.sync().max() == np.float32(0.25) * np.float32(1.52)
