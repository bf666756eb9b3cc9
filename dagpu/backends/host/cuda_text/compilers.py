"""The C++ compiler that compiles CUDA texts for the host: which one it is, and its options."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path
from typing import Final, NamedTuple, final

from dagpu.common.env_vars import CXX
from dagpu.common.errors import DeviceError

INSTALL_CXX: Final = "apt install g++, or pip install ziglang"
"""How a C++ compiler is installed."""


@final
class Mode(NamedTuple):
    """How a text is compiled."""

    checked: bool = True
    """True if each access is checked."""
    contracted: bool = False
    """True if `a * b + c` is rounded once, as NVIDIA's compilers do it; false if twice, as NumPy does."""


@final
@dataclass(frozen=True, slots=True)
class CxxCompiler:
    """A C++ compiler."""

    command: tuple[str, ...]
    version: str
    """The first line of what it says of itself."""

    @property
    def is_clang(self) -> bool:
        """True for clang, and for zig, which is a clang."""
        return "clang" in self.version or "ziglang" in self.command

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the compiler to its end.

        Raises:
            OSError: it cannot be run.
        """
        return subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)

    def options(self, mode: Mode) -> tuple[str, ...]:
        """Return the options that compile a text."""
        return (*_BASE, *(_OF_CLANG if self.is_clang else _OF_GCC), *self._of_mode(mode))

    def _of_mode(self, mode: Mode) -> Iterator[str]:
        yield from ("-ffp-contract=fast", *_fused()) if mode.contracted else ("-ffp-contract=off",)
        if not mode.checked:
            yield from ("-O2", *(_NO_CALLS_OF_CLANG if self.is_clang else _NO_CALLS_OF_GCC))
            return
        yield from _CHECKED
        yield from _HOOKS_OF_CLANG if self.is_clang else _HOOKS_OF_GCC


_BASE: Final = (
    "-std=c++17", "-fPIC", "-w", "-fno-strict-aliasing", "-fwrapv", "-fno-math-errno", "-fno-exceptions", "-fno-rtti",
    "-fno-threadsafe-statics", "-fvisibility=hidden",
)  # fmt: skip
_OF_CLANG: Final = ("-fno-modules",)
_OF_GCC: Final = ("-fno-gnu-unique", "-mtls-dialect=gnu2") if os.uname().machine == "x86_64" else ("-fno-gnu-unique",)
# Copies that the compiler makes of loops, or carries out by itself, would not be seen. With -fwrapv the check of signed
# overflow is that of INT_MIN / -1 alone, which would end the process.
_CHECKED: Final = (
    "-O1", "-g1", "-gdwarf-4", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fstack-protector-strong",
    "-fno-builtin-memcpy", "-fno-builtin-memmove", "-fno-builtin-memset", "-fno-builtin-memcmp",
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero,signed-integer-overflow",
    "-fsanitize-coverage=trace-pc", "-DDAGPU_CHECKS",
)  # fmt: skip
# A loop that moves elements stays one: memmove, which it would become, is no function that a kernel may call.
_NO_CALLS_OF_GCC: Final = ("-fno-tree-loop-distribute-patterns",)
_NO_CALLS_OF_CLANG: Final = ("-fno-builtin-memcpy", "-fno-builtin-memmove", "-fno-builtin-memset")
_SPLIT: Final = ("-fsplit-stack",) if os.uname().machine == "x86_64" else ()
_HOOKS_OF_GCC: Final = (
    "--param", "tsan-distinguish-volatile=1", "--param", "tsan-instrument-func-entry-exit=0",
    *_NO_CALLS_OF_GCC, *_SPLIT,
)  # fmt: skip
_HOOKS_OF_CLANG: Final = (
    "-fno-sanitize-trap=all", "-fsanitize-recover=alignment,bounds,integer-divide-by-zero,signed-integer-overflow",
    *_SPLIT,
    "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-distinguish-volatile=1",
    "-mllvm", "-tsan-instrument-memintrinsics=1",
)  # fmt: skip


@cache
def _fused() -> tuple[str, ...]:
    """Return the options for the processor's instructions that multiply and add at once, if it has them."""
    if os.uname().machine != "x86_64":
        return ()
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return ()
    return ("-mfma",) if "fma" in words else ()


def find_cxx() -> CxxCompiler:
    """Return the C++ compiler: that of DAGPU_CXX, else g++, clang++, c++ or zig's, whichever is found first.

    Raises:
        DeviceError: there is none, or DAGPU_CXX names none.
    """
    named = CXX.get()
    found = _find(named, os.environ.get("PATH"))
    if found is not None:
        return found
    if named is not None:
        raise DeviceError(f"DAGPU_CXX={named!r} is no C++ compiler that can be run. {CXX.cure}")
    raise DeviceError(
        "the CUDA text of a kernel needs a C++ compiler to run on the host, and there is no g++ or clang++ here. "
        f"Install one ({INSTALL_CXX}), name one in DAGPU_CXX, or give the kernel a host body with @kernel.host."
    )


@cache
def _find(named: str | None, path: str | None) -> CxxCompiler | None:
    for command in [tuple(shlex.split(named))] if named else _candidates():
        if not command or shutil.which(command[0], path=path) is None:
            continue
        try:
            said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if said.returncode == 0 and said.stdout:
            return CxxCompiler(command, said.stdout.splitlines()[0])
    return None


def _candidates() -> Iterator[tuple[str, ...]]:
    yield from (("g++",), ("clang++",), ("c++",))
    if util.find_spec("ziglang") is not None:
        yield sys.executable, "-m", "ziglang", "c++"
