"""A data-parallel MLP: each device has rows of the batch and rows of the weights.

    all_gather the weights --> each device: forward, backward on its rows
                           --> reduce_scatter the gradients --> step

The types say where the data lie. `Sharded` is cut over the devices, `Replicated` is on
all of them, and gradients are `Partials` until they are reduced: to use one before that
is an error in mypy. One step of training on all devices is one op, and a pipeline, so
all steps run by one plan. The devices are the GPUs, or otherwise four host devices.
Only `DEVICES` names them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    In,
    Mesh,
    Out,
    Partition,
    Rank,
    Sharded,
    ShardedRef,
    SharedTensor,
    Tensor,
    TensorRef,
    Tile,
    all_gather,
    as_partials,
    as_shards,
    current_device,
    devices,
    each,
    empty,
    expr,
    f32,
    kernel,
    pipeline,
    reduce_scatter,
    shard_host,
    unzip_each,
    zip_ops,
)

GPUS = [gpu.name for gpu in devices() if gpu.kind == current_device().kind == "cuda"]
DEVICES = tuple(GPUS[:4]) or ("host:0", "host:1", "host:2", "host:3")
BATCH, FEATURES, HIDDEN, OUTPUTS, TILE = 64, 8, 16, 8, (8, 8)
STEPS, RATE = 30, 0.2


@kernel(
    cuda="""
__global__ void forward(
    Tile<float, 2> h, View<const float, 2> x, View<const float, 2> w
) {
    for (auto i : h) {
        float sum = 0;
        for (int k = 0; k < x.extent(1); ++k) sum += x(i[0], k) * w(k, i[1]);
        h[i] = fmaxf(sum, 0);
    }
}
"""
)
def forward(h: Out[f32], x: In[f32], w: In[f32]) -> None:
    """h = relu(x w), shapes (b, m), (b, n), (n, m)."""


@forward.host
def _(h: Tile[f32], x: NDArray[f32], w: NDArray[f32]) -> None:
    rows, columns = h.at
    np.maximum(x[rows] @ w[:, columns], 0, out=h)


@kernel(
    cuda="""
__global__ void error(Tile<float, 2> e, View<const float, 2> h, View<const float, 2> w,
                      View<const float, 2> t) {
    for (auto i : e) {
        float sum = -t[i];
        for (int k = 0; k < h.extent(1); ++k) sum += h(i[0], k) * w(k, i[1]);
        e[i] = sum / t.extent(0);
    }
}
"""
)
def error(e: Out[f32], h: In[f32], w: In[f32], t: In[f32]) -> None:
    """e = (h w - t) / b: the gradient of half the squared error, averaged over the b
    rows."""


@error.host
def _(e: Tile[f32], h: NDArray[f32], w: NDArray[f32], t: NDArray[f32]) -> None:
    rows, columns = e.at
    e[...] = (h[rows] @ w[:, columns] - t[e.at]) / len(t)


@kernel(
    cuda="""
__global__ void backward(
    Tile<float, 2> d, View<const float, 2> e, View<const float, 2> w,
    View<const float, 2> h
) {
    for (auto i : d) {
        float sum = 0;
        for (int k = 0; k < e.extent(1); ++k) sum += e(i[0], k) * w(i[1], k);
        d[i] = h[i] > 0 ? sum : 0;
    }
}
"""
)
def backward(d: Out[f32], e: In[f32], w: In[f32], h: In[f32]) -> None:
    """d = (e w') where h > 0, else 0: the error before the relu."""


@backward.host
def _(d: Tile[f32], e: NDArray[f32], w: NDArray[f32], h: NDArray[f32]) -> None:
    rows, columns = d.at
    d[...] = (e[rows] @ w[columns].T) * (h[d.at] > 0)


@kernel(
    cuda="""
__global__ void gradient(
    Tile<float, 2> g, View<const float, 2> x, View<const float, 2> d
) {
    for (auto i : g) {
        float sum = 0;
        for (int k = 0; k < x.extent(0); ++k) sum += x(k, i[0]) * d(k, i[1]);
        g[i] = sum;
    }
}
"""
)
def gradient(g: Out[f32], x: In[f32], d: In[f32]) -> None:
    """g = x' d: the gradient of a layer's weights from its input and its error."""


@gradient.host
def _(g: Tile[f32], x: NDArray[f32], d: NDArray[f32]) -> None:
    rows, columns = g.at
    g[...] = x[:, rows].T @ d[:, columns]


Floats = NDArray[np.floating[Any]]
Weights = tuple[Sharded[f32], Sharded[f32]]
Both = tuple[Tensor[f32], Tensor[f32]]

descend = expr(f32, f32)(lambda w, gradient: w - RATE * gradient)


def gradients(
    x: TensorRef[f32],
    t: TensorRef[f32],
    w1: SharedTensor[f32],
    w2: SharedTensor[f32],
    rank: Rank,
) -> DeviceOp[Both, Borrowed]:
    """Return both layers' gradients from one device's rows of the batch."""

    def out(*shape: int) -> DeviceOp[Partition[Tensor[f32]]]:
        return empty(shape).partition(TILE)

    rows = x.shape[0]
    h: DeviceOp[SharedTensor[f32], Borrowed] = (
        forward(out(rows, HIDDEN), x, w1).first().unpartition().shared()
    )
    e: DeviceOp[SharedTensor[f32], Borrowed] = (
        error(out(rows, OUTPUTS), h, w2, t).first().unpartition().shared()
    )
    d: DeviceOp[Tensor[f32], Borrowed] = (
        backward(out(rows, HIDDEN), e, w2, h).first().unpartition()
    )
    return zip_ops(
        gradient(out(FEATURES, HIDDEN), x, d).first().unpartition(),
        gradient(out(HIDDEN, OUTPUTS), h, e).first().unpartition(),
    )


def stepped(
    w: TensorRef[f32], gradient: Tensor[f32], rank: Rank
) -> DeviceOp[Tensor[f32], Borrowed]:
    """Return one device's rows of a layer's weights, a step further."""
    return descend(w, gradient)


@pipeline
def step(
    w1: ShardedRef[f32], w2: ShardedRef[f32], xs: ShardedRef[f32], ts: ShardedRef[f32]
) -> DeviceOp[Weights, Borrowed]:
    """Return one step of gradient descent over all devices, as one op."""
    found = each(gradients, xs, ts, all_gather(w1), all_gather(w2))
    of_first, of_second = unzip_each(found)
    first, second = as_partials(of_first), as_partials(of_second)
    return zip_ops(
        as_shards(
            each(stepped, w1, reduce_scatter(first, how="mean")), (FEATURES, HIDDEN)
        ),
        as_shards(
            each(stepped, w2, reduce_scatter(second, how="mean")), (HIDDEN, OUTPUTS)
        ),
    )


def numpy_step(w1: Floats, w2: Floats, x: Floats, t: Floats) -> tuple[Floats, Floats]:
    """Do the same step on the whole batch at once, in plain NumPy."""
    h = np.maximum(x @ w1, 0)
    e = (h @ w2 - t) / len(x)
    return w1 - RATE * (x.T @ ((e @ w2.T) * (h > 0))), w2 - RATE * (h.T @ e)


def loss(w1: Floats, w2: Floats, x: Floats, t: Floats) -> float:
    return float(0.5 * np.square(np.maximum(x @ w1, 0) @ w2 - t).sum(axis=1).mean())


def main() -> None:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> NDArray[f32]:
        return rng.standard_normal(shape, dtype=f32) / f32(np.sqrt(shape[0]))

    x = rng.standard_normal((BATCH, FEATURES), dtype=f32)
    teacher = normal(FEATURES, HIDDEN), normal(HIDDEN, OUTPUTS)
    t = np.maximum(x @ teacher[0], 0) @ teacher[1]
    w1, w2 = normal(FEATURES, HIDDEN), normal(HIDDEN, OUTPUTS)

    mesh = Mesh(DEVICES)
    xs, ts = zip_ops(shard_host(x, mesh), shard_host(t, mesh)).sync()
    weights: Weights = zip_ops(shard_host(w1, mesh), shard_host(w2, mesh)).sync()
    plain: tuple[Floats, Floats] = w1, w2
    for _ in range(STEPS):
        first, second = weights
        weights = step(first.borrow(), second.borrow(), xs.borrow(), ts.borrow()).sync()
        plain = numpy_step(*plain, x, t)
    assert all(w.mesh == mesh for w in weights)
    trained = zip_ops(weights[0].to_host(), weights[1].to_host()).sync()

    before, after = loss(w1, w2, x, t), loss(*trained, x, t)
    print(f"{STEPS} steps on {len(DEVICES)} devices: loss {before:.3f} -> {after:.3f}")
    assert after < before / 2
    assert step.cache_info().currsize == 1, "all steps run by one plan"
    for ours, theirs in zip(trained, plain, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    main()
