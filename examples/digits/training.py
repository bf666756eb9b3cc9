"""Trains a two-layer network on 1,797 real handwritten digits, as a pipeline of dagpu
kernels.

    python -m examples.digits [--quick] [--epochs 40] [--hidden 128] [--batch 64]
                              [--seed 0] [--out FILE]

One training step is one call of a pipeline. It copies a batch of images and labels to
the device, takes the model (owned tensors), and returns the next model and the loss.
Its gradient is derived from the loss; the weights are updated in place. Independent
parts of the step (gradients of the two layers, the four updates) may overlap. The first
step is traced and planned; all others run by its plan, and on a GPU each is one launch
of a CUDA graph. While an epoch is trained on, the batches of the next one are shuffled,
shifted and normalised on a worker thread. Exits with status 1 if the accuracy on images
that were never trained on is under 95 % (90 % with --quick).
"""

import math
import statistics
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from rich.progress import (
    Progress,
)

from dagpu import (
    Borrowed,
    DeviceOp,
    In,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    array,
    f32,
    from_host,
    full,
    i32,
    pipeline,
    plan_of,
    randn,
    value,
    zeros,
    zip_ops,
)
from dagpu.grad import updated, vjp
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
    sgd,
)
from examples.digits.numpy_training import HostModel, train_in_numpy

CLASSES = 10
TILE = (16, 16)
RATE, MOMENTUM, DECAY = 0.1, 0.9, 1e-4  # the rate falls to 0 along a half cosine

Op: TypeAlias = DeviceOp[Tensor[f32], Any]
Shared: TypeAlias = SharedTensor[f32]
Weights: TypeAlias = tuple[Shared, Shared, Shared, Shared]
"""What is trained: the weights and the bias of each layer."""
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


def cut(t: TensorMut[f32]) -> Partition[TensorMut[f32]]:
    return t.partition(TILE, partial=True)


def product(a: In[f32], b: Shared, rows: int) -> Op:
    """Return the op of a b, for a (n, k) and b (k, m)."""
    shape = rows, b.shape[1]
    return gemm.new(shape, TILE, partial=True)(a, b, False, False)


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


def losses(weights: Weights, images: Shared, hot: Shared) -> Op:
    """Return the loss (n,) of each image. `hot` has 1 at an image's label."""
    (w1, b1, w2, b2), rows = weights, images.shape[0]
    h = biased_relu(product(images, w1, rows), b1)
    p = array.softmax(biased(product(h, w2, rows), b2))
    return cross_entropy(p, hot)


def step(
    model: Model, images: Tensor[f32], labels: Tensor[i32], rate: float
) -> DeviceOp[tuple[Model, Floats], Borrowed]:
    """Return the next model, and the loss (n,) of each image. Consumes all handles that
    it gets.

    The gradient reads the weights, and then `sgd` overwrites them: the model is lent
    for that, and stays where it is.
    """
    (w1, b1, *first), (w2, b2, *second) = model
    weights, speeds = (w1, b1, w2, b2), (*first, *second)
    pixels = images.share()
    rows = pixels.shape[0]

    def descended(hot: Shared) -> DeviceOp[Tensor[f32], Borrowed]:
        mean = full((rows,), 1 / rows, f32)  # of the losses: what each counts for
        return updated(
            tuple([t.borrow_mut() for t in weights]),
            lambda w: vjp(lambda w: losses(w, pixels, hot), w, cotangent=mean),
            lambda w, g, v: sgd(cut(w), cut(v), g, rate, MOMENTUM, DECAY),
            tuple([t.borrow_mut() for t in speeds]),
        )

    trained = array.one_hot(labels, CLASSES).share().then(descended)
    return trained.then(lambda found: zip_ops(value(model), found.to_host()))


@pipeline
def train_step(
    model: Model, images: Floats, labels: Ints, rate: float
) -> DeviceOp[tuple[Model, Floats], Borrowed]:
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
