"""Overlap with `spawn`: the next batch is prepared while the one before it is being
processed.

`await` suspends the awaiting task; `spawn` starts an op in a nursery and returns a
`Pending` to await later. Prints the time of the batches one after another and
overlapped. The gain depends on the machine's cores, so only the values are asserted.
"""

import time
from collections.abc import Callable

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import DeviceOp, In, Out, Tensor, Tile, f32, from_host, kernel, spawn, value

BATCHES, SHAPE, TILE, ROUNDS, DRAWS = 4, (1024, 1024), (256, 1024), 20, 4


@kernel(
    cuda="""
__global__ void process(Tile<float, 2> y, View<const float, 2> x, int rounds) {
    for (auto i : y) {
        float v = 0;
        for (int round = 0; round < rounds; ++round) v = tanhf(x[i] + 0.5f * v);
        y[i] = v;
    }
}
"""
)
def process(y: Out[f32], x: In[f32], rounds: int) -> None:
    """Solve y = tanh(x + y / 2) by `rounds` iterations from 0: a stand-in for real
    work."""


@process.host
def _(y: Tile[f32], x: NDArray[f32], rounds: int) -> None:
    # NumPy releases the GIL inside each of these calls, which makes overlap possible on
    # the host.
    y[...] = 0
    for _ in range(rounds):
        np.multiply(y, f32(0.5), out=y)
        np.add(y, x[y.at], out=y)
        np.tanh(y, out=y)


def load(number: int) -> NDArray[f32]:
    """Make batch `number` on the host, like a data loader: here, the mean of some
    random images."""
    rng = np.random.default_rng(number)
    image = np.zeros(SHAPE, f32)
    for _ in range(DRAWS):
        image += rng.standard_normal(SHAPE, dtype=f32)
    return image / f32(DRAWS)


def prepare_batch(number: int) -> DeviceOp[Tensor[f32]]:
    """Load on a worker thread (`host_map`), then copy to the device."""
    return value(number).host_map(load).then(from_host)


def process_batch(batch: Tensor[f32]) -> DeviceOp[NDArray[f32]]:
    return process.new(SHAPE, TILE)(batch, ROUNDS).to_host()


def one_after_another() -> list[NDArray[f32]]:
    """Wait for each of the 2 * BATCHES runs before starting the next."""
    return [
        process_batch(prepare_batch(number).sync()).sync() for number in range(BATCHES)
    ]


async def overlapped_batches() -> list[NDArray[f32]]:
    async with trio.open_nursery() as nursery:
        results = []
        for number in range(BATCHES):
            # while the batch before it is processed
            batch = await prepare_batch(number)
            # started, not waited for
            results.append(spawn(nursery, process_batch(batch)))
        return [await result for result in results]


def overlapped() -> list[NDArray[f32]]:
    return trio.run(overlapped_batches)


def timed(work: Callable[[], list[NDArray[f32]]]) -> list[NDArray[f32]]:
    start = time.perf_counter()
    results = work()
    print(
        f"{work.__name__:>18}: {time.perf_counter() - start:.2f} s for {BATCHES} "
        "batches"
    )
    return results


def main() -> None:
    in_turn, together = timed(one_after_another), timed(overlapped)

    for number in range(BATCHES):
        y = in_turn[number]
        assert np.allclose(y, np.tanh(load(number) + y / 2), atol=1e-5)
        assert np.array_equal(together[number], in_turn[number])


if __name__ == "__main__":
    main()
