"""A small transformer learns the characters of a text, within a given number of bytes.

The text is the licence of this project. The model has one block, attention of one head
and two layers behind it, which is applied four times. Its gradient is derived from the
loss. `memory_limit` gives the step five sixths of the memory that it would take: the
plan computes values of the pass forward again, and no bit of the training changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    ListSchedule,
    SharedTensor,
    Tensor,
    TensorMut,
    array,
    expr,
    f32,
    from_host,
    i32,
    pipeline,
    plan_of,
    randn,
    zeros,
)
from dagpu.grad import Parameterized, adam, updated, value_and_grad

T = TypeVar("T")
U = TypeVar("U")
Shared = SharedTensor[f32]
Op = DeviceOp[Tensor[f32], Any]

WIDTH, INNER, LENGTH, BATCH, DEPTH = 32, 64, 24, 16, 4
STEPS, RATE = 30, 0.02


@dataclass(frozen=True)
class Model(Parameterized[T]):
    """Embeddings of characters and places, the block, and the way back."""

    letters: T
    places: T
    query: T
    key: T
    value: T
    up: T
    down: T
    out: T

    def mapped(self, f: Callable[[T], U], /) -> "Model[U]":
        return Model(
            f(self.letters), f(self.places), f(self.query), f(self.key), f(self.value),
            f(self.up), f(self.down), f(self.out),
        )  # fmt: skip


plus = expr(f32, f32)(lambda x, y: x + y)
gelu = expr(f32)(lambda x: 0.5 * x * (1 + array.erf(x * 0.5**0.5)))
attention = expr(f32, f32)(lambda s, mask: s * WIDTH**-0.5 + mask).softmax()
surprise = expr(f32, f32)(lambda logarithm, hot: -logarithm * hot).sum(1)


def loss(m: Model[Shared], text: SharedTensor[i32], hot: Shared, mask: Shared) -> Op:
    """Return the mean of -log p of each next character, of a batch (n, length)."""
    rows = text.shape[0] * text.shape[1]
    embedded = plus(array.take(m.letters, text), m.places)

    def block(x: Shared) -> Op:
        q, k, v = (array.matmul(x, w) for w in (m.query, m.key, m.value))
        seen = attention(array.matmul(q, k, transpose="b"), mask)
        return plus(x, array.matmul(seen, v))

    def layers(x: Shared) -> Op:
        return plus(x, array.matmul(gelu(array.matmul(x, m.up)), m.down))

    def judged(x: Shared) -> Op:
        logits = array.matmul(x.reshape((rows, WIDTH)), m.out)
        return array.mean(surprise(array.log_softmax(logits), hot))

    def deep(x: Shared, left: int) -> Op:
        if not left:
            return judged(x)
        passed = block(x).share().then(layers).share()
        return passed.then(lambda x: deep(x, left - 1))

    return embedded.share().then(lambda x: deep(x, DEPTH))


def step(
    m: Model[TensorMut[f32]],
    means: Model[TensorMut[f32]],
    squares: Model[TensorMut[f32]],
    text: NDArray[i32],
    following: NDArray[i32],
    mask: Shared,
    count: float,
) -> Op:
    """Read the model, and write it: one step of Adam on a batch. Return the loss."""
    letters = m.letters.shape[0]
    read, hot = from_host(text).share(), array.one_hot(from_host(following), letters)

    def trained(read: SharedTensor[i32], hot: Shared) -> Op:
        return updated(
            m,
            lambda m: value_and_grad(loss)(m, read, hot, mask),
            lambda w, g, mean, square: adam(w, g, mean, square, count, rate=RATE),
            means,
            squares,
        )

    return read.then(lambda read: hot.share().then(lambda hot: trained(read, hot)))


def within(policy: ListSchedule) -> Callable[..., Op]:
    """Return the step as a pipeline that is planned by a policy."""

    @pipeline
    def planned(*arguments: Any) -> Op:
        return step(*arguments).schedule(policy)

    return planned


def fresh(letters: int) -> Model[Tensor[f32]]:
    def drawn(seed: int, *shape: int) -> Tensor[f32]:
        return randn(shape, std=shape[0] ** -0.5, seed=seed).sync()

    w, n = WIDTH, INNER
    return Model(
        drawn(0, letters, w), drawn(1, LENGTH, w), drawn(2, w, w), drawn(3, w, w),
        drawn(4, w, w), drawn(5, w, n), drawn(6, n, w), drawn(7, w, letters),
    )  # fmt: skip


def main() -> None:
    text = (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(letter) for letter in text], np.int32)
    hidden = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)
    mask = from_host(hidden).sync().share()
    model = fresh(len(alphabet))
    means, squares = (model.mapped(lambda w: zeros(w.shape).sync()) for _ in range(2))

    def call(number: int, trained: Callable[..., Op]) -> Op:
        random = np.random.default_rng(number)
        starts = random.integers(0, len(codes) - LENGTH - 1, BATCH)
        batch = codes[starts[:, None] + np.arange(LENGTH + 1)]
        lent = [
            each.mapped(lambda w: w.borrow_mut()) for each in (model, means, squares)
        ]
        inputs = np.ascontiguousarray(batch[:, :-1]), batch[:, 1:].reshape(-1)
        return trained(*lent, *inputs, mask, float(number + 1))

    free = plan_of(call(0, within(ListSchedule(1)))).peak_bytes
    limit = free * 5 // 6
    train = within(ListSchedule(1, memory_limit=limit, recompute=True))
    fits = plan_of(call(0, train)).peak_bytes
    losses = [float(call(n, train).sync().to_host().sync()) for n in range(STEPS)]
    print(f"a step takes {free:,} bytes, and {fits:,} within {limit:,}")
    print(f"loss: {losses[0]:.2f} at first, {losses[-1]:.2f} after {STEPS} steps")

    assert fits <= limit
    assert losses[-1] < 0.75 * losses[0]


if __name__ == "__main__":
    main()
