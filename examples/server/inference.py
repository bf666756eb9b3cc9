"""An inference server on trio: a TCP service that batches the requests of its clients
onto one pipeline.

    python -m examples.server [--quick] [--clients 64] [--requests 1000] [--batch 32]
                              [--wait 2] [--epochs 6]
    python -m examples.server --serve 8765

    connections --image--> batch: at most --batch, after --wait ms --> op --> answers

Trains the network of examples/digits for a short time, then serves it. Every connection
is a separate task that sends requests and waits; the device gets batches. Only
`forward` uses the device: it is a function from a batch to an op. While one batch is on
the device, the next one is gathered, so the busier the service, the larger the batches.

By default, it runs the service and a load generator in one process, on a free port, and
ends: first with a few clients, then many, then many without batching, for comparison.
Prints the latencies of answers, and compares each answer with NumPy. With --serve, it
serves that port of this machine until Ctrl-C. service.py describes the protocol.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import trio
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dagpu import (
    DeviceOp,
    SharedTensor,
    array,
    batching,
    current_device,
    f32,
    from_host,
    zip_ops,
)
from examples.digits.batches import Digits, Options, load
from examples.digits.kernels import biased, biased_relu, gemm
from examples.digits.training import TILE, train
from examples.server.service import (
    ANSWER_BYTES,
    CLASSES,
    Floats,
    Forward,
    padded,
    read_exactly,
    serve,
)

Weights: TypeAlias = tuple[
    SharedTensor[f32], SharedTensor[f32], SharedTensor[f32], SharedTensor[f32]
]
"""Weights and bias of the hidden layer, (64, m) and (1, m), and of the last, (m, 10)
and (1, 10)."""


# ---- the pipeline -----------------------------------------------------------


def forward(weights: Weights, images: Floats) -> DeviceOp[Floats]:
    """Return the probability of each digit, (n, 10), for images (n, 64) in [0, 1]."""
    w1, b1, w2, b2 = weights
    rows = len(images)
    z = gemm.new((rows, w1.shape[1]), TILE, partial=True)(
        from_host(images), w1, False, False
    )
    product = gemm.new((rows, CLASSES), TILE, partial=True)(
        biased_relu(z, b1), w2, False, False
    )
    return array.softmax(biased(product, b2)).to_host()


async def trained(digits: Digits, epochs: int) -> list[Floats]:
    """Train the network. Return its weights on the host, in the order of `Weights`.

    It is trained on normalised images. The normalisation is folded into the first
    layer, so clients send plain images.
    """
    options = Options(
        epochs=epochs, hidden=32, batch=64, seed=0, bar=0.0, out=Path("digits.png")
    )
    (w1, b1, *_), (w2, b2, *_) = (
        await trio.to_thread.run_sync(train, digits, options, Progress(disable=True))
    ).model
    first, bias, last, last_bias = await zip_ops(
        *(tensor.to_host() for tensor in (w1, b1, w2, b2))
    )
    first *= np.float32(digits.scale)
    return [first, bias - np.float32(digits.mean) * first.sum(axis=0), last, last_bias]


def by_numpy(weights: Sequence[Floats], images: Floats) -> Floats:
    """Compute the result of `forward` in double precision."""
    w1, b1, w2, b2 = (each.astype(np.float64) for each in weights)
    logits = np.maximum(images @ w1 + b1, 0) @ w2 + b2
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float32)


# ---- the load ---------------------------------------------------------------


@final
@dataclass(frozen=True)
class Measured:
    """A load and its results:

    `answers` (n, 10) to its images in order, `latencies` (n,) in seconds.
    """

    clients: int
    most: int
    answers: Floats
    latencies: Floats
    seconds: float
    sizes: list[int]

    def row(self) -> tuple[str, ...]:
        p50, p99 = np.quantile(self.latencies, [0.5, 0.99]) * 1e3
        rate = len(self.latencies) / self.seconds
        sizes = f"{np.mean(self.sizes):.1f}", str(max(self.sizes))
        return (
            str(self.clients),
            str(self.most),
            f"{p50:.2f} ms",
            f"{p99:.2f} ms",
            f"{rate:,.0f} / s",
            *sizes,
        )


async def requests(
    port: int, images: Floats, answers: Floats, latencies: Floats
) -> None:
    """Run one client, which sends an image, waits for its answer, and sends the next
    one. Fills `answers` and `latencies`, which belong to this client."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for number, image in enumerate(images):
            start = time.perf_counter()
            await stream.send_all(image.tobytes())
            data = await read_exactly(stream, ANSWER_BYTES)
            assert data is not None, "the service answers before it hangs up"
            latencies[number] = time.perf_counter() - start
            answers[number] = np.frombuffer(data, np.float32)


async def under_load(
    model: Forward, images: Floats, clients: int, most: int, patience: float
) -> Measured:
    """Start the service, send all images to it from `clients` clients at once, and stop
    it.

    Both share one thread, so the latencies include the time of the clients.
    """
    sizes: list[int] = []

    def answered(batch: tuple[Floats, ...]) -> DeviceOp[Floats]:
        sizes.append(len(batch))
        return model(padded(np.stack(batch)))

    answers, latencies = (
        np.zeros((len(images), CLASSES), np.float32),
        np.zeros(len(images), np.float32),
    )
    async with (
        batching(answered, most=most, within=patience) as ask,
        trio.open_nursery() as service,
    ):
        port: int = await service.start(serve, ask)
        start = time.perf_counter()
        async with trio.open_nursery() as load_generator:
            for client in range(clients):
                mine = slice(client, None, clients)
                load_generator.start_soon(
                    requests, port, images[mine], answers[mine], latencies[mine]
                )
        seconds = time.perf_counter() - start
        service.cancel_scope.cancel()
    return Measured(clients, most, answers, latencies, seconds, sizes)


def table(loads: Sequence[Measured], patience: float) -> Table:
    """Return a table of the loads: the limit of a batch, and its mean and largest
    size."""
    title = f"how long an answer takes, with batches that wait {patience * 1e3:g} ms"
    heads = ("clients", "batch", "p50", "p99", "throughput", "mean", "largest")
    found = Table(title=title, title_justify="left")
    for head in heads:
        found.add_column(head, justify="right")
    for each in loads:
        found.add_row(*each.row())
    return found


# ---- the job ----------------------------------------------------------------


async def serve_until_interrupted(model: Forward, given: argparse.Namespace) -> None:
    def answered(batch: tuple[Floats, ...]) -> DeviceOp[Floats]:
        return model(padded(np.stack(batch)))

    async with (
        batching(answered, most=given.batch, within=given.wait) as ask,
        trio.open_nursery() as nursery,
    ):
        port: int = await nursery.start(serve, ask, given.serve)
        print(f"serving 127.0.0.1:{port}; Ctrl-C ends it", flush=True)


async def under_all_loads(
    model: Forward, images: Floats, given: argparse.Namespace
) -> list[Measured]:
    """Measure loads of one client, a few, and all, with batches; and of all clients
    without batches."""
    most, few = given.batch, max(given.clients // 8, 1)
    cases = (1, most), (few, most), (given.clients, most), (given.clients, 1)
    return [
        await under_load(model, images, clients, size, given.wait)
        for clients, size in cases
    ]


async def job(given: argparse.Namespace) -> None:
    digits, console = load(), Console()
    on_host = await trained(digits, given.epochs)
    weights: Weights = await zip_ops(*(from_host(each).share() for each in on_host))
    model = partial(forward, weights)
    if given.serve is not None:
        return await serve_until_interrupted(model, given)
    guesses = (await model(digits.test)).argmax(axis=1)
    right = float(np.mean(guesses == digits.test_labels))
    assert right > 0.9, (
        f"{right:.1%} of the digits are recognised: train for longer (--epochs)"
    )

    images = digits.test[np.arange(given.requests) % len(digits.test)]
    loads = await under_all_loads(model, images, given)
    console.print(table(loads, given.wait))
    console.print(
        f"{len(images)} requests a load on {current_device().name}; {right:.1%} of "
        "the digits are recognised"
    )
    expected = by_numpy(on_host, images)
    for each in loads:
        np.testing.assert_allclose(each.answers, expected, atol=1e-5)
        assert sum(each.sizes) == len(images), "each request was in one batch"
        assert max(each.sizes) <= min(each.most, each.clients)
    return None


def at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.server",
        description="Serve digits with dagpu: requests in batches, on trio.",
    )
    parser.add_argument("--quick", action="store_true", help="16 clients, 100 requests")
    parser.add_argument("--clients", type=at_least_one, help="at most, at once (64)")
    parser.add_argument(
        "--requests",
        type=at_least_one,
        help="of each load, from all its clients together (1000)",
    )
    parser.add_argument(
        "--batch",
        type=at_least_one,
        default=32,
        help="requests in a batch, at most (32)",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=2,
        help="milliseconds that a batch waits for more (2)",
    )
    parser.add_argument(
        "--epochs", type=at_least_one, default=6, help="of training (6)"
    )
    parser.add_argument(
        "--serve",
        type=int,
        metavar="PORT",
        help="serve this port until Ctrl-C; 0 takes a free one",
    )
    given = parser.parse_args(arguments)
    given.clients = given.clients or (16 if given.quick else 64)
    given.requests = given.requests or (100 if given.quick else 1000)
    given.wait /= 1e3
    return given


def main(arguments: Sequence[str]) -> None:
    try:
        trio.run(job, parsed(arguments))
    except* KeyboardInterrupt:
        print("interrupted")
