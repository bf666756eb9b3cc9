"""Functions of whole tensors, as NumPy has them, and of the elements of an expression: the public module `dagpu.array`.

Each call builds an op. Its result is a new tensor, which depends on the shapes and contents of the arguments alone: not
on the device, the schedule or the run. Owned tensors move into the op; lend or share them to use them again.
"""

from typing import TYPE_CHECKING

from dagpu.arrays import fused_reductions as fused_reductions
from dagpu.arrays.arg_reductions import argmax, argmin
from dagpu.arrays.element_functions import (
    abs,
    ceil,
    clip,
    cos,
    dropout,
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
    permutation,
    pow,
    rint,
    sin,
    sqrt,
    tanh,
    where,
)
from dagpu.arrays.fourier_transforms import fft, ifft, irfft, rfft
from dagpu.arrays.fused_reductions import std, var
from dagpu.arrays.gathering import one_hot, take
from dagpu.arrays.matrix_products import matmul
from dagpu.arrays.normalising import softmax
from dagpu.arrays.numpy_names import refuse_name
from dagpu.arrays.rearranging import concatenate, stack, transpose
from dagpu.arrays.reductions import all, amax, amin, any, mean, norm, prod, sum
from dagpu.arrays.running_sums import cumsum
from dagpu.arrays.scattering import scatter_add
from dagpu.arrays.sorting import argsort, sort, topk

__all__ = [
    "abs", "all", "amax", "amin", "any", "argmax", "argmin", "argsort", "ceil", "clip", "concatenate", "cos",
    "cumsum", "dropout", "erf", "exp", "expm1", "fft", "floor", "ifft", "irfft", "isfinite", "isnan", "log",
    "log1p", "matmul", "maximum", "mean", "minimum", "norm", "one_hot", "permutation", "pow", "prod", "rfft",
    "rint", "scatter_add", "sin", "softmax", "sort", "sqrt", "stack", "std", "sum", "take", "tanh", "topk",
    "transpose", "var", "where",
]  # fmt: skip

if not TYPE_CHECKING:  # hidden from type checkers, which report unknown names themselves
    __getattr__ = refuse_name
