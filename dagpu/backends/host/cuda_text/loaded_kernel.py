"""Kernels as libraries of the host: compiled by a C++ compiler, kept on disk, loaded once in a process."""

import ctypes
import mmap
import os
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, final

from dagpu.backends.host.cuda_text.compilers import CxxCompiler, Mode, find_cxx
from dagpu.backends.host.cuda_text.library_symbols import Symbols, Variable, read_symbols
from dagpu.backends.host.cuda_text.precompiled_header import HEADER, precompiled_header
from dagpu.backends.host.cuda_text.source_text import INCLUDE, TEXT, header_texts, source_text
from dagpu.backends.kernel_text.disk_cache import DiskCache, default_cache_dir, digest
from dagpu.backends.kernel_text.launch_params import kernel_key
from dagpu.common.errors import CompileError, DeviceError
from dagpu.common.places import describe
from dagpu.kernels.module_variables import read_module_use
from dagpu.ops.kernel_spec import KernelSpec

RUNTIME: Final = Path(__file__).with_name("runtime")
"""The folder of the program that runs the threads of kernels."""

_PARTS: Final = ("fibers.cpp", "meetings.cpp", "accesses.cpp", "printing.cpp", "launch.cpp")
_RUNTIME_OPTIONS: Final = (
    "-std=c++17", "-O2", "-fPIC", "-shared", "-w", "-fvisibility=hidden", "-fno-omit-frame-pointer", "-pthread",
)  # fmt: skip
_WRAPPED: Final = ("memcpy", "memmove", "memset", "memcmp")

_MATH: Final = frozenset(
    re.findall(
        r"\w+",
        "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 exp10 expm1 fabs fdim "
        "floor fma fmax fmin fmod hypot ilogb j0 j1 jn ldexp lgamma llrint llround log log10 log1p log2 logb lrint "
        "lround nearbyint nextafter pow remainder rint round roundeven scalbln scalbn sin sincos sinh sqrt tan tanh "
        "tgamma trunc y0 y1 yn",
    )
)
"""Functions of the math library that take values and no pointers; each has a form for floats."""

_RUNTIME_CALLS: Final = re.compile(
    r"dagpu_\w+|__wrap_mem\w+|__tsan_(?!atomic)\w+|__ubsan_handle_\w+|__sanitizer_cov_trace_pc|__morestack|"
    r"__stack_chk_fail|threadIdx|blockIdx|blockDim|gridDim|__tls_get_addr|__cxa_finalize|__cxa_atexit|__fpclassifyf?|"
    r"__(?:popcount|ffs|clz|ctz|parity|u?div|u?mod|mul|ashl|ashr|lshr)\w*[dst]i\d|__(?:extend|trunc|fix|float)\w+|"
    r"__(?:eq|ne|lt|le|gt|ge|unord)[hsdxt]f2|"
    r"__signbitf?|__isnanf?|__isinff?|__finitef?|_Unwind_Resume|__gxx_personality_v0|abort"
)


# ---- the runtime
@final
class Runtime:
    """The program that runs the threads of kernels, as a loaded library."""

    def __init__(self, compiler: CxxCompiler) -> None:
        texts = {file.name: file.read_text(encoding="utf-8") for file in sorted(RUNTIME.iterdir()) if file.is_file()}
        self.key = digest([*texts, *texts.values(), compiler.version, *compiler.command, *_RUNTIME_OPTIONS])
        self.name = f"dagpu_runtime_{self.key[:16]}.so"
        """The name by which the libraries of kernels need it: it is loaded before they are."""

        def build(folder: Path) -> Path:
            source, made = folder / "runtime.cpp", folder / self.name
            source.write_text("".join(f'#include "{part}"\n' for part in _PARTS), encoding="utf-8")
            arguments = (*_RUNTIME_OPTIONS, f"-I{RUNTIME}", str(source), "-o", str(made), f"-Wl,-soname,{self.name}")
            ran = compiler.run(*arguments)
            if ran.returncode:
                raise DeviceError(
                    f"{compiler.version} does not compile the runtime of CUDA texts: {ran.stderr[:2000]}. Name another "
                    "C++ compiler in DAGPU_CXX, or give the kernel a host body with @kernel.host."
                )
            return made

        self.code = _kept(self.key, build)
        self.library = _load(self.code, self.name)
        self.launch = self.library.dagpu_launch
        self.launch.restype = ctypes.c_int


_runtimes: Final[dict[CxxCompiler, Runtime]] = {}


def _runtime(compiler: CxxCompiler) -> Runtime:
    """Return the runtime, loaded once: a process has room for the thread-local memory of few of them."""
    with _flights.setdefault(compiler, threading.Lock()):
        if compiler not in _runtimes:
            _runtimes[compiler] = Runtime(compiler)
        return _runtimes[compiler]


# ---- kernels
@final
class LoadedKernel:
    """A variant of a kernel, compiled in one mode and loaded."""

    def __init__(self, spec: KernelSpec, variant: int, mode: Mode) -> None:
        compiler = find_cxx()
        self.mode = mode
        self.source = source_text(spec, variant)
        if spec.cluster is not None or _CLUSTERS.search(self.source.text):
            raise CompileError(
                f"{_of(spec)} its blocks form clusters, which a GPU alone has. {_CURE.format(spec.name)}"
            )
        self.runtime = _runtime(compiler)
        self.code = self._compiled(spec, compiler)
        self.symbols: Symbols = read_symbols(self.code)
        self.library = _load(self.code, "kernel.so")
        self.entry = self.library.dagpu_entry
        self.entry.restype = ctypes.c_size_t
        entry = ctypes.cast(self.entry, ctypes.c_void_p).value
        assert entry is not None
        self.base: int = entry - self.symbols.values["dagpu_entry"]
        self._open_constants()
        self.dynamic = ctypes.cast(self.library.dagpu_dynamic_of_thread, ctypes.c_void_p)
        self.dynamic_offset = self.symbols.values["dagpu_dynamic"]
        use = read_module_use(spec.cuda, spec.name, Path(self.source.unit.file).parent, spec.options)
        given = {param.name for _, param in spec.constants}
        unset = {variable.name for variable in use.unset if variable.space == "__constant__"}
        self.unset = frozenset(unset - given)
        """The names of constants that nothing sets."""
        self.waits_for_grid = use.waits_for_grid
        """True if its blocks wait for all others, so that one host thread has to run them."""
        self.static_shared = sum(variable.nbytes for variable in self.symbols.variables if variable.kind == "shared")
        self._places: dict[int, tuple[str, int] | None] = {}

    def _open_constants(self) -> None:
        """Make this process' own copy of constants writable. A compiler calls no hook before it writes to a literal,
        and the process would end there."""
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        page = os.sysconf("SC_PAGE_SIZE")
        for address, size in self.symbols.segments if self.mode.checked else ():
            begin = (self.base + address) // page * page
            protect(begin, self.base + address + size - begin, mmap.PROT_READ | mmap.PROT_WRITE)

    def constant(self, name: str) -> tuple[int, int]:
        """Return the address and the bytes of a `__constant__` variable."""
        found = next(each for each in self.symbols.variables if each.kind == "constant" and each.name == name)
        return self.base + found.address, found.nbytes

    def dynamic_address(self) -> int:
        """Return where dynamic shared memory is for the calling thread."""
        found = ctypes.c_void_p()
        self.library.dagpu_dynamic_of_thread(ctypes.byref(found))
        assert found.value is not None
        return found.value

    def is_small(self, variable: Variable) -> bool:
        """Return true if elements of a variable may have less than 4 bytes, as far as the text says."""
        declared = re.search(rf"[^;{{}}]*\b{re.escape(variable.name)}\b\s*(?:\[|=|;|\{{)", self.source.unit.text)
        return declared is None or _SMALL.search(declared[0]) is not None

    def _compiled(self, spec: KernelSpec, compiler: CxxCompiler) -> bytes:
        source, runtime = self.source, self.runtime
        options = [*compiler.options(self.mode), *source.options]
        headers = [part for header in source.headers for part in header]
        parts = [source.text, *headers, *source.included, *header_texts(), *options]
        key = digest([*parts, compiler.version, *compiler.command, runtime.key])

        def build(folder: Path) -> Path:
            file, part, made = folder / "kernel.cpp", folder / "kernel.o", folder / "kernel.so"
            file.write_text(source.text, encoding="utf-8")
            for name, text in source.headers:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
            (folder / runtime.name).write_bytes(runtime.code)
            precompiled_header(compiler, self.mode, _cache).link(folder)
            ours = [f"-I{folder}", f"-I{INCLUDE}", "-include", HEADER]
            ran = compiler.run(*options[: len(compiler.options(self.mode))], *ours, *source.options, "-x", "c++", "-c",
                               str(file), "-o", str(part))  # fmt: skip
            if ran.returncode:
                self._refuse(spec, compiler, ran.stderr, folder)
            wrapped = [f"-Wl,--wrap={name}" for name in _WRAPPED] if self.mode.checked else []
            ran = compiler.run(
                "-shared", str(part), str(folder / runtime.name), "-o", str(made), "-Wl,-z,now", *wrapped
            )
            if ran.returncode:
                self._refuse(spec, compiler, ran.stderr, folder)
            self._check_calls(spec, read_symbols(made.read_bytes()))
            return made

        return _kept(key, build) if source.complete else _build(build)

    def _refuse(self, spec: KernelSpec, compiler: CxxCompiler, log: str, folder: Path) -> NoReturn:
        """Raise the error for what a compiler says."""
        log = self.in_words(log.replace(f"{folder}/", ""))
        self._refuse_header(spec, log)
        found = re.search(r"^(.*?):(\d+).*inline assembly", log, re.MULTILINE)
        if found or "Assembler messages" in log or "<inline asm>" in log:
            where = f"line {found[2]} of {found[1]}" if found else self.source.unit.file
            raise CompileError(
                f"{_of(spec)} {where} is inline assembly (PTX), which runs on a GPU alone. {_CURE.format(spec.name)}"
            )
        errors = "\n".join(line for line in log.splitlines() if "error" in line)[:1500] or log[:1500]
        cure = "Correct the lines shown."
        if "conflicting specifiers" in errors or "cannot combine with previous 'extern'" in errors:
            cure = (
                "Correct the lines shown: dynamic shared memory is declared by `extern __shared__ T name[];`, without "
                "macros for its words."
            )
        raise CompileError(
            f"{_of(spec)} {compiler.version} refuses the text:\n{errors}\n{cure} If CUDA's compiler takes them: "
            f"{_CURE[0].lower()}{_CURE[1:].format(spec.name)}"
        )

    def _refuse_header(self, spec: KernelSpec, log: str) -> None:
        """Raise the error for a header that is missing here, or that is of the host's library and not for device
        code."""
        missing = re.search(r"fatal error: (?:'?)([\w./+-]+)(?:'?)(?:: No such file| file not found)", log)
        name, why = missing[1] if missing else "", "which dagpu does not have for the host"
        if missing is None:
            unit = self.source.unit
            inner = re.search(rf"(?:from|file) {re.escape(unit.file)}:(\d+)[^\n]*\n(/[^\n:]+):\d+:\d+: error", log)
            lines = unit.text.splitlines()
            line = lines[int(inner[1]) - unit.line] if inner and 0 <= int(inner[1]) - unit.line < len(lines) else ""
            named = re.match(r"\s*#\s*include\s*<([^>]+)>", line)
            if named is None:
                return
            name, why = named[1], "a header of the host's library, which is not for device code"
        raise CompileError(
            f"{_of(spec)} it includes {name}, {why}. Remove the #include (there are {', '.join(_headers())}, and "
            "headers of C++ without streams and strings), or give it a host body with "
            f"@{spec.name}.host, or run it on CUDA."
        )

    def _check_calls(self, spec: KernelSpec, symbols: Symbols) -> None:
        """Refuse a library that calls what is neither ours nor of the math library: nothing could be checked there."""
        for name in symbols.called:
            plain = name.removesuffix("f") if name.removesuffix("f") in _MATH else name
            if plain not in _MATH and not _RUNTIME_CALLS.fullmatch(name):
                raise CompileError(
                    f"{_of(spec)} its text calls {_source(name)}, which none of dagpu's headers for the host has: the "
                    f"call could not be checked. {_CURE.format(spec.name)}"
                )

    def in_words(self, text: str) -> str:
        """Return a text of the compiler, or of an assertion, with the user's file and lines."""

        def placed(found: "re.Match[str]") -> str:
            file, line = self.source.place(int(found[1]))
            return f"{file}:{line}"

        return re.sub(rf"{re.escape(TEXT)}:(\d+)", placed, text)


def _headers() -> list[str]:
    """Return the names of CUDA's headers that `include` has."""
    names = [str(file.relative_to(INCLUDE)) for file in sorted(INCLUDE.rglob("*.h"))]
    return [name for name in names if not name.startswith("dagpu_")]


_SMALL: Final = re.compile(
    r"\b(?:char|bool|half2?|short|u?int(?:8|16)_t|uchar\d?|ushort\d?|__\w*(?:half|bfloat16)\w*|nv_bfloat16)\b"
)
_CLUSTERS: Final = re.compile(r"\b(?:__cluster_dims__|this_cluster)\b")
_CURE: Final = "Give it a host body with @{}.host, or run it on CUDA."


def _of(spec: KernelSpec) -> str:
    return f"kernel {spec.name!r}, declared at {describe(spec.origin)}, cannot run on the host:"


def _source(symbol: str) -> str:
    """Return the name of a function in the source: `fopen` for itself, the first name in a mangled one."""
    found = re.match(r"_Z(?:N?[KVRO]*S[a-z]?_?)?N?(\d+)", symbol)
    if found is None:
        return {"_Znwm": "operator new", "_Znam": "operator new[]"}.get(symbol, symbol)
    return symbol[found.end() : found.end() + int(found[1])]


_kernels: Final[dict[object, LoadedKernel]] = {}
_flights: Final[dict[object, threading.Lock]] = {}


def loaded_kernel(spec: KernelSpec, variant: int, mode: Mode) -> LoadedKernel:
    """Return a variant of a kernel, compiled the first time. Threads that ask for the same one share a compilation.

    Raises:
        CompileError: its text does not compile, has inline assembly, or calls what is not of dagpu's headers.
        DeviceError: there is no C++ compiler.
    """
    key = (kernel_key(spec, variant), spec.source_name, mode, find_cxx())
    found = _kernels.get(key)
    if found is None:
        with _flights.setdefault(key, threading.Lock()):
            found = _kernels.get(key)
            if found is None:
                found = _kernels[key] = LoadedKernel(spec, variant, mode)
    return found


os.register_at_fork(after_in_child=_flights.clear)  # a lock may be held by a thread that the child does not have


# ---- compiled code on disk
_caches: Final[dict[object, DiskCache]] = {}


def _cache(kind: str) -> DiskCache:
    """Return the cache of one kind of files."""
    folder = default_cache_dir()
    return _caches.setdefault((folder, kind), DiskCache(folder, kind))


def _kept(key: str, build: Callable[[Path], Path]) -> bytes:
    """Return a library by its key: from the cache on disk, or built now."""
    kept = _cache("so")
    code = kept.load(key)
    if code is None:
        code = _build(build)
        kept.store(key, code)
    return code


def _build(build: Callable[[Path], Path]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="dagpu-") as folder:
        return build(Path(folder)).read_bytes()


def _load(code: bytes, name: str) -> ctypes.CDLL:
    """Load a library. Its file is in a folder of this user's alone, and is gone when it is loaded."""
    with tempfile.TemporaryDirectory(prefix="dagpu-") as folder:
        path = Path(folder, name)
        path.write_bytes(code)
        return ctypes.CDLL(str(path), os.RTLD_NOW | os.RTLD_LOCAL)
