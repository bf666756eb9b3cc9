"""Checked, not run: what composing ops yields, in mypy --strict and in pyright, with no plugin."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    MayAlloc,
    NoAlloc,
    Partition,
    SharedTensor,
    Static,
    Tensor,
    TensorMut,
    TensorRef,
    bool_,
    f32,
    f64,
    from_host,
    i32,
    ones,
    source,
    value,
    zeros,
    zip_ops,
)

a = value(1)
b = value("b")
c = value(b"c")
d = value(1.0)
e = value([1])
f = value({1})
g = value(divmod(7, 2))
h = value({1: "h"})


# ---- then and map ------------------------------------------------------------------------------------
def double(t: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
    return value(t).then(lambda same: zeros(same.shape))


assert_type(zeros((4,)).then(double), DeviceOp[Tensor[f32]])
assert_type(zeros((4,)).then(lambda t: t.to_host()), DeviceOp[NDArray[f32]])
assert_type(zeros((4,)).map(lambda t: t.shape), DeviceOp[tuple[int, ...]])
assert_type(zeros((4,)).map(lambda t: t.share()), DeviceOp[SharedTensor[f32]])
assert_type(a.map(str), DeviceOp[str, Static, NoAlloc])
assert_type(a.then(lambda x: value(str(x))), DeviceOp[str, Static, NoAlloc])
assert_type(a.inspect(print), DeviceOp[int, Static, NoAlloc])
assert_type(zeros((4,)).to_host().host_map(lambda x: x.tolist()), DeviceOp[Any])
assert_type(a.host_map(str), DeviceOp[str])
assert_type(zeros((4,)).on("host:0"), DeviceOp[Tensor[f32]])

# ---- the handle's own methods, lazily ----------------------------------------------------------------
assert_type(zeros((4, 4)).partition((2, 2)), DeviceOp[Partition[Tensor[f32]]])
assert_type(zeros((4, 4)).partition((3, 3), partial=True).unpartition(), DeviceOp[Tensor[f32]])
assert_type(zeros((4, 4), f64).reshape((16,)), DeviceOp[Tensor[f64]])
assert_type(zeros((4, 4)).share(), DeviceOp[SharedTensor[f32]])
assert_type(zeros((4, 4), i32).to_host(), DeviceOp[NDArray[i32]])
assert_type(zeros((4, 4)).share().to_host(), DeviceOp[NDArray[f32]])
assert_type(from_host(np.zeros(3, np.float64)), DeviceOp[Tensor[f64]])


def lent_for_writing(op: DeviceOp[TensorMut[f32], Borrowed, NoAlloc]) -> None:
    """A tensor borrowed for writing can be partitioned, reshaped and read lazily, and keeps its type."""
    assert_type(op.partition((2, 2)), DeviceOp[Partition[TensorMut[f32]], Borrowed, NoAlloc])
    assert_type(op.partition((2, 2)).unpartition(), DeviceOp[TensorMut[f32], Borrowed, NoAlloc])
    assert_type(op.reshape((16,)), DeviceOp[TensorMut[f32], Borrowed, NoAlloc])
    assert_type(op.to_host(), DeviceOp[NDArray[f32], Borrowed])
    written: DeviceOp[NDArray[f32], Borrowed] = op.then(lambda t: t.to_host())
    del written


def refused(lent: DeviceOp[TensorRef[f32], Borrowed], array: DeviceOp[NDArray[f32]]) -> None:
    """Only what can be written is cut."""
    lent.partition((2, 2))  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    array.partition((2, 2))  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


# ---- shared ------------------------------------------------------------------------------------------
assert_type(zeros((4,)).shared(), DeviceOp[SharedTensor[f32]])
assert_type(ones((4,), f64).shared(), DeviceOp[SharedTensor[f64]])
assert_type(a.shared(), DeviceOp[int, Static, NoAlloc])
assert_type(zeros((4,)).shared().shared(), DeviceOp[SharedTensor[f32]])

# ---- zip, 1 to 8 -------------------------------------------------------------------------------------
one = zip_ops(a)
two = zip_ops(a, b)
three = zip_ops(a, b, c)
four = zip_ops(a, b, c, d)
five = zip_ops(a, b, c, d, e)
six = zip_ops(a, b, c, d, e, f)
seven = zip_ops(a, b, c, d, e, f, g)
eight = zip_ops(a, b, c, d, e, f, g, h)
nine = zip_ops(a, b, c, d, e, f, g, h, a)

assert_type(one, DeviceOp[tuple[int], Static, NoAlloc])
assert_type(two, DeviceOp[tuple[int, str], Static, NoAlloc])
assert_type(three, DeviceOp[tuple[int, str, bytes], Static, NoAlloc])
assert_type(four, DeviceOp[tuple[int, str, bytes, float], Static, NoAlloc])
assert_type(five, DeviceOp[tuple[int, str, bytes, float, list[int]], Static, NoAlloc])
assert_type(six, DeviceOp[tuple[int, str, bytes, float, list[int], set[int]], Static, NoAlloc])
assert_type(seven, DeviceOp[tuple[int, str, bytes, float, list[int], set[int], tuple[int, int]], Static, NoAlloc])
assert_type(
    eight,
    DeviceOp[tuple[int, str, bytes, float, list[int], set[int], tuple[int, int], dict[int, str]], Static, NoAlloc],
)
assert_type(nine, DeviceOp[tuple[Any, ...], Static, NoAlloc])

# ---- unzip, 1 to 8 -----------------------------------------------------------------------------------
(one_0,) = one.unzip()
assert_type(one_0, DeviceOp[int, Static, NoAlloc])
two_0, two_1 = two.unzip()
assert_type(two_0, DeviceOp[int, Static, NoAlloc])
assert_type(two_1, DeviceOp[str, Static, NoAlloc])
three_0, three_1, three_2 = three.unzip(3)
assert_type(three_2, DeviceOp[bytes, Static, NoAlloc])
assert_type(four.unzip()[3], DeviceOp[float, Static, NoAlloc])
assert_type(five.unzip()[4], DeviceOp[list[int], Static, NoAlloc])
assert_type(six.unzip()[5], DeviceOp[set[int], Static, NoAlloc])
assert_type(seven.unzip()[6], DeviceOp[tuple[int, int], Static, NoAlloc])
eight_0, eight_1, eight_2, eight_3, eight_4, eight_5, eight_6, eight_7 = eight.unzip()
assert_type(eight_0, DeviceOp[int, Static, NoAlloc])
assert_type(eight_7, DeviceOp[dict[int, str], Static, NoAlloc])


def unknown_length(op: DeviceOp[tuple[int, ...]]) -> None:
    """If the type does not give the number of parts, the parts are `Any`."""
    assert_type(op.unzip(3), tuple[DeviceOp[Any], ...])
    assert_type(op.first(), DeviceOp[Any])
    assert_type(op.last(), DeviceOp[Any])


# ---- first and last, 1 to 8 --------------------------------------------------------------------------
assert_type(one.first(), DeviceOp[int, Static, NoAlloc])
assert_type(one.last(), DeviceOp[int, Static, NoAlloc])
assert_type(two.first(), DeviceOp[int, Static, NoAlloc])
assert_type(two.last(), DeviceOp[str, Static, NoAlloc])
assert_type(three.first(), DeviceOp[int, Static, NoAlloc])
assert_type(three.last(), DeviceOp[bytes, Static, NoAlloc])
assert_type(four.first(), DeviceOp[int, Static, NoAlloc])
assert_type(four.last(), DeviceOp[float, Static, NoAlloc])
assert_type(five.first(), DeviceOp[int, Static, NoAlloc])
assert_type(five.last(), DeviceOp[list[int], Static, NoAlloc])
assert_type(six.first(), DeviceOp[int, Static, NoAlloc])
assert_type(six.last(), DeviceOp[set[int], Static, NoAlloc])
assert_type(seven.first(), DeviceOp[int, Static, NoAlloc])
assert_type(seven.last(), DeviceOp[tuple[int, int], Static, NoAlloc])
assert_type(eight.first(), DeviceOp[int, Static, NoAlloc])
assert_type(eight.last(), DeviceOp[dict[int, str], Static, NoAlloc])

# ---- too few names -----------------------------------------------------------------------------------
too_few, also = three.unzip()  # type: ignore[misc]  # pyright: ignore[reportAssignmentType]


# ---- L and G join ------------------------------------------------------------------------------------
def joins(lent: DeviceOp[NDArray[f32], Borrowed], tight: DeviceOp[None, Static, NoAlloc]) -> None:
    """A composition borrows where a part of it does, and allocates where a part of it does."""
    assert_type(lent.map(len), DeviceOp[int, Borrowed, MayAlloc])
    assert_type(lent.shared(), DeviceOp[NDArray[f32], Borrowed, MayAlloc])
    assert_type(tight.map(str), DeviceOp[str, Static, NoAlloc])

    after: DeviceOp[NDArray[f32], Borrowed] = a.then(lambda _: lent)
    both: DeviceOp[tuple[NDArray[f32], int], Borrowed] = zip_ops(lent, a)
    allocates: DeviceOp[tuple[None, Tensor[f32]], Static, MayAlloc] = zip_ops(tight, zeros((4,)))
    neither: DeviceOp[tuple[None, int], Static, NoAlloc] = zip_ops(tight, a)
    del after, both, allocates, neither

    not_static: DeviceOp[tuple[NDArray[f32], int]] = zip_ops(lent, a)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    not_free: DeviceOp[tuple[None, Tensor[f32]], Static, NoAlloc] = zip_ops(tight, zeros((4,)))  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    del not_static, not_free


def borrows(t: Tensor[f32], r: TensorRef[f32]) -> None:
    """A copy of what is borrowed borrows until it has run; a copy of what is owned does not."""
    assert_type(t.borrow().to_host(), DeviceOp[NDArray[f32], Borrowed])
    assert_type(t.view((2, 2)), TensorRef[f32])
    assert_type(r.slice(slice(0, 2)), TensorRef[f32])
    assert_type(r[1:, ::2], TensorRef[f32])
    assert_type(t[..., None], TensorRef[f32])
    assert_type(t[-1].view(i32), TensorRef[i32])
    assert_type(t.view(i32), TensorRef[i32])
    assert_type(t.to_host(), DeviceOp[NDArray[f32]])


def parts(
    own: Tensor[f32],
    many: SharedTensor[f32],
    mine: TensorMut[f32],
    lent: DeviceOp[TensorRef[f32], Borrowed],
    written: DeviceOp[TensorMut[f32], Borrowed, NoAlloc],
) -> None:
    """A part of a handle is a borrow of it, or a handle of the same kind; a part of an op's result keeps the kind."""
    assert_type(own[1:, 0, ..., None, ::-1], TensorRef[f32])
    assert_type(many[0], SharedTensor[f32])
    assert_type(many.view(i32), SharedTensor[i32])
    assert_type(many.slice(slice(0, 2)), SharedTensor[f32])
    assert_type(mine[::2], TensorMut[f32])
    assert_type(mine.view(i32), TensorMut[i32])
    assert_type(zeros((4, 4))[1:, 0], DeviceOp[Tensor[f32]])
    assert_type(zeros((4, 4)).shared()[1:], DeviceOp[SharedTensor[f32]])
    assert_type(lent[...], DeviceOp[TensorRef[f32], Borrowed])
    assert_type(written[1:], DeviceOp[TensorMut[f32], Borrowed, NoAlloc])
    assert_type(zeros((4, 4)).view(i32), DeviceOp[Tensor[i32]])
    assert_type(lent.view(f64), DeviceOp[TensorRef[f64], Borrowed])
    own[0.5]  # type: ignore[index]  # pyright: ignore[reportArgumentType]
    zeros((4,))["x"]  # type: ignore[index]  # pyright: ignore[reportArgumentType]
    a[0]  # type: ignore[misc]  # pyright: ignore[reportIndexIssue]
    own[0] = 1.0  # type: ignore[index]  # pyright: ignore[reportIndexIssue]


# ---- operators ---------------------------------------------------------------------------------------
def operators(
    own: Tensor[f32],
    many: SharedTensor[f32],
    lent: TensorRef[f32],
    mine: TensorMut[f32],
    lazy: DeviceOp[Tensor[f32]],
    double: DeviceOp[Tensor[f64]],
    whole: SharedTensor[i32],
    mask: DeviceOp[SharedTensor[bool_], Borrowed],
) -> None:
    """An operator keeps the element type, a comparison gives a mask; numbers take the type of the tensor."""
    assert_type(lazy + 1, DeviceOp[Tensor[f32]])
    assert_type(2 - own, DeviceOp[Tensor[f32]])
    assert_type(many * lazy, DeviceOp[Tensor[f32]])
    assert_type(own / many + 0.5, DeviceOp[Tensor[f32]])
    assert_type(many**2, DeviceOp[Tensor[f32]])
    assert_type(-many, DeviceOp[Tensor[f32]])
    assert_type(abs(whole) // 2, DeviceOp[Tensor[i32]])
    assert_type((whole << 1) & whole, DeviceOp[Tensor[i32]])
    assert_type(many @ lazy, DeviceOp[Tensor[f32]])
    assert_type(many == lazy, DeviceOp[Tensor[bool_]])
    assert_type((many < 2) | (lazy != 1), DeviceOp[Tensor[bool_]])
    assert_type(~mask, DeviceOp[Tensor[bool_], Borrowed])
    assert_type(lent + 1, DeviceOp[Tensor[f32], Borrowed])
    assert_type(mine * lent, DeviceOp[Tensor[f32], Borrowed])
    assert_type(many * source(2.5), DeviceOp[Tensor[f32]])
    joined: DeviceOp[Tensor[f32], Borrowed] = many - lent
    static: DeviceOp[Tensor[f32]] = many - lent  # type: ignore[operator]  # pyright: ignore[reportAssignmentType]
    table: dict[object, int] = {lazy: 1, many: hash(many)}
    del joined, static, table
    many + double  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    print(many == double)  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    many / "2"  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    a + 1  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    own.partition((4,)) + 1  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
