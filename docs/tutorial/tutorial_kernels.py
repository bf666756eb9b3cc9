"""The kernels of the tutorial's pipeline, on pictures of shape (rows, columns), f32, 0
black and 1 white."""

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Out, Tile, f32, kernel


# docs: brighten
@kernel(
    cuda="""
__global__ void brighten(Tile<float, 2> y, float gain, View<const float, 2> x) {
    for (auto i : y) y[i] = fminf(gain * x[i], 1.0f);
}
"""
)
def brighten(y: Out[f32], gain: float, x: In[f32]) -> None:
    """y = gain * x, at most white."""


@brighten.host
def _(y: Tile[f32], gain: float, x: NDArray[f32]) -> None:
    y[...] = np.minimum(f32(gain) * x[y.at], 1)


# docs: blur
@kernel(
    cuda="""
__global__ void blur(Tile<float, 2> y, View<const float, 2> x) {
    for (auto i : y) {
        float sum = 0;
        for (int r = -1; r <= 1; ++r)
            for (int c = -1; c <= 1; ++c)
                sum +=
                    x(min(max(i[0] + r, 0), x.extent(0) - 1),
                      min(max(i[1] + c, 0), x.extent(1) - 1));
        y[i] = sum / 9;
    }
}
"""
)
def blur(y: Out[f32], x: In[f32]) -> None:
    """Each element of y is the mean of the 3 x 3 elements of x around it; the edge is
    repeated."""


@blur.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    rows, columns = x.shape
    around = np.pad(x, 1, mode="edge")
    y[...] = sum(
        around[r : r + rows, c : c + columns] for r in range(3) for c in range(3)
    ) / f32(9)


# docs: edges
@kernel(
    cuda="""
__global__ void edges(Tile<float, 2> y, View<const float, 2> x) {
    for (auto i : y) {
        int r = i[0], c = i[1];
        float down = x(min(r + 1, x.extent(0) - 1), c) - x[i];
        float right = x(r, min(c + 1, x.extent(1) - 1)) - x[i];
        y[i] = fabsf(down) + fabsf(right);
    }
}
"""
)
def edges(y: Out[f32], x: In[f32]) -> None:
    """y = the absolute differences of each element of x to the next one down and to the
    next one right, added."""


@edges.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    down, right = (
        np.diff(x, axis=0, append=x[-1:]),
        np.diff(x, axis=1, append=x[:, -1:]),
    )
    y[...] = np.abs(down) + np.abs(right)


# docs: overlay
@kernel(
    cuda="""
__global__ void overlay(
    Tile<float, 2> y, View<const float, 2> x, View<const float, 2> lines
) {
    for (auto i : y) y[i] = fmaxf(x[i] - lines[i], 0.0f);
}
"""
)
def overlay(y: Out[f32], x: In[f32], lines: In[f32]) -> None:
    """x with lines drawn on it in black."""


@overlay.host
def _(y: Tile[f32], x: NDArray[f32], lines: NDArray[f32]) -> None:
    y[...] = np.maximum(x[y.at] - lines[y.at], 0)


# docs: end
