"""What dagpu uses of Triton: sources, its first IR, and compilation for an architecture without a GPU."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, final

from dagpu.common.errors import CompileError
from dagpu.interop.python_kernels.triton_interpreter import is_interpreted

HIDDEN: Final = 2
"""Pointers that Triton appends to the parameters from version 3.4 on: scratch memory, and memory of a profiler."""


@final
@dataclass(frozen=True, slots=True)
class TritonResult:
    """A compiled kernel of Triton."""

    cubin: bytes
    ttir: str
    name: str
    num_warps: int
    shared: int
    scratch: int
    """Bytes of scratch memory for each program, in which it makes its tensor descriptors."""
    needs: str
    """What it needs that dagpu does not give, for a message; empty if nothing."""


@final
class TritonCompiler:
    """Triton, as the module that the user has imported."""

    def __init__(self, module: Any) -> None:
        self._triton = module
        self._lock = Lock()
        """Triton's compiler runs once at a time here: its caches are not all made for threads."""

    @property
    def name(self) -> str:
        return f"Triton {self._triton.__version__}"

    def is_kernel(self, jit: object) -> bool:
        """Return true for what `@triton.jit` makes."""
        return isinstance(jit, self._triton.JITFunction)

    def params_of(self, jit: Any) -> Sequence[Any]:
        """Return the parameters of a kernel. One that is interpreted is described as one that is compiled."""
        params: Sequence[Any] = (self._triton.JITFunction(jit.fn) if is_interpreted(jit) else jit).params
        return params

    def source(
        self, jit: Any, types: Mapping[str, str], constexprs: Mapping[str, object], aligned: Sequence[str]
    ) -> Any:
        """Return a source for Triton's compiler.

        Args:
            jit: the kernel.
            types: the type of each parameter that is passed, as Triton writes it: `*fp32`.
            constexprs: the values of the others.
            aligned: the names of the pointers that are multiples of 16.
        """
        names = [param.name for param in jit.params]
        return self._part("triton.compiler").ASTSource(
            fn=jit,
            signature={name: types.get(name, "constexpr") for name in names},
            constexprs={(names.index(name),): value for name, value in constexprs.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        )

    def ttir(self, source: Any, options: Mapping[str, object]) -> str:
        """Return the first IR of a kernel, in which helpers are inlined.

        Raises:
            CompileError: Triton refuses the kernel.
        """
        target = self._target(90)
        with self._lock, _Refusals(self.name):
            try:
                return self._first_ir(source, target, options)
            except (AttributeError, ImportError, KeyError, TypeError):  # other names in this version
                return str(self._triton.compile(source, target=target, options=dict(options)).asm["ttir"])

    def _first_ir(self, source: Any, target: Any, options: Mapping[str, object]) -> str:
        ir = self._part("triton._C.libtriton").ir
        backend = self._part("triton.compiler.compiler").make_backend(target)
        parsed = backend.parse_options(dict(options))
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        helpers = backend.get_codegen_implementation(parsed), backend.get_module_map()
        module = source.make_ir(target, parsed, *helpers, context)
        stages: dict[str, Any] = {}
        backend.add_stages(stages, parsed, source.language)
        return str(stages["ttir"](module, {"target": target, **vars(parsed)}))

    def compile(self, source: Any, arch: int, options: Mapping[str, object]) -> TritonResult:
        """Compile a kernel.

        Raises:
            CompileError: Triton refuses the kernel.
        """
        with self._lock, _Refusals(self.name):
            made = self._triton.compile(source, target=self._target(arch), options=dict(options))
        about = made.metadata
        return TritonResult(
            cubin=made.asm["cubin"],
            ttir=str(made.asm["ttir"]),
            name=about.name,
            num_warps=about.num_warps,
            shared=about.shared,
            scratch=getattr(about, "global_scratch_size", 0) * getattr(about, "num_ctas", 1),
            needs=_needs(about),
        )

    def _target(self, arch: int) -> Any:
        return self._part("triton.backends.compiler").GPUTarget("cuda", arch, 32)

    @staticmethod
    def _part(name: str) -> Any:
        return importlib.import_module(name)


def _needs(about: Any) -> str:
    """Return what a launch of dagpu's never gives."""
    if getattr(about, "profile_scratch_size", 0):
        return "memory for a profiler"
    if getattr(about, "tensordesc_meta", None):
        return "tensor descriptors as arguments"
    if getattr(about, "num_ctas", 1) != 1 or tuple(getattr(about, "cluster_dims", (1, 1, 1))) != (1, 1, 1):
        return "a cluster of blocks"
    if getattr(about, "launch_cooperative_grid", False):
        return "a cooperative launch"
    return ""


@final
class _Refusals:
    """Within the `with` block, what Triton's compiler raises becomes a `CompileError`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and type(error).__module__.partition(".")[0] == "triton":
            raise CompileError(f"{self._name}: {error}") from error
