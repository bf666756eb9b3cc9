"""Checked, not run: expressions and functions of tensors have exact types, and mixed element types are errors."""

from typing import Any, assert_type

from dagpu import (
    DeviceOp,
    Elem,
    Expr1,
    Expr2,
    Expression,
    KernelOp,
    Partition,
    SharedTensor,
    Tensor,
    TensorRef,
    array,
    bool_,
    c64,
    c128,
    expr,
    f32,
    f64,
    full,
    i32,
    i64,
    source,
    zeros,
)

gelu = expr(f32)(lambda x: x / (1 + array.exp(-1.702 * x)))
blend = expr(f32, f32)(lambda x, a: array.where(x > 0, a * x + 1, array.sqrt(array.maximum(-x, 0.5))))
whole = expr(i32, f32)(lambda n, x: n.to(f32) * x)


def named(of_one: Expr1[f32, f32], of_two: Expr2[f32, f32, f32]) -> DeviceOp[Tensor[f32]]:
    """The type of an expression has a name, for parameters and attributes."""
    return of_two(of_one(zeros((3,))), 2.0)


@expr
def positive(x: Elem[f64], low: Elem[f64]) -> Elem[bool_]:
    assert_type(x + 1, Elem[f64])
    assert_type(2.0 / x, Elem[f64])
    assert_type(x == low, Elem[bool_])
    assert_type(x.equals(low), Elem[bool_])
    assert_type((x > 0) & (x != low), Elem[bool_])
    assert_type(x.to(i64) << 3, Elem[i64])
    assert_type(array.minimum(x, 0.0), Elem[f64])
    return x > low


def tensors(own: Tensor[f32], many: SharedTensor[f32], lent: TensorRef[f32], lazy: DeviceOp[Tensor[f32]]) -> None:
    """An argument is a tensor of any kind, an op, or a number; the result has the type of the function's result."""
    assert_type(gelu(own), DeviceOp[Tensor[f32], Any])
    assert_type(blend(many, 2.5), DeviceOp[Tensor[f32], Any])
    assert_type(blend(lent, lazy), DeviceOp[Tensor[f32], Any])
    assert_type(blend(many, source(2.5)), DeviceOp[Tensor[f32], Any])
    blend(many, source("2.5"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(whole(zeros((3,), i32), many), DeviceOp[Tensor[f32], Any])
    assert_type(positive(zeros((3,), f64), 0), DeviceOp[Tensor[bool_], Any])
    assert_type(array.sqrt(own), DeviceOp[Tensor[f32], Any])
    assert_type(array.maximum(zeros((3,), i32), 0), DeviceOp[Tensor[i32], Any])
    assert_type(array.isnan(many), DeviceOp[Tensor[bool_], Any])
    assert_type(array.where(positive(zeros((3,), f64), 1.0), many, lazy), DeviceOp[Tensor[f32], Any])
    assert_type(array.where(positive(zeros((3,), f64), 1.0), 1.0, 0), DeviceOp[Tensor[f32], Any])
    assert_type(named(gelu, blend), DeviceOp[Tensor[f32]])
    assert_type(expr(f64)(lambda x: array.where(x > 0, 1.0, 0))(zeros((3,), f64)), DeviceOp[Tensor[f32], Any])
    chained: DeviceOp[Tensor[f32], Any] = gelu(blend(gelu(many), 2.0))
    del chained


def reduced(x: Tensor[f32], n: SharedTensor[i32], lazy: DeviceOp[Tensor[f32]], flags: Tensor[bool_]) -> None:
    """A reduction has the element type of its input; a sum of bools is refused."""
    assert_type(array.sum(x), DeviceOp[Tensor[f32], Any])
    assert_type(array.sum(n, (0, 1), keepdims=True), DeviceOp[Tensor[i32], Any])
    assert_type(array.mean(lazy, -1), DeviceOp[Tensor[f32], Any])
    assert_type(array.std(lazy, -1, ddof=1, keepdims=True), DeviceOp[Tensor[f32], Any])
    assert_type(array.argmax(n, 0), DeviceOp[Tensor[i64], Any])
    assert_type(array.any(flags), DeviceOp[Tensor[bool_], Any])
    array.sum(flags)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.mean(n)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.var(n)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def moved(
    x: Tensor[f32], n: SharedTensor[i32], places: SharedTensor[i64], lazy: DeviceOp[Tensor[f32]], flags: Tensor[bool_]
) -> None:
    """What moves elements keeps their type; parts and values of two types, and places that are floats, are refused."""
    assert_type(array.transpose(flags), DeviceOp[Tensor[bool_], Any])
    assert_type(array.transpose(n, (1, 0)), DeviceOp[Tensor[i32], Any])
    assert_type(array.concatenate((n, n), axis=1), DeviceOp[Tensor[i32], Any])
    assert_type(array.concatenate([lazy, lazy]), DeviceOp[Tensor[f32], Any])
    assert_type(array.stack((lazy, lazy), -1), DeviceOp[Tensor[f32], Any])
    assert_type(array.take(lazy, places), DeviceOp[Tensor[f32], Any])
    assert_type(array.take(places, n, axis=1), DeviceOp[Tensor[i64], Any])
    assert_type(array.one_hot(places, 10), DeviceOp[Tensor[f32], Any])
    assert_type(array.one_hot(n, 10, i32), DeviceOp[Tensor[i32], Any])
    assert_type(array.scatter_add(lazy, places, lazy), DeviceOp[Tensor[f32], Any])
    assert_type(array.scatter_add(zeros((3,), i32), n, n), DeviceOp[Tensor[i32], Any])
    assert_type(array.cumsum(n, 0), DeviceOp[Tensor[i32], Any])
    assert_type(array.softmax(array.take(lazy, places)), DeviceOp[Tensor[f32], Any])
    assert_type(array.softmax(x, axis=0), DeviceOp[Tensor[f32], Any])


def refused_moves(
    x: SharedTensor[f32], n: SharedTensor[i32], places: SharedTensor[i64], lent: TensorRef[f32], flags: Tensor[bool_]
) -> None:
    """Element types that do not fit, and tensors that cannot be written."""
    array.concatenate((x, n))  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.stack((n, places))  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.take(x, x)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.softmax(n)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.cumsum(flags)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.scatter_add(x, places, x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    array.scatter_add(lent, places, x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    array.scatter_add(zeros((3,)), places, n)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def multiplied(
    x: Tensor[f32], w: SharedTensor[f32], y: Tensor[f64], n: Tensor[i32], lazy: DeviceOp[Tensor[f32]]
) -> None:
    """A product has the element type of its operands, which is one."""
    assert_type(array.matmul(x, w), DeviceOp[Tensor[f32], Any])
    assert_type(array.matmul(zeros((3, 3)), w, transpose="b", precision="tf32"), DeviceOp[Tensor[f32], Any])
    assert_type(array.matmul(y, y), DeviceOp[Tensor[f64], Any])
    array.matmul(x, y)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.matmul(n, n)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.matmul(x, w, transpose="c")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def in_order(x: Tensor[f32], n: SharedTensor[i32], flags: Tensor[bool_], lazy: DeviceOp[Tensor[f32]]) -> None:
    """A sort has the element type of its input, places are i64, and only floats are dropped."""
    assert_type(array.sort(x), DeviceOp[Tensor[f32], Any])
    assert_type(array.sort(flags), DeviceOp[Tensor[bool_], Any])
    assert_type(array.argsort(n), DeviceOp[Tensor[i64], Any])
    assert_type(array.topk(n, 5), DeviceOp[tuple[Tensor[i32], Tensor[i64]], Any])
    assert_type(array.topk(lazy, 5, axis=0), DeviceOp[tuple[Tensor[f32], Tensor[i64]], Any])
    assert_type(array.sort(n, axis=None), DeviceOp[Tensor[i32], Any])
    assert_type(array.permutation(5, seed=1), DeviceOp[Tensor[i64], Any])
    assert_type(array.dropout(lazy, 0.5), DeviceOp[Tensor[f32], Any])
    array.dropout(n, 0.5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def transformed(x: Tensor[f32], y: SharedTensor[f64], z: Tensor[c64], w: TensorRef[c128]) -> None:
    """Real elements of one precision become complex ones of the same, and back."""
    assert_type(array.rfft(x), DeviceOp[Tensor[c64], Any])
    assert_type(array.rfft(y, 8, 0), DeviceOp[Tensor[c128], Any])
    assert_type(array.irfft(z), DeviceOp[Tensor[f32], Any])
    assert_type(array.irfft(w, 7), DeviceOp[Tensor[f64], Any])
    assert_type(array.fft(z), DeviceOp[Tensor[c64], Any])
    assert_type(array.ifft(w), DeviceOp[Tensor[c128], Any])
    assert_type(zeros((3,), c64), DeviceOp[Tensor[c64]])
    array.fft(x)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.rfft(z)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


def written(out: Partition[Tensor[f32]], x: SharedTensor[f32]) -> None:
    """`into` and `update` write to a partition, and give what a kernel gives."""
    assert_type(blend.into(out, x, 2.0), KernelOp)
    assert_type(blend.update(out, 2.0), KernelOp)
    assert_type(blend.cuda, str)


def given(f: Expression[[Any], f32]) -> None:
    """The class can be named."""
    assert_type(f(full((3,), 1.0)), DeviceOp[Tensor[f32], Any])


def reduced_expressions(own: Tensor[f32], lazy: DeviceOp[Tensor[f32]]) -> None:
    """A reduction of an expression takes its arguments, and gives its element type, or bool."""
    assert_type(gelu.sum(0)(own), DeviceOp[Tensor[f32], Any])
    assert_type(blend.mean(keepdims=True)(lazy, 2.0), DeviceOp[Tensor[f32], Any])
    assert_type(blend.amax((0, 1))(own, lazy), DeviceOp[Tensor[f32], Any])
    assert_type(blend.sum()(own, source(2.5)), DeviceOp[Tensor[f32], Any])
    assert_type(gelu.any(1)(own), DeviceOp[Tensor[bool_], Any])
    assert_type(blend.softmax(0)(own, 2.0), DeviceOp[Tensor[f32], Any])
    assert_type(gelu.softmax().cuda, str)
    gelu.sum(0)(own, own)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    gelu.sum(0)(zeros((3,), i32))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    positive.sum()  # pyright: ignore[reportAttributeAccessIssue]


def refused_updates(out: Partition[Tensor[bool_]], x: SharedTensor[f64]) -> None:
    """The output of `update` has the type of the first parameter."""
    positive.update(out, x)  # pyright: ignore[reportAttributeAccessIssue]


def refused(own: Tensor[f32], wide: Tensor[f64], out: Partition[Tensor[f64]], x: Elem[f32], n: Elem[i32]) -> None:
    """Two element types in one operation, a wrong element type, and a wrong count are type errors.

    mypy does not hold the type of `self` of an operator: it accepts `n / 2` and `x & 1`, which the trace refuses.
    """
    _ = x + n  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    _ = x > n  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    _ = x == n  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    _ = n / 2  # pyright: ignore[reportOperatorIssue]
    _ = x & 1  # pyright: ignore[reportOperatorIssue]
    array.maximum(x, n)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    array.sqrt(n)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    gelu(wide)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    named(blend, blend)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    blend(own)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    blend(own, wide)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    blend.into(out, own, 1.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    array.maximum(own, wide)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    array.sqrt(zeros((3,), i32))  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
