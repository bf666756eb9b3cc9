"""Texts that declare a kernel `k`, and runs of them on the host."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dagpu import In, Kernel, Out, empty, from_host, i32, kernel, zeros

N = 1024
X: NDArray[np.int32] = np.random.default_rng(0).integers(0, 97, N).astype(np.int32)
"""The input of each kernel."""


def declared(body: str, before: str = "", block: Sequence[int] = (256,)) -> "Kernel[...]":
    """Return the kernel with this body. `i` and `t` are the numbers of the thread in the grid and in the block."""
    text = (
        before + '\nextern "C" __global__ void k(int* y, const int* x, int n) {\n'
        "  const int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;\n"
        f"{body}\n}}\n"
    )

    @kernel(cuda=text, abi="pointers", block=tuple(block))
    def k(y: Out[i32], x: In[i32], n: int) -> None: ...

    return k


def result(
    which: "Kernel[...]", *, grid: Sequence[int] = (4,), out: int = N, zeroed: bool = False, shared: int = 0
) -> "NDArray[np.int32]":
    """Run a kernel, and return its output of so many elements."""
    if shared:
        which = which.shared_memory(shared)
    given = from_host(X).sync().share()
    y = (zeros if zeroed else empty)((out,), i32).partition((out,))
    made: NDArray[np.int32] = which.grid(*grid)(y, given, N).first().unpartition().to_host().sync()
    return made
