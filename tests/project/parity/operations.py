"""Rows of device operations, kernel input modes and combinators."""

import pytest

from dagpu import (
    MovedError,
    OwnershipError,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    arange,
    array,
    dup,
    empty,
    full,
    i64,
    memcpy,
    ones,
    plan_of,
    randn,
    value,
    zeros,
    zip_ops,
)
from tests.project.parity.rows import COMBINE, MODES, OPS, SHAPE, TILE, Table, numbers, saxpy, summed

TABLE = Table()
row = TABLE.row

# ---- device operations


@row(OPS, "`DeviceOp<Output = T>`: lazy, nothing runs until it is awaited", "`DeviceOp[T]`")
def _() -> None:
    calls: list[int] = []
    op = ones(SHAPE).inspect(lambda _: calls.append(1))
    assert calls == []
    op.sync()
    assert calls == [1]


@row(
    OPS, "`api::zeros`, `ones`, `arange`, `randn`, ...: functions of concrete values that give an op", "the same names"
)
def _() -> None:
    assert (numbers(zeros(SHAPE)) == 0).all()
    assert numbers(arange(4)).tolist() == [0, 1, 2, 3]
    assert numbers(randn((8,), mean=1.0, std=0.0, seed=1)).tolist() == [1.0] * 8


@row(OPS, "`.reshape()`, `.to_host_vec()`: extension methods on ops", "`.reshape()`, `.to_host()`")
def _() -> None:
    assert arange(6).reshape((2, 3)).to_host().sync().tolist() == [[0, 1, 2], [3, 4, 5]]


@row(
    OPS,
    "functions of whole tensors, as a sum or a transpose: kernels that the user writes",
    "`dagpu.array`: `sum`, `amax`, `norm`, `argmax`, `cumsum`, `softmax`, `transpose`, `concatenate`, `stack`, `take`, "
    "`one_hot`, `scatter_add`, `where`, `exp`, ...: functions that give an op",
)
def _() -> None:
    x = arange(6).reshape((2, -1)).sync().share()
    places = arange(2, i64).sync().share()
    assert numbers(array.sum(x, 0)).tolist() == numbers(array.cumsum(x, 0)).tolist()[1] == [3, 5, 7]
    assert numbers(array.argmax(x, 1)).tolist() == [2, 2]
    assert numbers(array.transpose(x)).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert numbers(array.concatenate((x, x))).tolist() == numbers(array.stack((x, x)).reshape((4, 3))).tolist()
    assert (numbers(array.softmax(x)).sum(1) - 1 < 1e-6).all()
    assert numbers(array.scatter_add(array.take(x, places), places, x)).tolist() == (numbers(array.abs(x)) * 2).tolist()
    assert numbers(array.one_hot(places, 2)).tolist() == [[1, 0], [0, 1]]


@row(OPS, "a kernel call takes tensors, scalars and lazy ops alike", "the same, checked when it is called")
def _() -> None:
    eager, lazy = ones(SHAPE).sync(), ones(SHAPE)
    assert (numbers(saxpy(zeros(SHAPE).partition(TILE), 2.0, eager).first().unpartition()) == 2).all()
    assert (numbers(saxpy(zeros(SHAPE).partition(TILE), 2.0, lazy).first().unpartition()) == 2).all()


@row(OPS, "`api::dup`, `memcpy`: device to device", "`dup(t)`, `memcpy(dst.borrow_mut(), src)`")
def _() -> None:
    t, target = full((4,), 3.0).sync(), zeros((4,)).sync()
    copy = dup(t.borrow()).sync()
    memcpy(target.borrow_mut(), copy).sync()
    assert target.to_host().sync().tolist() == t.to_host().sync().tolist() == [3.0] * 4


# ---- kernel input modes


@row(
    MODES,
    "`&Tensor` parameter, given `Tensor<T>`: comes back as `Tensor<T>`",
    "`Tensor`, which moves in and comes back",
)
def _() -> None:
    _, _, x = saxpy(zeros(SHAPE).partition(TILE), 1.0, ones(SHAPE).sync()).sync()
    assert type(x) is Tensor


@row(MODES, "given `Arc<Tensor<T>>`: comes back as `Arc<Tensor<T>>`", "`SharedTensor`")
def _() -> None:
    _, _, x = saxpy(zeros(SHAPE).partition(TILE), 1.0, ones(SHAPE).share()).sync()
    assert type(x) is SharedTensor


@row(
    MODES,
    "given `&Tensor<T>`: comes back as `&Tensor<T>`, and cannot be spawned",
    "`t.borrow()`, a `TensorRef`; `Borrowed`",
)
def _() -> None:
    lent = ones(SHAPE).sync()
    _, _, x = saxpy(zeros(SHAPE).partition(TILE), 1.0, lent.borrow()).sync()
    assert type(x) is TensorRef
    assert lent.shape == SHAPE


@row(MODES, "`&mut Tensor` parameter, given `Partition<Tensor<T>>`: comes back as that", "`Partition[Tensor]`")
def _() -> None:
    y = saxpy(zeros(SHAPE).partition(TILE), 1.0, ones(SHAPE)).first().sync()
    assert type(y) is Partition
    assert type(y.unpartition()) is Tensor


@row(
    MODES, "given `Partition<&mut Tensor<T>>`: writes in place, no `unpartition()`", "`t.borrow_mut().partition(tile)`"
)
def _() -> None:
    z = zeros(SHAPE).sync()
    y = saxpy(z.borrow_mut().partition(TILE), 2.0, ones(SHAPE)).first().sync()
    assert type(y) is Partition
    assert type(y.unpartition()) is TensorMut
    assert (z.to_host().sync() == 2).all()


@row(
    MODES,
    "`&Tensor` parameter, given `&mut Tensor<T>`: reborrowed, and free to be written when the read is over",
    "`t.borrow_mut()`: comes back as the `TensorMut` it was, to be cut; data flow orders the two",
)
def _() -> None:
    z = ones(SHAPE).sync()
    y, _, lent = saxpy(zeros(SHAPE).partition(TILE), 2.0, z.borrow_mut()).unzip()
    written = saxpy(lent.partition(TILE), 1.0, y.unpartition()).first().sync()
    assert type(written.unpartition()) is TensorMut
    assert (z.to_host().sync() == 3).all()


@row(
    MODES,
    "a moved tensor cannot be used again: refused by the compiler",
    "by mypy with the plugin, and a `MovedError` at run time",
)
def _() -> None:
    x = ones(SHAPE).sync()
    op = saxpy(zeros(SHAPE).partition(TILE), 1.0, x)
    with pytest.raises(MovedError, match="was moved by"):
        x.share()
    op.sync()


@row(MODES, "`Arc::try_unwrap` when it is the last one, then partition again", "`shared.try_unwrap()`")
def _() -> None:
    one = ones(SHAPE).share().sync()
    other = one.clone()
    with pytest.raises(OwnershipError, match="1 more handle"):
        one.try_unwrap()
    del other
    assert one.try_unwrap().partition(TILE).grid == (4, 4)


# ---- combinators


@row(COMBINE, "`op.then(|x| next(x))`", "`op.then(f)`")
def _() -> None:
    op = full((4,), 2.0).then(lambda t: dup(t)).then(lambda t: dup(t))
    assert numbers(op).tolist() == [2.0] * 4


@row(COMBINE, "`op.map(|x| ...)`: no GPU work", "`op.map(f)`")
def _() -> None:
    assert zeros((4, 2)).map(lambda t: t.shape).sync() == (4, 2)


@row(COMBINE, "`zip!(a, b)`", "`zip_ops(a, b)`, whose branches run on several streams")
def _() -> None:
    op = zip_ops(zeros(SHAPE).then(dup), ones(SHAPE).then(dup))
    assert len(plan_of(op).lanes) > 1
    a, b = op.sync()
    assert (a.to_host().sync() == 0).all()
    assert (b.to_host().sync() == 1).all()


@row(COMBINE, "`op.unzip()`: the inverse, whose source runs once", "`op.unzip()`")
def _() -> None:
    y, a, _x = saxpy(zeros(SHAPE).partition(TILE), 2.0, ones(SHAPE)).unzip()
    assert a.sync() == 2.0
    assert (numbers(y.unpartition()) == 2).all()


@row(COMBINE, "`op.shared()`: cloneable, executes once", "`op.shared()`")
def _() -> None:
    runs: list[int] = []
    x = ones(SHAPE).inspect(lambda _: runs.append(1)).shared()
    total = summed(empty(SHAPE).partition(TILE), x, x).first().unpartition()
    assert (numbers(total) == 2).all()
    assert (numbers(x) == 1).all()
    assert runs == [1]


@row(COMBINE, "`op.first()`, `.unpartition()`, `.arc()`", "`.first()`, `.unpartition()`, `.share()`")
def _() -> None:
    assert (
        type(saxpy(zeros(SHAPE).partition(TILE), 1.0, ones(SHAPE)).first().unpartition().share().sync()) is SharedTensor
    )


@row(COMBINE, "`value(x)`", "`value(x)`")
def _() -> None:
    assert value(3).sync() == 3
