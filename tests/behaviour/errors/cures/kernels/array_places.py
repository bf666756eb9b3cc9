"""Mistakes in calls of the functions of `dagpu.array` whose elements are at places that follow from their own."""

from typing import Any

import numpy as np

from dagpu import array, bool_, convert, f32, f64, from_host, i64, ones, zeros
from tests.behaviour.errors.cures.catalogue import Catalogue

CATALOGUE = Catalogue()
case = CATALOGUE.add
anyhow: Any = array

case(
    lambda: array.roll(ones((3, 4)), (1, 2, 3), (0, 1)),
    ("Give one for each", lambda: array.roll(ones((3, 4)), (1, 2), (0, 1)).sync()),
    ("or one for all", lambda: array.roll(ones((3, 4)), 1, (0, 1)).sync()),
)
case(
    lambda: anyhow.roll(ones((4,)), 1.5),
    ("Write shift=2, say", lambda: array.roll(ones((4,)), shift=2).sync()),
)
case(
    lambda: array.tile(ones((4,)), -1),
    ("Give numbers of 0 or more", lambda: array.tile(ones((4,)), 0).sync()),
)
case(
    lambda: anyhow.repeat(ones((4,)), (1, 2, 0, 1)),
    (
        "Gather with places for a count of each: take(x, places, axis)",
        lambda: array.take(ones((4,)), from_host(np.repeat(np.arange(4), (1, 2, 0, 1)))).sync(),
    ),
)
case(
    lambda: anyhow.repeat(ones((4, 2)), 2, (0, 1)),
    ("Give one axis", lambda: array.repeat(ones((4, 2)), 2, 0).sync()),
    ("or None", lambda: array.repeat(ones((4, 2)), 2, None).sync()),
)
case(
    lambda: array.broadcast_to(ones((4,)), (4, 3)),
    ("reshape it: x.reshape((n, 1)), say", lambda: array.broadcast_to(ones((4,)).reshape((4, 1)), (4, 3)).sync()),
)
case(
    lambda: anyhow.meshgrid(ones((4,)), indexing="yx"),
    ("Write 'xy' or 'ij'", lambda: array.meshgrid(ones((4,)), indexing="ij").sync()),
)
case(
    lambda: array.meshgrid(),
    ("Pass one at least", lambda: array.meshgrid(ones((4,))).sync()),
)
case(
    lambda: array.meshgrid(ones((4, 1))),
    ("Reshape it: x.reshape((-1,))", lambda: array.meshgrid(ones((4, 1)).reshape((-1,))).sync()),
)
case(
    lambda: anyhow.pad(ones((4,)), 1, "mean"),
    ("Write 'constant' or 'edge'", lambda: array.pad(ones((4,)), 1, "edge").sync()),
)
case(
    lambda: array.pad(ones((4, 3, 2)), ((1, 1), (2, 2))),
    ("Give one for each", lambda: array.pad(ones((4, 3)), ((1, 1), (2, 2))).sync()),
    ("or one for all", lambda: array.pad(ones((4, 3, 2)), (1, 1)).sync()),
)
case(
    lambda: array.pad(zeros((0,)), 1, "edge"),
    ('Pad it by a number: mode="constant"', lambda: array.pad(zeros((0,)), 1, mode="constant").sync()),
)
case(
    lambda: anyhow.pad(ones((4,)), (1, 2, 3)),
    (
        "Give a number, a pair, or a pair for each axis: ((1, 1), (2, 2)), say",
        lambda: array.pad(ones((4, 3)), ((1, 1), (2, 2))).sync(),
    ),
)
case(
    lambda: array.tril(ones((4,))),
    ("Reshape it: x.reshape((rows, columns)), say", lambda: array.tril(ones((4,)).reshape((2, 2))).sync()),
)
case(
    lambda: anyhow.triu(ones((4, 4)), 0.5),
    ("Write k=0, say", lambda: array.triu(ones((4, 4)), k=0).sync()),
)
case(
    lambda: array.stencil(f32)(lambda x: x[2] - x[0]),
    ("Give stencil a larger radius", lambda: array.stencil(f32, 2)(lambda x: x[2] - x[0])),
    ("or one number for each axis", lambda: array.stencil(f32)(lambda x: x[1, 0] - x[0, 0])),
)
case(
    lambda: array.stencil(f32)(lambda x: x[1] - x[0])(ones((4, 4))),
    (
        "Reshape it: x.reshape((rows, columns)), say",
        lambda: array.stencil(f32)(lambda x: x[1, 0] - x[0, 0])(ones((16,)).reshape((4, 4))).sync(),
    ),
)
case(
    lambda: array.stencil(f32)(lambda x: x[1] - x[0])(zeros((4,), i64)),  # type: ignore[arg-type]  # reason: that is what is refused
    (
        "Convert it before: convert(t, f32)",
        lambda: array.stencil(f32)(lambda x: x[1] - x[0])(zeros((4,), i64).then(lambda t: convert(t, f32))).sync(),
    ),
)
case(
    lambda: array.stencil(f32, 65),
    ("Multiply in the transform, array.rfft, for a sum of more neighbours", lambda: array.rfft(ones((8,))).sync()),
)
case(
    lambda: anyhow.stencil(3),
    ("Pass an element type, stencil(f32), say", lambda: array.stencil(f32)),
)
case(
    lambda: array.searchsorted(ones((2, 2)), ones((4,))),
    ("Reshape it: edges.reshape((-1,))", lambda: array.searchsorted(ones((2, 2)).reshape((-1,)), ones((4,))).sync()),
)
case(
    lambda: anyhow.searchsorted(ones((2,)), zeros((4,), i64)),
    (
        "Convert one: convert(t, f32), say",
        lambda: array.searchsorted(ones((2,)), zeros((4,), i64).then(lambda t: convert(t, f32))).sync(),
    ),
)
case(
    lambda: anyhow.searchsorted(ones((2,)), ones((4,)), "middle"),
    ("Write 'left' or 'right'", lambda: array.searchsorted(ones((2,)), ones((4,)), "left").sync()),
)
case(
    lambda: array.histogram(ones((4,)), 3, (1, 0)),
    ("Write range=(0, 1), say", lambda: array.histogram(ones((4,)), 3, range=(0, 1)).sync()),
)
case(
    lambda: array.nonzero(ones(())),
    ("Reshape it: x.reshape((1,)), say", lambda: array.nonzero(ones(()).reshape((1,))).sync()),
)
case(
    lambda: array.unique(ones((4,)), size=-1),
    ("Write size=4, say", lambda: array.unique(ones((4,)), size=4).sync()),
)
case(
    lambda: anyhow.compress(ones((4,)), ones((4,)) > 0),
    (
        "Write a comparison, compress(t > 0, t), with the mask first",
        lambda: array.compress(ones((4,)) > 0, ones((4,))).sync(),
    ),
)
case(
    lambda: array.compress(zeros((4,), bool_), ones((4, 3))),
    (
        "Give one bool for each element",
        lambda: array.compress(zeros((4, 3), bool_), ones((4, 3))).sync(),
    ),
    ("or for each row: axis=0", lambda: array.compress(zeros((4,), bool_), ones((4, 3)), axis=0).sync()),
)
case(
    lambda: array.take_along_axis(ones((4, 3)), zeros((1, 3), i64), 1),
    (
        "Give both one shape but for axis 1: broadcast_to(indices, shape), say",
        lambda: array.take_along_axis(ones((4, 3)), array.broadcast_to(zeros((1, 3), i64), (4, 3)), 1).sync(),
    ),
)
case(
    lambda: array.segment_sum(ones((4, 3)), zeros((3,), i64), 2),
    (
        "Give it that shape: values.reshape((3, 3)), say",
        lambda: array.segment_sum(ones((9,)).reshape((3, 3)), zeros((3,), i64), 2).sync(),
    ),
)
SPARSE = zeros((2,)), zeros((2,), i64), zeros((3,), i64), ones((4,))
"""The tensors of a sparse matrix of two rows, and a vector."""
case(
    lambda: array.csr_matmul(SPARSE[0].reshape((2, 1)), *SPARSE[1:]),
    (
        "Reshape it: data.reshape((n,))",
        lambda: array.csr_matmul(SPARSE[0].reshape((2, 1)).reshape((2,)), *SPARSE[1:]).sync(),
    ),
)
case(
    lambda: array.csr_matmul(ones((5,)), *SPARSE[1:]),
    ("Give each element one column: both are tensors of a csr_matrix", lambda: array.csr_matmul(*SPARSE).sync()),
)
case(
    lambda: array.csr_matmul(*SPARSE[:2], zeros((0,), i64), SPARSE[3]),
    (
        "A matrix without rows has from_host(np.array([0]))",
        lambda: array.csr_matmul(zeros((0,)), zeros((0,), i64), from_host(np.array([0])), SPARSE[3]).sync(),
    ),
)
case(
    lambda: array.csr_matmul(*SPARSE[:3], ones((4, 1, 1))),
    ("Reshape it: b.reshape((n, m))", lambda: array.csr_matmul(*SPARSE[:3], ones((4, 1, 1)).reshape((4, 1))).sync()),
)
case(
    lambda: anyhow.csr_matmul(*SPARSE[:3], ones((4,), f64)),
    (
        "Convert one of them: convert(t, f32)",
        lambda: array.csr_matmul(*SPARSE[:3], convert(ones((4,), f64), f32)).sync(),
    ),
)
case(
    lambda: array.csr_matmul(*SPARSE[:2], from_host(np.array([0, 1, 7])), SPARSE[3]).sync(),
    (
        "Give starts from 0 to 2",
        lambda: array.csr_matmul(*SPARSE[:2], from_host(np.array([0, 1, 2])), SPARSE[3]).sync(),
    ),
)
case(
    lambda: array.csr_matmul(*SPARSE[:2], from_host(np.array([0, 2, 1])), SPARSE[3]).sync(),
    (
        "Give starts that ascend",
        lambda: array.csr_matmul(*SPARSE[:2], from_host(np.array([0, 1, 2])), SPARSE[3]).sync(),
    ),
)
case(
    lambda: anyhow.pad(ones((4,)), 1, constant_values="1"),
    ("Write constant_values=1, say", lambda: array.pad(ones((4,)), 1, constant_values=1).sync()),
)
