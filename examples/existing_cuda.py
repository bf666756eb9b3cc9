"""Existing CUDA from a .cu file to a graph. The file is unchanged, and it runs,
checked, without a GPU: a C++ compiler is all that it needs."""

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Out,
    from_host,
    kernel,
    pipeline,
    u8,
    u32,
    use_device,
    zeros,
)

BINS = 256


@kernel(cuda="existing_cuda.cu", abi="pointers", block=(256,))
def histogram(counts: Out[u32], values: In[u8], n: int) -> None:
    """Add the number of values of each kind to `counts`."""


@kernel(cuda="existing_cuda.cu", abi="pointers", block=(BINS,))
def starts(place: Out[u32], counts: In[u32]) -> None:
    """The number of values below each kind."""


@pipeline
def sorted_places(values: NDArray[u8]) -> DeviceOp[NDArray[u32]]:
    """Count, then scan the counts: one graph on a GPU."""
    counts = zeros((BINS,), u32).partition((BINS,))
    found = histogram.grid(8)(counts, from_host(values), values.size)
    scanned = starts.new((BINS,), (BINS,))(found.first().unpartition())
    result: DeviceOp[NDArray[u32]] = scanned.to_host()
    return result


def main() -> None:
    values = np.random.default_rng(0).integers(0, BINS, 10_000).astype(u8)
    counts = np.bincount(values, minlength=BINS)
    assert np.array_equal(sorted_places(values).sync(), np.cumsum(counts) - counts)

    # The text in three orders of threads and blocks, wherever the program runs.
    with use_device("host"):
        data, counted = from_host(values), zeros((BINS,), u32).partition((BINS,))
        histogram.grid(8).check(counted, data, values.size)
    print(f"{values.size} values in {BINS} bins, each bin in its place")


if __name__ == "__main__":
    main()
