"""The training step of examples/digits in NumPy, in float32: the same formulas as its
kernels, without dagpu.

Shapes are those of kernels.py: `n` images in a batch, weights (k, m), biases (1, m).
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
HostLayer: TypeAlias = tuple[Floats, Floats, Floats, Floats]
"""Weights (k, m), bias (1, m), and the velocity of each, of the same shapes."""
HostModel: TypeAlias = tuple[HostLayer, HostLayer]


def descend_in_place(
    w: Floats, v: Floats, g: Floats, descent: tuple[float, float, float]
) -> None:
    """Update weights and their velocity.

    `descent` is the rate, the momentum and the decay.
    """
    rate, momentum, decay = map(np.float32, descent)
    v *= momentum
    v += g
    v += decay * w
    w -= rate * v


def train_in_numpy(
    model: HostModel,
    images: Floats,
    labels: NDArray[np.int32],
    descent: tuple[float, float, float],
) -> Floats:
    """Update the model in place by one step, and return the loss (n,) of each image (n,
    64)."""
    (w1, b1, w1_speed, b1_speed), (w2, b2, w2_speed, b2_speed) = model
    rows = np.arange(len(images))
    h = np.maximum(images @ w1 + b1, 0)
    p = h @ w2 + b2
    p -= p.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    losses = np.asarray(-np.log(np.maximum(p[rows, labels], np.float32(1e-30))))
    p[rows, labels] -= 1
    p *= np.float32(1 / len(images))
    dz = (p @ w2.T) * (h > 0)
    descend_in_place(w2, w2_speed, h.T @ p, descent)
    descend_in_place(b2, b2_speed, p.sum(axis=0, keepdims=True), descent)
    descend_in_place(w1, w1_speed, images.T @ dz, descent)
    descend_in_place(b1, b1_speed, dz.sum(axis=0, keepdims=True), descent)
    return losses
