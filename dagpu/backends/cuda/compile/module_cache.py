"""The kernels of one device: compiled when they are first needed, loaded once, kept for the process's life."""

import threading
from collections.abc import Callable
from typing import Final, Protocol, final

from dagpu.backends.cuda.compile.compiler import Compiled, Unit, split_source_name
from dagpu.backends.cuda.driver.driver_protocol import Function, Gpu
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork
from dagpu.backends.cuda.kernels.launch_params import entry_of, macros
from dagpu.ops.kernel_spec import KernelSpec

BUILTIN_FILE: Final = "dagpu/builtin.cu"
"""What the compiler calls the text of dagpu's own kernels."""


class CubinCompiler(Protocol):
    """The part of `Compiler` that a library calls."""

    def compile(self, unit: Unit) -> Compiled:
        """Compile one kernel.

        Raises:
            CompileError: the source has errors.
        """
        ...


@final
class Library:
    """Functions by what they are compiled from. Of threads that want the same one, the first makes it."""

    def __init__(self, gpu: Gpu, compiler: CubinCompiler) -> None:
        self._gpu = gpu
        self._compiler = compiler
        self._functions: dict[object, Function] = {}
        self._known: dict[tuple[int, int], tuple[KernelSpec, Function]] = {}
        self._lock = threading.Lock()

    def found(self, spec: KernelSpec, variant: int) -> Function | None:
        """A kernel, if it has been compiled."""
        known = self._known.get((id(spec), variant))
        if known is not None:
            return known[1]
        function = self._functions.get(entry_of(spec, variant))
        if function is not None:
            self._remember(spec, variant, function)
        return function

    def kernel(self, spec: KernelSpec, variant: int) -> Function:
        """A kernel. Compiles it, if need be; the device's context need not be current.

        Raises:
            CompileError: the compiler refuses its source.
        """
        function = self.found(spec, variant)
        if function is None:
            file, line = split_source_name(spec.source_name)
            unit = Unit(
                name=spec.name,
                text=spec.cuda,
                file=file,
                line=line,
                prelude=spec.abi == "views",
                defines=macros(variant),
                options=spec.options,
                arch=self._gpu.arch,
            )
            function = self._load(entry_of(spec, variant), unit)
            self._remember(spec, variant, function)
        return function

    def builtin_found(self, builtin: BuiltinWork) -> Function | None:
        """One of dagpu's own kernels, if it has been compiled."""
        return self._functions.get((builtin.source, builtin.name))

    def builtin(self, builtin: BuiltinWork) -> Function:
        """One of dagpu's own kernels, likewise."""
        found = self.builtin_found(builtin)
        if found is None:
            unit = Unit(builtin.name, builtin.source, BUILTIN_FILE, 1, False, (), (), self._gpu.arch)
            found = self._load((builtin.source, builtin.name), unit)
        return found

    def _load(self, key: object, unit: Unit) -> Function:
        compiled = self._compiler.compile(unit)

        def load() -> Function:
            with self._gpu.current():
                return self._gpu.load(compiled.cubin, compiled.symbol)

        return self._once(key, load)

    def _once(self, key: object, make: Callable[[], Function]) -> Function:
        with self._lock:
            function = self._functions.get(key)
            if function is None:
                function = self._functions[key] = make()
            return function

    def _remember(self, spec: KernelSpec, variant: int, function: Function) -> None:
        # By identity, which is quick; the spec is kept, so that its id stays its own.
        if len(self._known) > 4096:  # specs made anew for each call: kernel.grid(...)
            self._known.clear()
        self._known[id(spec), variant] = spec, function
