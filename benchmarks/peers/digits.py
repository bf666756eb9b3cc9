"""One training step of examples/digits, with the upload of its batch and its loss, compared with PyTorch and NumPy.

    python -m benchmarks.peers.digits               keeps results/digits.json and digits.md
    python -m benchmarks.peers.digits --rehearse    without PyTorch, on the host: measures nothing, keeps nothing

64 images in a batch, 128 hidden units, as the example has them. A step begins with its batch in arrays of NumPy, and
ends with its mean loss as a number of Python. The batch and the rate differ from step to step. Every contender trains
from the same weights on the same batches, and their losses are compared before anything is measured.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.digits_torch import TorchStep, TorchTrainer
from benchmarks.peers.gpu_peers import installed
from benchmarks.support.gpu import Bench, Measure, medians, rounds
from benchmarks.support.rehearsal import start_or_rehearse
from benchmarks.support.table import Span, Table
from dagpu import use_device
from examples.digits.batches import Batch, Digits, Options, load, prepared
from examples.digits.command import parsed
from examples.digits.numpy_training import train_in_numpy
from examples.digits.training import (
    DECAY,
    MOMENTUM,
    Model,
    fresh_model,
    fresh_on_host,
    rate_of,
    train_step,
)

TIMES = 1.3
"""Target: at most this many times PyTorch's graph."""
BATCHES = 22
"""Batches that take turns: one epoch."""
CLOSE = 2e-4
"""The largest difference between losses of two contenders: they add in different orders."""

DAGPU, EAGER, IN_GRAPH, NUMPY = "dagpu: one call of a pipeline", "PyTorch eager", "PyTorch in a CUDA graph", "NumPy"
Prepare: TypeAlias = Callable[[], TorchStep]
"""Returns a training step that begins at the initial weights."""


@final
class Steps:
    """Training steps in a row. The batches take turns; the rate falls, and begins again after `BATCHES` steps."""

    def __init__(self, batches: list[Batch], step: TorchStep) -> None:
        self._batches = batches
        self._step = step
        self._number = 0

    def __call__(self) -> float:
        place = self._number % len(self._batches)
        self._number += 1
        return self._step(*self._batches[place], rate_of(place, len(self._batches)))


def by_dagpu(options: Options) -> TorchStep:
    """Return a step of the example."""
    model: list[Model] = [fresh_model(options.hidden, options.seed).sync()]

    def step(images: NDArray[np.float32], labels: NDArray[np.int32], rate: float) -> float:
        trained, losses = train_step(model.pop(), images, labels, rate).sync()
        model.append(trained)
        return float(losses.sum()) / len(losses)

    return step


def by_numpy(options: Options) -> TorchStep:
    """Return a step in NumPy on the host."""
    model = fresh_on_host(options)

    def step(images: NDArray[np.float32], labels: NDArray[np.int32], rate: float) -> float:
        return float(train_in_numpy(model, images, labels, (rate, MOMENTUM, DECAY)).sum()) / len(images)

    return step


def by_torch(options: Options, way: Callable[[TorchTrainer], TorchStep]) -> TorchStep:
    """Return a step in PyTorch."""
    (w1, b1, *_), (w2, b2, *_) = fresh_on_host(options)
    return way(TorchTrainer([w1, b1, w2, b2], options.batch))


def checked(prepare: Prepare, batches: list[Batch], expected: list[float]) -> list[Steps]:
    """Return steps from the initial weights on. Raises an error unless the losses of an epoch are the expected ones."""
    first = Steps(batches, prepare())
    losses = [first() for _ in batches]
    worst = max(abs(found - wanted) for found, wanted in zip(losses, expected, strict=True))
    if worst > CLOSE:
        raise RuntimeError(f"a loss is {worst:.1e} away from NumPy's")
    return [Steps(batches, prepare())]


def contenders_of(bench: Bench, options: Options, batches: list[Batch]) -> dict[str, Steps]:
    """Return the steps of each contender, whose losses are those of NumPy. A peer that is not installed is left out."""
    reference = Steps(batches, by_numpy(options))
    expected = [reference() for _ in batches]
    found = {
        DAGPU: checked(partial(by_dagpu, options), batches, expected)[0],
        NUMPY: Steps(batches, by_numpy(options)),
    }
    if bench.floor is None:
        bench.left_out.append("PyTorch, which needs the GPU")
        return found
    for name, way in ((EAGER, TorchTrainer.eager), (IN_GRAPH, TorchTrainer.in_graph)):
        for steps in installed(bench, name, partial(checked, partial(by_torch, options, way), batches, expected)):
            found[name] = steps
    return found


def tabled(bench: Bench, samples: dict[str, list[Span]], planned: int) -> Table:
    """Return a table of microseconds a step."""
    base = samples.get(IN_GRAPH)
    goal = None if base is None else round(TIMES * 1e6 * medians(base).wall, 1)
    table = Table("A training step", "us/step", ratio_to="PyTorch's graph" if base else "")
    for name, spans in samples.items():
        table.add(name, spans, 1e6, target=goal if name == DAGPU else None, base=base)
    table.note = (
        "64 images, 128 hidden units, from a batch in arrays of NumPy to its loss as a number of Python. Number of "
        f"plans that dagpu made for all steps: {planned}. The target is {TIMES} times PyTorch's graph.{bench.missing()}"
    )
    return table


def main() -> None:
    """Measure, print the results, and save them."""
    bench = start_or_rehearse("digits", "A training step of examples/digits, beside PyTorch and NumPy.")
    digits: Digits = load()
    options = parsed([])
    batches = [prepared(digits, options, number) for number in range(BATCHES)]
    count = bench.many(200)
    with use_device(bench.where):
        train_step.cache_clear()
        runs = contenders_of(bench, options, batches)
        contenders: list[Measure] = [partial(rounds, name, run, count) for name, run in runs.items()]
        samples = bench.measure(contenders, 9)
        planned = train_step.cache_info().misses
    bench.finish("Training on handwritten digits, step by step", [tabled(bench, samples, planned)])


if __name__ == "__main__":
    main()
