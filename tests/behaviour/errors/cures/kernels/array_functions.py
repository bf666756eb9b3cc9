"""Mistakes in calls of the functions of `dagpu.array` that libraries compute, and that sort."""

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

import dagpu
from dagpu import array, bool_, c64, c128, convert, device, expr, f32, f64, full, i32, ones, zeros
from dagpu.arrays.nvidia.libraries import INSTALL
from tests.behaviour.errors.cures.catalogue import Catalogue

CATALOGUE = Catalogue()
case = CATALOGUE.add
anyhow: Any = array
package: Any = dagpu


# ---- products of matrices
def without_cublaslt() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nvmath.bindings.cublasLt", None)
        return array.matmul(ones((2, 2)), ones((2, 2))).sync()


case(
    without_cublaslt,
    ('On the host it needs nothing: op.on("host")', lambda: array.matmul(ones((2, 2)), ones((2, 2))).on("host").sync()),
    # what follows from an installation: test_library_calls.py, with a stand-in
    (f"Install it: {INSTALL}", lambda: device("host")),
    simulated=True,
)
case(
    lambda: array.matmul(zeros((4, 8)), zeros((4, 8))),
    ('Transpose one: transpose="b"', lambda: array.matmul(zeros((4, 8)), zeros((4, 8)), transpose="b").sync()),
)
case(
    lambda: array.matmul(zeros((4, 8)), zeros((4, 3))),
    ('Transpose one: transpose="a"', lambda: array.matmul(zeros((4, 8)), zeros((4, 3)), transpose="a").sync()),
)
case(
    lambda: array.matmul(zeros((4, 8)), zeros((5, 3))),
    ("Give operands with as many elements there", lambda: array.matmul(zeros((4, 5)), zeros((5, 3))).sync()),
)
case(
    lambda: array.matmul(zeros((2, 4, 8)), zeros((3, 8, 5))),
    (
        "Extents must be equal, or 1; reshape one: x.reshape((n, 1, rows, columns)), say",
        lambda: array.matmul(zeros((2, 4, 8)).reshape((2, 1, 4, 8)), zeros((3, 8, 5))).sync(),
    ),
)
case(
    lambda: array.matmul(zeros(()), zeros((3, 8))),
    (
        "Reshape it: x.reshape((rows, columns)), say",
        lambda: array.matmul(zeros(()).reshape((1, 1)), zeros((1, 8))).sync(),
    ),
)
case(
    lambda: array.matmul(zeros((3,)), zeros((3, 8)), transpose="a"),
    (
        "Reshape it: x.reshape((rows, columns)), say",
        lambda: array.matmul(zeros((3,)).reshape((3, 1)), zeros((3, 8)), transpose="a").sync(),
    ),
)
case(
    lambda: anyhow.matmul(2.0, zeros((3, 8))),
    ("Multiply by it: t * x", lambda: (zeros((3, 8)) * 2.0).sync()),
)
case(
    lambda: anyhow.matmul(zeros((3, 8)), zeros((8, 3), f64)),
    (
        "Convert one: convert(t, f32), say",
        lambda: array.matmul(zeros((3, 8)), convert(zeros((8, 3), f64), f32)).sync(),
    ),
)
case(
    lambda: anyhow.matmul(zeros((3, 8), i32), zeros((8, 3), i32)),
    (
        "Convert the tensor before: convert(t, f32)",
        lambda: array.matmul(convert(zeros((3, 8), i32), f32), zeros((8, 3))).sync(),
    ),
)
case(
    lambda: array.matmul(zeros((3, 8), f64), zeros((8, 3), f64), precision="tf32"),
    ("Leave it out", lambda: array.matmul(zeros((3, 8), f64), zeros((8, 3), f64)).sync()),
)
case(
    lambda: anyhow.matmul(zeros((3, 8)), zeros((8, 3)), precision="fast"),
    ('Write "ieee" or "tf32"', lambda: array.matmul(zeros((3, 8)), zeros((8, 3)), precision="tf32").sync()),
)
case(
    lambda: anyhow.matmul(zeros((3, 8)), zeros((8, 3)), transpose="A"),
    ('Write "", "a", "b" or "ab"', lambda: array.matmul(zeros((8, 3)), zeros((8, 3)), transpose="a").sync()),
)


case(
    lambda: array.einsum("ii", ones((3, 3))),
    (
        'Give each operand letters, each once, and the result some of them: "ij,jk->ik", say',
        lambda: array.einsum("ij,jk->ik", ones((3, 3)), ones((3, 3))).sync(),
    ),
)
case(
    lambda: anyhow.einsum(2, ones((3, 3))),
    ('Write "ij,jk->ik", say', lambda: array.einsum("ij,jk->ik", ones((3, 3)), ones((3, 3))).sync()),
)
case(
    lambda: array.einsum("i", ones((3, 3))),
    ("Name each axis once", lambda: array.einsum("ij->i", ones((3, 3))).sync()),
)
case(
    lambda: array.dot(ones((3,)), ones((4,))),
    ("Give both as many", lambda: array.dot(ones((4,)), ones((4,))).sync()),
)
case(
    lambda: array.dot(ones(()), ones((4,))),
    ("Reshape it: x.reshape((1,))", lambda: array.dot(ones(()).reshape((1,)), ones((1,))).sync()),
)
case(
    lambda: array.tensordot(ones((3, 4)), ones((3, 4)), 3),
    ("Give a count", lambda: array.tensordot(ones((3, 4)), ones((3, 4)), 0).sync()),
    (
        "or as many axes of each: ((0, 1), (1, 0)), say",
        lambda: array.tensordot(ones((3, 4)), ones((4, 3)), ((0, 1), (1, 0))).sync(),
    ),
)


# ---- random numbers
case(
    lambda: anyhow.uniform((3,), 0, 1, i32),
    ("Pass a floating type: array.uniform((3,), dtype=f32), say", lambda: array.uniform((3,), dtype=f32).sync()),
)
case(
    lambda: anyhow.randint((3,), 0, 9, f32),
    ("Pass an integer type: array.randint((3,), 0, 9, i32), say", lambda: array.randint((3,), 0, 9, i32).sync()),
)
case(
    lambda: array.randint((3,), 9, 0),
    ("Give the smallest, and one more than the largest: 0, 9, say", lambda: array.randint((3,), 0, 9).sync()),
)
case(
    lambda: array.choice(ones((3,)), 4, replace=False),
    ("Give a count up to that", lambda: array.choice(ones((3,)), 3, replace=False).sync()),
    ("or choose rows again: replace=True", lambda: array.choice(ones((3,)), 4, replace=True).sync()),
)
case(
    lambda: array.choice(ones((3,)), -1),
    ("Give a whole number of 0 or more", lambda: array.choice(ones((3,)), 0).sync()),
)


# ---- names
case(
    lambda: anyhow.bitwise_count,
    ("an expression of integers, or a kernel, does it", lambda: expr(i32)(lambda x: (x & 1) + (x >> 1 & 1))),
)
case(
    lambda: anyhow.apply_along_axis,
    ("an expression, or a kernel, does the work of one", lambda: expr(f32)(lambda x: x * x).sum(1)),
)
case(
    lambda: anyhow.max(ones((4,))),
    ("Write array.amax", lambda: array.amax(ones((4,))).sync()),
)
case(
    lambda: package.sum(ones((4,))),
    ("Write dagpu.array.sum", lambda: dagpu.array.sum(ones((4,))).sync()),
)
case(
    lambda: package.asarray(np.ones(4)),
    ("Write dagpu.from_host(x)", lambda: dagpu.from_host(np.ones(4)).sync()),
)
case(
    lambda: anyhow.zeros((4,)),
    ("Write dagpu.zeros", lambda: zeros((4,)).sync()),
)
case(
    lambda: anyhow.multiply(ones((4,)), ones((4,))),
    ("Write x * y", lambda: (ones((4,)) * ones((4,))).sync()),
)
LENT = ones((4,)).sync().share()
case(
    lambda: anyhow.square(ones((4,))),
    ("Write x * x", lambda: (LENT * LENT).sync()),
)
case(
    lambda: zeros((4,), c64) < zeros((4,), c64),
    (
        "Compute with its parts, array.real(t) and array.imag(t)",
        lambda: (array.real(zeros((4,), c64)) < array.imag(zeros((4,), c64))).sync(),
    ),
)


# ---- bounds
case(
    lambda: array.clip(ones((4,))),
    ("Give one bound: clip(x, 0)", lambda: array.clip(ones((4,)), 0).sync()),
    ("or clip(x, None, 1)", lambda: array.clip(ones((4,)), None, 1).sync()),
)


# ---- reductions
case(
    lambda: anyhow.sum(ones((4,)), dtype=bool_),
    (
        "Pass the element type of a number: array.sum(x, dtype=f32), say",
        lambda: array.sum(ones((4,)), dtype=f32).sync(),
    ),
)
case(
    lambda: array.quantile(ones((4,)), 2),
    ("Write q=0.5, say", lambda: array.quantile(ones((4,)), q=0.5).sync()),
)
case(
    lambda: anyhow.median(ones((4, 2)), (0, 1)),
    ("Give one axis", lambda: array.median(ones((4, 2)), 0).sync()),
    ("or None for all elements", lambda: array.median(ones((4, 2)), None).sync()),
)


# ---- sorting, permutations, dropout
case(
    lambda: array.sort(zeros(())),
    ("Reshape it: x.reshape((1,)), say", lambda: array.sort(zeros(()).reshape((1,))).sync()),
)
case(
    lambda: anyhow.argsort(2.0),
    ("Pass a tensor: full((1,), x), say", lambda: array.argsort(full((1,), 2.0)).sync()),
)
case(
    lambda: array.topk(zeros((2, 3)), 4),
    ("Give a whole number from 0 to that", lambda: array.topk(zeros((2, 3)), 3).sync()),
)
case(
    lambda: array.permutation(-1, seed=1),
    ("Give a whole number of 0 or more", lambda: array.permutation(0, seed=1).sync()),
)
case(
    lambda: anyhow.dropout(2.0, 0.5),
    ("Pass a tensor: full((1,), x), say", lambda: array.dropout(full((1,), 2.0), 0.5).sync()),
)
case(
    lambda: array.dropout(zeros((3,)), 1.5),
    ("Give a probability, from 0 to 1", lambda: array.dropout(zeros((3,)), 0.5).sync()),
)
case(
    lambda: anyhow.dropout(zeros((3,)), ones((3,))),
    ("Give a probability, from 0 to 1", lambda: array.dropout(zeros((3,)), 0.5).sync()),
)
case(
    lambda: anyhow.dropout(zeros((3,), i32), 0.5),
    (
        "Convert the tensor before: convert(t, f32)",
        lambda: array.dropout(convert(zeros((3,), i32), f32), 0.5).sync(),
    ),
)


# ---- complex elements, Fourier transforms
def without_cufft() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nvmath.bindings.cufft", None)
        return array.rfft(ones((4,))).sync()


case(
    without_cufft,
    ('On the host it needs nothing: op.on("host")', lambda: array.rfft(ones((4,))).on("host").sync()),
    simulated=True,
)
case(
    lambda: array.rfft(zeros((4,)), 0),
    ("Give a whole number of 1 or more, or leave it out", lambda: array.rfft(zeros((4,)), 3).sync()),
)
case(
    lambda: array.irfft(zeros((1,), c64)),
    ("Give n, or longer rows", lambda: array.irfft(zeros((1,), c64), 1).sync()),
)
case(
    lambda: array.rfft(zeros(())),
    ("Reshape it: x.reshape((1,)), say", lambda: array.rfft(zeros(()).reshape((1,))).sync()),
)
case(
    lambda: anyhow.rfft(zeros((4,), i32)),
    ("Convert the tensor before: convert(t, f32)", lambda: array.rfft(convert(zeros((4,), i32), f32)).sync()),
)
case(
    lambda: anyhow.rfft(zeros((4,), c64)),
    ("Use fft for complex numbers", lambda: array.fft(zeros((4,), c64)).sync()),
)
case(
    lambda: anyhow.fft(zeros((4,), i32)),
    ("Convert the tensor before: convert(t, f32)", lambda: array.fft(convert(zeros((4,), i32), f32)).sync()),
)
case(
    lambda: anyhow.irfftn(zeros((4,))),
    ("Convert the tensor before: convert(t, f32)", lambda: array.irfftn(convert(zeros((4,)), c64)).sync()),
)
case(
    lambda: anyhow.fft(zeros((4,)), norm="half"),
    ('Write "backward", "ortho" or "forward"', lambda: array.fft(zeros((4,)), norm="ortho").sync()),
)
case(
    lambda: array.convolve(zeros((4, 4)), zeros((3,))),
    (
        "Reshape it, x.reshape((-1,)), or write array.stencil for neighbours along several axes",
        lambda: [
            array.convolve(zeros((4, 4)).reshape((-1,)), zeros((3,))).sync(),
            array.stencil(f32)(lambda x: x[-1, 0] + x[0, 0])(zeros((4, 4))).sync(),
        ],
    ),
)
case(
    lambda: anyhow.convolve(zeros((4,)), zeros((3,), f64)),
    ("Convert one: convert(t, f32), say", lambda: array.convolve(zeros((4,)), convert(zeros((3,), f64), f32)).sync()),
)
case(
    lambda: array.fftn(zeros((4, 4)), (4,), (0, 1)),
    ("Give one for each axis", lambda: array.fftn(zeros((4, 4)), (4, 4), (0, 1)).sync()),
)
case(
    lambda: anyhow.fftn(zeros((4, 4)), axes="01"),
    ("Write axes=(0, 1), say", lambda: array.fftn(zeros((4, 4)), axes=(0, 1)).sync()),
)
for function in (anyhow.amax, anyhow.argmin, anyhow.softmax, anyhow.cummax, anyhow.median):
    case(
        partial(function, zeros((4,), c64)),
        (
            "Pass real numbers: array.real(t), array.imag(t), or array.abs(t)",
            lambda: [array.amax(f(zeros((4,), c64))).sync() for f in (array.real, array.imag, array.abs)],
        ),
    )
case(
    lambda: anyhow.maximum(zeros((4,), c64), zeros((4,))),
    (
        "Convert one: convert(t, c64), say",
        lambda: expr(c64, c64)(lambda a, b: a + b)(zeros((4,), c64), convert(zeros((4,)), c64)).sync(),
    ),
)
case(
    lambda: expr(c64)(lambda z: z < 0),
    (
        "Compute with its parts, array.real(x) and array.imag(x)",
        lambda: expr(c64)(lambda z: array.real(z) < array.imag(z)),
    ),
)
case(
    lambda: expr(c64)(lambda z: z.to(f32)),
    (
        "Take one of them, array.real(x) or array.imag(x)",
        lambda: expr(c64)(lambda z: array.imag(z) + array.real(z) + array.abs(z)),
    ),
)
case(
    lambda: expr(c64, f64)(lambda z, x: z * x),  # type: ignore[operator]  # reason: the mistake
    ("say x.to(c128)", lambda: expr(c64, f64)(lambda z, x: z.to(c128) * x.to(c128))),
)
case(
    lambda: expr(f32)(lambda x: x * 1j),  # type: ignore[operator]  # reason: the mistake
    ("Convert that element first: x.to(c64)", lambda: expr(f32)(lambda x: x.to(c64) * 1j)),
)
case(
    lambda: expr(f32)(lambda x: array.real(x > 0)),
    ("Convert it first: x.to(c64)", lambda: expr(f32)(lambda x: array.real((x > 0).to(c64)))),
)
case(
    lambda: expr(c64, c64)(lambda z, a: a * z)(zeros((4,), c64), 1e300),
    ("Pass one in the range", lambda: expr(c64, c64)(lambda z, a: a * z)(zeros((4,), c64), 1e30j).sync()),
)
case(
    lambda: expr(f32, f32)(lambda x, a: a * x)(zeros((4,)), 1j),
    ("Take one part of it: x.real, or abs(x)", lambda: expr(f32, f32)(lambda x, a: a * x)(zeros((4,)), abs(1j)).sync()),
)
case(
    lambda: anyhow.ifft(2.0),
    ("Pass a tensor: full((1,), x), say", lambda: array.ifft(full((1,), 2.0, c64)).sync()),
)
case(
    lambda: anyhow.sort(zeros((4,), c64)),
    (
        "Sort what has one: array.real(t)",
        lambda: [array.sort(f(zeros((4,), c64))) for f in (array.real, array.imag, array.abs)],
    ),
)
case(
    lambda: convert(zeros((4,), c64).sync(), f32),
    (
        "Say which is meant: array.real(t)",
        lambda: [f(zeros((4,), c64)).sync() for f in (array.real, array.imag, array.abs)],
    ),
)
case(
    lambda: anyhow.sum(zeros((4,), c64).then(lambda t: expr(f32)(lambda x: x + 1)(t))).sync(),  # type: ignore[arg-type]  # reason: the mistake
    (
        "Take a real part of it before: array.real(t)",
        lambda: [expr(f32)(lambda x: x + 1)(f(zeros((4,), c64))) for f in (array.real, array.imag, array.abs)],
    ),
)
