"""Functions of whole tensors, as NumPy has them, and of the elements of an expression: the public module `dagpu.array`.

Each call builds an op. Its result is a new tensor, which depends on the shapes and contents of the arguments alone: not
on the device, the schedule or the run. Owned tensors move into the op; lend or share them to use them again.
"""

from typing import TYPE_CHECKING

from dagpu.arrays import fused_reductions as fused_reductions
from dagpu.arrays.arg_reductions import argmax, argmin
from dagpu.arrays.axis_maps import broadcast_to, flip, meshgrid, pad, repeat, roll, tile, tril, triu
from dagpu.arrays.counting import bincount, histogram, searchsorted
from dagpu.arrays.element_functions import (
    abs,
    acos,
    acosh,
    angle,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    ceil,
    clip,
    conj,
    copysign,
    cos,
    cosh,
    erf,
    exp,
    expm1,
    floor,
    hypot,
    imag,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    maximum,
    minimum,
    nextafter,
    positive,
    pow,
    real,
    rint,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
    where,
)
from dagpu.arrays.filled_likenesses import full_like, ones_like, zeros_like
from dagpu.arrays.fourier_transforms import (
    fft,
    fft2,
    fftn,
    fftshift,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)
from dagpu.arrays.fused_reductions import std, var
from dagpu.arrays.gathering import one_hot, take, take_along_axis
from dagpu.arrays.log_sums import log_softmax, logsumexp
from dagpu.arrays.masks import compress, nonzero, unique, unique_counts
from dagpu.arrays.nan_reductions import nanmax, nanmean, nanmin, nanprod, nansum
from dagpu.arrays.normalising import softmax
from dagpu.arrays.numpy_names import refuse_name
from dagpu.arrays.products.contractions import dot, einsum, tensordot
from dagpu.arrays.products.factorisations import cholesky, qr, solve, svd
from dagpu.arrays.products.matrix_products import matmul
from dagpu.arrays.products.sparse_products import csr_matmul
from dagpu.arrays.quantiles import median, quantile
from dagpu.arrays.random_functions import bernoulli, choice, dropout, exponential, permutation, randint, uniform
from dagpu.arrays.rearranging import concatenate, stack, transpose
from dagpu.arrays.reductions import all, amax, amin, any, mean, norm, prod, sum
from dagpu.arrays.running_sums import cummax, cummin, cumprod, cumsum
from dagpu.arrays.scattering import scatter_add, scatter_max, scatter_min, scatter_set, segment_sum
from dagpu.arrays.sorting import argsort, sort, topk
from dagpu.arrays.stencils import convolve, correlate, stencil
from dagpu.kernels.operators import MATMUL
from dagpu.ops.recording import recorded

__all__ = [
    "abs", "acos", "acosh", "all", "amax", "amin", "angle", "any", "argmax", "argmin", "argsort", "asin", "asinh",
    "atan", "atan2", "atanh", "bernoulli", "bincount", "broadcast_to", "ceil", "choice", "cholesky", "clip",
    "compress", "concatenate", "conj", "convolve", "copysign", "correlate", "cos", "cosh", "csr_matmul", "cummax",
    "cummin", "cumprod", "cumsum", "dot", "dropout", "einsum", "erf", "exp", "expm1", "exponential", "fft", "fft2",
    "fftn", "fftshift", "flip", "floor", "full_like", "histogram", "hypot", "ifft", "ifft2", "ifftn", "ifftshift",
    "imag", "irfft", "irfft2", "irfftn", "isfinite", "isinf", "isnan", "log", "log1p", "log2", "log10",
    "log_softmax", "logaddexp", "logsumexp", "matmul", "maximum", "mean", "median", "meshgrid", "minimum", "nanmax",
    "nanmean", "nanmin", "nanprod", "nansum", "nextafter", "nonzero", "norm", "one_hot", "ones_like", "pad",
    "permutation", "positive", "pow", "prod", "qr", "quantile", "randint", "real", "repeat", "rfft", "rfft2",
    "rfftn", "rint", "roll", "scatter_add", "scatter_max", "scatter_min", "scatter_set", "searchsorted",
    "segment_sum", "sign", "signbit", "sin", "sinh", "softmax", "solve", "sort", "sqrt", "stack", "std", "stencil",
    "sum", "svd", "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "topk", "transpose", "tril",
    "triu", "trunc", "uniform", "unique", "unique_counts", "var", "where", "zeros_like",
]  # fmt: skip

if not TYPE_CHECKING:  # hidden from type checkers, which report unknown names themselves
    for _name in __all__:
        globals()[_name] = recorded(globals()[_name])
    __getattr__ = refuse_name

MATMUL.set(matmul)  # after it is recorded: a gradient knows `x @ w` too
