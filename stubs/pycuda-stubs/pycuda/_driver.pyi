# The extension module: what pycuda.driver and pycuda.tools re-export. Signatures are those of the compiled module's own
# docstrings; what takes positional arguments alone has no names there. The order is that of the C++ source: constants,
# devices, streams, memory, copies, textures, modules, pools.
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Literal, Never, Self, overload, type_check_only

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import TypeVar

from pycuda._attributes import DeviceAttributes, FunctionAttributes
from pycuda._typing import (
    Block,
    DevicePointer,
    DTypeOf,
    Grid,
    HostBuffer,
    HostShape,
    KernelArgument,
    MaybeNone,
    Order,
    PreparedArgument,
    WritableHostBuffer,
)

_ScalarT = TypeVar("_ScalarT", bound=np.generic)
_ArrayT = TypeVar("_ArrayT", bound=NDArray[Any])

# Boost.Python makes the classes of C++, with a metaclass of its own.
@type_check_only
class _Class(type): ...

@type_check_only
class _Instance(metaclass=_Class): ...

# Boost.Python's enumerations are integers with names, and no enum.Enum: any integer makes one.
@type_check_only
class _Enum(int):
    names: ClassVar[dict[str, Self]]
    values: ClassVar[dict[int, Self]]
    @property
    def name(self) -> str: ...  # AttributeError where no constant has this value

# Calling one of these raises: they come from functions and methods alone.
@type_check_only
class _NotConstructible(_Instance):
    def __init__(self, not_from_python: Never, /) -> None: ...

# ---- constants ------------------------------------------------------------------------------------------------------

class address_mode(_Enum):
    WRAP: ClassVar[address_mode]
    CLAMP: ClassVar[address_mode]
    MIRROR: ClassVar[address_mode]
    BORDER: ClassVar[address_mode]

class array_cubemap_face(_Enum):
    POSITIVE_X: ClassVar[array_cubemap_face]
    NEGATIVE_X: ClassVar[array_cubemap_face]
    POSITIVE_Y: ClassVar[array_cubemap_face]
    NEGATIVE_Y: ClassVar[array_cubemap_face]
    POSITIVE_Z: ClassVar[array_cubemap_face]
    NEGATIVE_Z: ClassVar[array_cubemap_face]

class array_format(_Enum):
    UNSIGNED_INT8: ClassVar[array_format]
    UNSIGNED_INT16: ClassVar[array_format]
    UNSIGNED_INT32: ClassVar[array_format]
    SIGNED_INT8: ClassVar[array_format]
    SIGNED_INT16: ClassVar[array_format]
    SIGNED_INT32: ClassVar[array_format]
    HALF: ClassVar[array_format]
    FLOAT: ClassVar[array_format]

class compute_mode(_Enum):
    DEFAULT: ClassVar[compute_mode]
    PROHIBITED: ClassVar[compute_mode]
    EXCLUSIVE_PROCESS: ClassVar[compute_mode]

class ctx_flags(_Enum):
    SCHED_AUTO: ClassVar[ctx_flags]
    SCHED_SPIN: ClassVar[ctx_flags]
    SCHED_YIELD: ClassVar[ctx_flags]
    BLOCKING_SYNC: ClassVar[ctx_flags]
    SCHED_BLOCKING_SYNC: ClassVar[ctx_flags]
    SCHED_MASK: ClassVar[ctx_flags]
    MAP_HOST: ClassVar[ctx_flags]
    LMEM_RESIZE_TO_MAX: ClassVar[ctx_flags]
    FLAGS_MASK: ClassVar[ctx_flags]

class device_attribute(_Enum):
    MAX_THREADS_PER_BLOCK: ClassVar[device_attribute]
    MAX_BLOCK_DIM_X: ClassVar[device_attribute]
    MAX_BLOCK_DIM_Y: ClassVar[device_attribute]
    MAX_BLOCK_DIM_Z: ClassVar[device_attribute]
    MAX_GRID_DIM_X: ClassVar[device_attribute]
    MAX_GRID_DIM_Y: ClassVar[device_attribute]
    MAX_GRID_DIM_Z: ClassVar[device_attribute]
    MAX_SHARED_MEMORY_PER_BLOCK: ClassVar[device_attribute]
    SHARED_MEMORY_PER_BLOCK: ClassVar[device_attribute]
    TOTAL_CONSTANT_MEMORY: ClassVar[device_attribute]
    WARP_SIZE: ClassVar[device_attribute]
    MAX_PITCH: ClassVar[device_attribute]
    MAX_REGISTERS_PER_BLOCK: ClassVar[device_attribute]
    REGISTERS_PER_BLOCK: ClassVar[device_attribute]
    CLOCK_RATE: ClassVar[device_attribute]
    TEXTURE_ALIGNMENT: ClassVar[device_attribute]
    GPU_OVERLAP: ClassVar[device_attribute]
    MULTIPROCESSOR_COUNT: ClassVar[device_attribute]
    KERNEL_EXEC_TIMEOUT: ClassVar[device_attribute]
    INTEGRATED: ClassVar[device_attribute]
    CAN_MAP_HOST_MEMORY: ClassVar[device_attribute]
    COMPUTE_MODE: ClassVar[device_attribute]
    MAXIMUM_TEXTURE1D_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_HEIGHT: ClassVar[device_attribute]
    MAXIMUM_TEXTURE3D_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE3D_HEIGHT: ClassVar[device_attribute]
    MAXIMUM_TEXTURE3D_DEPTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_ARRAY_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_LAYERED_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_ARRAY_HEIGHT: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_LAYERED_HEIGHT: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_ARRAY_NUMSLICES: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_LAYERED_LAYERS: ClassVar[device_attribute]
    SURFACE_ALIGNMENT: ClassVar[device_attribute]
    CONCURRENT_KERNELS: ClassVar[device_attribute]
    ECC_ENABLED: ClassVar[device_attribute]
    PCI_BUS_ID: ClassVar[device_attribute]
    PCI_DEVICE_ID: ClassVar[device_attribute]
    TCC_DRIVER: ClassVar[device_attribute]
    MEMORY_CLOCK_RATE: ClassVar[device_attribute]
    GLOBAL_MEMORY_BUS_WIDTH: ClassVar[device_attribute]
    L2_CACHE_SIZE: ClassVar[device_attribute]
    MAX_THREADS_PER_MULTIPROCESSOR: ClassVar[device_attribute]
    ASYNC_ENGINE_COUNT: ClassVar[device_attribute]
    UNIFIED_ADDRESSING: ClassVar[device_attribute]
    MAXIMUM_TEXTURE1D_LAYERED_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE1D_LAYERED_LAYERS: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_GATHER_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_GATHER_HEIGHT: ClassVar[device_attribute]
    MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE: ClassVar[device_attribute]
    MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE: ClassVar[device_attribute]
    MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE: ClassVar[device_attribute]
    PCI_DOMAIN_ID: ClassVar[device_attribute]
    TEXTURE_PITCH_ALIGNMENT: ClassVar[device_attribute]
    MAXIMUM_TEXTURECUBEMAP_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS: ClassVar[device_attribute]
    MAXIMUM_SURFACE1D_WIDTH: ClassVar[device_attribute]
    MAXIMUM_SURFACE2D_WIDTH: ClassVar[device_attribute]
    MAXIMUM_SURFACE2D_HEIGHT: ClassVar[device_attribute]
    MAXIMUM_SURFACE3D_WIDTH: ClassVar[device_attribute]
    MAXIMUM_SURFACE3D_HEIGHT: ClassVar[device_attribute]
    MAXIMUM_SURFACE3D_DEPTH: ClassVar[device_attribute]
    MAXIMUM_SURFACE1D_LAYERED_WIDTH: ClassVar[device_attribute]
    MAXIMUM_SURFACE1D_LAYERED_LAYERS: ClassVar[device_attribute]
    MAXIMUM_SURFACE2D_LAYERED_WIDTH: ClassVar[device_attribute]
    MAXIMUM_SURFACE2D_LAYERED_HEIGHT: ClassVar[device_attribute]
    MAXIMUM_SURFACE2D_LAYERED_LAYERS: ClassVar[device_attribute]
    MAXIMUM_SURFACECUBEMAP_WIDTH: ClassVar[device_attribute]
    MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH: ClassVar[device_attribute]
    MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS: ClassVar[device_attribute]
    MAXIMUM_TEXTURE1D_LINEAR_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_LINEAR_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_LINEAR_HEIGHT: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_LINEAR_PITCH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH: ClassVar[device_attribute]
    MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT: ClassVar[device_attribute]
    COMPUTE_CAPABILITY_MAJOR: ClassVar[device_attribute]
    COMPUTE_CAPABILITY_MINOR: ClassVar[device_attribute]
    MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH: ClassVar[device_attribute]
    STREAM_PRIORITIES_SUPPORTED: ClassVar[device_attribute]
    GLOBAL_L1_CACHE_SUPPORTED: ClassVar[device_attribute]
    LOCAL_L1_CACHE_SUPPORTED: ClassVar[device_attribute]
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: ClassVar[device_attribute]
    MAX_REGISTERS_PER_MULTIPROCESSOR: ClassVar[device_attribute]
    MANAGED_MEMORY: ClassVar[device_attribute]
    MULTI_GPU_BOARD: ClassVar[device_attribute]
    MULTI_GPU_BOARD_GROUP_ID: ClassVar[device_attribute]
    HOST_NATIVE_ATOMIC_SUPPORTED: ClassVar[device_attribute]
    SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO: ClassVar[device_attribute]
    PAGEABLE_MEMORY_ACCESS: ClassVar[device_attribute]
    CONCURRENT_MANAGED_ACCESS: ClassVar[device_attribute]
    COMPUTE_PREEMPTION_SUPPORTED: ClassVar[device_attribute]
    CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: ClassVar[device_attribute]
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: ClassVar[device_attribute]
    PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES: ClassVar[device_attribute]
    DIRECT_MANAGED_MEM_ACCESS_FROM_HOST: ClassVar[device_attribute]
    HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: ClassVar[device_attribute]
    HANDLE_TYPE_WIN32_HANDLE_SUPPORTED: ClassVar[device_attribute]
    HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED: ClassVar[device_attribute]
    MAX_BLOCKS_PER_MULTIPROCESSOR: ClassVar[device_attribute]
    GENERIC_COMPRESSION_SUPPORTED: ClassVar[device_attribute]
    MAX_PERSISTING_L2_CACHE_SIZE: ClassVar[device_attribute]
    RESERVED_SHARED_MEMORY_PER_BLOCK: ClassVar[device_attribute]
    READ_ONLY_HOST_REGISTER_SUPPORTED: ClassVar[device_attribute]
    MEMORY_POOLS_SUPPORTED: ClassVar[device_attribute]

class event_flags(_Enum):
    DEFAULT: ClassVar[event_flags]
    BLOCKING_SYNC: ClassVar[event_flags]
    DISABLE_TIMING: ClassVar[event_flags]
    INTERPROCESS: ClassVar[event_flags]

class filter_mode(_Enum):
    POINT: ClassVar[filter_mode]
    LINEAR: ClassVar[filter_mode]

class func_cache(_Enum):
    PREFER_NONE: ClassVar[func_cache]
    PREFER_SHARED: ClassVar[func_cache]
    PREFER_L1: ClassVar[func_cache]
    PREFER_EQUAL: ClassVar[func_cache]

class function_attribute(_Enum):
    MAX_THREADS_PER_BLOCK: ClassVar[function_attribute]
    SHARED_SIZE_BYTES: ClassVar[function_attribute]
    CONST_SIZE_BYTES: ClassVar[function_attribute]
    LOCAL_SIZE_BYTES: ClassVar[function_attribute]
    NUM_REGS: ClassVar[function_attribute]
    PTX_VERSION: ClassVar[function_attribute]
    BINARY_VERSION: ClassVar[function_attribute]
    CACHE_MODE_CA: ClassVar[function_attribute]
    MAX_DYNAMIC_SHARED_SIZE_BYTES: ClassVar[function_attribute]
    PREFERRED_SHARED_MEMORY_CARVEOUT: ClassVar[function_attribute]
    MAX: ClassVar[function_attribute]

class graphics_register_flags(_Enum):
    NONE: ClassVar[graphics_register_flags]
    READ_ONLY: ClassVar[graphics_register_flags]
    WRITE_DISCARD: ClassVar[graphics_register_flags]
    SURFACE_LDST: ClassVar[graphics_register_flags]
    TEXTURE_GATHER: ClassVar[graphics_register_flags]

class ipc_mem_flags(_Enum):
    LAZY_ENABLE_PEER_ACCESS: ClassVar[ipc_mem_flags]

class jit_fallback(_Enum):
    PREFER_PTX: ClassVar[jit_fallback]
    PREFER_BINARY: ClassVar[jit_fallback]

class jit_input_type(_Enum):
    CUBIN: ClassVar[jit_input_type]
    PTX: ClassVar[jit_input_type]
    FATBINARY: ClassVar[jit_input_type]
    OBJECT: ClassVar[jit_input_type]
    LIBRARY: ClassVar[jit_input_type]

class jit_option(_Enum):
    MAX_REGISTERS: ClassVar[jit_option]
    THREADS_PER_BLOCK: ClassVar[jit_option]
    WALL_TIME: ClassVar[jit_option]
    INFO_LOG_BUFFER: ClassVar[jit_option]
    INFO_LOG_BUFFER_SIZE_BYTES: ClassVar[jit_option]
    ERROR_LOG_BUFFER: ClassVar[jit_option]
    ERROR_LOG_BUFFER_SIZE_BYTES: ClassVar[jit_option]
    OPTIMIZATION_LEVEL: ClassVar[jit_option]
    TARGET_FROM_CUCONTEXT: ClassVar[jit_option]
    TARGET: ClassVar[jit_option]
    FALLBACK_STRATEGY: ClassVar[jit_option]

class jit_target(_Enum):
    COMPUTE_30: ClassVar[jit_target]
    COMPUTE_32: ClassVar[jit_target]
    COMPUTE_35: ClassVar[jit_target]
    COMPUTE_37: ClassVar[jit_target]
    COMPUTE_50: ClassVar[jit_target]
    COMPUTE_52: ClassVar[jit_target]
    COMPUTE_53: ClassVar[jit_target]
    COMPUTE_60: ClassVar[jit_target]
    COMPUTE_61: ClassVar[jit_target]
    COMPUTE_62: ClassVar[jit_target]
    COMPUTE_70: ClassVar[jit_target]
    COMPUTE_72: ClassVar[jit_target]
    COMPUTE_75: ClassVar[jit_target]
    COMPUTE_80: ClassVar[jit_target]
    COMPUTE_86: ClassVar[jit_target]
    COMPUTE_90: ClassVar[jit_target]
    COMPUTE_90A: ClassVar[jit_target]

class limit(_Enum):
    STACK_SIZE: ClassVar[limit]
    PRINTF_FIFO_SIZE: ClassVar[limit]
    MALLOC_HEAP_SIZE: ClassVar[limit]
    DEV_RUNTIME_SYNC_DEPTH: ClassVar[limit]
    DEV_RUNTIME_PENDING_LAUNCH_COUNT: ClassVar[limit]

class mem_attach_flags(_Enum):
    GLOBAL: ClassVar[mem_attach_flags]
    HOST: ClassVar[mem_attach_flags]
    SINGLE: ClassVar[mem_attach_flags]

class memory_type(_Enum):
    HOST: ClassVar[memory_type]
    DEVICE: ClassVar[memory_type]
    ARRAY: ClassVar[memory_type]
    UNIFIED: ClassVar[memory_type]

class pointer_attribute(_Enum):
    CONTEXT: ClassVar[pointer_attribute]
    MEMORY_TYPE: ClassVar[pointer_attribute]
    DEVICE_POINTER: ClassVar[pointer_attribute]
    HOST_POINTER: ClassVar[pointer_attribute]

class profiler_output_mode(_Enum):
    KEY_VALUE_PAIR: ClassVar[profiler_output_mode]
    CSV: ClassVar[profiler_output_mode]

class shared_config(_Enum):
    DEFAULT_BANK_SIZE: ClassVar[shared_config]
    FOUR_BYTE_BANK_SIZE: ClassVar[shared_config]
    EIGHT_BYTE_BANK_SIZE: ClassVar[shared_config]

class array3d_flags(_NotConstructible):
    # 2DARRAY = 1
    ARRAY3D_2DARRAY: Final = 1
    ARRAY3D_LAYERED: Final = 1
    SURFACE_LDST: Final = 2
    CUBEMAP: Final = 4
    TEXTURE_GATHER: Final = 8

class host_alloc_flags(_NotConstructible):
    PORTABLE: Final = 1
    DEVICEMAP: Final = 2
    WRITECOMBINED: Final = 4

class mem_host_register_flags(_NotConstructible):
    PORTABLE: Final = 1
    DEVICEMAP: Final = 2

TRSA_OVERRIDE_FORMAT: Final = 1
TRSF_READ_AS_INTEGER: Final = 1
TRSF_NORMALIZED_COORDINATES: Final = 2
TR_DEFAULT: Final = -1

# ---- errors ----------------------------------------------------------------------------------------------------------

class Error(Exception): ...
class MemoryError(Error): ...  # not the builtin one, whatever its name
class LogicError(Error): ...
class LaunchError(Error): ...
class RuntimeError(Error): ...  # not the builtin one

# ---- devices and contexts --------------------------------------------------------------------------------------------

def init(flags: int = 0) -> None: ...
def get_version() -> tuple[int, int, int]: ...
def get_driver_version() -> int: ...
def have_gl_ext() -> bool: ...
def bitlog2(value: int, /) -> int: ...
def mem_get_info() -> tuple[int, int]: ...  # free, total; bytes
def initialize_profiler(config_file: str, output_file: str, output_mode: profiler_output_mode, /) -> None: ...
def start_profiler() -> None: ...
def stop_profiler() -> None: ...

class Device(DeviceAttributes, _Instance):
    @overload
    def __init__(self, number: int, /) -> None: ...
    @overload
    def __init__(self, pci_bus_id: str, /) -> None: ...
    @staticmethod
    def count() -> int: ...
    def name(self) -> str: ...
    def pci_bus_id(self) -> str: ...
    def compute_capability(self) -> tuple[int, int]: ...
    def total_memory(self) -> int: ...  # bytes
    # compute_mode for COMPUTE_MODE, which is an int as well
    def get_attribute(self, attribute: device_attribute, /) -> int: ...
    def get_attributes(self) -> dict[device_attribute, int]: ...
    def make_context(self, flags: int = 0) -> Context: ...
    def retain_primary_context(self) -> Context: ...
    def can_access_peer(self, peer: Device, /) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class Context(_NotConstructible):
    @property
    def handle(self) -> int: ...
    @staticmethod
    def attach(flags: int = 0) -> Context: ...
    @staticmethod
    def get_current() -> Context | MaybeNone: ...  # None where no context is current
    @staticmethod
    def get_device() -> Device: ...
    def push(self) -> None: ...
    @staticmethod
    def pop() -> None: ...
    def detach(self) -> None: ...
    @staticmethod
    def synchronize() -> None: ...
    @staticmethod
    def get_limit(limit: limit, /) -> int: ...
    @staticmethod
    def set_limit(limit: limit, value: int, /) -> None: ...
    @staticmethod
    def get_cache_config() -> func_cache: ...
    @staticmethod
    def set_cache_config(config: func_cache, /) -> None: ...
    @staticmethod
    def get_shared_config() -> shared_config: ...
    @staticmethod
    def set_shared_config(config: shared_config, /) -> None: ...
    def get_api_version(self) -> int: ...
    @staticmethod
    def enable_peer_access(peer: Context, flags: int = 0) -> None: ...
    @staticmethod
    def disable_peer_access(peer: Context, /) -> None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

# ---- streams and events ----------------------------------------------------------------------------------------------

class Stream(_Instance):
    def __init__(self, flags: int = 0) -> None: ...
    @property
    def handle(self) -> int: ...
    def synchronize(self) -> None: ...
    def is_done(self) -> bool: ...
    def wait_for_event(self, event: Event, /) -> None: ...

class Event(_Instance):
    def __init__(self, flags: int = ...) -> None: ...
    def record(self, stream: Stream | None = None) -> Self: ...
    def synchronize(self) -> Self: ...
    def query(self) -> bool: ...
    def time_since(self, earlier: Event, /) -> float: ...  # milliseconds
    def time_till(self, later: Event, /) -> float: ...  # milliseconds
    def ipc_handle(self) -> bytearray: ...
    @staticmethod
    def from_ipc_handle(handle: bytearray, /) -> Event: ...

# ---- device memory ---------------------------------------------------------------------------------------------------

@type_check_only
class _Pointer(_Instance):
    def __int__(self) -> int: ...
    def __long__(self) -> int: ...
    def __index__(self) -> int: ...

class DeviceAllocation(_Pointer, _NotConstructible):
    def free(self) -> None: ...
    def as_buffer(self, size: int, offset: int = 0) -> memoryview: ...

class PointerHolderBase(_Pointer):
    def __init__(self) -> None: ...
    def get_pointer(self) -> int: ...  # for the subclass to define
    def as_buffer(self, size: int, offset: int = 0) -> memoryview: ...

class IPCMemoryHandle(_Pointer):
    def __init__(self, handle: bytearray, flags: ipc_mem_flags = ..., /) -> None: ...
    def close(self) -> None: ...

def mem_alloc(nbytes: int, /) -> DeviceAllocation: ...
def mem_alloc_pitch(width: int, height: int, access_size: int) -> tuple[DeviceAllocation, int]: ...
def mem_get_address_range(pointer: DevicePointer, /) -> tuple[int, int]: ...  # base, bytes
def mem_get_ipc_handle(pointer: DevicePointer, /) -> bytearray: ...

# `size` counts elements, not bytes.
def memset_d8(dest: DevicePointer, data: int, size: int) -> None: ...
def memset_d16(dest: DevicePointer, data: int, size: int) -> None: ...
def memset_d32(dest: DevicePointer, data: int, size: int) -> None: ...
def memset_d2d8(dest: DevicePointer, pitch: int, data: int, width: int, height: int) -> None: ...
def memset_d2d16(dest: DevicePointer, pitch: int, data: int, width: int, height: int) -> None: ...
def memset_d2d32(dest: DevicePointer, pitch: int, data: int, width: int, height: int) -> None: ...
def memset_d8_async(dest: DevicePointer, data: int, size: int, stream: Stream | None = None) -> None: ...
def memset_d16_async(dest: DevicePointer, data: int, size: int, stream: Stream | None = None) -> None: ...
def memset_d32_async(dest: DevicePointer, data: int, size: int, stream: Stream | None = None) -> None: ...
def memset_d2d8_async(
    dest: DevicePointer, pitch: int, data: int, width: int, height: int, stream: Stream | None = None
) -> None: ...
def memset_d2d16_async(
    dest: DevicePointer, pitch: int, data: int, width: int, height: int, stream: Stream | None = None
) -> None: ...
def memset_d2d32_async(
    dest: DevicePointer, pitch: int, data: int, width: int, height: int, stream: Stream | None = None
) -> None: ...

# ---- host memory -----------------------------------------------------------------------------------------------------

class HostPointer(_NotConstructible):
    def get_device_pointer(self) -> int: ...

class PagelockedHostAllocation(HostPointer):
    def free(self) -> None: ...
    def get_flags(self) -> int: ...

HostAllocation = PagelockedHostAllocation  # its name of old

class AlignedHostAllocation(HostPointer):
    def free(self) -> None: ...

class RegisteredHostMemory(HostPointer):
    def unregister(self) -> None: ...

class ManagedAllocation(DeviceAllocation):
    def get_device_pointer(self) -> int: ...
    def attach(self, mem_flags: int, stream: Stream | None = None) -> None: ...

# The arrays' `base` is the allocation: no type of NumPy's says so.
@overload
def pagelocked_empty(
    shape: HostShape, dtype: DTypeOf[_ScalarT], order: Order = "C", mem_flags: int = 0
) -> NDArray[_ScalarT]: ...
@overload
def pagelocked_empty(shape: HostShape, dtype: DTypeLike, order: Order = "C", mem_flags: int = 0) -> NDArray[Any]: ...
@overload
def aligned_empty(
    shape: HostShape, dtype: DTypeOf[_ScalarT], order: Order = "C", alignment: int = 4096
) -> NDArray[_ScalarT]: ...
@overload
def aligned_empty(shape: HostShape, dtype: DTypeLike, order: Order = "C", alignment: int = 4096) -> NDArray[Any]: ...
@overload
def managed_empty(
    shape: HostShape, dtype: DTypeOf[_ScalarT], order: Order = "C", mem_flags: int = 0
) -> NDArray[_ScalarT]: ...
@overload
def managed_empty(shape: HostShape, dtype: DTypeLike, order: Order = "C", mem_flags: int = 0) -> NDArray[Any]: ...
def register_host_memory(ary: _ArrayT, flags: int = 0) -> _ArrayT: ...

# ---- copies ----------------------------------------------------------------------------------------------------------

def memcpy_htod(dest: DevicePointer, src: HostBuffer) -> None: ...
def memcpy_htod_async(dest: DevicePointer, src: HostBuffer, stream: Stream | None = None) -> None: ...
def memcpy_dtoh(dest: WritableHostBuffer, src: DevicePointer) -> None: ...
def memcpy_dtoh_async(dest: WritableHostBuffer, src: DevicePointer, stream: Stream | None = None) -> None: ...
def memcpy_dtod(dest: DevicePointer, src: DevicePointer, size: int) -> None: ...
def memcpy_dtod_async(dest: DevicePointer, src: DevicePointer, size: int, stream: Stream | None = None) -> None: ...
def memcpy_peer(
    dest: DevicePointer,
    src: DevicePointer,
    size: int,
    dest_context: Context | None = None,
    src_context: Context | None = None,
) -> None: ...
def memcpy_peer_async(
    dest: DevicePointer,
    src: DevicePointer,
    size: int,
    dest_context: Context | None = None,
    src_context: Context | None = None,
    stream: Stream | None = None,
) -> None: ...
def memcpy_dtoa(ary: Array, index: int, src: DevicePointer, len: int) -> None: ...
def memcpy_atod(dest: DevicePointer, ary: Array, index: int, len: int) -> None: ...
def memcpy_atoa(dest: Array, dest_index: int, src: Array, src_index: int, len: int) -> None: ...

# The documentation calls these memcpy_htoa and memcpy_atoh; the module does not.
def py_memcpy_htoa(ary: Array, index: int, src: HostBuffer) -> None: ...
def py_memcpy_atoh(dest: WritableHostBuffer, ary: Array, index: int) -> None: ...

@type_check_only
class _Memcpy(_Instance):
    src_x_in_bytes: int
    src_y: int
    src_memory_type: memory_type
    @property
    def src_device(self) -> int: ...
    @src_device.setter
    def src_device(self, pointer: DevicePointer) -> None: ...
    src_pitch: int
    dst_x_in_bytes: int
    dst_y: int
    dst_memory_type: memory_type
    @property
    def dst_device(self) -> int: ...
    @dst_device.setter
    def dst_device(self, pointer: DevicePointer) -> None: ...
    dst_pitch: int
    width_in_bytes: int
    height: int
    def set_src_host(self, buffer: HostBuffer, /) -> None: ...
    def set_src_array(self, array: Array, /) -> None: ...
    def set_src_device(self, pointer: DevicePointer, /) -> None: ...
    def set_src_unified(self, buffer: HostBuffer, /) -> None: ...
    def set_dst_host(self, buffer: WritableHostBuffer, /) -> None: ...
    def set_dst_array(self, array: Array, /) -> None: ...
    def set_dst_device(self, pointer: DevicePointer, /) -> None: ...
    def set_dst_unified(self, buffer: WritableHostBuffer, /) -> None: ...

@type_check_only
class _Memcpy3D(_Memcpy):
    src_z: int
    src_lod: int
    src_height: int
    dst_z: int
    dst_lod: int
    dst_height: int
    depth: int
    @overload
    def __call__(self) -> None: ...
    @overload
    def __call__(self, stream: Stream, /) -> None: ...

class Memcpy2D(_Memcpy):
    def __init__(self) -> None: ...
    # The documentation has True for a default; there is none.
    @overload
    def __call__(self, aligned: bool) -> None: ...
    @overload
    def __call__(self, stream: Stream, /) -> None: ...

class Memcpy3D(_Memcpy3D):
    def __init__(self) -> None: ...

class Memcpy3DPeer(_Memcpy3D):
    def __init__(self) -> None: ...
    def set_src_context(self, context: Context, /) -> None: ...
    def set_dst_context(self, context: Context, /) -> None: ...

# ---- arrays and textures ---------------------------------------------------------------------------------------------

class ArrayDescriptor(_Instance):
    def __init__(self) -> None: ...
    width: int
    height: int
    format: array_format
    num_channels: int

class ArrayDescriptor3D(_Instance):
    def __init__(self) -> None: ...
    width: int
    height: int
    depth: int
    format: array_format
    num_channels: int
    flags: int

class Array(_Instance):
    @overload
    def __init__(self, descriptor: ArrayDescriptor, /) -> None: ...
    @overload
    def __init__(self, descriptor: ArrayDescriptor3D, /) -> None: ...
    @property
    def handle(self) -> int: ...
    def free(self) -> None: ...
    def get_descriptor(self) -> ArrayDescriptor: ...
    def get_descriptor_3d(self) -> ArrayDescriptor3D: ...

class SurfaceReference(_NotConstructible):
    def set_array(self, array: Array, flags: int = 0) -> None: ...
    def get_array(self) -> Array: ...

class TextureReference(_Instance):
    def __init__(self) -> None: ...
    def set_array(self, array: Array, /) -> None: ...
    def set_address(self, devptr: DevicePointer, bytes: int, allow_offset: bool = False) -> int: ...
    def set_address_2d(self, devptr: DevicePointer, descr: ArrayDescriptor, pitch: int) -> None: ...
    def set_format(self, format: array_format, num_components: int) -> None: ...
    def set_address_mode(self, dim: int, am: address_mode) -> None: ...
    def set_filter_mode(self, mode: filter_mode, /) -> None: ...
    def set_flags(self, flags: int, /) -> None: ...
    def get_address(self) -> int: ...
    def get_array(self) -> Array: ...
    def get_address_mode(self, dim: int, /) -> address_mode: ...
    def get_filter_mode(self) -> filter_mode: ...
    def get_format(self) -> tuple[array_format, int]: ...
    def get_flags(self) -> int: ...

# ---- modules and functions -------------------------------------------------------------------------------------------

class Module(_NotConstructible):
    def get_function(self, name: str) -> Function: ...
    def get_global(self, name: str) -> tuple[int, int]: ...  # address, bytes
    def get_texref(self, name: str) -> TextureReference: ...
    def get_surfref(self, name: str) -> SurfaceReference: ...

def module_from_file(filename: str) -> Module: ...
def module_from_buffer(
    buffer: HostBuffer,
    options: Iterable[tuple[jit_option, int]] = ...,
    message_handler: Callable[[bool, str, str], object] | None = None,
) -> Module: ...

class Linker(_Instance):
    def __init__(
        self,
        message_handler: Callable[[bool, str, str], object] | None = ...,
        options: Iterable[tuple[jit_option, int]] | None = ...,
        log_verbose: bool = ...,
        /,
    ) -> None: ...
    def add_data(self, data: HostBuffer, input_type: jit_input_type, name: str = "unknown") -> None: ...
    def add_file(self, filename: str, input_type: jit_input_type) -> None: ...
    def link_module(self) -> Module: ...

class Function(FunctionAttributes, _NotConstructible):
    # The time that it took, in seconds, where `time_kernel` is set; else nothing.
    @overload
    def __call__(
        self,
        *args: KernelArgument,
        block: Block,
        grid: Grid = (1, 1),
        stream: None = None,
        shared: int = 0,
        texrefs: Iterable[TextureReference] = ...,
        time_kernel: Literal[True],
    ) -> float: ...
    @overload
    def __call__(
        self,
        *args: KernelArgument,
        block: Block,
        grid: Grid = (1, 1),
        stream: Stream | None = None,
        shared: int = 0,
        texrefs: Iterable[TextureReference] = ...,
        time_kernel: Literal[False] = False,
    ) -> None: ...
    # struct's characters, one an argument, or the types themselves
    def prepare(
        self, arg_types: Iterable[str | np.dtype[Any] | type[Any]], texrefs: list[TextureReference] | None = None
    ) -> Self: ...
    def prepared_call(self, grid: Grid, block: Block, *args: PreparedArgument, shared_size: int = 0) -> None: ...
    # The result waits for the end, and returns the seconds taken.
    def prepared_timed_call(
        self, grid: Grid, block: Block, *args: PreparedArgument, shared_size: int = 0
    ) -> Callable[[], float]: ...
    def prepared_async_call(
        self, grid: Grid, block: Block, stream: Stream | None, *args: PreparedArgument, shared_size: int = 0
    ) -> None: ...
    def param_set_texref(self, texref: TextureReference, /) -> None: ...
    def get_attribute(self, attribute: function_attribute, /) -> int: ...
    def set_attribute(self, attribute: function_attribute, value: int, /) -> None: ...
    def set_cache_config(self, config: func_cache, /) -> None: ...
    # What the calls above come down to: no conversion, no handlers. Undocumented.
    def _launch_kernel(
        self, grid: Grid, block: Block, arguments: HostBuffer, shared: int, stream: Stream | None, /
    ) -> None: ...

# ---- memory pools ----------------------------------------------------------------------------------------------------

@type_check_only
class _MemoryPool(_Instance):
    @property
    def held_blocks(self) -> int: ...
    @property
    def active_blocks(self) -> int: ...
    @property
    def managed_bytes(self) -> int: ...
    @property
    def active_bytes(self) -> int: ...
    def bin_number(self, nbytes: int, /) -> int: ...
    def alloc_size(self, bin_number: int, /) -> int: ...
    def free_held(self) -> None: ...
    def stop_holding(self) -> None: ...

class PooledDeviceAllocation(_Pointer, _NotConstructible):
    def free(self) -> None: ...
    def __len__(self) -> int: ...  # bytes

class DeviceMemoryPool(_MemoryPool):
    def __init__(self) -> None: ...
    def allocate(self, nbytes: int, /) -> PooledDeviceAllocation: ...

class PooledHostAllocation(_NotConstructible):
    def free(self) -> None: ...
    def __len__(self) -> int: ...  # bytes

class PageLockedAllocator(_Instance):
    def __init__(self, flags: int = ..., /) -> None: ...

class PageLockedMemoryPool(_MemoryPool):
    def __init__(self, allocator: PageLockedAllocator = ..., /) -> None: ...
    @overload
    def allocate(self, shape: HostShape, dtype: DTypeOf[_ScalarT], order: Order = "C") -> NDArray[_ScalarT]: ...
    @overload
    def allocate(self, shape: HostShape, dtype: DTypeLike, order: Order = "C") -> NDArray[Any]: ...
