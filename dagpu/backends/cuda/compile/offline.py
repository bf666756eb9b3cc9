"""Compiles kernels for an architecture by its name, on machines with or without a GPU: what `compile(arch=)` does."""

import re
import sys
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

from dagpu.backends.cuda.compile.compiler import Compiled, Compiler, kernel_unit
from dagpu.backends.cuda.compile.nvcc import find_nvcc
from dagpu.backends.cuda.compile.nvrtc import load_nvrtc
from dagpu.backends.cuda.kernels.launch_params import macros, usual_variant
from dagpu.common.errors import KernelArgumentError
from dagpu.common.places import describe
from dagpu.kernels.decorator import DECLARED, Kernel
from dagpu.kernels.expression import Expression
from dagpu.ops.kernel_spec import KernelSpec

Declared: TypeAlias = Kernel[Any] | Expression[..., Any]

_ARCH = re.compile(r"sm_\d{2,3}[af]?")


@cache
def _compiler(nvcc: str | None) -> Compiler:
    return Compiler(load_nvrtc(), nvcc)


def find_compiler(*, nvrtc_only: bool = False) -> str | None:
    """Return the name of the CUDA compiler that is installed here, "NVRTC 13.0" or "nvcc"; None without one.

    The extra `nvrtc` installs NVRTC, which needs no GPU and no driver.
    """
    nvrtc = load_nvrtc()
    return nvrtc.name if nvrtc is not None else "nvcc" if not nvrtc_only and find_nvcc() else None


def compile_for(spec: KernelSpec, arch: object, *, nvrtc_only: bool = False) -> Compiled:
    """Return the cubin of a kernel for contiguous tensors, compiled now or from the cache on disk.

    Args:
        spec: the kernel.
        arch: the name of an architecture, `"sm_90"`.
        nvrtc_only: true to compile CUDA C++ by NVRTC alone, also where nvcc could do what NVRTC cannot.

    Raises:
        CompileError: the compiler refuses its source.
        DeviceError: no compiler is installed.
        KernelArgumentError: `arch` is no name of an architecture.
    """
    if not isinstance(arch, str) or not _ARCH.fullmatch(arch):
        raise KernelArgumentError(
            f"kernel {spec.name!r}, declared at {describe(spec.origin)}: compile(arch={arch!r}) names no architecture. "
            'Write the name of a real one: compile(arch="sm_90").'
        )
    variant = usual_variant(spec)
    if spec.python is not None:
        return _compiler(None).compile_python(spec, variant, arch)
    return _compiler("" if nvrtc_only else None).compile(kernel_unit(spec, macros(variant), arch))


def declared_kernels(module: ModuleType | str) -> list[Declared]:
    """List the kernels and expressions that the file of a module declares, in the order of their lines.

    These are all that exist, also those in classes and closures. What `kernel.block(...)` returns is none of its own.

    Args:
        module: a module, or the name of one that is imported.
    """
    file = (sys.modules[module] if isinstance(module, str) else module).__file__
    found: list[tuple[int, Declared]] = []
    for each in list(DECLARED):
        origin = each.spec.origin if isinstance(each, Kernel) else each.origin
        if origin is not None and origin[0].co_filename == file:
            found.append((origin[0].co_firstlineno, each))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]
