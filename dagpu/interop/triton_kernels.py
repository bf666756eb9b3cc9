"""`triton_kernel`: a kernel of Triton as a kernel of dagpu, compiled or interpreted."""

import importlib
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from threading import Lock
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, cast, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.errors import CompileError, KernelArgumentError, KernelBoundsError
from dagpu.common.layout import Layout, Shape, address_of
from dagpu.common.places import scope_of_caller
from dagpu.common.wrong_arguments import format_value
from dagpu.interop.python_kernels import WORDS, Constants, FixedValues, PythonDeclaration, constants_of, declared_by
from dagpu.interop.triton_stores import find_writes
from dagpu.kernels.annotations import Annotation, declared_at
from dagpu.kernels.decorator import Kernel
from dagpu.ops.kernel_spec import Field, MachineCode, PythonKernel

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


# ---- triton kernels
#
# `triton_kernel`: a kernel of Triton as a kernel of dagpu.

_P = ParamSpec("_P")

_TYPES: Final = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "i1",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
_ALIGNMENT: Final = 16
"""Bytes: Triton loads and stores this many at once where it knows that a pointer is a multiple of them."""
_SAMPLES: Final = ((128,), (32, 32), (16, 16, 16))
"""Tiles for which a kernel is checked at its declaration if its constexprs depend on the tile."""

_MAKES_DESCRIPTOR: Final = "tt.make_tensor_descriptor"
"""The operation of Triton's IR that needs scratch memory."""

_Specialised: TypeAlias = tuple[FixedValues, tuple[bool, ...]]
"""The constexprs, and for each tensor whether its address is aligned."""


def triton_kernel(
    jit: object, /, *, num_warps: int = 4, num_stages: int | None = None, constexprs: Constants | None = None
) -> Callable[[Callable[_P, None]], Kernel[_P]]:
    """Declare a kernel of Triton as a kernel of dagpu: `@triton_kernel(axpy_jit, constexprs={"BLOCK": 1024})`.

    The decorated function names and types the parameters that are passed, in the order of Triton's, without the
    constexprs: `In[f32]` and `Out[f32]` for pointers; `float` (fp32), `int` (i32), `bool`, or a NumPy type such as
    `i64` for scalars. Its body never runs. The launch grid is that of the output's tiles: `program_id(d)` is the tile's
    index along axis d; `.grid(...)` gives another. Tensors are passed as pointers, so they are in C order.

    Triton compiles the kernel before the first launch of each variant: of constexprs, and of the tensors whose address
    is a multiple of 16 bytes. dagpu launches the result itself, in streams and as a node of CUDA graphs. Triton's
    launcher, PyTorch and a current CUDA device are not used.

    A store to an `In` is refused here, with no GPU, from Triton's IR. What a program writes outside of its tile is not
    checked.

    Where TRITON_INTERPRET=1 was set before Triton was imported, the kernel runs on the host by Triton's interpreter,
    unless it has a host body: slowly, without PyTorch, and each load and store is checked against the launch's tensors.
    Nothing is compiled for a GPU then.

    Args:
        jit: what `@triton.jit` makes. Of an autotuned kernel pass `.fn`.
        num_warps: the number of warps of a block.
        num_stages: stages of software pipelining; None for Triton's default.
        constexprs: values by the names of parameters; or a function that gives them for a tile of the first output:
            `lambda tile: {"BLOCK": tile[0]}`. Such a kernel is checked here for a tile of 128, 32 x 32 or
            16 x 16 x 16 elements, and again for each tile that it is compiled for. Triton's defaults hold.

    Raises:
        CompileError: Triton refuses the kernel.
        KernelArgumentError: the declaration differs from Triton's parameters, a constexpr is missing, or the kernel
            stores to an input.
    """
    scope = scope_of_caller()

    def make(declaration: PythonDeclaration) -> Kernel[Any]:
        triton = TritonCompiler(sys.modules.get("triton"))
        _check_jit(declaration, triton, jit)
        code = _TritonCode(declaration, triton, cast(Any, jit), num_warps, num_stages, constexprs or {})
        code.check()
        return declaration.kernel(code, code.scalars, (32 * num_warps,))

    return declared_by("triton_kernel", scope, make)


def _check_jit(declaration: PythonDeclaration, triton: TritonCompiler, jit: object) -> None:
    if "triton" in sys.modules and (triton.is_kernel(jit) or is_interpreted(jit)):
        return
    what = f"@triton_kernel is given {format_value(jit)}"
    cure = "Pass a function that is decorated with @triton.jit"
    if hasattr(jit, "fn"):
        cure = f"{cure}: .fn of an autotuned kernel, with the constexprs of a config"
    raise declaration.error(what, cure)


@final
class _TritonCode(PythonKernel):
    """A kernel of Triton, and its declaration."""

    def __init__(
        self,
        declaration: PythonDeclaration,
        triton: TritonCompiler,
        jit: Any,
        num_warps: int,
        num_stages: int | None,
        constexprs: Constants,
    ) -> None:
        super().__init__(triton.name, HIDDEN)
        self._declaration = declaration
        self._triton = triton
        self._jit = jit
        self._constexprs = constexprs
        self._options = {"num_warps": num_warps} | ({} if num_stages is None else {"num_stages": num_stages})
        self._sample: Shape | None = None
        self._scratch: dict[tuple[str, Hashable], int] = {}
        """The bytes of scratch memory for each program, by the architecture and what the code depends on."""
        if num_warps not in (1, 2, 4, 8, 16, 32):
            raise declaration.error(f"num_warps={format_value(num_warps)}", "Give 1, 2, 4, 8, 16 or 32")
        given = () if callable(constexprs) else tuple(constexprs)
        self._params = triton.params_of(jit)
        self._interpreter: TritonInterpreter | None = None
        if is_interpreted(jit):
            where = declared_at(declaration.function)
            self._interpreter = TritonInterpreter(jit, f"kernel {declaration.name!r}, declared at {where}")
        self._passed = [p for p in self._params if not p.is_constexpr and p.name not in given]
        declaration.match([p.name for p in self._passed], "Triton's kernel")
        self._pairs = list(zip(self._passed, declaration.params, strict=True))
        self.scalars = {name: self._scalar(p, name, a) for p, (name, a) in self._pairs if not a.form.is_tensor}
        """The types of the scalars."""

    # ---- the declaration
    def _scalar(self, param: Any, name: str, annotation: Annotation) -> "np.dtype[Any]":
        """Return the type of a scalar: that of the declaration, else that of Triton's annotation, else 32 bits."""
        assert annotation.scalar is not None
        theirs = getattr(param, "annotation_type", None) or ""
        known = {"u1": "bool"} | {triton: name for name, triton in _TYPES.items()}
        wanted = np.dtype(known[theirs]) if theirs in known and theirs != "bf16" else None
        found = annotation.dtype or wanted or WORDS[annotation.scalar]
        if wanted is not None and found != wanted:
            what = f"parameter {name!r} is {found.name}, but Triton's {param.name!r} is annotated {theirs}"
            raise self._declaration.error(what, f"Declare {name}: {wanted.name}")
        return found

    def _values(self, tile: Shape | None) -> FixedValues:
        """Return the constexprs for a tile.

        Raises:
            KernelArgumentError: one is missing, not known, or cannot be hashed.
        """
        fixed = [p for p in self._params if p not in self._passed]
        defaults = {p.name: _plain(p.default) for p in fixed if p.has_default}
        names = [p.name for p in fixed]
        return constants_of(self._declaration, "constexprs", self._constexprs, tile, names, defaults)

    def check(self) -> None:
        """Refuse a kernel that stores to an input. It is compiled to its first IR, for a sample of its constexprs. The
        stores of a kernel that is interpreted are checked as they are made.

        Raises:
            CompileError: Triton refuses the kernel.
            KernelArgumentError: it stores to an input, or a constexpr is missing.
        """
        if self._interpreter is not None:
            return
        aligned = (True,) * len(self._tensors)
        if not callable(self._constexprs):
            self._check_stores(self._first_ir((self._values(None), aligned)))
            return
        for tile in _SAMPLES:
            try:
                ttir = self._first_ir((self._values(tile), aligned))
            except (CompileError, KernelArgumentError):
                continue  # its tiles have another rank: the check comes when it is compiled
            self._sample = tile
            self._check_stores(ttir)
            return
        self.needs_scratch = True  # nothing is known of it: each variant is looked at

    def _check_stores(self, ttir: str) -> None:
        self.needs_scratch |= _MAKES_DESCRIPTOR in ttir
        writes = find_writes(ttir)
        names = [param.name for param, _ in self._pairs]
        written = {names[number]: place for number, place in writes.parameters.items()}
        self._declaration.refuse_writes("Triton's kernel", written, names)
        if writes.unknown:
            place = writes.unknown[0]
            what = f"Triton's kernel stores through an address that comes from no parameter{place and f', at {place}'}"
            raise self._declaration.error(what, "Pass the tensor as a parameter, and declare it Out")

    @property
    def _tensors(self) -> list[Any]:
        return [param for param, (_, annotation) in self._pairs if annotation.form.is_tensor]

    def _type(self, name: str, annotation: Annotation) -> str:
        """Return the type of a parameter that is passed, as Triton writes it."""
        if annotation.dtype is not None and annotation.form.is_tensor:
            return f"*{_TYPES[annotation.dtype.name]}"
        return {"bool": "u1"}.get(self.scalars[name].name) or _TYPES[self.scalars[name].name]

    # ---- the host
    def host_body(self, grid: Shape, tile: Shape | None) -> Callable[..., None] | None:
        """Return the run of Triton's interpreter; None for a kernel that is compiled."""
        interpreter = self._interpreter
        if interpreter is None:
            return None
        fixed = {name: value for name, _, value in self._values(tile)}

        def interpret(*given: Any) -> None:
            arguments: dict[str, object] = {}
            for (param, (name, annotation)), value in zip(self._pairs, given, strict=True):
                kind = self._type(name, annotation)
                if annotation.form.is_tensor:
                    arguments[param.name] = Pointed(value, kind, annotation.form.is_written)
                else:
                    arguments[param.name] = Typed(value, self.scalars[name], kind)
            interpreter.run(grid, arguments | fixed)

        return interpret

    # ---- compilation
    def _source(self, specialised: _Specialised) -> Any:
        values, aligned = specialised
        types = {}
        for param, (name, annotation) in self._pairs:
            types[param.name] = self._type(name, annotation)
        known = [p.name for p, fits in zip(self._tensors, aligned, strict=True) if fits and _may_specialise(p)]
        return self._triton.source(self._jit, types, {name: value for name, _, value in values}, known)

    def _first_ir(self, specialised: _Specialised) -> str:
        with _Declared(self._declaration):
            return self._triton.ttir(self._source(specialised), self._options)

    def specialise(self, operands: Sequence[Layout], tile: Shape | None) -> Hashable:
        return self._values(tile), tuple([layout.offset % _ALIGNMENT == 0 for layout in operands])

    def usual_variant(self) -> int:
        if callable(self._constexprs) and self._sample is None:
            what = "its constexprs depend on the tile, so it cannot be compiled before its first launch"
            raise self._declaration.error(what, "Leave compile() out, or give the values of the constexprs")
        return self._number((self._values(self._sample), (True,) * len(self._tensors)))

    def compile_for(self, arch: str, specialised: Hashable) -> MachineCode:
        if self._interpreter is not None:
            raise self._declaration.compile_error(
                "TRITON_INTERPRET is set, so Triton compiles nothing, and interprets the kernel on the host. Run it "
                'there: with use_device("host"), or unset TRITON_INTERPRET before Triton is imported.'
            )
        source = self._source(cast(_Specialised, specialised))
        with _Declared(self._declaration):
            made = self._triton.compile(source, int(arch.removeprefix("sm_").rstrip("af")), self._options)
            needs = made.needs
            if made.scratch and not self.needs_scratch:
                needs = "scratch memory, and makes no tensor descriptor"
            if needs:
                raise CompileError(f"{self.library}: the kernel needs {needs}, which dagpu does not give.")
        self._scratch[arch, specialised] = made.scratch
        self._check_stores(made.ttir)
        return MachineCode(made.cubin, made.name, (32 * made.num_warps,), made.shared)

    def knows_scratch(self, arch: str, variant: int) -> bool:
        return (arch, self.specialised(variant)) in self._scratch

    def scratch_bytes(self, arch: str, variant: int) -> int:
        key = arch, self.specialised(variant)
        if key not in self._scratch:
            self.compile(arch, variant)
        return self._scratch[key]

    def fields(self, layout: Layout) -> Sequence[Field]:
        return ((8, None),)

    def sizes(self, variant: int) -> Sequence[int]:
        return self._declaration.in_order(repeat(8), [each.itemsize for each in self.scalars.values()])

    @property
    def takes_strides(self) -> bool:
        return False


def _plain(value: Any) -> object:
    """Return the value of a default, which Triton may have wrapped."""
    return value.value if type(value).__name__ == "constexpr" else value


def _may_specialise(param: Any) -> bool:
    """Return true unless the kernel says that its code must not depend on the alignment of a pointer."""
    return not (param.do_not_specialize or getattr(param, "do_not_specialize_on_alignment", False))


@final
class _Declared:
    """Within the `with` block, a `CompileError` gets the place of the declaration."""

    def __init__(self, declaration: PythonDeclaration) -> None:
        self._declaration = declaration

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CompileError):
            raise self._declaration.compile_error(str(error)) from error.__cause__


# ---- triton interpreter
#
# Triton's interpreter: kernels that are declared under TRITON_INTERPRET=1 run on the host, without PyTorch.
#
# A load or store of the interpreter goes to any address. So its accesses are checked: loads stay in the tensors of the
# launch, stores in its outputs.

_LOCK: Final = Lock()
"""The interpreter has one program at a time: its place in the grid is a global of the module."""


@final
class Pointed(NamedTuple):
    """A tensor of a launch."""

    array: NDArray[Any]
    """Its elements, in C order."""
    type: str
    """The type of the pointer, as Triton writes it: `*fp32`."""
    writable: bool


@final
class TritonInterpreter:
    """The interpreter of the Triton that the user has imported."""

    def __init__(self, jit: Any, described: str) -> None:
        self._jit = jit
        self._described = described
        """The kernel and its place, for messages."""

    def run(self, grid: Shape, arguments: Mapping[str, object]) -> None:
        """Run a launch: each program of the grid, one after the other.

        Args:
            grid: one to three extents.
            arguments: for each parameter a `Pointed`, a `Typed`, or the value of a constexpr.

        Raises:
            KernelBoundsError: a program loads from no tensor of the launch, or stores to none of its outputs.
        """
        module = importlib.import_module("triton.runtime.interpreter")
        tensors = [each for each in arguments.values() if type(each) is Pointed]
        given = {name: _as_tensor(module, each) for name, each in arguments.items()}
        with _LOCK, _checked(module, tensors, self._described):
            try:
                self._jit[grid](**given)
            except Exception as error:
                if isinstance(error.__cause__, KernelBoundsError):
                    raise error.__cause__ from None
                raise


@final
class Typed(NamedTuple):
    """A number of a launch."""

    value: object
    dtype: "np.dtype[Any]"
    type: str
    """Its type, as Triton writes it: `fp32`."""


def is_interpreted(jit: object) -> bool:
    """Return true for what `@triton.jit` makes under TRITON_INTERPRET=1."""
    return type(jit).__name__ == "InterpretedFunction"


def _as_tensor(module: Any, argument: object) -> object:
    """Return an argument as a tensor of the interpreter's; a constexpr as it is."""
    if type(argument) is Pointed:
        contents = np.array([address_of(argument.array)], np.uint64)
    elif type(argument) is Typed:
        contents = np.array(argument.value, argument.dtype)
    else:
        return argument
    kind = module.tl.str_to_ty(argument.type, None)
    return module.tl.tensor(module.TensorHandle(contents, kind), kind)


@contextmanager
def _checked(module: Any, tensors: Sequence[Pointed], described: str) -> Iterator[None]:
    """Within the `with` block, the interpreter's accesses to memory are checked."""
    plain = module._interpreter  # noqa: SLF001  # the functions in C that access memory have no public name
    module._interpreter = _CheckedMemory(plain, tensors, described, lambda: module.interpreter_builder.grid_idx)  # noqa: SLF001
    try:
        yield
    finally:
        module._interpreter = plain  # noqa: SLF001


@final
class _CheckedMemory:
    """The functions of the interpreter that access memory, and checks before each of them."""

    def __init__(
        self, plain: Any, tensors: Sequence[Pointed], described: str, place: Callable[[], tuple[int, ...]]
    ) -> None:
        self._plain = plain
        self._described = described
        self._place = place
        """Returns the place of the current program in the grid."""
        spans = [(_span(each.array), each.writable) for each in tensors]
        self._readable = [span for span, _ in spans]
        self._writable = [span for span, writable in spans if writable]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._check("loads", pointers, mask, np.dtype(dtype).itemsize, self._readable)
        return self._plain.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        self._check("stores", pointers, mask, values.itemsize, self._writable)
        return self._plain.store(pointers, values, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        self._check("stores", pointers, mask, values.itemsize, self._writable)
        return self._plain.atomic_rmw(operation, pointers, values, mask, order)

    def atomic_cas(self, pointers: Any, compared: Any, values: Any, order: Any) -> Any:
        self._check("stores", pointers, True, values.itemsize, self._writable)
        return self._plain.atomic_cas(pointers, compared, values, order)

    def _check(self, does: str, pointers: Any, mask: Any, nbytes: int, spans: Sequence[tuple[int, int]]) -> None:
        used = np.asarray(pointers)[np.broadcast_to(np.asarray(mask, bool), np.shape(pointers))]
        inside = np.zeros(used.shape, bool)
        for start, stop in spans:
            inside |= (used >= start) & (used + nbytes <= stop)
        if not inside.all():
            whose = "tensors" if does == "loads" else "outputs"
            raise KernelBoundsError(
                f"{self._described}: program {tuple(self._place())} {does} {nbytes} bytes at an address that is in "
                f"none of its {whose}. Mask the access, or declare the tensor that it means."
            )


def _span(array: NDArray[Any]) -> tuple[int, int]:
    start = address_of(array)
    return start, start + array.nbytes
