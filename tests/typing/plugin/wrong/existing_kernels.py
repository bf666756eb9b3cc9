"""Arguments of kernels of existing CUDA: tensors in lists, and where None may stand, move as others."""

from typing import Any

import numpy as np

from dagpu import In, Out, empty, f32, kernel
from tests.typing.plugin.kernels import vector


@kernel(
    cuda="__global__ void gathered(float* y, const float** xs, float2 by, const float* bias) {}",
    abi="pointers",
    block=32,
)
def gathered(y: Out[f32], xs: list[In[f32]], by: np.void, bias: In[f32] | None) -> None:
    """y = the sum of all xs."""


@gathered.host(whole=True)
def _(y: Any, xs: Any, by: Any, bias: Any) -> None:
    y[...] = sum(xs) + by["x"] + (0 if bias is None else bias)


BY = np.void((1.0, 2.0), [("x", "f4"), ("y", "f4")])


def in_a_list() -> None:
    a, b = vector(), vector()
    gathered(empty((8,)).partition((8,)), [a, b], BY, None).first().unpartition().sync()
    print(b.shape)  # E: dagpu-use-after-move


def optional() -> None:
    a, b = vector(), vector()
    gathered(empty((8,)).partition((8,)), [a], BY, b).first().unpartition().sync()
    print(b.shape)  # E: dagpu-use-after-move
