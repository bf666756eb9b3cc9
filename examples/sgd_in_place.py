"""Stochastic gradient descent in place: each step reads the weights, and then
overwrites them.

The weights are lent to the step once, for writing: `weights.borrow_mut()`. A kernel
also takes a tensor lent for writing as an input, and returns it among its results. Cut
into tiles, it is the output of the kernel that updates it. So the data flow determines
that the gradient reads the weights before the update writes them. No step allocates
weights.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    In,
    Out,
    TensorMut,
    Tile,
    empty,
    f32,
    from_host,
    kernel,
    pipeline,
    zeros,
)

ROWS, FEATURES, BATCHES, STEPS, RATE = 128, 32, 4, 200, 0.5
ROW_TILE, FEATURE_TILE = (32,), (32,)


@kernel(
    cuda="""
__global__ void residuals(
    Tile<float, 1> r, View<const float, 2> x, View<const float, 1> w,
    View<const float, 1> y
) {
    for (auto i : r) {
        float sum = -y[i];
        for (int j = 0; j < x.extent(1); ++j) sum += x(i, j) * w(j);
        r[i] = sum;
    }
}
"""
)
def residuals(r: Out[f32], x: In[f32], w: In[f32], y: In[f32]) -> None:
    """r = x w - y: the error of each row's prediction."""


@residuals.host
def _(r: Tile[f32], x: NDArray[f32], w: NDArray[f32], y: NDArray[f32]) -> None:
    r[...] = x[r.at] @ w - y[r.at]


@kernel(
    cuda="""
__global__ void gradient(
    Tile<float, 1> g, View<const float, 2> x, View<const float, 1> r
) {
    for (auto j : g) {
        float sum = 0;
        for (int i = 0; i < x.extent(0); ++i) sum += x(i, j) * r(i);
        g[j] = sum / x.extent(0);
    }
}
"""
)
def gradient(g: Out[f32], x: In[f32], r: In[f32]) -> None:
    """g = x' r / rows: the slope of half the mean squared residual."""


@gradient.host
def _(g: Tile[f32], x: NDArray[f32], r: NDArray[f32]) -> None:
    g[...] = x[:, g.at[0]].T @ r / f32(len(r))


@kernel(
    cuda="""
__global__ void descend(Tile<float, 1> w, float rate, View<const float, 1> g) {
    for (auto j : w) w[j] -= rate * g[j];
}
"""
)
def descend(w: Out[f32], rate: float, g: In[f32]) -> None:
    """w -= rate g."""


@descend.host
def _(w: Tile[f32], rate: float, g: NDArray[f32]) -> None:
    w[...] -= f32(rate) * g[w.at]


@pipeline
def step(
    w: TensorMut[f32], x: NDArray[f32], y: NDArray[f32], rate: float
) -> DeviceOp[NDArray[f32], Borrowed]:
    """Return one step of descent on one batch.

    Its result is the residuals before the step.
    """
    rows = from_host(x).shared()
    r, _, lent, _ = residuals(
        empty(y.shape).partition(ROW_TILE), rows, w, from_host(y)
    ).unzip()
    off = r.unpartition().shared()
    g = gradient.new(x.shape[1:], FEATURE_TILE)(rows, off)
    return descend(lent.partition(FEATURE_TILE), rate, g).then(lambda _: off.to_host())


def main() -> None:
    random = np.random.default_rng(seed=0)
    truth = random.standard_normal(FEATURES).astype(f32)
    batches = [
        random.standard_normal((ROWS, FEATURES)).astype(f32) for _ in range(BATCHES)
    ]

    weights = zeros((FEATURES,)).sync()
    losses: list[float] = []
    for number in range(STEPS):
        x = batches[number % BATCHES]
        off = step(weights.borrow_mut(), x, x @ truth, RATE).sync()
        losses.append(float((off**2).mean()) / 2)
    print(
        f"loss: {losses[0]:.3f} at first, {losses[-1]:.2e} after {STEPS} steps in place"
    )

    assert losses[-1] < 1e-6 < losses[0]
    assert np.allclose(weights.to_host().sync(), truth, atol=1e-3)
    assert step.cache_info().misses == 1  # one plan serves all steps


if __name__ == "__main__":
    main()
