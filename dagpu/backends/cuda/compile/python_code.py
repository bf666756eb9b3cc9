"""Compiles kernels that are written in Python, by the library that they are written for.

The parameters of the machine code are held against those that a launch passes."""

from collections.abc import Sequence

from dagpu.backends.cuda.compile.cubin import is_cubin, kernel_facts
from dagpu.backends.cuda.compile.ptx_linker import link_ptx
from dagpu.common.errors import CompileError
from dagpu.common.places import Origin, describe
from dagpu.ops.kernel_spec import KernelSpec, MachineCode


def python_code(spec: KernelSpec, variant: int, arch: str) -> MachineCode:
    """Return the machine code of a variant of a kernel, with the block that it requires. Block until it is ready.

    Raises:
        CompileError: the library refuses the kernel, or its machine code takes other parameters than a launch passes.
        KernelArgumentError: the kernel writes to an input.
    """
    python = spec.python
    assert python is not None
    code, name, origin = python.compile(arch, variant), spec.name, spec.origin
    block, cubin = code.block, code.cubin
    if not is_cubin(cubin):
        cubin = link_ptx(cubin, arch)
    if is_cubin(cubin):
        wanted = _places([*python.sizes(variant), *[8] * python.hidden])
        try:
            facts = kernel_facts(cubin, code.symbol)
        except ValueError as error:
            raise CompileError(
                f"{_of(name, origin)} {python.library} gives a cubin that cannot be read: {error}."
            ) from error
        if facts.parameters != wanted:
            raise CompileError(
                f"{_of(name, origin)} the machine code of {python.library} takes parameters at (byte, size) "
                f"{_listed(facts.parameters)}, but a launch passes {_listed(wanted)}. dagpu does not know this version "
                f"of {python.library.split()[0]}: install one that its extra names."
            )
        block = block or facts.block
    return MachineCode(cubin, code.symbol, block, code.shared_bytes)


def _of(name: str, origin: Origin) -> str:
    return f"kernel {name!r}, declared at {describe(origin)}:"


def _places(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return offset and size of parameters of these sizes, each aligned to its size."""
    at, found = 0, []
    for size in sizes:
        at = -(-at // size) * size
        found.append((at, size))
        at += size
    return tuple(found)


def _listed(places: Sequence[tuple[int, int]]) -> str:
    return " ".join(f"{at}:{size}" for at, size in places)
