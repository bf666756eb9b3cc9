"""A module of PyTorch inside of a pipeline: its work is one op of the plan, and nothing
is copied.

On a GPU with PyTorch the layers run on dagpu's memory and stream, and from the second
call on the whole pipeline is one CUDA graph. Without PyTorch, and on the host, the
NumPy body does the same work.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Tensor,
    array,
    current_device,
    f32,
    foreign,
    from_host,
    i64,
    pipeline,
    use_device,
)
from dagpu.interop import extent, new, require

FEATURES, HIDDEN, CLASSES = 8, 16, 4


@foreign
def classify(x: In[f32], w1: In[f32], w2: In[f32]) -> Tensor[f32]:
    """softmax(relu(x @ w1) @ w2): x (n, features), w1 (features, hidden), w2 (hidden,
    classes) to (n, classes)."""
    require(extent(x, 1) == extent(w1, 0), "x has other features than w1")
    require(extent(w1, 1) == extent(w2, 0), "w1 and w2 have other hidden units")
    return new((extent(x, 0), extent(w2, 1)), f32)


@classify.on("torch")
def _(x: Any, w1: Any, w2: Any, out: Any) -> None:
    out.copy_(((x @ w1).relu() @ w2).softmax(dim=1))


@classify.host
def _(x: NDArray[f32], w1: NDArray[f32], w2: NDArray[f32], out: NDArray[f32]) -> None:
    scores = np.exp(np.maximum(x @ w1, 0) @ w2)
    out[...] = scores / scores.sum(axis=1, keepdims=True)


@pipeline(graph_from=2)
def labels(x: In[f32], w1: In[f32], w2: In[f32]) -> DeviceOp[Tensor[i64], Any]:
    return array.argmax(classify(x, w1, w2), axis=1)


def main() -> None:
    rng = np.random.default_rng(1)
    w1, w2 = (
        rng.standard_normal((FEATURES, HIDDEN), f32),
        rng.standard_normal((HIDDEN, CLASSES), f32),
    )
    on_gpu = current_device().kind == "cuda"
    if on_gpu and find_spec("torch") is None:
        print("PyTorch is not installed, so the example runs on the host")
    with use_device(
        "host" if on_gpu and find_spec("torch") is None else current_device()
    ):
        weights = from_host(w1).sync().share(), from_host(w2).sync().share()
        for number in range(4):
            x = rng.standard_normal((32, FEATURES), f32)
            found = labels(from_host(x).sync().share(), *weights).to_host().sync()
            scores = np.maximum(x @ w1, 0) @ w2
            second, best = np.sort(scores, axis=1)[:, -2:].T
            sure = best - second > 1e-3  # the libraries add in different orders
            assert np.array_equal(found[sure], scores.argmax(axis=1)[sure]), number
    print(
        f"4 batches of 32, classified in a pipeline on {current_device().name}: "
        "the labels are those of NumPy"
    )


if __name__ == "__main__":
    main()
