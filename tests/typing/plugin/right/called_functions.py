"""Called functions that write what is not lent, call a function once, and look at a parameter of any type."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from dagpu import Tensor, TensorRef, dup, f32, ones
from tests.typing.plugin.kernels import add, eat, total, vector, yes

T = TypeVar("T")


def step(y: Tensor[f32], g: TensorRef[f32]) -> None:
    """Write y."""
    add(y.borrow_mut().partition((4,)), g, ones((8,))).sync()


def look(y: Tensor[f32], g: TensorRef[f32]) -> None:
    """Read both."""
    print(total(y.borrow()), total(g))


def write_another(y: Tensor[f32], g: TensorRef[f32]) -> None:
    """Write a copy of y."""
    y = dup(y.borrow()).sync()
    step(y, g)


class Holder:
    """A tensor."""

    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t

    def set_from(self, r: TensorRef[f32]) -> None:
        """Write the tensor."""
        add(self.t.borrow_mut().partition((4,)), r, ones((8,))).sync()


def once(f: Callable[[], object]) -> None:
    """Call f on each path once."""
    if yes():
        f()
    else:
        f()


def show_any(t: Any) -> None:
    """Look at it."""
    print(t, getattr(t, "shape", None))


def replace_any(t: Any) -> None:
    """Move something else."""
    t = vector()
    eat(t)


def show_object(t: object) -> None:
    """Look at it."""
    if isinstance(t, Tensor):
        print(t.shape)


def same(t: T) -> T:
    """Give it back."""
    return t


def size(n: int, x: Tensor[f32]) -> int:
    """Look at x."""
    return n * x.size


def finished(n: int, x: Tensor[f32]) -> None:
    """Move x."""
    print(n, eat(x))


def other_tensor() -> None:
    y, x = vector(), vector()
    step(y, x.borrow())
    step(x, y.borrow())


def the_loan_is_over() -> None:
    y, x = vector(), vector()
    total(y.borrow())
    step(y, x.borrow())


def both_read() -> None:
    y = vector()
    look(y, y.borrow())


def a_copy_is_written() -> None:
    y = vector()
    write_another(y, y.borrow())


def attributes_of_two_objects() -> None:
    a, b = Holder(vector()), Holder(vector())
    a.set_from(b.t.borrow())
    b.set_from(a.t.borrow())


def passed_once() -> None:
    x = vector()
    once(lambda: eat(x))


def looked_at() -> None:
    x = vector()
    show_any(x)
    replace_any(x)
    show_object(x)
    print(same(1))
    eat(x)


def partial_looks() -> None:
    x = vector()
    count = partial(size, 2)
    print(count(x), partial(size, n=1)(x=x))
    eat(x)


def partial_moves_another() -> None:
    x, y = vector(), vector()
    finish = partial(finished, 1)
    finish(x)
    finish(y)
    finish = partial(print, 1)
    z = vector()
    finish(z)
    eat(z)


def read_while_lent_for_reading(y: Tensor[f32]) -> None:
    r = y.borrow()
    look(y, r)
    print(total(r))


def write_another_by_a_partial(y: Tensor[f32], x: Tensor[f32], b: Holder) -> None:
    finish = partial(step, g=y.borrow())
    finish(x)
    partial(b.set_from)(x.borrow())
    partial(Holder.set_from, b)(x.borrow())
