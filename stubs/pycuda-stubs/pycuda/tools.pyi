# Memory pools, the default device, occupancy, C types, caches that follow the context.
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Literal, ParamSpec, TextIO, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import DTypeLike

from pycuda._driver import (
    DeviceMemoryPool as DeviceMemoryPool,
    PageLockedAllocator as PageLockedAllocator,
    PageLockedMemoryPool as PageLockedMemoryPool,
    PooledDeviceAllocation,
    bitlog2 as bitlog2,
)
from pycuda.compyte.dtypes import (
    get_or_register_dtype as get_or_register_dtype,
    register_dtype as register_dtype,
)
from pycuda.driver import Context, Device

_P = ParamSpec("_P")
_T = TypeVar("_T")

class DebugMemoryPool(DeviceMemoryPool):
    last_free: int
    interactive: bool
    logfile: TextIO
    blocks: WeakKeyDictionary[PooledDeviceAllocation, tuple[int, str]]
    stacktrace_mnemonics: MutableMapping[tuple[tuple[str, ...], int], str]  # where interactive
    def __init__(self, interactive: bool = True, logfile: TextIO | None = None) -> None: ...
    def allocate(self, size: int) -> PooledDeviceAllocation: ...
    def describe(self, stack: tuple[str, ...], size: int) -> str: ...

def get_default_device(default: int = 0) -> Device: ...
def make_default_context(ctx_maker: Callable[[Device], Context] | None = None) -> Context: ...

# ---- occupancy -------------------------------------------------------------------------------------------------------

class DeviceData:
    max_threads: int
    warp_size: int
    warps_per_mp: int
    thread_blocks_per_mp: int
    registers: int
    shared_memory: int
    smem_alloc_granularity: int
    smem_granularity: int
    register_allocation_unit: Literal["warp", "block"]
    def __init__(self, dev: Device | None = None) -> None: ...
    def align(self, bytes: int, word_size: int = 4) -> int: ...
    def align_dtype(self, elements: int, dtype_size: int) -> int: ...
    def align_words(self, word_size: int) -> int: ...
    def align_bytes(self, word_size: int = 4) -> int: ...
    def coalesce(self, thread_count: int) -> int: ...
    @staticmethod
    def make_valid_tex_channel_count(size: int) -> int: ...

class OccupancyRecord:
    tb_per_mp_limits: list[tuple[int, str]]
    tb_per_mp: int
    limited_by: Literal["device", "warps", "regs", "smem"]
    warps_per_mp: int
    occupancy: float
    def __init__(self, devdata: DeviceData, threads: int, shared_mem: int = 0, registers: int = 0) -> None: ...

# ---- kernel arguments in C -------------------------------------------------------------------------------------------

class Argument:
    dtype: np.dtype[Any]
    name: str
    def __init__(self, dtype: DTypeLike, name: str) -> None: ...

class VectorArg(Argument):
    struct_char: str
    def declarator(self) -> str: ...

class ScalarArg(Argument):
    @property
    def struct_char(self) -> str: ...
    def declarator(self) -> str: ...

def dtype_to_ctype(dtype: DTypeLike, with_fp_tex_hack: bool = False) -> str: ...
def parse_c_arg(c_arg: str) -> ScalarArg | VectorArg: ...
def get_arg_type(c_arg: str) -> str: ...

# ---- caches, and tests -----------------------------------------------------------------------------------------------

context_dependent_memoized_functions: list[Callable[..., Any]]

def context_dependent_memoize(func: Callable[_P, _T]) -> Callable[_P, _T]: ...
def clear_context_caches() -> None: ...
def mark_cuda_test(inner_f: Callable[_P, object]) -> Callable[_P, None]: ...
def init_cuda_context_fixture() -> Iterator[None]: ...
