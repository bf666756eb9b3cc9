"""An attribute that a function or method gives, lends or uses has moved, or moves while it is lent."""

from dataclasses import dataclass

from dagpu import Tensor, TensorMut, TensorRef, f32
from tests.typing.plugin.kernels import eat, vector


@dataclass
class Params:
    weight: Tensor[f32]
    bias: Tensor[f32]
    is_open: bool = True


def first(p: Params) -> Tensor[f32]:
    return p.weight


def pick(p: Params, which: bool) -> Tensor[f32]:
    return p.weight if which else p.bias


def pick2(p: Params, which: bool) -> Tensor[f32]:
    if which:
        return p.weight
    return p.bias


def finish(p: Params) -> int:
    return eat(p.weight).size


def view(p: Params) -> TensorRef[f32]:
    return p.weight.borrow()


def views(p: Params) -> list[TensorRef[f32]]:
    return [p.weight.borrow(), p.bias.borrow()]


def close(p: Params) -> None:
    if p.is_open:
        eat(p.weight)
    p.is_open = False


def restore(p: Params) -> int:
    n = eat(p.weight).size
    p.weight = vector()
    return n


class Net:
    def __init__(self) -> None:
        self.w = vector()
        self._b = vector()
        self.layers = [vector(), vector()]

    def weight(self) -> Tensor[f32]:
        return self.w

    @property
    def bias(self) -> Tensor[f32]:
        return self._b

    def peek(self) -> TensorRef[f32]:
        return self.w.borrow()

    def edit(self) -> TensorMut[f32]:
        return self.w.borrow_mut()

    def layer(self, i: int) -> Tensor[f32]:
        return self.layers[i]

    def size(self) -> int:
        return self.w.size

    def twice(self) -> int:
        return self.size() * 2

    def swap(self) -> Tensor[f32]:
        old = self.w
        self.w = vector()
        return old

    def drop(self) -> None:
        eat(self.w)

    def last(self) -> Tensor[f32]:
        return self.layers.pop()


def finished_twice() -> None:
    p = Params(vector(), vector())
    finish(p)
    finish(p)  # E: dagpu-use-after-move


def moved_while_viewed() -> None:
    p = Params(vector(), vector())
    r = view(p)
    eat(p.weight)  # E: dagpu-conflicting-borrow
    print(r.shape)


def moved_while_one_of_the_views() -> None:
    p = Params(vector(), vector())
    rs = views(p)
    eat(p.bias)  # E: dagpu-conflicting-borrow
    print(rs[1].shape)


def attribute_of_a_method() -> None:
    n = Net()
    w = n.weight()
    eat(w)
    print(n.w.shape)  # E: dagpu-use-after-move


def passed_on_from_a_method() -> None:
    n = Net()
    eat(n.weight())
    print(n.w.shape)  # E: dagpu-use-after-move


def passed_on_twice() -> None:
    n = Net()
    eat(n.weight())
    eat(n.weight())  # E: dagpu-use-after-move


def measured_after_a_move() -> None:
    n = Net()
    n.drop()
    print(n.size())  # E: dagpu-use-after-move


def measured_by_a_method_of_a_method() -> None:
    n = Net()
    n.drop()
    print(n.twice())  # E: dagpu-use-after-move


def dropped_twice() -> None:
    n = Net()
    n.drop()
    n.drop()  # E: dagpu-use-after-move


def dropped_while_viewed() -> None:
    n = Net()
    r = n.peek()
    n.drop()  # E: dagpu-conflicting-borrow
    print(r.shape)


def viewed_while_edited() -> None:  # R: runs
    n = Net()
    m = n.edit()
    r = n.peek()  # E: dagpu-conflicting-borrow
    print(r.shape, m.shape)


def property_twice() -> None:
    n = Net()
    eat(n.bias)
    print(n.bias.shape)  # E: dagpu-use-after-move


def named_and_dropped() -> None:
    n = Net()
    w = n.weight()
    n.drop()
    print(w.shape)  # E: dagpu-use-after-move


def given_and_finished() -> None:
    p = Params(vector(), vector())
    t = first(p)
    eat(t)
    finish(p)  # E: dagpu-use-after-move


def moved_and_measured() -> None:
    n = Net()
    eat(n.w)
    print(n.twice())  # E: dagpu-use-after-move
