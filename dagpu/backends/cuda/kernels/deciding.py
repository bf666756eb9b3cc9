"""The kernel that sets the condition of a conditional node of a graph."""

from collections.abc import Sequence
from struct import pack
from typing import Final

from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork

THREADS: Final = 256
"""The threads of the one block. The flags of a comparison are at most four times as many."""

# A kernel calls `cudaGraphSetConditional` in CUDA C++. No device runtime is linked for that: ptxas leaves the function
# undefined in the cubin, as it does `malloc`, and the driver provides it when it loads the module. NVRTC has no
# declaration of it, and nvcc has the same one.
_TEXT: Final = """\
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

extern "C" __global__ void dagpu_decide(unsigned long long handle, {parameters}) {{
    bool found = false;
{loops}
    const int any = __syncthreads_or(found);
    if (threadIdx.x == 0) cudaGraphSetConditional(handle, any != 0);
}}
"""


def decide(counts: Sequence[int]) -> BuiltinWork:
    """Return the launch that sets a condition to 1 if one of the flags is not 0, else to 0.

    The flags are 32-bit numbers in arrays of these lengths. The parameters are the handle of the condition, the
    addresses of the arrays, and their lengths.
    """
    numbers = range(len(counts))
    addresses = [f"const unsigned int* flags{n}" for n in numbers]
    lengths = [f"unsigned int count{n}" for n in numbers]
    loops = [
        f"    for (unsigned int i = threadIdx.x; i < count{n}; i += blockDim.x) found |= flags{n}[i] != 0;"
        for n in numbers
    ]
    text = _TEXT.format(parameters=", ".join([*addresses, *lengths]), loops="\n".join(loops))
    arguments = pack(f"<Q{len(counts)}Q{len(counts)}I", 0, *[0] * len(counts), *counts)
    pointers = tuple([8 + 8 * n for n in numbers])
    return BuiltinWork(text, "dagpu_decide", (1, 1, 1), (THREADS, 1, 1), arguments, pointers)
