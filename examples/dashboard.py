"""A live dashboard: sensors report from a thread, a slider sets the limit, and a
picture follows in the terminal.

    samples --> copy in --> scores --+--> flags(limit) --> copy out --> draw, 30 times
                                     '-----------------> copy out --'   a second

The thread of the sensors sets a source a thousand times a second and never waits for
the picture. A batch makes the number of the last sample and the samples visible
together. `at_most(30)` skips the states that no picture shows, and the last state is
always shown. When only the slider moves, the scores stay on the device and the flags
are made again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    Feed,
    In,
    Lazy,
    Out,
    Tensor,
    Tile,
    batch,
    f32,
    from_host,
    kernel,
    observe,
    source,
    zip_ops,
)

SENSORS, WINDOW, TILE = 16, 64, (8,)
TICKS = 300
POSITIONS = (4.0, 3.5, 3.0)  # of the slider, in standard deviations

SCORES_CU = """
__global__ void scores(Tile<float, 1> z, View<const float, 2> x) {
    const int n = x.extent(1);
    for (auto i : z) {
        float sum = 0, squares = 0;
        for (int k = 0; k < n; ++k) sum += x(i[0], k);
        const float mean = sum / n;
        for (int k = 0; k < n; ++k)
            squares += (x(i[0], k) - mean) * (x(i[0], k) - mean);
        z[i] = squares > 0 ? fabsf(x(i[0], n - 1) - mean) / sqrtf(squares / n) : 0;
    }
}
"""

FLAGS_CU = """
__global__ void flags(Tile<float, 1> y, View<const float, 1> z, float limit) {
    for (auto i : y) y[i] = z(i[0]) > limit;
}
"""


@kernel(cuda=SCORES_CU, block=32)
def scores(z: Out[f32], x: In[f32]) -> None:
    """The distance of each sensor's last sample from its mean, in standard
    deviations."""


@scores.host
def _(z: Tile[f32], x: NDArray[f32]) -> None:
    z[...] = scored(x[z.at[0]])


@kernel(cuda=FLAGS_CU, block=32)
def flags(y: Out[f32], z: In[f32], limit: Lazy[float]) -> None:
    """1 for each sensor whose score is above the limit, and 0 for the others."""


@flags.host
def _(y: Tile[f32], z: NDArray[f32], limit: float) -> None:
    y[...] = z[y.at] > f32(limit)


def scored(x: NDArray[f32]) -> NDArray[f32]:
    """Compute the result of `scores` with NumPy."""
    spread = x.std(axis=1)
    distance = np.abs(x[:, -1] - x.mean(axis=1))
    return np.asarray(
        np.divide(distance, spread, out=np.zeros_like(distance), where=spread > 0), f32
    )


# ---- the op -----------------------------------------------------------------

Picture: TypeAlias = tuple[int, float, NDArray[f32], NDArray[f32]]
"""The number of the last sample, the limit, and for each sensor its score and its
flag."""


def recording() -> NDArray[f32]:
    """Return what the sensors measure: noise, and now and then a sensor that jumps.

    Shape (SENSORS, WINDOW + TICKS).
    """
    random = np.random.default_rng(0)
    noise = random.standard_normal((SENSORS, WINDOW + TICKS))
    jumps = 8 * (random.random(noise.shape) < 0.01)
    jumps[3, -1] = 8  # so that the last picture has a flag
    return (noise + jumps).astype(f32)


measured = recording()
tick = source(0)
samples = source(measured[:, :WINDOW])
limit = source(POSITIONS[0])


def dashboard() -> DeviceOp[Picture]:
    """Score each sensor, and flag those above the limit."""
    z: DeviceOp[Tensor[f32]] = scores.new((SENSORS,), TILE)(samples.then(from_host))
    score = z.shared()
    flag: DeviceOp[Tensor[f32]] = flags.new((SENSORS,), TILE)(score, limit)
    return zip_ops(tick, limit, score.to_host(), flag.to_host())


# ---- the world --------------------------------------------------------------


def sensors() -> None:
    """Report a thousand times a second, in a thread."""
    for number in range(1, TICKS + 1):
        with batch():  # no picture has one of the two without the other
            tick.set(number)
            samples.set(measured[:, number : number + WINDOW])
        time.sleep(0.001)


async def hand() -> None:
    """Move the slider, a tenth of a second apart."""
    for position in POSITIONS[1:]:
        await trio.sleep(0.1)
        limit.set(position)


@contextmanager
def screen() -> Iterator[Callable[[Picture], None]]:
    """Yield a function that draws: in place if rich is installed, else a line for each
    picture."""
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        yield lambda picture: print(line(picture))
        return
    with Live(auto_refresh=False) as live:
        yield lambda picture: live.update(Text(bars(picture)), refresh=True)


def line(picture: Picture) -> str:
    """Return a picture in one line, with a sign for each sensor."""
    number, at, _, flag = picture
    signs = "".join("!" if each else "." for each in flag)
    return f"sample {number:3}, limit {at}: {signs}"


def bars(picture: Picture) -> str:
    """Return a picture with a bar for each sensor."""
    rows = (
        f"{n:2} {'!' if on else ' '} {'#' * round(4 * z)}"
        for n, (z, on) in enumerate(zip(*picture[2:], strict=True))
    )
    return "\n".join((line(picture), *rows))


# ---- the job ----------------------------------------------------------------


async def follow(feed: Feed[Picture]) -> Picture:
    """Draw each picture, and return that of the last sample and of the last position of
    the slider."""
    with screen() as draw:
        while True:
            picture = await feed.next()
            draw(picture)
            if picture[:2] == (TICKS, POSITIONS[-1]):
                return picture


async def main() -> None:
    async with trio.open_nursery() as nursery, observe(dashboard()).at_most(30) as feed:
        nursery.start_soon(trio.to_thread.run_sync, sensors)
        nursery.start_soon(hand)
        number, at, score, flag = await follow(feed)
        stats = feed.stats
    print(
        f"{stats.values} pictures of {number} samples, "
        f"{stats.latency(0.5) * 1e3:.1f} ms from a sample to its picture"
    )
    expected = scored(samples.get())
    np.testing.assert_allclose(score, expected, rtol=1e-4)
    np.testing.assert_array_equal(flag, expected > limit.get())
    assert at == limit.get()
    assert 0 < flag.sum() < SENSORS


if __name__ == "__main__":
    trio.run(main)
