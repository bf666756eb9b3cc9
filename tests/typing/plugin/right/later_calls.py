"""Functions that are bound to a handle and called once; methods that are bound and called later."""

from dataclasses import dataclass
from functools import partial

from dagpu import SharedTensor, Tensor, TensorRef, f32, fill
from tests.typing.plugin.kernels import eat, scale, total, vector, yes


class Holder:
    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t

    def drain(self) -> None:
        self.t.share()

    def lend(self) -> TensorRef[f32]:
        return self.t.borrow()


@dataclass
class Data:
    t: Tensor[f32]
    name: str = ""


def partial_once() -> None:
    t = vector()
    take = partial(eat, t)
    take()


def partial_of_borrow() -> None:
    t = vector()
    look_at = partial(total, t.borrow())
    look_at()
    look_at()
    eat(t)


def shape_of(s: SharedTensor[f32]) -> object:
    return s.shape


def partial_of_shared() -> None:
    take = partial(shape_of, vector().share())
    take()
    take()


def partial_made_anew() -> None:
    for _ in range(2):
        take = partial(eat, vector())
        take()


def partial_called_in_one_branch() -> None:
    take = partial(eat, vector())
    if yes():
        take()
    else:
        take()


def partial_of_a_number() -> None:
    double = partial(scale, by=2.0)
    double(vector().partition((4,))).sync()
    double(vector().partition((4,))).sync()


def method_that_looks() -> None:
    t = vector()
    reshape = t.borrow
    print(reshape().shape, reshape().shape)


def bound_and_another_object() -> None:
    a, b = Holder(vector()), Holder(vector())
    drain = a.drain
    drain()
    print(b.t.shape)


def bound_again() -> None:
    holder = Holder(vector())
    drain = holder.drain
    drain()
    holder = Holder(vector())
    print(holder.t.shape)
    drain = holder.drain
    drain()


def bound_append() -> None:
    ts: list[Tensor[f32]] = []
    put = ts.append
    for _ in range(3):
        put(vector())
    for t in ts:
        eat(t)


def shown(x: object) -> None:
    print(x)


def partial_that_shows_a_tensor() -> None:
    show = partial(shown, vector())
    show()
    show()


def partial_that_shows_an_op() -> None:
    op = vector().to_host()
    show = partial(shown, op)
    show()
    show()
    op.sync()


def partials_in_a_list() -> None:
    takes = [partial(eat, vector()) for _ in range(2)]
    for take in takes:
        take()


def clear(t: Tensor[f32]) -> None:
    fill(t.borrow_mut(), 0.0).sync()


def partial_lends_another() -> None:
    t = vector()
    go = partial(clear, t)
    go()
    t = vector()
    r = t.borrow()
    go()
    print(r.shape)


def partial_of_a_method_twice() -> None:
    h = Holder(vector())
    go = partial(Holder.lend, h)
    print(go().shape, go().shape)
    h.drain()
