"""A data-parallel MLP: each device has a copy of the weights and a part of the batch;
gradients are averaged.

    weights on the first device --copy--> every device: forward, backward on its part
                                                              --copy--> average, step

A kernel runs on the device of its output. `.on(device)` places an op that has no device
yet, so `dup(w).on(d)` is a copy to `d`. One step of training on all devices is one op:
the parts are not ordered among themselves, so they overlap. The devices are two GPUs if
there are two, or the only GPU, or otherwise two host devices. Only `DEVICES` names
them.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Out,
    Partition,
    SharedTensor,
    Tensor,
    Tile,
    current_device,
    devices,
    dup,
    empty,
    f32,
    from_host,
    kernel,
    use_device,
    zip_ops,
)

GPUS = [gpu.name for gpu in devices() if gpu.kind == current_device().kind == "cuda"]
DEVICES = tuple(GPUS[:2]) or ("host:0", "host:1")
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


@kernel(
    cuda="""
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""
)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None:
    """y += a x."""


@saxpy.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    y[...] += a * x[y.at]


Floats = NDArray[np.floating[Any]]
Weights = tuple[SharedTensor[f32], SharedTensor[f32]]
Gradients = tuple[DeviceOp[Tensor[f32]], DeviceOp[Tensor[f32]]]


def replica(
    place: str, weights: Weights, x: NDArray[f32], t: NDArray[f32]
) -> Gradients:
    """Return both layers' gradients from one part of the batch, computed on `place`."""

    def out(*shape: int) -> DeviceOp[Partition[Tensor[f32]]]:
        return empty(shape).on(place).partition(TILE)

    w1, w2 = (dup(w).on(place).shared() for w in weights)
    inputs, rows = from_host(x).on(place).shared(), len(x)
    h: DeviceOp[SharedTensor[f32]] = (
        forward(out(rows, HIDDEN), inputs, w1).first().unpartition().shared()
    )
    e: DeviceOp[SharedTensor[f32]] = (
        error(out(rows, OUTPUTS), h, w2, from_host(t).on(place))
        .first()
        .unpartition()
        .shared()
    )
    d: DeviceOp[Tensor[f32]] = (
        backward(out(rows, HIDDEN), e, w2, h).first().unpartition()
    )
    return (
        gradient(out(FEATURES, HIDDEN), inputs, d).first().unpartition(),
        gradient(out(HIDDEN, OUTPUTS), h, e).first().unpartition(),
    )


def descend(
    weight: SharedTensor[f32],
    gradients: Iterable[DeviceOp[Tensor[f32]]],
) -> DeviceOp[SharedTensor[f32]]:
    """Return weight - RATE * mean(gradients) on the first device; gradients may be on
    any device."""
    home = DEVICES[0]
    new: DeviceOp[Partition[Tensor[f32]]] = dup(weight).on(home).partition(TILE)
    for each in gradients:
        new = saxpy(
            new, -RATE / len(DEVICES), each.then(lambda g: dup(g).on(home))
        ).first()
    return new.unpartition().share()


def step(weights: Weights, x: NDArray[f32], t: NDArray[f32]) -> DeviceOp[Weights]:
    """Return one step of gradient descent over all devices, as one op."""
    parts = zip(
        DEVICES, np.split(x, len(DEVICES)), np.split(t, len(DEVICES)), strict=True
    )
    first, second = zip(
        *(replica(place, weights, *part) for place, *part in parts), strict=True
    )
    return zip_ops(descend(weights[0], first), descend(weights[1], second))


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

    with use_device(DEVICES[0]):
        weights = zip_ops(from_host(w1).share(), from_host(w2).share()).sync()
        for place in DEVICES:
            assert all(
                part.sync().device.name == place
                for part in replica(place, weights, x, t)
            )

        plain: tuple[Floats, Floats] = w1, w2
        for _ in range(STEPS):
            weights = step(weights, x, t).sync()
            plain = numpy_step(*plain, x, t)
        trained = zip_ops(weights[0].to_host(), weights[1].to_host()).sync()

    before, after = loss(w1, w2, x, t), loss(*trained, x, t)
    print(f"{STEPS} steps on {len(DEVICES)} devices: loss {before:.3f} -> {after:.3f}")
    assert after < before / 2
    for ours, theirs in zip(trained, plain, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    main()
