"""Handles that move once, are read before they move, or are named anew."""

from typing import Any

import numpy as np

from dagpu import (
    DeviceOp,
    Partition,
    SharedTensor,
    Tensor,
    convert,
    dup,
    f32,
    f64,
    fill,
    from_host,
    memcpy,
    ones,
    value,
    zeros,
)
from tests.typing.plugin.kernels import add, eat, gemm, matrix, saxpy, split, total, vector


def moved_once() -> None:
    t = vector()
    eat(t)


def measured_and_moved() -> None:
    t = vector()
    print(t.shape, t.strides, t.dtype, t.ndim, t.size, t.nbytes, t.device)
    eat(t)


def shown_and_moved() -> None:
    t = vector()
    print(t, repr(t), f"{t!r}", id(t), type(t))
    eat(t)


def lent_and_moved() -> None:
    t = vector()
    total(t.borrow())
    total(t.view((2, 4)))
    total(t.slice(slice(0, 4)))
    eat(t)


def shared_and_read_often() -> None:
    s = vector().share()
    for _ in range(3):
        print(s.to_host().sync())
    add(zeros((8,)).partition((4,)), s, s).sync()


def cloned() -> None:
    s = vector().share()
    other = s.clone()
    print(s.shape, other.shape)


def unwrapped_last() -> None:
    s = vector().share()
    other = s.clone()
    print(other.shape)
    del other
    t = s.try_unwrap()
    print(t.shape)


def named_anew() -> None:
    t = vector()
    t = t.reshape((2, 4))
    t = t.reshape((4, 2))
    print(t.shape)


def cut_and_put_together() -> None:
    t = vector()
    p = t.partition((4,))
    print(p.grid, p.tile, p.shape, p.dtype)
    t = p.unpartition()
    print(t.shape)


def made_anew() -> None:
    t = vector()
    eat(t)
    t = vector()
    eat(t)


def deleted() -> None:
    t = vector()
    s = t.share()
    del t
    print(s.shape)


def deleted_and_made_anew() -> None:
    t = vector()
    del t
    t = vector()
    print(t.shape)


def output_comes_back() -> None:
    p, x = vector().partition((4,)), vector()
    p, a, x = saxpy(p, 2.0, x).sync()
    p, a, x = saxpy(p, a, x).sync()
    print(p.unpartition().shape, x.shape)


def inputs_come_back() -> None:
    z, x, y = zeros((8,)).partition((4,)), vector(), vector()
    out, x, y = add(z, x, y).sync()
    eat(x)
    eat(y)
    print(out.grid)


def components_are_taken_once() -> None:
    low, high, x = split(zeros((8,)).partition((4,)), zeros((8,)).partition((4,)), vector()).unzip()
    print(low.unpartition().to_host().sync(), high.unpartition().to_host().sync(), x.to_host().sync())


def only_some_components() -> None:
    p, *_ = saxpy(vector().partition((4,)), 1.0, vector()).sync()
    print(p.grid)


def last_component() -> None:
    x = saxpy(vector().partition((4,)), 1.0, vector()).last().sync()
    print(x.shape)


def lazy_arguments() -> None:
    result = gemm(zeros((4, 4)).partition((2, 2)), ones((4, 4)), ones((4, 4))).first().unpartition().to_host().sync()
    assert (result == 4).all()


def copied_first() -> None:
    t = vector()
    copy = dup(t.borrow()).sync()
    eat(t)
    eat(copy)


def copy_takes_its_place() -> None:
    t = vector()
    t = dup(t).sync()
    print(t.shape)


def converted_from_a_borrow() -> None:
    t = vector()
    wide = convert(t.borrow(), f64).sync()
    print(wide.dtype, t.dtype)


def filled_in_place() -> None:
    t = vector()
    t = fill(t, 3.0).sync()
    assert total(t.borrow()) == 24


def copied_into() -> None:
    target, source = vector(), vector()
    memcpy(target.borrow_mut(), source.borrow()).sync()
    memcpy(target.borrow_mut(), source).sync()
    print(target.shape)


def value_of_a_shared_tensor() -> None:
    s = vector().share()
    one, two = value(s), value(s)
    print(one.sync().shape, two.sync().shape, s.shape)


def value_of_a_number() -> None:
    n = 3
    print(value(n).sync(), value(n).sync(), n)


def from_the_host_twice() -> None:
    array = np.ones(8, np.float32)
    a, b = from_host(array).sync(), from_host(array).sync()
    print(a.shape, b.shape, array.shape)


def recipe_is_run_often() -> None:
    op = zeros((8,))
    a, b = op.sync(), op.sync()
    print(a.shape, b.shape)


def recipe_in_two_ops() -> None:
    op = ones((8,))
    print(op.to_host().sync(), op.reshape((2, 4)).sync().shape)


def shared_op_in_many_ops() -> None:
    x = ones((8,)).shared()
    add(zeros((8,)).partition((4,)), x, x).sync()
    print(x.to_host().sync())


def chain() -> None:
    print(vector().reshape((2, 4)).reshape((4, 2)).share().clone().shape)


def temporary_is_lent() -> None:
    print(total(vector().borrow()))


def annotated() -> None:
    t: Tensor[f32] = vector()
    s: SharedTensor[f32] = t.share()
    op: DeviceOp[SharedTensor[f32]] = value(s)
    print(op.sync().shape)


def seen_as_an_object() -> None:
    t = vector()
    seen: set[int] = {id(t)}
    print(isinstance(t, Tensor), hasattr(t, "shape"), callable(t), seen)
    eat(t)


def looked_at_by_a_function_of_anything() -> None:
    def look(x: object) -> str:
        return type(x).__name__

    def log(*things: object, **named: Any) -> None:
        print(things, named)

    t = vector()
    look(t)
    log(t, of=t)
    eat(t)


def assigned_to_itself() -> None:
    t = vector()
    t = t  # noqa: PLW0127  # it is the same variable
    eat(t)


def moved_into_a_helper_that_gives_it_back() -> None:
    def step(y: Tensor[f32], x: SharedTensor[f32]) -> Tensor[f32]:
        p: Partition[Tensor[f32]] = saxpy(y.partition((4,)), 1.0, x).sync()[0]
        return p.unpartition()

    y, x = vector(), vector().share()
    y = step(y, x)
    y = step(y, x)
    assert total(y.borrow()) == 24


def matrices() -> None:
    a, b = matrix().share(), matrix().share()
    for left, right in ((a, b), (b, a), (a, a)):
        print(gemm(zeros((4, 4)).partition((2, 2)), left, right).first().unpartition().to_host().sync())
