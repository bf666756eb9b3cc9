"""Compiles kernels ahead of their first launch, by the compiler of a backend that sets it."""

from collections.abc import Callable
from typing import Final

from dagpu.common.critical import Section
from dagpu.common.errors import NoDeviceError
from dagpu.common.origin import Origin, describe
from dagpu.common.slot import Slot
from dagpu.handles.device_handles import INSTALL_CUDA
from dagpu.ops.kernel_spec import KernelSpec

COMPILER: Final = Slot[Callable[[KernelSpec], None] | None]("dagpu.backends.cuda.backend")
"""Compiles a kernel ahead of its first launch, for `kernel.compile()`; None until a backend that compiles is loaded."""
COMPILER.set(None)
ARCH_COMPILER: Final = Slot[Callable[[KernelSpec, str], object]]("dagpu.runtime.device_lookup")
"""Compiles a kernel for an architecture by its name, for `kernel.compile(arch=)`."""


def compile_ahead(spec: KernelSpec, arch: str | None, origin: Origin) -> None:
    """Compile a kernel for an architecture, or for the GPU that is here. See `Kernel.compile`."""
    if arch is None and COMPILER.value is None:
        raise NoDeviceError(
            f"kernel {spec.name!r}, declared at {describe(spec.origin)}: it cannot be compiled at {describe(origin)}, "
            "because no CUDA backend is loaded here. Leave compile() out on the host, which compiles nothing; for "
            f"CUDA, on a machine with a GPU: {INSTALL_CUDA}."
        )
    with Section("compile() was called"):
        if arch is not None:
            ARCH_COMPILER.value(spec, arch)
        elif COMPILER.value is not None:
            COMPILER.value(spec)
