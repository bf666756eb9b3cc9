"""Training data, prepared incrementally: a corrected shard is cleaned again, a
corrected row in its tiles alone.

    shard 0 --> clean --> total --.
    shard 1 --> clean --> total --+--> mean --> cutoff --> centre each shard --> batches
       ...                        |
    shard 7 --> clean --> total --'

The shards are the handwritten digits of scikit-learn, 8 x 8 pixels each. `clean`
smooths every digit over its neighbours, and `centre` subtracts the mean of all shards.
Each shard is a source. When one of them is set, what depends on it runs again, and when
a few digits of it are written, of the kernels that declare what a tile sees (`sees`)
the tiles of these digits alone. The other shards stay on the device as they were.
"""

from functools import reduce
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    Along,
    DeviceOp,
    Feed,
    Here,
    In,
    Out,
    SharedTensor,
    Source,
    Tile,
    cutoff,
    f32,
    from_host,
    kernel,
    observe,
    source,
    zip_ops,
)

SHARDS, ROWS, SIDE = 8, 128, 8
PIXELS = SIDE * SIDE
TILE = (8, PIXELS)
"""Eight digits."""

Shard = DeviceOp[SharedTensor[f32]]

CLEAN_CU = """
__global__ void clean(Tile<float, 2> y, View<const float, 2> x) {
    for (auto i : y) {
        const int row = i[1] / 8, column = i[1] % 8;
        float sum = 0, count = 0;
        for (int r = max(row - 1, 0); r <= min(row + 1, 7); ++r)
            for (int c = max(column - 1, 0); c <= min(column + 1, 7); ++c) {
                sum += x(i[0], 8 * r + c);
                count += 1;
            }
        y[i] = rintf(sum / count);
    }
}
"""

TOTAL_CU = """
__global__ void total(Tile<float, 1> y, View<const float, 2> x) {
    for (auto i : y) {
        float sum = 0;
        for (int r = 0; r < x.extent(0); ++r) sum += x(r, i[0]);
        y[i] = sum;
    }
}
"""

ADD_CU = """
__global__ void add(Tile<float, 1> y, View<const float, 1> a, View<const float, 1> b) {
    for (auto i : y) y[i] = a[i] + b[i];
}
"""

CENTRE_CU = """
__global__ void centre(
    Tile<float, 2> y, View<const float, 2> x, View<const float, 1> total, float rows
) {
    for (auto i : y) y[i] = x[i] - total[i[1]] / rows;
}
"""


# the whole digits of the tile
@kernel(cuda=CLEAN_CU, block=256, sees={"x": (Along(0), None)})
def clean(y: Out[f32], x: In[f32]) -> None:
    """Each pixel of a digit as the mean of itself and its neighbours, a whole
    number."""


@clean.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    digits = x[y.at[0]].reshape(-1, SIDE, SIDE)
    sums, counts = np.zeros_like(digits), np.zeros((SIDE, SIDE), np.float32)
    for r in (-1, 0, 1):
        for c in (-1, 0, 1):
            to = (
                slice(max(-r, 0), SIDE - max(r, 0)),
                slice(max(-c, 0), SIDE - max(c, 0)),
            )
            of = (
                slice(max(r, 0), SIDE - max(-r, 0)),
                slice(max(c, 0), SIDE - max(-c, 0)),
            )
            sums[:, *to] += digits[:, *of]
            counts[to] += 1
    y[...] = np.rint(sums / counts).reshape(-1, PIXELS)[:, y.at[1]]


@kernel(cuda=TOTAL_CU, sees={"x": (None, Along(0))})
def total(y: Out[f32], x: In[f32]) -> None:
    """The sum of each pixel over all digits."""


@total.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    sums = np.zeros(y.shape, np.float32)
    for row in x[:, y.at[0]]:
        sums += row
    y[...] = sums


@kernel(cuda=ADD_CU, sees={"a": Here(), "b": Here()})
def add(y: Out[f32], a: In[f32], b: In[f32]) -> None:
    """y = a + b"""


@add.host
def _(y: Tile[f32], a: NDArray[f32], b: NDArray[f32]) -> None:
    y[...] = a[y.at] + b[y.at]


@kernel(cuda=CENTRE_CU, block=256, sees={"x": Here(), "total": (Along(1),)})
def centre(y: Out[f32], x: In[f32], total: In[f32], rows: float) -> None:
    """Each pixel without the mean of that pixel."""


@centre.host
def _(y: Tile[f32], x: NDArray[f32], total: NDArray[f32], rows: float) -> None:
    y[...] = x[y.at] - total[y.at[1]] / f32(rows)


def cleaned(raw: Shard) -> Shard:
    """The digits of a shard, smoothed."""
    made: DeviceOp[Any] = clean.new((ROWS, PIXELS), TILE)(raw)
    return made.shared()


def totalled(shard: Shard) -> Shard:
    """The sum of each pixel of a shard."""
    made: DeviceOp[Any] = total.new((PIXELS,), (PIXELS,))(shard)
    return made.shared()


def added(a: Shard, b: Shard) -> Shard:
    """The sum of two totals."""
    made: DeviceOp[Any] = add.new((PIXELS,), (PIXELS,))(a, b)
    return made.shared()


def centred(shard: Shard, totals: Shard) -> DeviceOp[SharedTensor[f32]]:
    """A shard without the mean of all shards."""
    rows = float(SHARDS * ROWS)
    made: DeviceOp[Any] = centre.new((ROWS, PIXELS), TILE)(shard, totals, rows)
    return made.share()


def load() -> NDArray[np.float32]:
    """The first digits of scikit-learn, a row of 64 pixels each, in shards."""
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    digits: NDArray[np.float32] = data.data[: SHARDS * ROWS].astype(np.float32)
    return digits.reshape(SHARDS, ROWS, PIXELS)


async def prepare(digits: NDArray[np.float32]) -> Feed[Any]:
    """Correct a whole shard, then three digits of another one, and report what ran."""
    shards: list[Source[SharedTensor[f32]]] = [
        source(await from_host(each)) for each in digits
    ]
    clean_shards = [cleaned(shard) for shard in shards]
    # equal bits: the batches stay as they are
    totals = cutoff(reduce(added, map(totalled, clean_shards)).shared())
    joined: Any = zip_ops(*[centred(shard, totals) for shard in clean_shards])
    batches: DeviceOp[tuple[SharedTensor[f32], ...]] = joined
    async with observe(batches) as feed:
        shown = await feed.next()
        everything = feed.stats.launched
        print(f"from scratch: {everything} instructions")

        # another order: the totals come out the same
        shards[2].set(await from_host(digits[2][::-1].copy()))
        shown = await feed.next()
        ran = feed.stats.launched - everything
        print(
            f"a shard in another order: {ran} instructions, because the totals are "
            "equal"
        )
        assert ran < everything // 2

        # from the second write on, what tiles need stays on the device
        for order in ([42, 40, 41], [41, 42, 40]):
            shards[5].write(slice(40, 43), digits[5, order])
            shown = await feed.next()
        (tiles,) = [
            line.strip() for line in feed.explain().splitlines() if "ran tiles" in line
        ]
        print(f"three digits of a shard in another order: {tiles}")
        assert tiles.endswith("Launch clean 1 of 16, Launch centre 1 of 16 tiles")

        wanted = await batches
        for got, want in zip(shown, wanted, strict=True):
            # the bits of a run from scratch
            assert np.array_equal(await got.to_host(), await want.to_host())
    return feed


if __name__ == "__main__":
    trio.run(prepare, load())
