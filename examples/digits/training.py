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

import math
import statistics
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from rich.progress import (
    Progress,
)

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
from dagpu.testing import Plan
from examples.digits.batches import (
    SIDE,
    Digits,
    Floats,
    Ints,
    Options,
    epochs_ahead,
    prepared,
)
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

CLASSES = 10
TILE = (16, 16)
RATE, MOMENTUM, DECAY = 0.1, 0.9, 1e-4  # the rate falls to 0 along a half cosine

Op: TypeAlias = DeviceOp[Tensor[f32]]
Layer: TypeAlias = tuple[Tensor[f32], Tensor[f32], Tensor[f32], Tensor[f32]]
"""Weights (k, m), bias (1, m), and the velocity of each, of the same shapes."""
Model: TypeAlias = tuple[Layer, Layer]


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
