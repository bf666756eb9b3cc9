"""A softmax of Triton's tutorial as a kernel of dagpu: a node of a pipeline's CUDA
graph, without Triton's launcher.

Triton compiles it, with no GPU and no PyTorch; dagpu launches the machine code. On the
host the NumPy body does the same work. Without Triton the example says so and ends.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Out,
    Tensor,
    Tile,
    array,
    current_device,
    empty,
    f32,
    from_host,
    pipeline,
    triton_kernel,
)

ROWS, COLUMNS = 64, 200

if find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]  # reason: Triton ships no types
    def softmax_rows(  # type: ignore[no-untyped-def]  # reason: it is Triton's language
        y, x, COLUMNS: tl.constexpr, BLOCK: tl.constexpr
    ):
        row = tl.program_id(0)
        column = tl.arange(0, BLOCK)
        inside = column < COLUMNS
        values = tl.load(x + row * COLUMNS + column, mask=inside, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(
            y + row * COLUMNS + column, powers / tl.sum(powers, axis=0), mask=inside
        )

    @triton_kernel(
        softmax_rows,
        constexprs=lambda tile: {
            "COLUMNS": tile[1],
            "BLOCK": 1 << (tile[1] - 1).bit_length(),
        },
    )
    def softmax(y: Out[f32], x: In[f32]) -> None:
        """The softmax of each row.

        A tile of the output is one row, and so is a program of Triton's.
        """

    @softmax.host
    def _(y: Tile[f32], x: NDArray[f32]) -> None:
        powers = np.exp(x[y.at] - x[y.at].max())
        y[...] = powers / powers.sum()

    @pipeline(graph_from=2)
    def chances(x: In[f32]) -> DeviceOp[Tensor[f32], Any]:
        """The softmax of each column of x: kernels of dagpu's and of Triton's in one
        graph."""
        y = empty((ROWS, COLUMNS), f32).partition((1, COLUMNS))
        return softmax(y, array.transpose(x)).first().unpartition()


def main() -> None:
    if find_spec("triton") is None:
        print(
            "Triton is not installed, so there is no kernel to run: pip install "
            "'.[triton]'"
        )
        return
    rng = np.random.default_rng(1)
    for number in range(4):
        x = rng.standard_normal((ROWS, COLUMNS), f32)
        found = chances(from_host(x.T.copy()).sync().share()).to_host().sync()
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        assert np.allclose(
            found, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7
        ), number
    print(
        f"4 softmaxes of {ROWS} rows by Triton's kernel in a pipeline on "
        f"{current_device().name}: those of NumPy"
    )


if __name__ == "__main__":
    main()
