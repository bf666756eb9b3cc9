"""The images, and the batches of a training: shuffled, shifted and normalised on the
host."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dagpu import empty, f32, i32, zip_ops

SIDE = 8
SHIFT = 0.8  # pixels; images are moved by up to this much, at random

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int32]
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
