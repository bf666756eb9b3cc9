"""Compilers that stand in for nvcc and NVRTC, and cubins made of names."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from dagpu.backends.cuda.compile.compiler import Compiler
from dagpu.backends.cuda.compile.nvidia_compilers import Refusal
from dagpu.backends.kernel_text.units import Unit
from dagpu.common.errors import CompileError

SAXPY = """\
__global__ void saxpy(float* y, float a, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""
SYMBOL = "_Z5saxpyPffPKfi"


def unit(text: str = SAXPY, **changes: object) -> Unit:
    plain = Unit("saxpy", text, "/home/me/saxpy.py", 12, prelude=False, defines=(), options=(), arch="sm_90")
    return replace(plain, **changes)  # type: ignore[arg-type]  # the fields differ in type; Unit is what is tested


def cubin(*symbols: str, helpers: Sequence[str] = (), variables: Mapping[str, int] | None = None) -> bytes:
    """The smallest ELF file whose symbol table has these kernels, functions that are none, and variables of so many
    bytes."""
    names, table = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for symbol in [*helpers, *symbols]:
        entry = 0x10 if symbol in symbols else 0
        table += struct.pack("<IBBHQQ", len(names), 0x12, entry, 1, 0, 8)
        names += symbol.encode() + b"\0"
    for symbol, nbytes in (variables or {}).items():
        table += struct.pack("<IBBHQQ", len(names), 0x11, 0, 1, 0, nbytes)
        names += symbol.encode() + b"\0"
    head = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<Q", 64 + len(table) + len(names))
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, 3, 0)
    sections = [(0, 0, 0, 0), (2, 64, len(table), 2), (3, 64 + len(table), len(names), 0)]
    rows = [struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 0, 0) for kind, at, size, link in sections]
    return head + table + names + b"".join(rows)


class FakeNvrtc:
    """Gives what it is told to, and keeps what it was asked."""

    major = 13

    def __init__(self, result: bytes | Refusal | None = None, identity: str = "NVRTC 13.0") -> None:
        self.name = self.identity = identity
        self.result = cubin(SYMBOL) if result is None else result
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []
        self.act: Callable[[], None] = lambda: None

    def compile(self, text: str, file: str, options: Sequence[str]) -> bytes | Refusal:
        self.asked.append((text, file, tuple(options)))
        self.act()
        return self.result


def refusal(compiler: Compiler, wanted: Unit) -> str:
    with pytest.raises(CompileError) as caught:
        compiler.compile(wanted)
    return str(caught.value)
