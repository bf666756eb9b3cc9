# Compiling with nvcc.
from collections.abc import Callable, Sequence
from typing import Literal, Self, TypeAlias

from pycuda._typing import HostBuffer
from pycuda.driver import Function, Linker, Module, SurfaceReference, TextureReference, jit_input_type, jit_option

_Target: TypeAlias = Literal["cubin", "ptx", "fatbin"]
_CacheDir: TypeAlias = str | Literal[False] | None  # None is the user's own, False none at all

DEFAULT_NVCC_FLAGS: list[str]

def get_nvcc_version(nvcc: str) -> str: ...
def preprocess_source(source: str, options: Sequence[str], nvcc: str) -> str: ...
def compile_plain(
    source: str, options: list[str], keep: bool, nvcc: str, cache_dir: _CacheDir, target: _Target = "cubin"
) -> bytes: ...
def compile(
    source: str,
    nvcc: str = "nvcc",
    options: list[str] | None = None,
    keep: bool = False,
    no_extern_c: bool = False,
    arch: str | None = None,
    code: str | None = None,
    cache_dir: _CacheDir = None,
    include_dirs: Sequence[str] | None = None,
    target: _Target = "cubin",
) -> bytes: ...

class CudaModule:
    def get_function(self, name: str) -> Function: ...
    # From here on: the module's own methods, which each object gets when its module is there.
    def get_global(self, name: str) -> tuple[int, int]: ...  # address, bytes
    def get_texref(self, name: str) -> TextureReference: ...
    def get_surfref(self, name: str) -> SurfaceReference: ...

class SourceModule(CudaModule):
    module: Module
    def __init__(
        self,
        source: str,
        nvcc: str = "nvcc",
        options: list[str] | None = None,
        keep: bool = False,
        no_extern_c: bool = False,
        arch: str | None = None,
        code: str | None = None,
        cache_dir: _CacheDir = None,
        include_dirs: Sequence[str] | None = None,
    ) -> None: ...

class DynamicModule(CudaModule):
    linker: Linker | None  # None once linked
    module: Module | None  # None until linked
    nvcc: str
    keep: bool
    no_extern_c: bool
    arch: str | None
    code: str | None
    cache_dir: _CacheDir
    include_dirs: Sequence[str]
    cuda_libdir: str | None
    libdir: str | None
    libptn: str | None
    def __init__(
        self,
        nvcc: str = "nvcc",
        link_options: Sequence[tuple[jit_option, int]] | None = None,
        keep: bool = False,
        no_extern_c: bool = False,
        arch: str | None = None,
        code: str | None = None,
        cache_dir: _CacheDir = None,
        include_dirs: Sequence[str] | None = None,
        message_handler: Callable[[bool, str, str], object] | None = None,
        log_verbose: bool = False,
        cuda_libdir: str | None = None,
    ) -> None: ...
    def add_source(self, source: str, nvcc_options: list[str] | None = None, name: str = "kernel.ptx") -> Self: ...
    def add_data(self, data: HostBuffer, input_type: jit_input_type, name: str = "unknown") -> Self: ...
    def add_file(self, filename: str, input_type: jit_input_type) -> Self: ...
    def add_stdlib(self, libname: str) -> Self: ...
    def link(self) -> Self: ...

class DynamicSourceModule(DynamicModule):
    def __init__(
        self,
        source: str,
        nvcc: str = "nvcc",
        options: list[str] | None = None,
        keep: bool = False,
        no_extern_c: bool = False,
        arch: str | None = None,
        code: str | None = None,
        cache_dir: _CacheDir = None,
        include_dirs: Sequence[str] | None = None,
        cuda_libdir: str | None = None,
    ) -> None: ...
