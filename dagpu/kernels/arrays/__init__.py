"""Functions of whole tensors, as NumPy has them, and of the elements of an expression: the public module `dagpu.array`.

Each call builds an op. Its result is a new tensor, which depends on the shapes and contents of the arguments alone: not
on the device, the schedule or the run. Owned tensors move into the op; lend or share them to use them again.
"""

from typing import TYPE_CHECKING

from dagpu.kernels.arrays.element_functions import (
    abs,
    ceil,
    clip,
    cos,
    erf,
    exp,
    expm1,
    floor,
    isfinite,
    isnan,
    log,
    log1p,
    maximum,
    minimum,
    pow,
    rint,
    sin,
    sqrt,
    tanh,
    where,
)
from dagpu.kernels.arrays.libraries.fourier_transforms import fft, ifft, irfft, rfft
from dagpu.kernels.arrays.libraries.matrix_products import matmul
from dagpu.kernels.arrays.movement.gathering import one_hot, take
from dagpu.kernels.arrays.movement.joining import concatenate, stack
from dagpu.kernels.arrays.movement.normalising import softmax
from dagpu.kernels.arrays.movement.running_sums import cumsum
from dagpu.kernels.arrays.movement.scattering import scatter_add
from dagpu.kernels.arrays.movement.transposition import transpose
from dagpu.kernels.arrays.numpy_names import refuse_name
from dagpu.kernels.arrays.random_functions import dropout, permutation
from dagpu.kernels.arrays.reducing import fused_reductions as fused_reductions
from dagpu.kernels.arrays.reducing.arg_reductions import argmax, argmin
from dagpu.kernels.arrays.reducing.deviations import std, var
from dagpu.kernels.arrays.reducing.reductions import all, amax, amin, any, mean, norm, prod, sum
from dagpu.kernels.arrays.sorting.sorted_rows import argsort, sort, topk

__all__ = [
    "abs", "all", "amax", "amin", "any", "argmax", "argmin", "argsort", "ceil", "clip", "concatenate", "cos",
    "cumsum", "dropout", "erf", "exp", "expm1", "fft", "floor", "ifft", "irfft", "isfinite", "isnan", "log",
    "log1p", "matmul", "maximum", "mean", "minimum", "norm", "one_hot", "permutation", "pow", "prod", "rfft",
    "rint", "scatter_add", "sin", "softmax", "sort", "sqrt", "stack", "std", "sum", "take", "tanh", "topk",
    "transpose", "var", "where",
]  # fmt: skip

if not TYPE_CHECKING:  # hidden from type checkers, which report unknown names themselves
    __getattr__ = refuse_name
