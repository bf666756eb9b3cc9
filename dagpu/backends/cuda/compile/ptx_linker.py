"""Makes cubins of PTX text with nvJitLink, where it is installed."""

from importlib import import_module
from typing import Any


def link_ptx(ptx: bytes, arch: str) -> bytes:
    """Return the cubin of a PTX text that ends with a zero byte; the text itself if no linker is installed.

    The driver compiles the text then, when the kernel is loaded. A linker costs less, and its result can be checked.

    Raises:
        RuntimeError: the linker refuses the text.
    """
    try:
        # By name: the module has no type annotations, and type checkers do not find it where CUDA is not installed.
        linker: Any = import_module("cuda.bindings.nvjitlink")
        handle = linker.create(1, [f"-arch={arch}"])
    except (ImportError, RuntimeError):  # RuntimeError: the bindings are installed, the library is not
        return ptx
    try:
        linker.add_data(handle, linker.InputType.PTX, ptx, len(ptx), "kernel.ptx")
        linker.complete(handle)
        cubin = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, cubin)
        return bytes(cubin)
    finally:
        linker.destroy(handle)
