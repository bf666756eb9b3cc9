"""What a wait between two GPUs costs within one CUDA graph, in C++: an edge, memory operations, flags in peer memory.

    python -m benchmarks.hops               half a minute, on two GPUs; keeps results/hops.json and hops.md

The last rows add one summand of each of two GPUs on both, behind a small kernel on each. With edges, a kernel on each
reads both summands once both kernels are over. With flags, each block waits in the kernel until its twin on the other
GPU has begun. Or each adds one half, and copies it to the other GPU. dagpu takes the edges, and `benchmarks.mesh` has
its times.
"""

import math
import subprocess

from benchmarks.support.gpu import start
from benchmarks.support.gpu_kernels import FLOOR
from benchmarks.support.table import Span, Table, query_gpu
from dagpu.backends.cuda.compile.nvidia_compilers import find_nvcc

ROUNDS = 50


def measured() -> dict[str, list[Span]]:
    """Return the times of each row of floor/hops.cu, in seconds.

    Raises:
        RuntimeError: it cannot be built, or it fails.
    """
    nvcc, capability = find_nvcc(), query_gpu("compute_cap")
    if nvcc is None or not capability:
        raise RuntimeError("benchmarks.hops needs nvcc and a GPU")
    program = FLOOR / "build" / "hops"
    program.parent.mkdir(exist_ok=True)
    arch = f"-arch=sm_{capability.replace('.', '')}"
    for command in ([nvcc, "-O3", arch, "-o", program, FLOOR / "hops.cu"], [program, ROUNDS]):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"floor/hops.cu failed:\n{done.stdout}{done.stderr}")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: [Span(1e-6 * float(each), math.nan) for each in times.split()] for name, times in rows}


def main() -> None:
    """Measure, print the results, and save them."""
    bench = start("hops", "What does a wait between two GPUs cost within one CUDA graph?")
    table = Table("One launch, polled from the host", "us", ratio_to="the first")
    rows = measured()
    base = next(iter(rows.values()))
    for name, spans in rows.items():
        table.add(name, spans, 1e6, base=base)
    bench.finish("Waits between two GPUs", [table])


if __name__ == "__main__":
    main()
