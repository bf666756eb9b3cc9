# What the stubs share. There is no such module at run time: import from it under TYPE_CHECKING alone.
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias, TypedDict, type_check_only

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, TypeVar

from pycuda._driver import (
    DeviceAllocation,
    IPCMemoryHandle,
    PointerHolderBase,
    PooledDeviceAllocation,
)
from pycuda.driver import ArgumentHandler

_ScalarT = TypeVar("_ScalarT", bound=np.generic)

# For typeshed's reason: None (or what else the comment beside it says) is possible, and nobody wants to ask each time.
MaybeNone: TypeAlias = Any

# What PyCUDA converts to a CUdeviceptr. A NumPy integer is refused, and so is a GPUArray: say `array.gpudata`.
DevicePointer: TypeAlias = int | DeviceAllocation | PooledDeviceAllocation | IPCMemoryHandle | PointerHolderBase

# NumPy declares the buffer protocol for Python 3.12 and later alone; at run time its arrays always had it.
HostBuffer: TypeAlias = Buffer | NDArray[Any] | np.generic
# No type says that a buffer is writable; bytes pass here, and are refused at run time.
WritableHostBuffer: TypeAlias = Buffer | NDArray[Any]

Allocator: TypeAlias = Callable[[int], DevicePointer]
Order: TypeAlias = Literal["C", "F"]
LikeOrder: TypeAlias = Literal["C", "F", "A", "K"]
Scalar: TypeAlias = complex | np.number[Any] | np.bool_

# Shapes of host memory are read by C++, which takes no NumPy integer; those of a GPUArray by Python, which does.
HostShape: TypeAlias = int | Iterable[int]
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | NDArray[np.integer[Any]]

# A grid has one to three extents, all of which are right; a block three, and that one is often got wrong.
Grid: TypeAlias = tuple[int, ...]
Block: TypeAlias = tuple[int, int, int]

# A dtype whose scalar type is known. Every other one (a string, None, a structure) is a numpy.typing.DTypeLike.
DTypeOf: TypeAlias = type[_ScalarT] | np.dtype[_ScalarT]

@type_check_only
class CudaArrayInterface(TypedDict):
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    data: tuple[int, bool]  # address, is it read-only
    typestr: str
    stream: None
    version: int

@type_check_only
class HasGpuData(Protocol):
    @property
    def gpudata(self) -> Any: ...  # an int, or what int() takes

@type_check_only
class HasCudaArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...

# What a generated kernel takes beside arrays. gpuarray.vec.make_float3 gives a structure as an array without extents.
ElementArgument: TypeAlias = Scalar | np.void | NDArray[Any]

# What Function.__call__ takes: the size of each argument must show, so Python's own int and float are refused.
KernelArgument: TypeAlias = (
    np.number[Any]
    | np.void
    | NDArray[Any]
    | DeviceAllocation
    | PooledDeviceAllocation
    | ArgumentHandler
    | HasCudaArrayInterface
    | HasGpuData
)
# What a prepared call takes, whose format is known. Everything is packed as by struct.pack.
PreparedArgument: TypeAlias = complex | np.generic | HostBuffer | DevicePointer
