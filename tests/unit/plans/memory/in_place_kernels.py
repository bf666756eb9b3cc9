"""A kernel that doubles in place and the same kernel beside its input, and runs of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Out, Tile, empty, f32, kernel

DOUBLE = "__global__ void double_over(Tile<float, 2> y, View<const float, 2> x) { for (auto i : y) y[i] = 2 * x[i]; }"


@kernel(cuda=DOUBLE, in_place=True)
def double_over(y: Out[f32], x: In[f32]) -> None:
    """y = 2 x, over x where nobody else needs it."""


@double_over.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = 2 * x[y.at]


@kernel(cuda=DOUBLE.replace("double_over", "double_beside"))
def double_beside(y: Out[f32], x: In[f32]) -> None:
    """Doubles x like the kernel above, but never in place."""


@double_beside.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = 2 * x[y.at]


N = 64
SHAPE = (N, N)


def numbers() -> NDArray[f32]:
    return np.arange(N * N, dtype=f32).reshape(SHAPE)


def doubled_by(k: Any, x: Any, dtype: Any = f32) -> Any:
    return k(empty(SHAPE, dtype).partition((16, 16)), x).first().unpartition()
