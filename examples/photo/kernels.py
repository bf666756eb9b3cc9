"""The kernels of examples/photo, each in CUDA C++, and in NumPy for machines without a
GPU.

Pictures are (rows, columns, 3) of bytes, red first. All arithmetic is in whole numbers,
with defined rounding, so every device gives the same bytes. Beyond the edges of its
input, a kernel reads the nearest pixel.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Out, Tile, kernel, u8, u16

WEIGHTS = (1, 8, 28, 56, 70, 56, 28, 8, 1)
"""Binomial coefficients, nearly a Gaussian of standard deviation sqrt(2) pixels; their
sum is 256."""
RADIUS = len(WEIGHTS) // 2
RED, GREEN, BLUE = 77, 150, 29
"""The weights of the colours in a pixel's lightness, in 256ths (ITU-R BT.601)."""

BLUR_ROWS_CU = """
__global__ void blur_rows(Tile<uint16_t, 3> y, View<const uint8_t, 3> x) {
    const int weights[9] = {1, 8, 28, 56, 70, 56, 28, 8, 1}, last = x.extent(1) - 1;
    for (auto i : y) {
        const int row = i[0], column = i[1], colour = i[2];
        int sum = 0;
        for (int k = 0; k < 9; ++k)
            sum += weights[k] * x(row, min(max(column + k - 4, 0), last), colour);
        y[i] = sum;
    }
}
"""

BLUR_COLUMNS_CU = """
__global__ void blur_columns(Tile<uint8_t, 3> y, View<const uint16_t, 3> x) {
    const int weights[9] = {1, 8, 28, 56, 70, 56, 28, 8, 1}, last = x.extent(0) - 1;
    for (auto i : y) {
        const int row = i[0], column = i[1], colour = i[2];
        int sum = 32768;
        for (int k = 0; k < 9; ++k)
            sum += weights[k] * x(min(max(row + k - 4, 0), last), column, colour);
        y[i] = sum >> 16;
    }
}
"""

SOBEL_CU = """
__global__ void sobel(Tile<uint8_t, 2> edges, View<const uint8_t, 3> x, int gain) {
    const int bottom = x.extent(0) - 1, right = x.extent(1) - 1;
    for (auto i : edges) {
        int light[3][3];
        for (int r = 0; r < 3; ++r)
            for (int c = 0; c < 3; ++c) {
                const int row = min(max(static_cast<int>(i[0]) + r - 1, 0), bottom);
                const int column = min(max(static_cast<int>(i[1]) + c - 1, 0), right);
                light[r][c] = (77 * x(row, column, 0) + 150 * x(row, column, 1) +
                               29 * x(row, column, 2)) >>
                              8;
            }
        const int across = light[0][2] + 2 * light[1][2] + light[2][2] - light[0][0] -
                           2 * light[1][0] - light[2][0];
        const int down = light[2][0] + 2 * light[2][1] + light[2][2] - light[0][0] -
                         2 * light[0][1] - light[0][2];
        edges[i] = min((abs(across) + abs(down)) * gain >> 3, 255);
    }
}
"""

DEVELOP_CU = """
__global__ void develop(
    Tile<uint8_t, 3> y, View<const uint8_t, 3> x, View<const uint8_t, 3> soft,
    View<const uint8_t, 2> edges, View<const uint8_t, 1> curve, int above
) {
    for (auto i : y) {
        const int row = i[0] + above, column = i[1], colour = i[2];
        const int tone =
            curve[(x(row, column, colour) + soft(row, column, colour)) >> 1];
        y[i] = (tone * (255 - edges(row, column)) + 127) / 255;
    }
}
"""


@kernel(cuda=BLUR_ROWS_CU, block=256)
def blur_rows(y: Out[u16], x: In[u8]) -> None:
    """y = 256 times x blurred along its rows: exact, 65,280 at most."""


@blur_rows.host(whole=True)
def _(y: Tile[u16], x: NDArray[u8]) -> None:
    columns = x.shape[1]
    wide = np.pad(x, ((0, 0), (RADIUS, RADIUS), (0, 0)), mode="edge").astype(u16)
    y[...] = 0
    for k, weight in enumerate(WEIGHTS):
        y += wide[:, k : k + columns] * u16(weight)


@kernel(cuda=BLUR_COLUMNS_CU, block=256)
def blur_columns(y: Out[u8], x: In[u16]) -> None:
    """y = x / 256 blurred along its columns, rounded."""


@blur_columns.host(whole=True)
def _(y: Tile[u8], x: NDArray[u16]) -> None:
    rows = x.shape[0]
    high = np.pad(x, ((RADIUS, RADIUS), (0, 0), (0, 0)), mode="edge").astype(np.uint32)
    total = np.full(y.shape, 1 << 15, np.uint32)
    for k, weight in enumerate(WEIGHTS):
        total += high[k : k + rows] * np.uint32(weight)
    y[...] = total >> 16


@kernel(cuda=SOBEL_CU, block=256)
def sobel(edges: Out[u8], x: In[u8], gain: int) -> None:
    """edges (rows, columns) = gain / 8 of |Gx| + |Gy| of the lightness (Sobel), at most
    255."""


@sobel.host(whole=True)
def _(edges: Tile[u8], x: NDArray[u8], gain: int) -> None:
    parts = np.array((RED, GREEN, BLUE), np.int32)
    light = np.pad(x.astype(np.int32) @ parts >> 8, 1, mode="edge")
    beside = light[:-2] + 2 * light[1:-1] + light[2:]
    above = light[:, :-2] + 2 * light[:, 1:-1] + light[:, 2:]
    slope = np.abs(beside[:, 2:] - beside[:, :-2]) + np.abs(above[2:] - above[:-2])
    edges[...] = np.minimum(slope * gain >> 3, 255)


@kernel(cuda=DEVELOP_CU, block=256)
def develop(
    y: Out[u8], x: In[u8], soft: In[u8], edges: In[u8], curve: In[u8], above: int
) -> None:
    """y = the mean of x and soft through the tone curve (256,), with dark edges.

    y may have fewer rows than the inputs. Its first row is their row `above`.
    """


@develop.host(whole=True)
def _(
    y: Tile[u8],
    x: NDArray[u8],
    soft: NDArray[u8],
    edges: NDArray[u8],
    curve: NDArray[u8],
    above: int,
) -> None:
    rows = slice(above, above + y.shape[0])
    tone = curve[(x[rows].astype(u16) + soft[rows]) >> 1]
    light = u16(255) - edges[rows, :, None].astype(u16)
    y[...] = (tone * light + u16(127)) // u16(255)
