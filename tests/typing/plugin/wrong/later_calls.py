"""A function that is bound to a handle, or a method of an object, takes the handle when it is called later."""

from dataclasses import dataclass
from functools import partial

from dagpu import Tensor, TensorRef, f32, fill
from tests.typing.plugin.kernels import eat, total, vector


class Holder:
    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t

    def drain(self) -> None:
        self.t.share()

    def lend(self) -> TensorRef[f32]:
        return self.t.borrow()

    def clear(self, by: float) -> None:
        fill(self.t.borrow_mut(), by).sync()


def clear(t: Tensor[f32]) -> None:
    fill(t.borrow_mut(), 0.0).sync()


@dataclass
class Data:
    t: Tensor[f32]
    name: str = ""


def partial_called_twice() -> None:
    t = vector()
    take = partial(eat, t)
    take()
    take()  # E: dagpu-use-after-move


def partial_called_in_loop() -> None:
    t = vector()
    take = partial(eat, t)
    for _ in range(2):
        take()  # E: dagpu-use-after-move


def partial_borrow_then_move() -> None:
    t = vector()
    look_at = partial(total, t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    look_at()


def bound_method() -> None:
    h = Holder(vector())
    drain = h.drain
    drain()
    print(h.t.shape)  # E: dagpu-use-after-move


def bound_method_of_handle() -> None:
    t = vector()
    share = t.share
    share()
    share()  # E: dagpu-use-after-move


def bound_method_twice() -> None:
    drain = Holder(vector()).drain
    other = Holder(vector())
    drain = other.drain
    drain()
    drain()  # E: dagpu-use-after-move


def partial_lends_at_its_call() -> None:  # R: runs
    t = vector()
    r = t.borrow()
    go = partial(clear, t)
    go()  # E: dagpu-conflicting-borrow
    print(r.shape)


def partial_called_where_it_is_made() -> None:  # R: runs
    t = vector()
    r = t.borrow()
    partial(clear, t=t)()  # E: dagpu-conflicting-borrow
    print(r.shape)


def partial_of_a_method_drains_its_object() -> None:
    h = Holder(vector())
    drain = partial(Holder.drain, h)
    drain()
    print(h.t.shape)  # E: dagpu-use-after-move


def partial_of_a_method_lends_at_its_call() -> None:  # R: runs
    h = Holder(vector())
    go = partial(h.clear, 1.0)
    r = h.t.borrow()
    go()  # E: dagpu-conflicting-borrow
    print(r.shape)
