"""Trains a two-layer network on 1,797 real handwritten digits, as a pipeline of dagpu
kernels.

    python -m examples.digits [--quick] [--epochs 40] [--hidden 128] [--batch 64]
                              [--seed 0] [--out FILE]

One training step is one call of a pipeline. It copies a batch of images and labels to
the device, takes the model (owned tensors), and returns the next model and the loss.
The weights are updated in place. Independent parts of the step (gradients of the two
layers, the four updates) may overlap. The first step is traced and planned; all others
run by its plan, and on a GPU each is one launch of a CUDA graph. While an epoch is
trained on, the batches of the next one are shuffled, shifted and normalised on a worker
thread. Exits with status 1 if the accuracy on images that were never trained on is
under 95 % (90 % with --quick).
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dagpu import (
    Borrowed,
    DeviceOp,
    Partition,
    Tensor,
    array,
    empty,
    f32,
    from_host,
    i32,
    pipeline,
    plan_of,
    randn,
    zeros,
    zip_ops,
)
from dagpu.lowering.plan import Plan
from examples.digits.kernels import (
    biased,
    biased_relu,
    cross_entropy,
    gemm,
    logit_gradient,
    relu_backward,
    sgd,
)
from examples.digits.numpy_training import HostModel, train_in_numpy
from examples.digits.report import accuracy_table, picture, plan_table

SIDE, CLASSES = 8, 10
TILE = (16, 16)
RATE, MOMENTUM, DECAY = 0.1, 0.9, 1e-4  # the rate falls to 0 along a half cosine
SHIFT = 0.8  # pixels; images are moved by up to this much, at random

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int32]
Op: TypeAlias = DeviceOp[Tensor[f32]]
Layer: TypeAlias = tuple[Tensor[f32], Tensor[f32], Tensor[f32], Tensor[f32]]
"""Weights (k, m), bias (1, m), and the velocity of each, of the same shapes."""
Model: TypeAlias = tuple[Layer, Layer]
Batch: TypeAlias = tuple[Floats, Ints]
"""Images (n, 64), normalised, and labels (n,).

Of an epoch: (batches, n, 64) and (batches, n).
"""


@final
@dataclass(frozen=True)
class Options:
    epochs: int
    hidden: int
    batch: int
    seed: int
    bar: float
    out: Path


@final
@dataclass(frozen=True)
class Digits:
    """Images as rows of 64 in [0, 1], labels 0 to 9.

    `mean` and `scale` normalise, and are those of `train`.
    """

    train: Floats
    train_labels: Ints
    test: Floats
    test_labels: Ints
    mean: float
    scale: float

    def normalised(self, images: Floats) -> Floats:
        return np.asarray((images - np.float32(self.mean)) * np.float32(self.scale))


@final
@dataclass(frozen=True)
class Trained:
    """The result of a training. `plan` is that of one training step; `run` is a summary
    for the user.

    `seconds` has the duration of each step, from the batch in arrays of NumPy to its
    loss in an array of NumPy.
    """

    model: Model
    plan: Plan
    seconds: list[float]
    run: dict[str, str]


# ---- the pipeline -----------------------------------------------------------


def blank(rows: int, columns: int) -> DeviceOp[Partition[Tensor[f32]]]:
    """Return an op for an output that a kernel fully overwrites."""
    return empty((rows, columns), f32).partition(TILE, partial=True)


def fresh_layer(inputs: int, outputs: int, seed: int) -> DeviceOp[Layer]:
    """Return a layer by He's initialisation: variance 2 / inputs (arXiv:1502.01852,
    equation 10), zero biases."""
    weights = randn((inputs, outputs), f32, std=(2 / inputs) ** 0.5, seed=seed)
    return zip_ops(
        weights,
        zeros((1, outputs), f32),
        zeros((inputs, outputs), f32),
        zeros((1, outputs), f32),
    )


def fresh_model(hidden: int, seed: int) -> DeviceOp[Model]:
    return zip_ops(
        fresh_layer(SIDE * SIDE, hidden, 2 * seed),
        fresh_layer(hidden, CLASSES, 2 * seed + 1),
    )


def descend(
    weights: Op, velocity: Tensor[f32], gradient: Op, rate: float
) -> tuple[Op, Op]:
    """Return one parameter and its velocity, after one step of descent."""
    new, speed, *_ = sgd(
        weights.partition(TILE, partial=True),
        velocity.partition(TILE, partial=True),
        gradient,
        rate,
        MOMENTUM,
        DECAY,
    ).unzip()
    return new.unpartition(), speed.unpartition()


def step(
    model: Model, images: Tensor[f32], labels: Tensor[i32], rate: float
) -> DeviceOp[tuple[Model, Floats]]:
    """Return the next model, and the loss (n,) of each image. Consumes all handles that
    it gets.

    A kernel returns its inputs: `w1` goes into the forward gemm and comes out of it, so
    it has been read before `descend` overwrites it. Tensors that several kernels read
    (`h`, `d`, `dz`) go through them in the same way. That orders nothing: the plan lets
    kernels that only read a tensor overlap. These tensors are memory of this step,
    while the value of a `shared()` op has memory of its own, because it may outlive the
    step.
    """
    (w1, b1, w1_speed, b1_speed), (w2, b2, w2_speed, b2_speed) = model
    rows, hidden = images.shape[0], w1.shape[1]
    z, pixels, w1_read, *_ = gemm(blank(rows, hidden), images, w1, False, False).unzip()
    relu, b1_read = biased_relu.update(z, b1).unzip()
    product, h, w2_read, *_ = gemm(
        blank(rows, CLASSES), relu.unpartition(), w2, False, False
    ).unzip()
    logits, b2_read = biased.update(product, b2).unzip()
    p, hot = array.softmax(logits.unpartition()), array.one_hot(labels, CLASSES)
    gradient, p_read, hot_read, _ = logit_gradient.into(
        blank(rows, CLASSES), p, hot, 1 / rows
    ).unzip()
    dh, d, w2_free, *_ = gemm(
        blank(rows, hidden), gradient.unpartition(), w2_read, False, True
    ).unzip()
    dz_cut, h_read = relu_backward.update(dh, h).unzip()
    w2_sum, _, d_read, *_ = gemm(blank(hidden, CLASSES), h_read, d, True, False).unzip()
    w1_sum, _, dz, *_ = gemm(
        blank(SIDE * SIDE, hidden), pixels, dz_cut.unpartition(), True, False
    ).unzip()
    new_w1, new_w1_speed = descend(w1_read, w1_speed, w1_sum.unpartition(), rate)
    new_b1, new_b1_speed = descend(
        b1_read, b1_speed, array.sum(dz, 0, keepdims=True), rate
    )
    new_w2, new_w2_speed = descend(w2_free, w2_speed, w2_sum.unpartition(), rate)
    new_b2, new_b2_speed = descend(
        b2_read, b2_speed, array.sum(d_read, 0, keepdims=True), rate
    )
    new_model = zip_ops(
        zip_ops(new_w1, new_b1, new_w1_speed, new_b1_speed),
        zip_ops(new_w2, new_b2, new_w2_speed, new_b2_speed),
    )
    return zip_ops(new_model, cross_entropy(p_read, hot_read).to_host())


@pipeline
def train_step(
    model: Model, images: Floats, labels: Ints, rate: float
) -> DeviceOp[tuple[Model, Floats]]:
    """Copy a batch (n, 64) and its labels (n,) to the device, and train on it.

    Returns the next model, in the memory of `model`, and the loss (n,) of each image,
    on the host. The function itself is called for the first batch; later batches run by
    the plan of the first one.
    """
    batch = zip_ops(from_host(images), from_host(labels))
    return batch.then(lambda uploaded: step(model, *uploaded, rate))


def rate_of(number: int, steps: int) -> float:
    """Return the rate of a step, of `steps` in all."""
    return RATE * 0.5 * (1 + math.cos(math.pi * number / steps))


def probabilities(model: Model, images: Floats) -> DeviceOp[Floats, Borrowed]:
    """Return probabilities (n, 10) for normalised images (n, 64).

    Borrows the model for the length of the run.
    """
    (w1, b1, *_), (w2, b2, *_) = model
    rows, hidden = images.shape[0], w1.shape[1]
    z = gemm.new((rows, hidden), TILE, partial=True)(
        from_host(images), w1.borrow(), False, False
    )
    h = biased_relu(z, b1.borrow())
    product = gemm.new((rows, CLASSES), TILE, partial=True)(
        h, w2.borrow(), False, False
    )
    return array.softmax(biased(product, b2.borrow())).to_host()


# ---- batches, on the host ---------------------------------------------------


def shifted(images: Floats, random: np.random.Generator) -> Floats:
    """Return images (n, 64), each moved by up to `SHIFT` pixels along both axes, with
    zeros at the edges.

    Fractions of a pixel are interpolated bilinearly.
    """
    moved = images.reshape(-1, SIDE, SIDE)
    for axis in (1, 2):
        by = random.uniform(-SHIFT, SHIFT, (len(moved), 1, 1)).astype(np.float32)
        framed = np.zeros((len(moved), SIDE + 2, SIDE + 2), np.float32)
        framed[:, 1:-1, 1:-1] = moved
        before, after = (framed[:, :-2, 1:-1], framed[:, 2:, 1:-1])
        if axis == 2:
            before, after = (framed[:, 1:-1, :-2], framed[:, 1:-1, 2:])
        moved = (1 - np.abs(by)) * moved + np.abs(by) * np.where(by > 0, before, after)
    return np.asarray(moved.reshape(images.shape))


@lru_cache(maxsize=2)
def order_of(images: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of the images in an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(images)


def prepared(digits: Digits, options: Options, number: int) -> Batch:
    """Return batch `number` of the whole training.

    It depends only on the arguments, so threads cannot change it.
    """
    epoch, place = divmod(number, len(digits.train) // options.batch)
    order = order_of(len(digits.train), options.seed, epoch)
    chosen = order[place * options.batch : (place + 1) * options.batch]
    random = np.random.default_rng((options.seed, epoch, place))
    return digits.normalised(
        shifted(digits.train[chosen], random)
    ), digits.train_labels[chosen]


def fill_epoch(digits: Digits, options: Options, epoch: int, into: Batch) -> Batch:
    """Write all batches of an epoch to `into`, and return it."""
    images, labels = into
    for place in range(len(images)):
        images[place], labels[place] = prepared(
            digits, options, epoch * len(images) + place
        )
    return into


def epochs_ahead(digits: Digits, options: Options) -> Generator[Batch]:
    """Yield the batches of each epoch. While the caller uses them, a worker thread
    prepares those of the next epoch.

    Two pairs of arrays take turns, so those of an epoch are valid until the next one is
    asked for. On a GPU a result of `to_host` is page-locked memory: a large batch is
    copied from it directly, a small one through a buffer of dagpu.
    """
    shape = (len(digits.train) // options.batch, options.batch)
    turns = [
        zip_ops(
            empty((*shape, SIDE * SIDE), f32).to_host(), empty(shape, i32).to_host()
        ).sync()
        for _ in range(2)
    ]
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as worker:
        upcoming = worker.submit(fill_epoch, digits, options, 0, turns[0])
        for epoch in range(options.epochs):
            current = upcoming.result()
            if epoch + 1 < options.epochs:
                upcoming = worker.submit(
                    fill_epoch, digits, options, epoch + 1, turns[(epoch + 1) % 2]
                )
            yield current


# ---- training ---------------------------------------------------------------


def accuracy(model: Model, images: Floats, labels: Ints) -> float:
    """Return the fraction of normalised images that the model recognises."""
    answers = probabilities(model, images).sync()
    return float(np.mean(answers.argmax(axis=1) == labels))


def train(digits: Digits, options: Options, progress: Progress) -> Trained:
    """Train the network.

    While an epoch is trained on, the batches of the next one are prepared.
    """
    in_epoch = len(digits.train) // options.batch
    steps = in_epoch * options.epochs
    bar = progress.add_task(
        "training", total=steps, loss=float("nan"), test=float("nan")
    )
    held_out = digits.normalised(digits.test)
    model = fresh_model(options.hidden, options.seed).sync()
    plan: Plan | None = None
    waited, seconds, start = 0.0, list[float](), time.perf_counter()
    reused = train_step.cache_info().hits
    with closing(epochs_ahead(digits, options)) as ahead:
        for epoch in range(options.epochs):
            losses = np.zeros(in_epoch)
            asked = time.perf_counter()
            images, labels = next(ahead)
            waited += time.perf_counter() - asked
            for place in range(in_epoch):
                rate = rate_of(epoch * in_epoch + place, steps)
                begun = time.perf_counter()
                op = train_step(model, images[place], labels[place], rate)
                plan = plan or plan_of(op)
                model, loss = op.sync()
                seconds.append(time.perf_counter() - begun)
                losses[place] = loss.mean()
                # its page-locked memory is free for the next step, whose copy then has
                # the same address
                del loss
            test = accuracy(model, held_out, digits.test_labels)
            progress.update(bar, advance=in_epoch, loss=float(losses.mean()), test=test)
    assert plan is not None, "there is at least one step"
    run = {
        "run": f"{steps} times in {time.perf_counter() - start:.1f} s",
        "waiting for batches": f"{waited:.2f} s of it",
        "steps by the first one's plan": str(train_step.cache_info().hits - reused),
    }
    return Trained(model, plan, seconds, run)


def fresh_on_host(options: Options) -> HostModel:
    """Return the model of `fresh_model` in arrays of NumPy."""
    tensors = [
        tensor
        for layer in fresh_model(options.hidden, options.seed).sync()
        for tensor in layer
    ]
    w1, b1, w1_speed, b1_speed, w2, b2, w2_speed, b2_speed = zip_ops(
        *(each.to_host() for each in tensors)
    ).sync()
    return (w1, b1, w1_speed, b1_speed), (w2, b2, w2_speed, b2_speed)


def time_numpy(digits: Digits, options: Options) -> float:
    """Return the median of the seconds that NumPy takes for a step, over at most two
    epochs of the same training."""
    in_epoch = len(digits.train) // options.batch
    steps = in_epoch * options.epochs
    model = fresh_on_host(options)
    seconds = []
    for number in range(min(steps, 2 * in_epoch)):
        images, labels = prepared(digits, options, number)
        begun = time.perf_counter()
        train_in_numpy(model, images, labels, (rate_of(number, steps), MOMENTUM, DECAY))
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


# ---- the job ----------------------------------------------------------------


def load() -> Digits:
    """Load the images.

    A fifth is held out, equally from each digit. The split does not depend on options.
    """
    source: Any = load_digits()
    images, labels = (
        (source.data / 16).astype(np.float32),
        source.target.astype(np.int32),
    )
    parts: Any = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    train_images, test_images, train_labels, test_labels = parts
    mean, scale = float(train_images.mean()), float(1 / train_images.std())
    return Digits(train_images, train_labels, test_images, test_labels, mean, scale)


def job(options: Options) -> int:
    """Train, print the results, write the picture.

    Return 0 if the accuracy on held-out images suffices, else 1.
    """
    digits, console = load(), Console()
    if options.batch > len(digits.train):
        return complain(
            f"--batch {options.batch} is more than the {len(digits.train)} images "
            "to train on",
            2,
        )
    if not options.out.absolute().parent.is_dir():
        return complain(
            f"--out {options.out}: there is no folder {options.out.parent} to "
            "write it to",
            2,
        )
    with Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}, held out {task.fields[test]:.2%}"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        trained = train(digits, options, progress)
    on_train = accuracy(
        trained.model, digits.normalised(digits.train), digits.train_labels
    )
    answers = probabilities(trained.model, digits.normalised(digits.test)).sync()
    on_test = float(np.mean(answers.argmax(axis=1) == digits.test_labels))
    right = {
        "trained on": (len(digits.train), on_train),
        "held out": (len(digits.test), on_test),
    }
    step = statistics.median(trained.seconds)
    costs = {
        "a step, with upload and loss": f"{1e6 * step:,.0f} us",
        "the same step in NumPy": f"{1e6 * time_numpy(digits, options):,.0f} us",
    }
    console.print(
        accuracy_table(right), plan_table(trained.plan, trained.run | costs), sep="\n"
    )
    picture(digits.test.reshape(-1, SIDE, SIDE), digits.test_labels, answers).save(
        options.out, format="PNG"
    )
    console.print(f"wrote {options.out}")
    if on_test < options.bar:
        return complain(
            f"{on_test:.2%} of the held-out images are right, under the bar of "
            f"{options.bar:.0%}: "
            "train for longer (--epochs) or with a wider hidden layer (--hidden)",
            1,
        )
    return 0


def complain(what: str, code: int) -> int:
    print(f"digits: {what}", file=sys.stderr)
    return code


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def parsed(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m examples.digits",
        description="Train on handwritten digits with dagpu kernels.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="6 epochs, 32 hidden units, a bar of 90 %%"
    )
    parser.add_argument(
        "--epochs", type=at_least(1), help="passes over the training images (40)"
    )
    parser.add_argument(
        "--hidden", type=at_least(1), help="units of the hidden layer (128)"
    )
    parser.add_argument(
        "--batch", type=at_least(1), default=64, help="images in a batch (64)"
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        help="of the weights, the shuffles and the shifts (0)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("digits.png"),
        help="picture to write (digits.png)",
    )
    given = parser.parse_args(arguments)
    return Options(
        epochs=given.epochs or (6 if given.quick else 40),
        hidden=given.hidden or (32 if given.quick else 128),
        batch=given.batch,
        seed=given.seed,
        bar=0.90 if given.quick else 0.95,
        out=given.out,
    )


def main(arguments: Sequence[str]) -> int:
    return job(parsed(arguments))
