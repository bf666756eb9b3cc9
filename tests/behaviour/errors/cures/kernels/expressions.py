"""Mistakes in expressions and in calls of the functions of `dagpu.array`."""

import math
from typing import Any

import numpy as np

from dagpu import Elem, array, bool_, convert, dup, expr, f32, f64, from_host, full, i32, i64, ones, zeros
from tests.behaviour.errors.cures.catalogue import Catalogue

CATALOGUE = Catalogue()
case = CATALOGUE.add

scaled = expr(f32, f32)(lambda x, a: a * x)
positive = expr(f32)(lambda x: x > 0)
anyhow_positive: Any = positive
loose: Any = expr
anyhow: Any = array
KEPT: list[Elem[Any]] = []


def keep(x: Any) -> Any:
    KEPT.append(x)
    return x + 0


def squared(x: Elem[f32]) -> Elem[f32]:
    return x * x


square = expr(f32)(squared)


def untyped(x: object) -> Any:
    return x


def fresh() -> Any:
    return ones((4,)).sync()


# ---- calls

case(
    lambda: positive(from_host(np.ones(4))),  # type: ignore[arg-type]  # reason: the mistake
    (
        "Convert it: convert(t, f32)",
        lambda: positive(convert(from_host(np.ones(4)), f32)),
    ),
)
case(
    lambda: square(*[fresh(), fresh()]),
    ("it is declared at", lambda: square(fresh())),
)


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
    lambda: loose(f32)(lambda x: math.sqrt(x)),
    ("The functions of math are in dagpu.array: array.sqrt(x)", lambda: loose(f32)(lambda x: array.sqrt(x))),
    ("array.floor(x)", lambda: loose(f32)(lambda x: array.floor(x))),
    ("Another element type is x.to(i32)", lambda: loose(f32)(lambda x: x.to(i32))),
)
case(
    lambda: loose(f32)(lambda x: x[0]),
    ("slice the tensor before the call", lambda: expr(f32)(lambda x: x + 1)(fresh().slice(slice(0, 1))).sync()),
)
case(lambda: loose(f32)(lambda x: x.astype(i32)), ("Convert it: x.to(f32)", lambda: loose(i32)(lambda x: x.to(f32))))
case(
    lambda: loose(f32)(lambda x: x.sqrt()),
    ("Use the function: array.sqrt(x)", lambda: loose(f32)(lambda x: array.sqrt(x))),
)
case(
    lambda: loose(f32)(lambda x: x.T + 1),
    ("change the form of the tensor before the call", lambda: square(array.transpose(ones((2, 3)))).sync()),
)
for reduction in (
    lambda: loose(f32)(lambda x: x.sum()),
    lambda: loose(f32)(lambda x: anyhow.sum(x)),
    lambda: loose(f32)(lambda x: untyped(square.sum())(x)),
):
    case(
        reduction,
        ("expr(f32)(lambda x: x * x).sum(axis)", lambda: expr(f32)(lambda x: x * x).sum(0)(fresh()).sync()),
        ("pass the result as one more argument", lambda: scaled(fresh(), array.sum(fresh())).sync()),
    )
case(
    lambda: loose(f32)(lambda x: untyped(square)(x) + 1),
    ("Keep its Python function, f = lambda x: x * x, call f(x) here", lambda: loose(f32)(lambda x: squared(x) + 1)),
    ("make that expression of it too: expr(f32)(f)", lambda: expr(f32)(squared)(fresh()).sync()),
)
case(
    lambda: loose(f64)(lambda x: array.where(x > 0, 1e300, 0.0)),
    (
        "Scale smaller ones: where(c, 1.0, 0.0).to(f64) * x",
        lambda: loose(f64)(lambda x: array.where(x > 0, 1.0, 0.0).to(f64) * 1e300),
    ),
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
    lambda: loose(f32)(lambda x: (x + 1,)),
    ("Return the element itself: x + y, not x + y,", lambda: loose(f32)(lambda x: x + 1)),
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
    lambda: loose(f32, f32)(lambda x, a: x)(fresh(), b=2.0),
    (
        "Pass one for each parameter, by position or by name",
        lambda: loose(f32, f32)(lambda x, a: x)(fresh(), a=2.0).sync(),
    ),
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
        "Convert the tensor before: convert(t, f32)",
        lambda: array.sqrt(convert(from_host(np.arange(4)), f32)).sync(),
    ),
)
case(
    lambda: anyhow.maximum(zeros((4,)), zeros((4,), f64)),
    (
        "Convert one: convert(t, f32), say",
        lambda: array.maximum(zeros((4,)), convert(zeros((4,), f64), f32)).sync(),
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
        "Convert the tensor before: convert(t, f32)",
        lambda: array.sum(convert(ones((4,), bool_), f32)).sync(),
    ),
)


# ---- moving elements


case(
    lambda: array.transpose(zeros((3, 4)), (0, 0)),
    ("Name each of them once, (0, 1) in another order", lambda: array.transpose(zeros((3, 4)), (1, 0)).sync()),
    ("or leave axes out", lambda: array.transpose(zeros((3, 4))).sync()),
)
case(
    lambda: array.cumsum(zeros((3, 4)), 2),
    ("Give one of them, -2 to 1", lambda: array.cumsum(zeros((3, 4)), 1).sync()),
)
case(
    lambda: array.softmax(zeros(())),
    ("Reshape it to one axis: x.reshape((-1,))", lambda: array.softmax(zeros(()).reshape((-1,))).sync()),
)
case(
    lambda: anyhow.concatenate(fresh()),
    ("Write concatenate((a, b))", lambda: array.concatenate((fresh(), fresh())).sync()),
)
case(
    lambda: array.concatenate(()),
    ("Pass one at least: (x,), say", lambda: array.concatenate((fresh(),)).sync()),
)
case(
    lambda: array.concatenate((zeros((3, 4)), zeros((3,)))),
    (
        "Give all parts one shape but for axis 0: reshape one, x.reshape((n, 1)), say",
        lambda: array.concatenate((zeros((3, 4)), zeros((4,)).reshape((1, 4)))).sync(),
    ),
)
case(
    lambda: array.stack((zeros((3, 4)), zeros((3,)))),
    ("Give all parts one shape: reshape one", lambda: array.stack((zeros((3, 1)), zeros((3,)).reshape((3, 1)))).sync()),
)
case(
    lambda: anyhow.stack((zeros((4,)), zeros((4,), f64))),
    (
        "Convert one: convert(t, f32), say",
        lambda: array.stack((zeros((4,)), zeros((4,), f64).then(lambda t: convert(t, f32)))).sync(),
    ),
)
case(
    lambda: anyhow.take(fresh(), fresh()),
    (
        "Convert it before: convert(t, i64)",
        lambda: array.take(fresh(), zeros((4,)).then(lambda t: convert(t, i64))).sync(),
    ),
)
case(
    lambda: anyhow.take(fresh(), from_host(np.ones(4, bool))),
    (
        "A mask chooses by array.compress(mask, x)",
        lambda: array.compress(from_host(np.ones(4, bool)), fresh()).sync(),
    ),
    (
        "or in place by array.where(mask, x, 0)",
        lambda: array.where(from_host(np.ones(4, bool)), fresh(), 0).sync(),
    ),
)
case(
    lambda: array.take(fresh(), full((1,), 4, i64)).sync(),
    ("Give indices from -4 to 3", lambda: array.take(fresh(), full((1,), 3, i64)).sync()),
)
case(
    lambda: array.take(zeros((0,)), full((1,), 0, i64)).sync(),
    ("Give no indices", lambda: array.take(zeros((0,)), zeros((0,), i64)).sync()),
)
case(
    lambda: anyhow.one_hot(zeros((4,), i64), 3, "f32"),
    ("Pass an element type, one_hot(indices, n, f32), say", lambda: array.one_hot(zeros((4,), i64), 3, f32).sync()),
)
case(
    lambda: array.one_hot(zeros((4,), i64), 0),
    ("Write n=4, say", lambda: array.one_hot(zeros((4,), i64), n=4).sync()),
)
case(
    lambda: anyhow.scatter_add(fresh().share(), zeros((1,), i64), zeros((1,))),
    ("Pass an owned Tensor", lambda: array.scatter_add(fresh(), zeros((1,), i64), zeros((1,))).sync()),
    ("or a copy: dup(t)", lambda: array.scatter_add(dup(fresh()), zeros((1,), i64), zeros((1,))).sync()),
)
case(
    lambda: anyhow.scatter_add(fresh(), zeros((1,), i64), zeros((1,), f64)),
    (
        "Convert one: convert(t, f32), say",
        lambda: array.scatter_add(fresh(), zeros((1,), i64), zeros((1,), f64).then(lambda t: convert(t, f32))).sync(),
    ),
)
case(
    lambda: array.scatter_add(zeros(()), zeros((1,), i64), zeros((1,))),
    (
        "Reshape it: into.reshape((1,))",
        lambda: array.scatter_add(zeros(()).reshape((1,)), zeros((1,), i64), zeros((1,))).sync(),
    ),
)
case(
    lambda: array.scatter_add(fresh(), zeros((2,), i64), zeros((2, 1))),
    (
        "Give it that shape: values.reshape((2,)), say",
        lambda: array.scatter_add(fresh(), zeros((2,), i64), zeros((2, 1)).reshape((2,))).sync(),
    ),
)
case(
    lambda: array.scatter_add(zeros((0,)), zeros((2,), i64), zeros((2,))),
    ("Give no indices", lambda: array.scatter_add(zeros((0,)), zeros((0,), i64), zeros((0,))).sync()),
)


case(
    lambda: anyhow_positive.sum(),
    (
        "Convert the result of the expression: .to(f32)",
        lambda: expr(f32)(lambda x: (x > 0).to(f32)).sum()(ones((4,))).sync(),
    ),
)
