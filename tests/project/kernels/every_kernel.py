"""Compile every kernel of the project, without a GPU: those of the examples, the tutorial and the benchmarks, and the
generated ones.

    python -m tests.project.kernels.every_kernel [--arch sm_90] [--jobs 2]

It needs NVRTC (`pip install '.[nvrtc]'`); nvcc takes some seconds for each kernel. The exit status is 1 if a kernel
is refused, 2 without NVRTC. `make kernels` installs NVRTC and runs this.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from dagpu import CompileError, DeviceError
from dagpu.backends.cuda.compile.compiler import compile_for, declared_kernels
from dagpu.backends.cuda.compile.nvidia_compilers import load_nvrtc
from dagpu.kernels.decorator import Kernel
from dagpu.testing import KernelSpec
from tests.project.kernels.generated_kernels import generated_kernels, uncalled

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("examples", "benchmarks/support", "tests/programs", "tests/gpu/support")
FILES = ("benchmarks/decoding.py", "benchmarks/updates.py")


def declaring_modules() -> Iterator[str]:
    """Yield the names of the modules that declare kernels."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    for path in [*paths, *(ROOT / file for file in FILES)]:
        if "@kernel(" in path.read_text(encoding="utf-8"):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def every_kernel() -> Iterator[KernelSpec]:
    """Yield the declared kernels, then the generated ones."""
    for name in declaring_modules():
        yield from [k.spec for k in declared_kernels(import_module(name)) if isinstance(k, Kernel)]
    yield from generated_kernels()


def refusal_of(spec: KernelSpec, arch: str) -> str | None:
    """Compile a kernel. Return the compiler's message if it is refused."""
    try:
        compile_for(spec, arch)
    except (CompileError, DeviceError) as error:
        return str(error)
    return None


def main() -> int:
    """Compile all of them, and print those that are refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if load_nvrtc() is None:
        print("NVRTC is not installed: pip install '.[nvrtc]'", file=sys.stderr)
        return 2
    began, specs = time.monotonic(), list(every_kernel())
    with ThreadPoolExecutor(arguments.jobs) as pool:
        told = list(pool.map(lambda spec: refusal_of(spec, arguments.arch), specs))
    refused = [text for text in told if text is not None]
    print(*refused, sep="\n")
    missing = uncalled()
    if missing:
        print(f"dagpu.array has functions without a call in generated_kernels.py: {', '.join(sorted(missing))}")
    seconds = time.monotonic() - began
    print(f"{len(specs) - len(refused)} of {len(specs)} kernels compile for {arguments.arch}, in {seconds:.0f} s")
    return 1 if refused or missing else 0


if __name__ == "__main__":
    sys.exit(main())
