"""Functions and methods that give, lend or use the attributes of their arguments, called as they may be."""

from dataclasses import dataclass

from dagpu import Tensor, TensorMut, TensorRef, f32
from tests.typing.plugin.kernels import eat, total, vector


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


def either_one() -> None:
    p = Params(vector(), vector())
    eat(pick(p, True))
    eat(pick(p, False))


def either_one_by_branches() -> None:
    p = Params(vector(), vector())
    eat(pick2(p, True))
    eat(pick2(p, False))


def view_that_has_ended() -> None:
    p = Params(vector(), vector())
    r = view(p)
    print(r.shape)
    eat(p.weight)


def closed_twice() -> None:
    p = Params(vector(), vector())
    close(p)
    close(p)


def restored() -> None:
    p = Params(vector(), vector())
    restore(p)
    restore(p)


def method_and_new_attribute() -> None:
    n = Net()
    eat(n.weight())
    n.w = vector()
    print(n.w.shape, n.size(), n.twice())


def swapped() -> None:
    n = Net()
    eat(n.swap())
    eat(n.swap())
    print(n.w.shape)


def layers() -> None:
    n = Net()
    eat(n.layer(0))
    eat(n.layer(1))
    eat(n.bias)


def last_ones() -> None:
    n = Net()
    eat(n.last())
    eat(n.last())


def looked_at() -> None:
    n = Net()
    w = n.weight()
    print(w.shape, n.w.shape)
    total(n.peek())
    print(n.edit().shape)
    eat(n.w)


def new_object() -> None:
    n = Net()
    n.drop()
    n = Net()
    n.drop()
