"""A data-parallel MLP on a Dask cluster of two processes, of which one is killed on the
way: the weights have the same bits as without a cluster.

    weights --copy--> every worker: forward, backward on its part of the batch
                                                          --copy--> w0: mean, step

A step of training is one op. `.on("w1/host:0")` places a part of it on a device of the
cluster, and the names of the devices are all that differs between one process and
several. Where Dask is not installed, the example says so.
"""

import os
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    Cluster,
    DeviceOp,
    SharedTensor,
    Tensor,
    array,
    dup,
    expr,
    f32,
    from_host,
    use_interpreter,
    value,
    zip_ops,
)

BATCH, FEATURES, HIDDEN, OUTPUTS = 64, 8, 16, 4
STEPS, KILLED_AT, RATE = 6, 3, 0.5

Weights = tuple[SharedTensor[f32], SharedTensor[f32]]

relu = expr(f32)(lambda x: array.where(x > 0, x, 0))
masked = expr(f32, f32)(lambda d, h: array.where(h > 0, d, 0))
difference = expr(f32, f32, f32)(lambda y, t, scale: (y - t) * scale)
descended = expr(f32, f32, f32, f32)(
    lambda w, first, second, rate: w - rate * (first + second)
)


def gradients(
    place: str, weights: Weights, x: NDArray[f32], t: NDArray[f32]
) -> Sequence[DeviceOp[Tensor[f32]]]:
    """Return both layers' gradients from a part of the batch, computed on `place`."""
    w1, w2 = [dup(w).on(place).shared() for w in weights]
    inputs = from_host(x).on(place).shared()
    h = relu(array.matmul(inputs, w1)).on(place).shared()
    e = difference(array.matmul(h, w2), from_host(t), 1 / BATCH).on(place).shared()
    d = masked(array.matmul(e, w2, transpose="b"), h).on(place)
    return [
        array.matmul(inputs, d, transpose="a").on(place),
        array.matmul(h, e, transpose="a").on(place),
    ]


def step(
    devices: Sequence[str], weights: Weights, x: NDArray[f32], t: NDArray[f32]
) -> DeviceOp[Weights]:
    """Return one step of gradient descent over two devices, as one op."""
    home = devices[0]
    parts = [
        gradients(*each)
        for each in zip(
            devices, [weights] * 2, np.split(x, 2), np.split(t, 2), strict=True
        )
    ]
    moved = [
        [gradient.then(lambda g: dup(g).on(home)) for gradient in part]
        for part in parts
    ]
    new = [
        descended(w, first, second, RATE).on(home).share()
        for w, first, second in zip(weights, *moved, strict=True)
    ]
    return zip_ops(new[0], new[1])


def process_number(_: object) -> int:
    """Return the number of the process that calls this."""
    return os.getpid()


async def train(
    devices: Sequence[str], data: Sequence[NDArray[f32]], *, kill: bool
) -> Sequence[NDArray[Any]]:
    """Train, and return the weights. With `kill`, the second worker is killed in the
    middle of it."""
    x, t, w1, w2 = data
    weights: Weights = await zip_ops(
        from_host(w1).on(devices[0]).share(), from_host(w2).on(devices[0]).share()
    )
    for number in range(STEPS):
        if kill and number == KILLED_AT:
            os.kill(
                await value(0).host_map(process_number).on(devices[1]), signal.SIGKILL
            )
        weights = await step(devices, weights, x, t)
    return await zip_ops(weights[0].to_host(), weights[1].to_host())


def loss(data: Sequence[NDArray[f32]], w1: NDArray[Any], w2: NDArray[Any]) -> float:
    return float(
        0.5 * np.square(np.maximum(data[0] @ w1, 0) @ w2 - data[1]).sum(axis=1).mean()
    )


async def main() -> None:
    rng = np.random.default_rng(0)
    x, *layers = [
        rng.standard_normal(shape, dtype=f32)
        / f32(np.sqrt(shape[0]) if shape[0] != BATCH else 1)
        for shape in [
            (BATCH, FEATURES),
            (FEATURES, HIDDEN),
            (HIDDEN, OUTPUTS),
            (FEATURES, HIDDEN),
            (HIDDEN, OUTPUTS),
        ]
    ]
    data = [x, np.maximum(x @ layers[0], 0) @ layers[1], *layers[2:]]

    here = await train(("host:0", "host:1"), data, kill=False)
    async with Cluster.local(2) as cluster:
        with use_interpreter(cluster):
            there = await train(("w0/host:0", "w1/host:0"), data, kill=True)
            lost = 2 - len(cluster.workers)
    before, after = loss(data, *data[2:]), loss(data, *there)
    print(
        f"{STEPS} steps on 2 workers, one of them killed ({lost} not back yet): "
        f"loss {before:.3f} -> {after:.3f}"
    )
    assert after < before / 2
    assert [*map(bytes, there)] == [*map(bytes, here)]
    print("the weights have the same bits as those that one process has trained")


if __name__ == "__main__":
    if find_spec("distributed") is None:
        print(
            "a cluster needs Dask: pip install 'distributed>=2025.1' cloudpickle "
            "cryptography"
        )
    else:
        trio.run(main)
