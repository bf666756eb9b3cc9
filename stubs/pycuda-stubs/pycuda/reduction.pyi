# Kernels that reduce arrays to one element.
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import TypeVar

from pycuda._typing import Allocator, DTypeOf, ElementArgument
from pycuda.compiler import SourceModule
from pycuda.driver import Function, Stream
from pycuda.gpuarray import GPUArray

_ScalarT = TypeVar("_ScalarT", bound=np.generic, default=Any)
_Launch: TypeAlias = Callable[..., None]  # Function.prepared_async_call, bound

def get_reduction_module(
    out_type: str,
    block_size: int,
    neutral: str | float,
    reduce_expr: str,
    map_expr: str,
    arguments: str,
    name: str = "reduce_kernel",
    keep: bool = False,
    options: list[str] | None = None,
    preamble: str = "",
) -> SourceModule: ...
def get_reduction_kernel_and_types(
    stage: Literal[1, 2],
    out_type: str,
    block_size: int,
    neutral: str | float,
    reduce_expr: str,
    map_expr: str | None = None,
    arguments: str | None = None,
    name: str = "reduce_kernel",
    keep: bool = False,
    options: list[str] | None = None,
    preamble: str = "",
) -> tuple[Function, list[str]]: ...

class ReductionKernel(Generic[_ScalarT]):
    dtype_out: np.dtype[_ScalarT]
    block_size: int
    stage1_arg_types: list[str]
    stage1_func: _Launch
    stage2_arg_types: list[str]
    stage2_func: _Launch
    @overload
    def __init__(
        self,
        dtype_out: DTypeOf[_ScalarT],
        neutral: str | float,
        reduce_expr: str,
        map_expr: str | None = None,
        arguments: str | None = None,
        name: str = "reduce_kernel",
        keep: bool = False,
        options: list[str] | None = None,
        preamble: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: ReductionKernel[Any],
        dtype_out: DTypeLike,
        neutral: str | float,
        reduce_expr: str,
        map_expr: str | None = None,
        arguments: str | None = None,
        name: str = "reduce_kernel",
        keep: bool = False,
        options: list[str] | None = None,
        preamble: str = "",
    ) -> None: ...
    # `out` itself where it is given
    def __call__(
        self,
        *args: GPUArray[Any] | ElementArgument,
        stream: Stream | None = None,
        out: GPUArray[_ScalarT] | None = None,
        allocator: Allocator | None = None,
        kernel_wrapper: Callable[[_Launch], _Launch] | None = None,
    ) -> GPUArray[_ScalarT]: ...

# ---- each is compiled once in a context ------------------------------------------------------------------------------

def get_sum_kernel(dtype_out: DTypeLike | None, dtype_in: DTypeLike) -> ReductionKernel[Any]: ...
def get_any_kernel(dtype_out: DTypeLike | None, dtype_in: DTypeLike) -> ReductionKernel[Any]: ...
def get_all_kernel(dtype_out: DTypeLike | None, dtype_in: DTypeLike) -> ReductionKernel[Any]: ...
def get_subset_sum_kernel(
    dtype_out: DTypeLike | None, dtype_subset: DTypeLike, dtype_in: DTypeLike
) -> ReductionKernel[Any]: ...
def get_dot_kernel(dtype_out: DTypeLike, dtype_a: DTypeLike, dtype_b: DTypeLike) -> ReductionKernel[Any]: ...
def get_subset_dot_kernel(
    dtype_out: DTypeLike | None,
    dtype_subset: DTypeLike,
    dtype_a: DTypeLike | None = None,
    dtype_b: DTypeLike | None = None,
) -> ReductionKernel[Any]: ...
def get_minmax_neutral(what: Literal["min", "max"], dtype: DTypeLike) -> str: ...
def get_minmax_kernel(what: Literal["min", "max"], dtype: np.dtype[Any]) -> ReductionKernel[Any]: ...
def get_subset_minmax_kernel(
    what: Literal["min", "max"], dtype: np.dtype[Any], dtype_subset: DTypeLike
) -> ReductionKernel[Any]: ...
