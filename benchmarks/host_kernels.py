"""CUDA texts on the host: their time beside NumPy's, how long they take to compile, and what a barrier costs.

`python -m benchmarks.host_kernels` prints the table, and keeps it with `--keep`. Each time is the best of three.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.table import machine
from dagpu import In, Kernel, Out, empty, f32, from_host, kernel
from dagpu.backends.host.cuda_text.loaded_kernel import loaded_kernel
from dagpu.testing import Mode, find_cxx, texts_run

N: Final = 1 << 18
RESULT: Final = Path(__file__).with_name("results") / "host_kernels.md"
_HEAD: Final = (
    'extern "C" __global__ void k(float* y, const float* x, int n) {\n'
    "  const int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;\n"
)


def mandelbrot(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Count steps until a point has left, as NumPy does it: all points in each step."""
    c, z, steps = 3 * x - 2 + 0.5j, np.zeros(len(x), np.complex64), np.zeros(len(x), np.float32)
    for _ in range(64):
        inside = np.abs(z) < 2
        z = np.where(inside, z * z + c, z)
        steps += inside
    return steps


class Case(NamedTuple):
    """A kernel on 256 threads a block, and the same in NumPy."""

    name: str
    body: str
    twin: Callable[[NDArray[np.float32]], object]


CASES: Final = (
    Case("axpy", "y[i] = 2 * x[i] + 1;", lambda x: 2 * x + 1),
    Case(
        "stencil", "y[i] = x[i ? i - 1 : 0] + x[i] + x[i < n - 1 ? i + 1 : i];",
        lambda x: np.roll(x, 1) + x + np.roll(x, -1),
    ),
    Case("exponential", "y[i] = expf(-x[i] * x[i]);", lambda x: np.exp(-x * x)),
    Case(
        "polynomial", "float v = 0; for (int j = 0; j < 16; ++j) v = v * x[i] + j; y[i] = v;",
        lambda x: np.polyval(np.arange(16, dtype=np.float32), x),
    ),
    Case(
        "block sums", "__shared__ float s[256]; s[t] = x[i]; __syncthreads();\n"
        "for (int o = 128; o; o /= 2) { if (t < o) s[t] += s[t + o]; __syncthreads(); } y[i] = s[0];",
        lambda x: np.repeat(x.reshape(-1, 256).sum(1), 256),
    ),
    Case(
        "warp sums", "float v = x[i]; for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o); y[i] = v;",
        lambda x: np.repeat(x.reshape(-1, 32).sum(1), 32),
    ),
    Case(
        "block scan", "__shared__ float s[256]; s[t] = x[i]; __syncthreads();\n"
        "for (int o = 1; o < 256; o *= 2) {\n"
        "  const float v = t >= o ? s[t - o] : 0; __syncthreads(); s[t] += v; __syncthreads();\n}\ny[i] = s[t];",
        lambda x: np.cumsum(x.reshape(-1, 256), 1),
    ),
    Case(
        "Mandelbrot", "float a = 0, b = 0, c = 3 * x[i] - 2; int j = 0;\n"
        "for (; j < 64 && a * a + b * b < 4; ++j) {\n"
        "  const float d = a * a - b * b + c; b = 2 * a * b + 0.5f; a = d;\n}\ny[i] = j;",
        mandelbrot,
    ),
    Case("distances", "float m = 1e9f; for (int j = 0; j < 64; ++j) m = fminf(m, fabsf(x[i] - x[j])); y[i] = m;",
         lambda x: np.abs(x[:, None] - x[None, :64]).min(1)),
)  # fmt: skip


def declared(body: str) -> "Kernel[...]":
    """Return the kernel with this body."""

    @kernel(cuda=f"{_HEAD}{body}\n}}\n", abi="pointers", block=(256,))
    def k(y: Out[f32], x: In[f32], n: int) -> None: ...

    return k.grid(N // 256)


def best(of: Callable[[], object], times: int = 3) -> float:
    """Return the least time of the processor, of all threads, in seconds, after a first call that is not counted."""
    of()
    found = []
    for _ in range(times):
        begin = time.process_time()
        of()
        found.append(time.process_time() - begin)
    return max(min(found), 1e-6)


def seconds(which: "Kernel[...]", x: NDArray[np.float32], mode: Mode) -> float:
    """Return the time of a launch."""
    given = from_host(x).sync().share()

    def run() -> object:
        return which(empty((N,)).partition((N,)), given, N).sync()

    with texts_run(mode=mode):
        return best(run)


def compile_seconds() -> float:
    """Return the time of the compiler for a kernel that is in no cache."""
    which = declared(f"y[i] = x[i] + {time.time_ns() % 1000000}.0f;")
    before = os.times()
    loaded_kernel(which.spec, 0, Mode())
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def barrier_seconds(x: NDArray[np.float32]) -> float:
    """Return the time of a barrier, for each thread."""
    text = "float v = x[i]; for (int j = 0; j < %d; ++j) { __syncthreads(); v += 1; } y[i] = v;"
    one, many = (seconds(declared(text % times), x, Mode(checked=False)) for times in (1, 33))
    return (many - one) / 32 / N


def rows() -> Iterator[str]:
    """Yield the lines of the page."""
    x = np.random.default_rng(0).random(N, dtype=np.float32)
    yield "| kernel | NumPy, ms | unchecked | checked |"
    yield "| --- | --- | --- | --- |"
    ratios: list[tuple[float, float]] = []
    for case in CASES:
        twin = best(partial(case.twin, x))
        fast, checked = (seconds(declared(case.body), x, Mode(checked=which)) for which in (False, True))
        ratios.append((fast / twin, checked / twin))
        yield f"| {case.name} | {twin * 1e3:.2f} | {fast / twin:.1f} x | {checked / twin:.1f} x |"
    means = [math.exp(sum(math.log(row[column]) for row in ratios) / len(ratios)) for column in (0, 1)]
    yield f"| geometric mean | | {means[0]:.1f} x (goal 5) | {means[1]:.1f} x (goal 25) |"
    yield ""
    yield f"A barrier takes {barrier_seconds(x) * 1e9:.1f} ns a thread (goal 15)."
    yield f"The compiler takes {compile_seconds():.2f} s for a checked kernel (goal 0.6): {find_cxx().version}."


def main() -> None:
    """Print the page, and keep it if asked to."""
    about = machine(("numpy",), "host")
    lines = []
    for line in rows():
        print(line, flush=True)
        lines.append(line)
    if "--keep" in sys.argv[1:]:
        facts = "\n".join(f"- {name}: {fact}" for name, fact in about.items())
        what = (
            f"Of {N:,} floats. Times are those of the processor, of all threads together, as multiples of NumPy's; so "
            "other work on the machine\ncounts less."
        )
        page = f"# CUDA texts on the host\n\n{facts}\n\n{what}\n\n" + "\n".join(lines) + "\n"
        RESULT.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
