"""Compiles CUDA C++ to cubins: chooses the compiler, compiles each kernel once, caches cubins on disk, explains errors.

NVRTC is tried first: it runs in this process and is several times quicker than nvcc, which starts half a dozen other
programs. nvcc is tried where NVRTC cannot succeed: for headers of the host, for host code beside kernels, for options
that only nvcc has, and where NVRTC is not installed.
"""

import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, final

from dagpu.backends.cuda.compile.cubins import (
    ENTRY,
    entry_symbol,
    is_cubin,
    kernel_facts,
    kernel_symbols,
    link_ptx,
    plain_name,
    variables,
)
from dagpu.backends.cuda.compile.diagnostics import SourceText, explain
from dagpu.backends.cuda.compile.nvidia_compilers import (
    Nvcc,
    Nvrtc,
    Refusal,
    Toolchain,
    find_nvcc,
    find_toolkit_headers,
    load_nvrtc,
)
from dagpu.backends.kernel_text.disk_cache import DiskCache, default_cache_dir, digest
from dagpu.backends.kernel_text.launch_params import macros, usual_variant
from dagpu.backends.kernel_text.units import PRELUDE, Unit, code_of, element_types, kernel_unit, quoted
from dagpu.common.errors import CompileError, DeviceError, KernelArgumentError
from dagpu.common.places import Origin, describe
from dagpu.handles.device_handles import INSTALL_NVRTC
from dagpu.kernels.cuda_lexer import scan_declarations, tokenize
from dagpu.kernels.decorator import DECLARED, Kernel
from dagpu.kernels.expression import Expression, TupleExpression
from dagpu.kernels.preprocessing import included_files
from dagpu.ops.kernel_spec import KernelSpec, MachineCode

# ---- compiles kernels that are written in Python, by the library that they are written for ----------------------
# The parameters of the machine code are held against those that a launch passes.


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


@final
@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin, and the symbol by which the driver finds the kernel in it."""

    cubin: bytes
    symbol: str
    block: tuple[int, int, int] | None = None
    """The block dimensions that it is compiled for; None if any will do."""
    shared: int = 0
    """Bytes of dynamic shared memory that it needs."""
    compiler: str = ""
    """The name of the compiler that has made it: `NVRTC 13.0`, `nvcc`."""
    constants: tuple[str, ...] = ()
    """The symbols of the unit's `__constant__` variables."""


# ---- compiler input -------------------------------------------------------------------------------
_SHOWS_PLACE = re.compile(r"\b(?:__LINE__|__FILE__|__builtin_(?:LINE|FILE)|source_location|assert)\b")
_KEEPS_PLACE = re.compile(r"-G|-g|-?-(?:device-debug|debug|lineinfo|generate-line-info|.*src-in-ptx)")
# Errors of NVRTC that nvcc may not have: a header of the host, host code, an option.
_NVCC_MAY = re.compile(r"(?:could not|cannot) open source file|in JIT mode|^nvrtc: error:", re.MULTILINE)


@final
class _Job:
    """A unit as the compilers take it: complete text, options, cache key."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        head = f'#include "{quoted(str(PRELUDE))}"\n' if unit.prelude else ""
        self.text = f'{head}#line {unit.line} "{quoted(unit.file)}"\n{unit.text}\n'
        if unit.entry:
            named = f"template <auto* F> __device__ char {ENTRY} = 0; template __device__ char {ENTRY}<{unit.entry}>;"
            self.text += f"{named}\n"
        folder = Path(unit.file).parent
        includes = included_files(self.text, folder, unit.options)
        self.cacheable = includes.complete
        self.included = includes.files
        self.own = [file for file in self.included if not file.path.is_relative_to(PRELUDE.parent)]
        defines = [*unit.defines]
        if unit.prelude:
            defines += element_types([unit.text, *(file.text for file in self.own)])
        ours = [f"-arch={unit.arch}", *(f"-D{define}" for define in defines)]
        if not any(option.startswith(("-std", "--std")) for option in unit.options):
            ours.insert(0, "-std=c++17")  # nvcc and NVRTC warn of a second one
        self.key_options = [*ours, *unit.options]
        self.options = [*ours, f"-I{folder}", *unit.options]

    @cached_property
    def key(self) -> str:
        """A digest of everything that the cubin depends on, except the compiler.

        The place of the text is part of the key only if the cubin shows it. Thus a kernel in a Python file is not
        compiled again for every line that is added above it.
        """
        unit, texts = self.unit, [part for file in self.included for part in (file.path.name, file.text)]
        code = code_of([unit.text, *(file.text for file in self.included)])
        shows = _SHOWS_PLACE.search(code) or any(map(_KEEPS_PLACE.fullmatch, unit.options))
        place = [unit.file, str(unit.line), *(str(file.path) for file in self.included)] if shows else []
        lists = [self.key_options, texts, place]
        return digest(
            [unit.text, unit.entry, str(unit.prelude), *(part for parts in lists for part in (str(len(parts)), *parts))]
        )

    @cached_property
    def source(self) -> SourceText:
        """The user's files, as messages quote them."""
        unit = self.unit
        return SourceText(unit.file, unit.line, unit.text, tuple((str(file.path), file.text) for file in self.own))

    @property
    def declared(self) -> str:
        """File and line of the kernel's declaration in its source."""
        tokens, macros = tokenize(self.unit.text)
        lines = [d.line for d in scan_declarations(tokens, macros) if d.name == self.unit.name]
        return f"{self.unit.file}:{self.unit.line + (lines[0] - 1 if lines else 0)}"


# ---- compiling ------------------------------------------------------------------------------------
@final
@dataclass(frozen=True, slots=True)
class _Refused:
    """A refusal of every compiler that was tried; `compiler` is the last one."""

    compiler: str
    log: str


@final
@dataclass(frozen=True, slots=True)
class _Made:
    """A cubin, and the name of the compiler that has made it."""

    cubin: bytes
    compiler: str


_Outcome: TypeAlias = _Made | _Refused


@final
class Compiler:
    """Compiles kernels, with a cache on disk. Threads that request the same kernel at once share one compilation.

    Args:
        nvrtc: NVRTC, from `load_nvrtc()`; None if it is not installed.
        nvcc: the path of nvcc. None searches for it when it is first needed; "" never uses nvcc.
        cache_dir: the folder of the cache; None means $DAGPU_CACHE_DIR or the user's cache folder.
    """

    def __init__(self, nvrtc: Nvrtc | None = None, nvcc: str | None = None, cache_dir: Path | None = None) -> None:
        self._nvrtc = nvrtc
        self._nvcc_path = nvcc
        folder = default_cache_dir() if cache_dir is None else cache_dir
        self._cache = DiskCache(folder)
        self._lock = threading.Lock()
        self._flights: dict[str, Future[_Outcome]] = {}

    def compile(self, unit: Unit) -> Compiled:
        """Return the cubin of `unit`, from the cache or compiled now. Block until it is ready.

        Raises:
            CompileError: the compiler refuses the source, or the cubin has no kernel of that name, or several.
            DeviceError: no compiler is installed, or the compiler failed for a reason outside the source.
        """
        job = _Job(unit)
        if not self._toolchains:
            raise DeviceError(_NO_COMPILER.format(unit.name, job.declared))
        # Kernels of one file share its cubin. The place is part of this key: the log of a failure shows it.
        flight = digest([job.key, unit.file, str(unit.line)])
        try:
            outcome = self._once(flight, lambda: self._build(job))
        except OSError as error:
            what = f"kernel {unit.name!r}, CUDA source at {job.declared}: the compiler cannot be run ({error})"
            raise DeviceError(f"{what}. Check that nvcc can be executed, and that $TMPDIR has room.") from error
        if isinstance(outcome, _Refused):
            told = explain(unit.name, job.declared, outcome.compiler, outcome.log, job.source)
            raise CompileError(told)
        symbol = _symbol(outcome.cubin, job)
        if unit.sizes:
            _check_sizes(outcome.cubin, symbol, job)
        constants = tuple([_constant(outcome.cubin, name, nbytes, job) for name, nbytes in unit.constants])
        return Compiled(outcome.cubin, symbol, compiler=outcome.compiler, constants=constants)

    def compile_python(self, spec: KernelSpec, variant: int, arch: str) -> Compiled:
        """Return the machine code of a variant of a kernel that is written in Python. Block until it is ready.

        Raises:
            CompileError: the library that it is written for refuses it.
            KernelArgumentError: the kernel writes to an input.
        """
        code = python_code(spec, variant, arch)
        x, y, z = (*code.block, 1, 1, 1)[:3]
        assert spec.python is not None
        block = (x, y, z) if code.block else None
        return Compiled(code.cubin, code.symbol, block, code.shared_bytes, spec.python.library)

    def _once(self, key: str, build: Callable[[], _Outcome]) -> _Outcome:
        """Return `build()`, or the result of another thread that is building for the same key now.

        If that thread is interrupted, each waiting thread tries by itself.
        """
        while True:
            with self._lock:
                flight = self._flights.get(key)
                lead = flight is None
                flight = self._flights.setdefault(key, Future())
            if lead:
                break
            try:
                return flight.result()
            except CancelledError:
                continue
        try:
            outcome = build()
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            if isinstance(error, Exception):
                flight.set_exception(error)
            else:
                flight.cancel()
            raise
        with self._lock:
            del self._flights[key]
        flight.set_result(outcome)
        return outcome

    def _build(self, job: _Job) -> _Outcome:
        """Return the cubin from the cache or from the first compiler with a definite result."""
        refused = _Refused("", "")
        for toolchain in self._toolchains:
            key = digest([job.key, self._identity(toolchain)])
            cubin = self._cache.load(key) if job.cacheable else None
            if cubin is not None:
                return _Made(cubin, toolchain.name)
            result = toolchain.compile(job.text, job.unit.file, self._options(toolchain, job.options))
            if isinstance(result, bytes) and is_cubin(result):
                if job.cacheable:
                    self._cache.store(key, result)
                return _Made(result, toolchain.name)
            log = result.log if isinstance(result, Refusal) else "the options ask for other output than a cubin"
            refused = _Refused(toolchain.name, log)
            if not _NVCC_MAY.search(log):
                break
        return refused

    # ---- the compilers ----------------------------------------------------------------------------
    @cached_property
    def _nvcc(self) -> Nvcc | None:
        path = find_nvcc() if self._nvcc_path is None else self._nvcc_path
        return Nvcc(path) if path else None

    @cached_property
    def _toolchains(self) -> tuple[Toolchain, ...]:
        """The installed compilers, in the order in which they are tried."""
        return tuple(toolchain for toolchain in (self._nvrtc, self._nvcc) if toolchain is not None)

    @cached_property
    def _headers(self) -> Path | None:
        """The folder of CUDA headers for NVRTC; nvcc knows its own."""
        if self._nvrtc is None:
            return None
        return find_toolkit_headers(None if self._nvcc is None else self._nvcc.path, self._nvrtc.major)

    def _options(self, toolchain: Toolchain, options: Sequence[str]) -> Sequence[str]:
        if toolchain is not self._nvrtc or self._headers is None:
            return options
        # The C++ library for devices (<cuda/std/...>) is in cccl/ since CUDA 13.
        return [*options, f"-I{self._headers}", f"-I{self._headers / 'cccl'}"]

    def _identity(self, toolchain: Toolchain) -> str:
        """Return the identity of a compiler for the cache's key. NVRTC's headers are identified by place and age,
        because their text has megabytes."""
        if toolchain is not self._nvrtc or self._headers is None:
            return toolchain.identity
        try:
            age = (self._headers / "cuda_fp16.h").stat().st_mtime_ns
        except OSError:
            age = 0
        return f"{toolchain.identity}\n{self._headers}\n{age}"


_NO_COMPILER = (
    "kernel {!r}, CUDA source at {}: no CUDA compiler was found. Install NVRTC "
    f"({INSTALL_NVRTC}) or the CUDA toolkit, and set CUDA_HOME if its nvcc is not on the PATH."
)


def _symbol(cubin: bytes, job: _Job) -> str:
    """Return the kernel's symbol in `cubin`.

    Raises:
        CompileError: the cubin has no kernel of that name, or several.
    """
    name, symbols = job.unit.name, kernel_symbols(cubin)
    if job.unit.entry and (named := entry_symbol(cubin)) is not None:
        return named
    found = [symbol for symbol in symbols if plain_name(symbol) == name]
    if len(found) == 1:
        return found[0]
    if found:
        what = f"{len(found)} kernels have that name: {', '.join(found)}"
        cure = "A kernel is launched by name: give each kernel a unique name, even in different namespaces"
    else:
        there = ", ".join(sorted(map(plain_name, symbols))) or "none"
        what = f"it compiles, but has no kernel of that name; its kernels: {there}"
        cure = "Look for an #if around it, and for a macro that gives it another name"
    raise CompileError(f"kernel {name!r}, CUDA source at {job.declared}: {what}. {cure}.")


def _constant(cubin: bytes, name: str, nbytes: int, job: _Job) -> str:
    """Return the symbol of a `__constant__` variable in `cubin`. Hold its size against that of its declaration.

    Raises:
        CompileError: the cubin has no variable of that name, or several, or one of another size.
    """
    found = [(symbol, size) for symbol, size in variables(cubin) if plain_name(symbol) == name]
    if len(found) == 1 and found[0][1] in (nbytes, nbytes or found[0][1]):
        return found[0][0]
    what, cure = f"{len(found)} variables have the name {name!r}", "Give each a name of its own"
    if not found:
        what = f"it compiles, but its parameter {name!r} sets a __constant__ variable that the kernel does not use"
        cure = f"Use it in the kernel, or leave {name!r} out"
    elif len(found) == 1:
        what = f"its __constant__ variable {name!r} has {found[0][1]} bytes, and by its declaration {nbytes}"
        cure = "Declare it without packing, and outside of conditions that differ between host and device"
    raise CompileError(f"kernel {job.unit.name!r}, CUDA source at {job.declared}: {what}. {cure}.")


def _check_sizes(cubin: bytes, symbol: str, job: _Job) -> None:
    """Hold the parameters that the compiler has laid out against those that a launch passes.

    Raises:
        CompileError: they differ: a structure has another size than its text says to dagpu.
    """
    try:
        got = tuple([size for _, size in kernel_facts(cubin, symbol).parameters])
    except ValueError:
        return
    if got != job.unit.sizes:
        raise CompileError(
            f"kernel {job.unit.name!r}, CUDA source at {job.declared}: its parameters have {_sizes_text(got)} bytes, "
            f"but a launch passes {_sizes_text(job.unit.sizes)}: a structure is laid out in another way than its text "
            "says, as by #pragma pack. Give its fields places that need no packing, or pass each by itself."
        )


def _sizes_text(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


# ---- kernels for an architecture by its name: what `compile(arch=)` does


Declared: TypeAlias = Kernel[Any] | Expression[..., Any] | TupleExpression[..., Any]

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
