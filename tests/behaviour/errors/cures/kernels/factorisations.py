"""Mistakes in calls of the functions of `dagpu.array` that factor matrices."""

import sys
from typing import Any

import pytest

from dagpu import array, convert, device, eye, f32, f64, full, i32, ones, zeros
from dagpu.arrays.nvidia.libraries import INSTALL
from tests.behaviour.errors.cures.catalogue import Catalogue
from tests.simulated.cuda import driver
from tests.simulated.libraries import libraries

CATALOGUE = Catalogue()
case = CATALOGUE.add
anyhow: Any = array


def without_cusolver() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nvmath.bindings.cusolverDn", None)
        return array.cholesky(eye(3)).sync()


case(
    without_cusolver,
    ('On the host it needs nothing: op.on("host")', lambda: array.cholesky(eye(3)).on("host").sync()),
    (f"Install it: {INSTALL}", lambda: device("host")),
    simulated=True,
)
case(
    lambda: anyhow.qr(2.0),
    ("Pass a tensor: full((1, 1), x), say", lambda: array.qr(full((1, 1), 2.0)).sync()),
)
case(
    lambda: anyhow.cholesky(zeros((3, 3), i32)),
    ("Convert the tensor before: convert(t, f32)", lambda: array.cholesky(convert(eye(3, dtype=i32), f32)).sync()),
)
case(
    lambda: array.svd(zeros((6,))),
    ("Reshape it: x.reshape((rows, columns)), say", lambda: array.svd(zeros((6,)).reshape((2, 3))).sync()),
)


def one_by_one() -> object:
    t = ones((2, 3, 4)).sync().share()
    return [array.qr(t[i]).sync() for i in range(2)]


case(
    lambda: array.qr(ones((2, 3, 4))),
    ("Pass them one by one: t[i] of a shared tensor t", one_by_one),
)


def normal_equations() -> object:
    x = (eye(4, 3) * 2).sync().share()
    return array.solve(array.matmul(x, x, transpose="a"), array.matmul(x, ones((4,)), transpose="a")).sync()


case(
    lambda: array.solve(eye(4, 3), ones((4,))),
    ("array.matmul(x, x, transpose='a') of the normal equations, say", normal_equations),
)
case(
    lambda: array.solve(eye(3), ones((4,))),
    (
        "the shape (3,) of a column, or (3, k) of k columns",
        lambda: [array.solve(eye(3), ones((3,))).sync(), array.solve(eye(3), ones((3, 2))).sync()],
    ),
)
case(
    lambda: anyhow.solve(eye(3), ones((3,), f64)),
    ("Convert one: convert(t, f32), say", lambda: array.solve(eye(3), convert(ones((3,), f64), f32)).sync()),
)


def captured(*, with_svd: bool) -> object:
    simulated: Any = driver()
    with libraries(simulated.gpu.machine):
        t = eye(3).sync().share()
        if with_svd:
            return array.svd(t).graph()
        u, _, _ = array.svd(t).sync()
        return array.matmul(t, u).graph().launch().sync()


case(
    lambda: captured(with_svd=True),
    ("Take svd out of it", lambda: captured(with_svd=False)),
    simulated=True,
)
