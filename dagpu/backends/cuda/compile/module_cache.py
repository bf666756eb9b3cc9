"""The kernels of one device: compiled when they are first needed, loaded once, never unloaded."""

import threading
from dataclasses import replace
from typing import Final, Protocol, final

from dagpu.backends.cuda.compile.compiler import Compiled
from dagpu.backends.cuda.driver.driver_protocol import (
    Gpu,
)
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork
from dagpu.backends.kernel_text.launch_params import kernel_key, macros
from dagpu.backends.kernel_text.loaded_function import Function
from dagpu.backends.kernel_text.units import Unit, kernel_unit
from dagpu.ops.kernel_spec import KernelSpec

BUILTIN_FILE: Final = "dagpu/builtin.cu"
"""The file name under which dagpu's own kernels are compiled."""


class CubinCompiler(Protocol):
    """The part of a compiler that `Library` calls."""

    def compile(self, unit: Unit) -> Compiled:
        """Compile one kernel.

        Raises:
            CompileError: the source has errors.
        """
        ...

    def compile_python(self, spec: KernelSpec, variant: int, arch: str) -> Compiled:
        """Compile a variant of a kernel that is written in Python, by the library that it is written for.

        Raises:
            CompileError: the library refuses the kernel.
            KernelArgumentError: the kernel writes to an input.
        """
        ...


@final
class Library:
    """The loaded kernels of one device, by source and variant. If several threads need the same kernel, the first one
    loads it."""

    def __init__(self, gpu: Gpu, compiler: CubinCompiler) -> None:
        self._gpu = gpu
        self._compiler = compiler
        self._functions: dict[object, Function] = {}
        self._known: dict[tuple[int, int], tuple[KernelSpec, Function]] = {}
        self._lock = threading.Lock()

    def find_kernel(self, spec: KernelSpec, variant: int) -> Function | None:
        """Return a user's kernel if it has been compiled, else None."""
        known = self._known.get((id(spec), variant))
        if known is not None:
            return known[1]
        function = self._functions.get(kernel_key(spec, variant))
        if function is not None:
            self._remember(spec, variant, function)
        return function

    def load_kernel(self, spec: KernelSpec, variant: int) -> Function:
        """Return a user's kernel. Compile it first if that has not been done. The device's context need not be current.

        Raises:
            CompileError: the compiler refuses its source.
            KernelArgumentError: it is written in Python, and writes to an input.
        """
        key = kernel_key(spec, variant)
        function = self._functions.get(key)
        if function is None and spec.python is not None:
            function = self._load(key, self._compiler.compile_python(spec, variant, self._gpu.arch))
        elif function is None:
            unit = kernel_unit(spec, macros(variant), self._gpu.arch)
            function = self._load(key, self._compiler.compile(unit))
        self._remember(spec, variant, function)
        return function

    def find_builtin(self, builtin: BuiltinWork) -> Function | None:
        """Return one of dagpu's own kernels if it has been compiled, else None."""
        return self._functions.get((builtin.source, builtin.name))

    def load_builtin(self, builtin: BuiltinWork) -> Function:
        """Return one of dagpu's own kernels. Compile it first if that has not been done."""
        found = self.find_builtin(builtin)
        if found is None:
            unit = Unit(builtin.name, builtin.source, BUILTIN_FILE, 1, False, (), (), self._gpu.arch)
            found = self._load((builtin.source, builtin.name), self._compiler.compile(unit))
        return found

    def _load(self, key: object, compiled: Compiled) -> Function:
        with self._lock:
            function = self._functions.get(key)
            if function is None:
                with self._gpu.current():
                    loaded = self._gpu.load(compiled.cubin, compiled.symbol, compiled.constants)
                function = replace(loaded, block=compiled.block, dynamic_shared=compiled.shared)
                self._functions[key] = function
            return function

    def _remember(self, spec: KernelSpec, variant: int, function: Function) -> None:
        # By identity, which is quick. The entry keeps the spec alive, so that its id is not reused.
        if len(self._known) > 4096:  # specs that are new in each call: kernel.grid(...)
            self._known.clear()
        self._known[id(spec), variant] = spec, function
