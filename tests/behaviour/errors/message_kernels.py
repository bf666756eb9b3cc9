"""Kernels and refusals that the tests of messages share."""

from collections.abc import Callable

import pytest
from numpy.typing import NDArray

from dagpu import In, Out, Tile, f32, kernel


@kernel(cuda="__global__ void add(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] += x[i]; }")
def add(y: Out[f32], x: In[f32]) -> None:
    """y += x"""


@add.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] += x[y.at]


def said(error: BaseException) -> str:
    """All that the user reads below the traceback."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def refused(kind: type[BaseException], wrong: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        wrong()
    assert type(caught.value) is kind
    return said(caught.value)
