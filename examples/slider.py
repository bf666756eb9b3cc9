"""Sliders over a picture: each runs again what lies behind it, and nothing before it.

    picture --> soften(radius) --> brighten(light) --> blend(amount) --> copy out, show
         `-------------------------------------------^

`unsharp` is an ordinary function of ops and knows nothing of sliders. Its inputs are
sources, whose values the program sets. `observe` gives a feed: each value is that of a
run from scratch with the present settings, but only the kernels behind the slider that
moved run again. The pictures between them stay on the device.
"""

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    Feed,
    In,
    Lazy,
    Out,
    SharedTensor,
    Tensor,
    Tile,
    batch,
    empty,
    f32,
    from_host,
    kernel,
    observe,
    source,
)

SHAPE, TILE = (120, 160), (30, 160)

SOFTEN_CU = """
__global__ void soften(Tile<float, 2> y, View<const float, 2> x, int radius) {
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

BRIGHTEN_CU = """
__global__ void brighten(Tile<float, 2> y, View<const float, 2> x, float by) {
    for (auto i : y) y[i] = x[i] * by;
}
"""

BLEND_CU = """
__global__ void blend(
    Tile<float, 2> y, View<const float, 2> a, View<const float, 2> b, float share
) {
    for (auto i : y) y[i] = (1 - share) * a[i] + share * b[i];
}
"""


@kernel(cuda=SOFTEN_CU, block=256)
def soften(y: Out[f32], x: In[f32], radius: Lazy[int]) -> None:
    """The mean of each pixel and of `radius` neighbours on both sides in its row."""


@soften.host
def _(y: Tile[f32], x: NDArray[f32], radius: int) -> None:
    rows, columns = y.at
    wide = np.pad(x[rows], ((0, 0), (radius, radius)), mode="edge")
    total = np.zeros_like(x[rows])
    for k in range(2 * radius + 1):
        total += wide[:, k : k + x.shape[1]]
    y[...] = (total / f32(2 * radius + 1))[:, columns]


@kernel(cuda=BRIGHTEN_CU, block=256)
def brighten(y: Out[f32], x: In[f32], by: Lazy[float]) -> None:
    """The picture, brighter or darker."""


@brighten.host
def _(y: Tile[f32], x: NDArray[f32], by: float) -> None:
    y[...] = x[y.at] * f32(by)


@kernel(cuda=BLEND_CU, block=256)
def blend(y: Out[f32], a: In[f32], b: In[f32], share: Lazy[float]) -> None:
    """`share` of the second picture, and the rest of the first."""


@blend.host
def _(y: Tile[f32], a: NDArray[f32], b: NDArray[f32], share: float) -> None:
    y[...] = (1 - f32(share)) * a[y.at] + f32(share) * b[y.at]


def unsharp(
    x: DeviceOp[SharedTensor[f32]],
    radius: Lazy[int],
    light: Lazy[float],
    amount: Lazy[float],
) -> DeviceOp[NDArray[f32]]:
    """Blur a picture, brighten the result, and mix it with the picture."""

    def blank() -> DeviceOp[Tensor[f32]]:
        return empty(SHAPE)

    soft = soften(blank().partition(TILE), x, radius).first().unpartition()
    bright = brighten(blank().partition(TILE), soft, light).first().unpartition()
    return (
        blend(blank().partition(TILE), x, bright, amount)
        .first()
        .unpartition()
        .to_host()
    )


picture = source(
    from_host(np.random.default_rng(0).random(SHAPE, dtype=np.float32)).sync()
)
radius = source(12)
light = source(1.0)
amount = source(0.5)


async def instructions(feed: Feed[NDArray[f32]]) -> int:
    """Ask for the next picture, and return the number of instructions that it took."""
    before = feed.stats.launched
    await feed.next()
    return feed.stats.launched - before


async def main() -> None:
    op = unsharp(picture, radius, light, amount)
    async with observe(op) as feed:
        # soften, brighten, blend, and the copy to the host
        assert await instructions(feed) == 4
        for share in (0.6, 0.7, 0.8):
            amount.set(share)
            assert await instructions(feed) == 2  # blend, and the copy
        light.set(1.2)
        assert await instructions(feed) == 3  # brighten, blend, and the copy
        with batch():  # one update, and no picture has one of the two without the other
            radius.set(20)
            light.set(1.1)
        shown = await feed.next()
        print(feed.explain())
        spared = feed.stats.reused / (feed.stats.launched + feed.stats.reused)
        print(f"{feed.stats.launched} instructions ran, {spared:.0%} were spared")
    assert np.array_equal(shown, await op)  # the bits of a run from scratch


if __name__ == "__main__":
    trio.run(main)
