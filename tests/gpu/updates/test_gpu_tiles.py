"""Updates in tiles on the GPU: lists of tiles in kernels and graphs, and declarations held against kernels."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import (
    Along,
    Around,
    DeviceOp,
    Here,
    In,
    KernelBoundsError,
    Out,
    Tensor,
    empty,
    f32,
    from_host,
    kernel,
    source,
)
from tests.behaviour.live.live_trials import Trial
from tests.gpu.support.gpu_support import NAME

pytestmark = pytest.mark.skipif(not NAME.startswith("cuda"), reason="the host makes its lists of tiles elsewhere")

N, TILE = 1024, (16, 64)

BLUR = """
__global__ void blur(Tile<float, 2> y, View<const float, 2> x) {
    for (auto i : y) {
        float sum = 0;
        for (int r = max(int(i[0]) - 2, 0); r <= min(int(i[0]) + 2, int(x.extent(0)) - 1); ++r)
            for (int c = max(int(i[1]) - 1, 0); c <= min(int(i[1]) + 1, int(x.extent(1)) - 1); ++c) sum += x(r, c);
        y[i] = sum;
    }
}
"""


@kernel(cuda=BLUR, sees={"x": Around(2, 1)})
def blur(y: Out[f32], x: In[f32]) -> None:
    """Sums of 5 x 3 elements."""


@kernel(
    cuda="__global__ void turn(Tile<float, 2> y, View<const float, 2> x) { for (auto i : y) y[i] = x(i[1], i[0]); }",
    sees={"x": (Along(1), Along(0))},
)
def turn(y: Out[f32], x: In[f32]) -> None:
    """y = x.T"""


def out() -> DeviceOp[Any]:
    return empty((N, N)).partition(TILE)


def blurred(array: NDArray[f32]) -> NDArray[f32]:
    """What the kernel makes of whole numbers: the order of the sums does not matter."""
    wide, made = np.pad(array, ((2, 2), (1, 1))), np.zeros_like(array)
    for r in range(5):
        for c in range(3):
            made += wide[r : r + N, c : c + N]
    return made


def test_updates_in_tiles_are_those_of_numpy() -> None:
    """Writes of many sizes, through a stencil and a transpose, from the first launch to those of graphs, with the exact
    number of tiles."""
    array = np.random.default_rng(0).integers(0, 9, (N, N)).astype(f32)
    picture = source(from_host(array).sync())
    op: DeviceOp[Any] = turn(out(), blur(out(), picture).first().unpartition()).first().unpartition().to_host()
    trial = Trial(op, [picture])
    trial.update()
    rng = np.random.default_rng(1)
    for number in range(40):
        row, column, size = (int(n) for n in rng.integers(0, (N - 200, N - 200, 150)))
        patch = rng.integers(0, 9, (size + 1, 5)).astype(f32)
        array[row : row + size + 1, column : column + 5] = patch
        picture.write((slice(row, row + size + 1), slice(column, column + 5)), patch)
        assert_array_equal(trial.update(), blurred(array).T)
        if number:
            (stage,) = trial.run._stages  # noqa: SLF001  # the analysis is not public
            first = stage.tiles.counts[0]
            rows = (row + size + 2) // TILE[0] - max(row - 2, 0) // TILE[0] + 1
            columns = (column + 5) // TILE[1] - max(column - 1, 0) // TILE[1] + 1
            assert (first.tiles, first.total) == (rows * columns, N * N // (TILE[0] * TILE[1]))


def test_a_false_declaration_is_caught_on_the_gpu() -> None:
    """A tile that looks at more than it declares gets nothing, and the run raises."""

    @kernel(cuda=BLUR, sees={"x": Here()}, checked=True)
    def blur(y: Out[f32], x: In[f32]) -> None: ...

    x: Tensor[Any] = from_host(np.ones((N, N), f32)).sync()
    with pytest.raises(
        KernelBoundsError, match=r"blur looked at x\[\d+, \d+\] from tile \(\d+, \d+\), and declares Here"
    ):
        blur(out(), x).first().unpartition().sync()


def test_a_true_declaration_is_quiet_on_the_gpu() -> None:
    """Checked, the kernel gives what it gives unchecked."""

    @kernel(cuda=BLUR, sees={"x": Around(2, 1)}, checked=True)
    def blur(y: Out[f32], x: In[f32]) -> None: ...

    array = np.random.default_rng(2).integers(0, 9, (N, N)).astype(f32)
    made = blur(out(), from_host(array).sync()).first().unpartition().to_host().sync()
    assert_array_equal(made, blurred(array))
