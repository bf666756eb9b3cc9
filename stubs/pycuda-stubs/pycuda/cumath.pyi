# The functions of `math`, for each element.
#
# The second positional parameter of the functions of one array is deprecated, and has no effect: nothing may be given.
from typing import TypeVar

import numpy as np

from pycuda.driver import Stream
from pycuda.gpuarray import GPUArray

_ScalarT = TypeVar("_ScalarT", bound=np.generic)

def fabs(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def ceil(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def floor(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def exp(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def log(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def log10(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def sqrt(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def sin(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def cos(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def tan(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def asin(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def acos(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def atan(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def sinh(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def cosh(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...
def tanh(
    array: GPUArray[_ScalarT],
    stream_or_out: None = None,
    *,
    out: GPUArray[_ScalarT] | None = None,
    stream: Stream | None = None,
) -> GPUArray[_ScalarT]: ...

# The kernels of these are for float alone: an array of another type is misread.
def fmod(
    arg: GPUArray[np.float32], mod: GPUArray[np.float32], stream: Stream | None = None
) -> GPUArray[np.float32]: ...
def frexp(
    arg: GPUArray[np.float32], stream: Stream | None = None
) -> tuple[GPUArray[np.float32], GPUArray[np.float32]]: ...  # significands, exponents
def ldexp(
    significand: GPUArray[np.float32], exponent: GPUArray[np.float32], stream: Stream | None = None
) -> GPUArray[np.float32]: ...
def modf(
    arg: GPUArray[np.float32], stream: Stream | None = None
) -> tuple[GPUArray[np.float32], GPUArray[np.float32]]: ...  # fractional parts, integer parts
