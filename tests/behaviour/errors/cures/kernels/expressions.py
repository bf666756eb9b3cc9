"""Mistakes in expressions and in calls of the functions of `dagpu.array`."""

from typing import Any

import numpy as np

from dagpu import Elem, array, bool_, convert, expr, f32, f64, from_host, full, i32, ones, zeros
from tests.behaviour.errors.cures.catalogue import Catalogue

CATALOGUE = Catalogue()
case = CATALOGUE.add

scaled = expr(f32, f32)(lambda x, a: a * x)
positive = expr(f32)(lambda x: x > 0)
loose: Any = expr
anyhow: Any = array
KEPT: list[Elem[Any]] = []


def keep(x: Any) -> Any:
    KEPT.append(x)
    return x + 0


def fresh() -> Any:
    return ones((4,)).sync()


# ---- the function


case(
    lambda: loose(f32)(lambda x: x if x > 0 else -x),
    ("For a choice say where(condition, a, b)", lambda: loose(f32)(lambda x: array.where(x > 0, x, -x))),
    ("0 < x < 1 is (0 < x) & (x < 1)", lambda: loose(f32)(lambda x: (x > 0) & (x < 1))),
)
case(
    lambda: loose(f32, f64)(lambda x, y: x + y),
    ("say x.to(f32)", lambda: loose(f32, f64)(lambda x, y: x + y.to(f32))),
)
case(
    lambda: loose(f32)(lambda x: np.sqrt(x)),
    ("Use the function of that name from dagpu.array", lambda: loose(f32)(lambda x: array.sqrt(x))),
)
case(
    lambda: loose(f32)(lambda x: x + "1"),
    ("Give it elements of one expression, and numbers", lambda: loose(f32)(lambda x: x + 1)),
)
case(
    lambda: loose(i32)(lambda x: x * 2.5),
    ("Convert that element first: x.to(f32)", lambda: loose(i32)(lambda x: x.to(f32) * 2.5)),
)
case(
    lambda: loose(i32)(lambda x: x / 2),
    ("Convert it, x.to(f32) / y.to(f32)", lambda: loose(i32)(lambda x: x.to(f32) / 2)),
    ("or divide whole numbers by //", lambda: loose(i32)(lambda x: x // 2)),
)
case(
    lambda: loose(bool_)(lambda x: x + x),
    ("Convert it first: x.to(i32)", lambda: loose(bool_)(lambda x: x.to(i32) + x.to(i32))),
    ("for bools there are & | ^ ~", lambda: loose(bool_)(lambda x: x | x)),
)
case(
    lambda: loose(i32)(lambda x: array.sqrt(x)),
    ("Convert it first: x.to(f32)", lambda: loose(i32)(lambda x: array.sqrt(x.to(f32)))),
)
case(
    lambda: loose(f32)(lambda x: x << 1),
    ("Convert it first: x.to(i32)", lambda: loose(f32)(lambda x: x.to(i32) << 1)),
)
case(
    lambda: loose(f32)(lambda x: ~x),
    ("Compare it first, x > 0", lambda: loose(f32)(lambda x: ~(x > 0))),
    ("or convert it: x.to(i32)", lambda: loose(f32)(lambda x: ~x.to(i32))),
)
case(
    lambda: loose(f32)(lambda x: x.to("float")),
    ("Say x.to(f32), with f32 from dagpu", lambda: loose(f32)(lambda x: x.to(f32))),
)
case(
    lambda: loose(f32)(lambda x: anyhow.where(x, 1.0, x)),
    ("Write a comparison: where(x > 0, a, b)", lambda: loose(f32)(lambda x: array.where(x > 0, 1.0, x))),
)
case(
    lambda: loose(f32, f32)(lambda x: x),
    ("Give one for each parameter: expr(f32, f32)", lambda: expr(f32, f32)(lambda x, y: x + y)),
)
case(
    lambda: loose(f32)(lambda x: 3.0),
    ("Return what operations on its parameters give", lambda: loose(f32)(lambda x: x * 0 + 3.0)),
    ("for a fixed value there is dagpu.full", lambda: full((4,), 3.0).sync()),
)
case(
    lambda: (loose(f32)(keep), loose(f32)(lambda x: x + KEPT[-1])),
    ("Make it a parameter", lambda: loose(f32, f32)(lambda x, kept: x + kept)),
    ("or write both as one function", lambda: loose(f32)(lambda x: x + (x + 0))),
)
case(
    lambda: loose("f32"),
    ("Write expr(f32, f32)", lambda: expr(f32, f32)(lambda x, y: x + y)),
    ("or @expr over a function with annotations such as x: Elem[f32]", lambda: expr(annotated)),
)
case(lambda: loose(f32)(np.sqrt), ("Apply it to a plain function: def or lambda", lambda: loose(f32)(lambda x: -x)))
case(
    lambda: loose(lambda x: x),
    ("Write x: Elem[f32]", lambda: expr(annotated)),
    ("or name the types: expr(f32, f32)", lambda: expr(f32, f32)(lambda x, y: x + y)),
)


def annotated(x: Elem[f32]) -> Elem[f32]:
    return x + 1


# ---- calls


case(
    lambda: loose(f32, f32)(lambda x, a: x)(fresh(), a=2.0),
    ("Pass each argument by its position", lambda: scaled(fresh(), 2.0).sync()),
)
case(
    lambda: loose(f32, f32)(lambda x, a: x)(fresh()),
    ("Pass one for each parameter, by position", lambda: scaled(fresh(), 2.0).sync()),
)
case(
    lambda: scaled(1.0, 2.0),
    ("Make one of them a tensor: full((1,), x), say", lambda: scaled(full((1,), 1.0), 2.0).sync()),
)
case(
    lambda: scaled(zeros((3, 4)), zeros((3,))),
    (
        "Extents must be equal, or 1; reshape one: x.reshape((n, 1)), say",
        lambda: scaled(zeros((3, 4)), zeros((3,)).reshape((3, 1))).sync(),
    ),
)
case(
    lambda: scaled.into(zeros((3,)).partition((3,)), zeros((3, 4)), 1.0),
    ("Extents must be equal, or 1", lambda: scaled.into(zeros((3, 4)).partition((3, 4)), zeros((3, 4)), 1.0).sync()),
)
case(
    lambda: anyhow_update(zeros((3,), bool_).partition((3,))),
    (
        "Write to memory of its own, .into(partition, ...)",
        lambda: positive.into(zeros((3,), bool_).partition((3,)), zeros((3,))).sync(),
    ),
)


def anyhow_update(out: Any) -> Any:
    loosely: Any = positive
    return loosely.update(out)


case(
    lambda: anyhow.sqrt(from_host(np.arange(4)).sync()),
    (
        "Convert the tensor before: convert(t, f32), say",
        lambda: array.sqrt(from_host(np.arange(4)).then(lambda t: convert(t, f32))).sync(),
    ),
)
case(
    lambda: anyhow.maximum(zeros((4,)), zeros((4,), f64)),
    (
        "Convert one: convert(t, f32), say",
        lambda: array.maximum(zeros((4,)), zeros((4,), f64).then(lambda t: convert(t, f32))).sync(),
    ),
)
case(
    lambda: anyhow.maximum(1, 2),
    ("Pass a tensor: full((1,), x), say", lambda: array.maximum(full((1,), 1.0), 2.0).sync()),
)


# ---- reductions


case(
    lambda: array.sum(zeros((3, 4)), 2),
    ("Give one of them, a tuple of different ones, or None for all", lambda: array.sum(zeros((3, 4)), (0, 1)).sync()),
)
case(
    lambda: array.amax(zeros((0, 4)), 0),
    ("Append one before, or test its shape", lambda: array.amax(zeros((1, 4)), 0).sync()),
)
case(
    lambda: anyhow.sum(2.0),
    ("Pass a tensor: full((1,), x), say", lambda: array.sum(full((1,), 2.0)).sync()),
)
case(
    lambda: anyhow.sum(ones((4,), bool_)),
    (
        "Convert the tensor before: convert(t, f32), say",
        lambda: array.sum(ones((4,), bool_).then(lambda t: convert(t, i32))).sync(),
    ),
)
