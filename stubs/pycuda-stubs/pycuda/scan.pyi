# Prefix sums with any associative operation.
from typing import Any, TypeVar, type_check_only

import numpy as np
from numpy.typing import DTypeLike

from pycuda._typing import Allocator
from pycuda.driver import Function, Stream
from pycuda.gpuarray import GPUArray

_ScalarT = TypeVar("_ScalarT", bound=np.generic)

SHARED_PREAMBLE: str
SCAN_INTERVALS_SOURCE: _Template
INCLUSIVE_UPDATE_SOURCE: _Template
EXCLUSIVE_UPDATE_SOURCE: _Template

# mako.template.Template, which has no types
@type_check_only
class _Template:
    def render(self, *args: object, **data: object) -> str: ...

class _ScanKernelBase:
    dtype: np.dtype[Any]
    neutral: str | float | None
    scan_wg_size: int
    update_wg_size: int
    scan_wg_seq_batches: int
    scan_intervals_knl: Function
    final_update_knl: Function
    def __init__(
        self,
        dtype: DTypeLike,
        scan_expr: str,
        neutral: str | float | None = None,
        name_prefix: str = "scan",
        options: list[str] | None = None,
        preamble: str = "",
        devices: object = None,  # not used
    ) -> None: ...
    # In place where there is no `output_ary`; its result is the output. The "new" of the source raises TypeError.
    def __call__(
        self,
        input_ary: GPUArray[_ScalarT],
        output_ary: GPUArray[_ScalarT] | None = None,
        allocator: Allocator | None = None,
        stream: Stream | None = None,
    ) -> GPUArray[_ScalarT]: ...

class InclusiveScanKernel(_ScanKernelBase):
    final_update_tp: _Template

# Raises ValueError where there is no `neutral`.
class ExclusiveScanKernel(_ScanKernelBase):
    final_update_tp: _Template
