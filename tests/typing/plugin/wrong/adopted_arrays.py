"""An array of another library is used after `adopt` has taken it. A run has no means to notice it."""

from typing import Any

import numpy as np

import dagpu
from dagpu import adopt, f32


def read_afterwards() -> None:  # R: runs
    x = np.ones(8, np.float32)
    t = adopt(x)
    print(x.sum(), t.shape)  # E: dagpu-use-after-move


def an_array_without_a_type() -> None:  # R: runs
    x: Any = np.ones(8, np.float32)
    t = dagpu.adopt(x, f32)
    x[0] = 2  # E: dagpu-use-after-move
    print(t.shape)


def on_one_branch() -> None:  # R: runs
    x = np.ones(8, np.float32)
    if x.sum() > 3:
        print(adopt(x).shape)
    print(x)  # E: dagpu-use-after-move


def handed_on() -> None:  # R: runs
    def consume(x: object) -> None:
        print(x)

    x = np.ones(8, np.float32)
    t = adopt(x)
    consume(x)  # E: dagpu-use-after-move
    print(t.shape)


def in_each_round() -> None:
    x = np.ones(8, np.float32)
    for _ in range(2):
        t = adopt(x)  # E: dagpu-use-after-move
        print(t.shape)
