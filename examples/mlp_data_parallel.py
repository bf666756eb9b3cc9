"""A data-parallel MLP: each device has rows of the batch and rows of the weights.

    all_gather the weights --> each device: the loss of its rows --> all_reduce

The pass back is derived from the loss, over all devices: the gradients are reduced to
the rows of the weights that a device has, by a reduce_scatter. The types say where the
data lie: `Sharded` is cut over the devices, `Replicated` is on all of them, and losses
are `Partials` until they are reduced: to use one before that is an error in mypy. One
step of training on all devices is one op, and a pipeline, so all steps run by one plan.
The devices are the GPUs, or otherwise four host devices. Only `DEVICES` names them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    Elem,
    Mesh,
    Rank,
    Replicated,
    Sharded,
    ShardedRef,
    SharedTensor,
    Tensor,
    TensorRef,
    all_gather,
    all_reduce,
    array,
    as_partials,
    as_shards,
    current_device,
    devices,
    each,
    expr,
    f32,
    pipeline,
    shard_host,
    zip_ops,
)
from dagpu.grad import vjp

GPUS = [gpu.name for gpu in devices() if gpu.kind == current_device().kind == "cuda"]
DEVICES = tuple(GPUS[:4]) or ("host:0", "host:1", "host:2", "host:3")
BATCH, FEATURES, HIDDEN, OUTPUTS = 64, 8, 16, 8
STEPS, RATE = 30, 0.2

Floats = NDArray[np.floating[Any]]
Weights = tuple[Sharded[f32], Sharded[f32]]
Lent = tuple[ShardedRef[f32], ShardedRef[f32]]
Loss = DeviceOp[Replicated[f32], Borrowed]

descend = expr(f32, f32)(lambda w, gradient: w - RATE * gradient)


@expr
def half_square(y: Elem[f32], t: Elem[f32]) -> Elem[f32]:
    return (y - t) * (y - t) / 2


@expr
def relu(x: Elem[f32]) -> Elem[f32]:
    return array.maximum(x, 0)


def loss_of_rows(
    x: TensorRef[f32],
    t: TensorRef[f32],
    w1: SharedTensor[f32],
    w2: SharedTensor[f32],
    rank: Rank,
) -> DeviceOp[Tensor[f32], Borrowed]:
    """Return half the squared error of one device's rows of the batch, per row."""
    y = array.matmul(relu(array.matmul(x, w1)), w2)
    return half_square.sum()(y, t) / x.shape[0]


def loss(w: Lent, xs: ShardedRef[f32], ts: ShardedRef[f32]) -> Loss:
    """Return the mean over all devices, on each of them."""
    found = each(loss_of_rows, xs, ts, all_gather(w[0]), all_gather(w[1]))
    return all_reduce(as_partials(found), "mean")


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
    found = vjp(lambda w: loss(w, xs, ts), (w1, w2))
    first, second = found.map(lambda value_and_slopes: value_and_slopes[1]).unzip(2)
    return zip_ops(
        as_shards(each(stepped, w1, first), (FEATURES, HIDDEN)),
        as_shards(each(stepped, w2, second), (HIDDEN, OUTPUTS)),
    )


def numpy_step(w1: Floats, w2: Floats, x: Floats, t: Floats) -> tuple[Floats, Floats]:
    """Do the same step on the whole batch at once, in plain NumPy."""
    h = np.maximum(x @ w1, 0)
    e = (h @ w2 - t) / len(x)
    return w1 - RATE * (x.T @ ((e @ w2.T) * (h > 0))), w2 - RATE * (h.T @ e)


def error(w1: Floats, w2: Floats, x: Floats, t: Floats) -> float:
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

    before, after = error(w1, w2, x, t), error(*trained, x, t)
    print(f"{STEPS} steps on {len(DEVICES)} devices: loss {before:.3f} -> {after:.3f}")
    assert after < before / 2
    assert step.cache_info().currsize == 1, "all steps run by one plan"
    for ours, theirs in zip(trained, plain, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    main()
