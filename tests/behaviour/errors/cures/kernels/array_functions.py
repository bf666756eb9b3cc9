"""Mistakes in calls of the functions of `dagpu.array` that libraries compute, and that sort."""

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

import dagpu
from dagpu import array, c64, convert, device, expr, f32, f64, from_host, full, i32, ones, zeros
from dagpu.arrays.libraries import INSTALL
from tests.behaviour.errors.cures.catalogue import Catalogue

CATALOGUE = Catalogue()
case = CATALOGUE.add
anyhow: Any = array
package: Any = dagpu


def bounded(x: Any, bound: Any) -> None:
    array.maximum(x, bound).sync()
    array.minimum(ones((4,)), 0.5).sync()


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
    ("Multiply by it: t * x in an expr", lambda: expr(f32, f32)(lambda t, x: t * x)(zeros((3, 8)), 2.0).sync()),
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


# ---- names
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
    (
        "Write it in an expression: expr(f32, f32)(lambda x, y: x * y)",
        lambda: expr(f32, f32)(lambda x, y: x * y)(ones((4,)), ones((4,))).sync(),
    ),
)
case(
    lambda: anyhow.square(ones((4,))),
    ("Write it in an expression: expr(f32)(lambda x: x * x)", lambda: expr(f32)(lambda x: x * x)(ones((4,))).sync()),
)


# ---- bounds
case(
    lambda: anyhow.clip(ones((4,)), None, 0.5),
    ("For one bound say minimum(x, high)", lambda: array.minimum(ones((4,)), 0.5).sync()),
)
case(
    lambda: anyhow.clip(ones((4,)), ones((4,)), None),
    ("For one bound say minimum(x, high), or maximum(x, low)", lambda: bounded(ones((4,)), ones((4,)))),
)
case(
    lambda: expr(f32)(lambda x: anyhow.clip(x, 0.5, None)),
    ("maximum(x, low)", lambda: expr(f32)(lambda x: array.maximum(x, 0.5))),
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
    lambda: anyhow.fft(zeros((4,))),
    ("Use rfft for real numbers", lambda: array.rfft(zeros((4,))).sync()),
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
    ("Use rfft for real numbers: rfft(convert(t, f32))", lambda: array.rfft(convert(zeros((4,), i32), f32)).sync()),
)
case(
    lambda: anyhow.ifft(zeros((4,))),
    (
        "Make them complex on the host: from_host(array.astype(np.complex64))",
        lambda: array.ifft(from_host(np.ones(4, f32).astype(np.complex64))).sync(),
    ),
)
for function in (anyhow.sum, anyhow.abs, anyhow.transpose, anyhow.softmax):
    case(
        partial(function, zeros((4,), c64)),
        (
            "compute with NumPy on the host: t.to_host()",
            lambda: zeros((4,), c64).to_host().map(lambda z: np.abs(z).sum()).sync(),
        ),
    )
case(
    lambda: anyhow.maximum(zeros((4,), c64), zeros((4,))),
    ("compute with NumPy on the host: t.to_host()", lambda: zeros((4,), c64).to_host().map(np.abs).sync()),
)
case(
    lambda: anyhow.ifft(2.0),
    ("Pass a tensor: full((1,), x), say", lambda: array.ifft(full((1,), 2.0, c64)).sync()),
)
case(
    lambda: anyhow.sort(zeros((4,), c64)),
    ("Sort by one part of them", lambda: array.sort(from_host(np.zeros(4, np.complex64).real)).sync()),
)
case(
    lambda: convert(zeros((4,), c64).sync(), f32),
    ("from_host(array.real)", lambda: from_host(np.zeros(4, np.complex64).real).sync()),
    ("from_host(array.astype(np.complex64))", lambda: from_host(np.zeros(4).astype(np.complex64)).sync()),
)
case(
    lambda: anyhow.sum(zeros((4,), c64).then(lambda t: expr(f32)(lambda x: x + 1)(t))).sync(),  # type: ignore[arg-type]  # reason: the mistake
    (
        "Kernels take real elements: pass one part of the numbers",
        lambda: expr(f32)(lambda x: x + 1)(from_host(np.zeros(4, np.complex64).real)).sync(),
    ),
)
