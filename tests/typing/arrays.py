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
    assert_type(array.hypot(x, array.sign(low)), Elem[f64])
    assert_type(array.signbit(array.acos(x)), Elem[bool_])
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
    assert_type(array.isinf(array.tan(many)), DeviceOp[Tensor[bool_], Any])
    assert_type(array.atan2(many, 1.0), DeviceOp[Tensor[f32], Any])
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
    assert_type(array.bincount(n, 8), DeviceOp[Tensor[i64], Any])
    assert_type(array.searchsorted(x, array.histogram(lazy, 8, (0, 1))), DeviceOp[Tensor[i64], Any])  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    assert_type(array.searchsorted(lazy, lazy, "right"), DeviceOp[Tensor[i64], Any])
    assert_type(array.amax(flags), DeviceOp[Tensor[bool_], Any])
    assert_type(array.argmax(flags, keepdims=True), DeviceOp[Tensor[i64], Any])
    assert_type(array.sum(flags, dtype=i32), DeviceOp[Tensor[i32], Any])
    assert_type(array.nanmax(array.quantile(lazy, (0.1, 0.9))), DeviceOp[Tensor[f32], Any])
    assert_type(array.clip(n, 0), DeviceOp[Tensor[i32], Any])
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
    assert_type(array.scatter_set(zeros((3,), bool_), n, array.take_along_axis(flags, n)), DeviceOp[Tensor[bool_], Any])
    assert_type(array.scatter_max(lazy, places, array.segment_sum(lazy, places, 3)), DeviceOp[Tensor[f32], Any])
    assert_type(array.compress(flags, n, axis=0), DeviceOp[Tensor[i32], Any])
    assert_type(array.compress(lazy > 0, lazy, size=4, fill_value=0.5), DeviceOp[Tensor[f32], Any])
    assert_type(array.nonzero(flags, size=4), DeviceOp[tuple[Tensor[i64], ...], Any])
    assert_type(array.unique(flags), DeviceOp[Tensor[bool_], Any])
    assert_type(array.unique_counts(places, size=2), DeviceOp[tuple[Tensor[i64], Tensor[i64]], Any])
    array.compress(n, lazy)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    array.unique(zeros((3,), c64))  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    assert_type(array.csr_matmul(lazy, n, n, x), DeviceOp[Tensor[f32], Any])
    assert_type(array.cumsum(n, 0), DeviceOp[Tensor[i32], Any])
    assert_type(array.cummax(array.cumprod(x, 0)), DeviceOp[Tensor[f32], Any])
    assert_type(array.softmax(array.take(lazy, places)), DeviceOp[Tensor[f32], Any])
    assert_type(array.softmax(x, axis=0), DeviceOp[Tensor[f32], Any])
    assert_type(array.logsumexp(array.log_softmax(lazy, 0), keepdims=True), DeviceOp[Tensor[f32], Any])


def placed(x: SharedTensor[f32], n: SharedTensor[i32], lazy: DeviceOp[Tensor[f32]], own: Tensor[bool_]) -> None:
    """What changes the shape keeps the element type."""
    assert_type(array.flip(own), DeviceOp[Tensor[bool_], Any])
    assert_type(array.roll(n, (1, 2), (0, 1)), DeviceOp[Tensor[i32], Any])
    assert_type(array.pad(lazy, ((0, 1), (2, 3)), "wrap"), DeviceOp[Tensor[f32], Any])
    assert_type(array.tile(array.repeat(x, 2), (2, 2)), DeviceOp[Tensor[f32], Any])
    assert_type(array.tril(array.broadcast_to(n, (3, 3)), -1), DeviceOp[Tensor[i32], Any])
    assert_type(array.meshgrid(x, x), DeviceOp[tuple[Tensor[f32], ...], Any])
    assert_type(array.zeros_like(n), DeviceOp[Tensor[i32], Any])
    blur = array.stencil(f32, border="wrap")(lambda e: (e[-1] + e[0] + e[1]) / 3)
    assert_type(blur(lazy), DeviceOp[Tensor[f32], Any])
    assert_type(array.stencil(i32)(lambda e: e[1, 0] > e[0, 0])(n), DeviceOp[Tensor[bool_], Any])
    blur(n)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    array.pad(x, 1, "mean")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    array.meshgrid(x, n)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


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
    assert_type(array.einsum("ij,jk->ik", lazy, lazy), DeviceOp[Tensor[f32], Any])
    assert_type(array.tensordot(array.dot(w, w), w, ((0,), (1,))), DeviceOp[Tensor[f32], Any])
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
    assert_type(array.uniform((3,), seed=1), DeviceOp[Tensor[f32], Any])
    assert_type(array.exponential((3,), 2.0, f64), DeviceOp[Tensor[f64], Any])
    assert_type(array.randint((3,), 0, 9), DeviceOp[Tensor[i64], Any])
    assert_type(array.choice(n, 3, seed=1), DeviceOp[Tensor[i32], Any])
    assert_type(array.dropout(lazy, 0.5), DeviceOp[Tensor[f32], Any])
    array.dropout(n, 0.5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def transformed(x: Tensor[f32], y: SharedTensor[f64], z: Tensor[c64], w: TensorRef[c128]) -> None:
    """Real elements of one precision become complex ones of the same, and back."""
    assert_type(array.cholesky(x), DeviceOp[Tensor[f32], Any])
    assert_type(array.solve(y, y), DeviceOp[Tensor[f64], Any])
    assert_type(array.solve(w, w), DeviceOp[Tensor[c128], Any])
    assert_type(array.qr(z), DeviceOp[tuple[Tensor[c64], Tensor[c64]], Any])
    assert_type(array.svd(y), DeviceOp[tuple[Tensor[f64], Tensor[f64], Tensor[f64]], Any])
    assert_type(array.svd(z, False), DeviceOp[tuple[Tensor[c64], Tensor[f32], Tensor[c64]], Any])
    array.solve(x, y)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    assert_type(array.rfft(x), DeviceOp[Tensor[c64], Any])
    assert_type(array.rfft(y, 8, 0), DeviceOp[Tensor[c128], Any])
    assert_type(array.irfft(z), DeviceOp[Tensor[f32], Any])
    assert_type(array.irfft(w, 7), DeviceOp[Tensor[f64], Any])
    assert_type(array.fft(z), DeviceOp[Tensor[c64], Any])
    assert_type(array.ifft(w), DeviceOp[Tensor[c128], Any])
    assert_type(zeros((3,), c64), DeviceOp[Tensor[c64]])
    assert_type(array.fft(y), DeviceOp[Tensor[c128], Any])
    assert_type(array.ifftn(y, (4,), norm="ortho"), DeviceOp[Tensor[c128], Any])
    assert_type(array.rfft2(y), DeviceOp[Tensor[c128], Any])
    assert_type(array.irfft2(w, (4, 4)), DeviceOp[Tensor[f64], Any])
    assert_type(array.fftshift(w, 0), DeviceOp[Tensor[c128], Any])
    array.rfft(z)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


def complexes(z: SharedTensor[c64], w: TensorRef[c128], x: SharedTensor[f32], e: Elem[c64], r: Elem[f32]) -> None:
    """Parts and sizes of complex numbers are real, and have the precision of the parts."""
    assert_type(e * 2j + e / e - 1, Elem[c64])
    assert_type(1j - e, Elem[c64])
    assert_type(e == 1j, Elem[bool_])
    assert_type(abs(e), Elem[f32])
    assert_type(e.real * e.imag, Elem[f32])
    assert_type(array.conj(e) * e.conj(), Elem[c64])
    assert_type(array.exp(array.sqrt(e)), Elem[c64])
    assert_type(r.to(c128), Elem[c128])
    assert_type(array.abs(z), DeviceOp[Tensor[f32], Any])
    assert_type(array.real(w), DeviceOp[Tensor[f64], Any])
    assert_type(array.angle(z), DeviceOp[Tensor[f32], Any])
    assert_type(array.conj(w), DeviceOp[Tensor[c128], Any])
    assert_type(array.imag(x), DeviceOp[Tensor[f32], Any])
    assert_type(array.sum(z, 0), DeviceOp[Tensor[c64], Any])
    assert_type(array.mean(w), DeviceOp[Tensor[c128], Any])
    assert_type(array.norm(w), DeviceOp[Tensor[f64], Any])
    assert_type(array.norm(x), DeviceOp[Tensor[f32], Any])
    assert_type(array.matmul(z, z), DeviceOp[Tensor[c64], Any])
    assert_type(array.concatenate((z, z)), DeviceOp[Tensor[c64], Any])
    assert_type(array.cumsum(z), DeviceOp[Tensor[c64], Any])
    assert_type(expr(c64)(lambda q: abs(q))(z), DeviceOp[Tensor[f32], Any])
    assert_type(expr(c64)(lambda q: q * q).sum(0)(z), DeviceOp[Tensor[c64], Any])
    assert_type(expr(c64)(lambda q: q * q).norm()(z), DeviceOp[Tensor[f32], Any])
    assert_type(gelu.norm()(x), DeviceOp[Tensor[f32], Any])
    _ = r + 1j  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    _ = e + r  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    assert_type(array.convolve(z, z, "same"), DeviceOp[Tensor[c64], Any])
    assert_type(array.correlate(x, x), DeviceOp[Tensor[f32], Any])
    array.convolve(z, x)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.amax(z)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    array.matmul(z, x)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def written(out: Partition[Tensor[f32]], x: SharedTensor[f32]) -> None:
    """`into` and `update` write to a partition, and give what a kernel gives."""
    assert_type(blend.into(out, x, 2.0), KernelOp)
    assert_type(blend.update(out, 2.0), KernelOp)
    assert_type(blend.cuda, str)


pair = expr(f32, f64)(lambda x, y: (x * 2, y > x.to(f64)))


@expr
def triple(x: Elem[f32], y: Elem[f32]) -> tuple[Elem[f32], Elem[i32], Elem[f64]]:
    return x + y, x.to(i32), y.to(f64)


@expr(c64)
def quarters(z: Elem[c64]) -> tuple[Elem[c64], Elem[f32], Elem[f32], Elem[bool_]]:
    return z * 1j, z.real, z.imag, abs(z) > 1


def several_results(own: Tensor[f32], wide: SharedTensor[f64], lazy: DeviceOp[Tensor[f32]], z: Tensor[c64]) -> None:
    """The result of an expression of several is a tuple of tensors, each of its own element type."""
    assert_type(pair(own, wide), DeviceOp[tuple[Tensor[f32], Tensor[bool_]], Any])
    assert_type(pair(lazy, 2.0).unzip()[1], DeviceOp[Tensor[bool_], Any])
    assert_type(triple(own, lazy), DeviceOp[tuple[Tensor[f32], Tensor[i32], Tensor[f64]], Any])
    assert_type(triple(own, source(2.5)).first(), DeviceOp[Tensor[f32], Any])
    assert_type(quarters(z), DeviceOp[tuple[Tensor[c64], Tensor[f32], Tensor[f32], Tensor[bool_]], Any])
    assert_type(expr(f32)(lambda x: (x, x.to(i64)))(own), DeviceOp[tuple[Tensor[f32], Tensor[i64]], Any])
    assert_type(pair.cuda, str)
    pair(own, own)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pair(own)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    triple(own, wide)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pair.sum(0)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


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
