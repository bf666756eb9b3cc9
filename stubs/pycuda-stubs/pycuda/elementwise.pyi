# Kernels made of one C expression, applied to each element.
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload, type_check_only

import numpy as np
from numpy.typing import DTypeLike

from pycuda._typing import ElementArgument
from pycuda.compiler import SourceModule
from pycuda.driver import Function, Stream, TextureReference
from pycuda.gpuarray import GPUArray
from pycuda.tools import ScalarArg as ScalarArg, VectorArg as VectorArg

# A C argument list, or a list of arguments, to which the element count is appended in place.
_Arguments: TypeAlias = str | list[VectorArg] | list[ScalarArg] | list[VectorArg | ScalarArg]
_DType: TypeAlias = np.dtype[Any]

@type_check_only
class _Extras(TypedDict, total=False):
    preamble: str
    loop_prep: str
    after_loop: str

def get_elwise_module(
    arguments: Sequence[VectorArg | ScalarArg],
    operation: str,
    name: str = "kernel",
    keep: bool = False,
    options: list[str] | None = None,
    preamble: str = "",
    loop_prep: str = "",
    after_loop: str = "",
) -> SourceModule: ...
def get_elwise_range_module(
    arguments: Sequence[VectorArg | ScalarArg],
    operation: str,
    name: str = "kernel",
    keep: bool = False,
    options: list[str] | None = None,
    preamble: str = "",
    loop_prep: str = "",
    after_loop: str = "",
) -> SourceModule: ...
def get_elwise_kernel_and_types(
    arguments: _Arguments,
    operation: str,
    name: str = "kernel",
    keep: bool = False,
    options: list[str] | None = None,
    use_range: bool = False,
    **kwargs: Unpack[_Extras],
) -> tuple[SourceModule, Function, list[VectorArg | ScalarArg]]: ...
def get_elwise_kernel(
    arguments: _Arguments,
    operation: str,
    name: str = "kernel",
    keep: bool = False,
    options: list[str] | None = None,
    **kwargs: Unpack[_Extras],
) -> Function: ...

class ElementwiseKernel:
    gen_kwargs: dict[str, Any]
    def __init__(
        self,
        arguments: _Arguments,
        operation: str,
        name: str = "kernel",
        keep: bool = False,
        options: list[str] | None = None,
        **kwargs: Unpack[_Extras],
    ) -> None: ...
    def get_texref(self, name: str, use_range: bool = False) -> TextureReference: ...
    def generate_stride_kernel_and_types(
        self, use_range: bool
    ) -> tuple[SourceModule, Function, list[VectorArg | ScalarArg]]: ...
    # One of `range` and `slice` at most; `slice` may count from the end.
    @overload
    def __call__(
        self, *args: GPUArray[Any] | ElementArgument, range: slice | None = None, stream: Stream | None = None
    ) -> None: ...
    @overload
    def __call__(self, *args: GPUArray[Any] | ElementArgument, slice: slice, stream: Stream | None = None) -> None: ...

# ---- what GPUArray is made of: each is compiled once in a context ----------------------------------------------------

def get_take_kernel(
    dtype: _DType, idx_dtype: _DType, vec_count: int = 1
) -> tuple[Function, list[TextureReference]]: ...
def get_take_put_kernel(
    dtype: _DType, idx_dtype: _DType, with_offsets: bool, vec_count: int = 1
) -> tuple[Function, list[TextureReference]]: ...
def get_put_kernel(dtype: _DType, idx_dtype: _DType, vec_count: int = 1) -> Function: ...
def get_copy_kernel(dtype_dest: DTypeLike, dtype_src: DTypeLike) -> Function: ...
def get_linear_combination_kernel(
    summand_descriptors: tuple[tuple[bool, DTypeLike, DTypeLike], ...], dtype_z: DTypeLike
) -> tuple[Function, list[TextureReference]]: ...
def get_axpbyz_kernel(
    dtype_x: _DType, dtype_y: _DType, dtype_z: _DType, x_is_scalar: bool = False, y_is_scalar: bool = False
) -> Function: ...
def get_axpbz_kernel(dtype_x: DTypeLike, dtype_z: DTypeLike) -> Function: ...
def get_binary_op_kernel(
    dtype_x: _DType,
    dtype_y: _DType,
    dtype_z: _DType,
    operator: str,
    x_is_scalar: bool = False,
    y_is_scalar: bool = False,
) -> Function: ...
def get_rdivide_elwise_kernel(dtype_x: DTypeLike, dtype_z: DTypeLike) -> Function: ...
def get_binary_func_kernel(func: str, dtype_x: DTypeLike, dtype_y: DTypeLike, dtype_z: DTypeLike) -> Function: ...
def get_binary_func_scalar_kernel(
    func: str, dtype_x: DTypeLike, dtype_y: DTypeLike, dtype_z: DTypeLike
) -> Function: ...
def get_binary_minmax_kernel(
    func: Literal["min", "max"], dtype_x: _DType, dtype_y: _DType, dtype_z: _DType, use_scalar: bool
) -> Function: ...
def get_fill_kernel(dtype: DTypeLike) -> Function: ...
def get_reverse_kernel(dtype: DTypeLike) -> Function: ...
def get_real_kernel(dtype: DTypeLike, real_dtype: DTypeLike) -> Function: ...
def get_imag_kernel(dtype: DTypeLike, real_dtype: DTypeLike) -> Function: ...
def get_conj_kernel(dtype: DTypeLike, conj_dtype: DTypeLike) -> Function: ...
def get_arange_kernel(dtype: DTypeLike) -> Function: ...
def get_pow_array_kernel(
    dtype_x: _DType, dtype_y: _DType, dtype_z: _DType, is_base_array: bool, is_exp_array: bool
) -> Function: ...
def get_fmod_kernel() -> Function: ...
def get_modf_kernel() -> Function: ...
def get_frexp_kernel() -> Function: ...
def get_ldexp_kernel() -> Function: ...
def get_unary_func_kernel(func_name: str, in_dtype: DTypeLike, out_dtype: DTypeLike | None = None) -> Function: ...
def get_if_positive_kernel(crit_dtype: DTypeLike, dtype: DTypeLike) -> Function: ...
def get_where_kernel(crit_dtype: DTypeLike, dtype: DTypeLike) -> Function: ...
def get_scalar_op_kernel(dtype_x: DTypeLike, dtype_a: DTypeLike, dtype_y: DTypeLike, operator: str) -> Function: ...
def get_logical_not_kernel(dtype_x: DTypeLike, dtype_out: DTypeLike) -> Function: ...
