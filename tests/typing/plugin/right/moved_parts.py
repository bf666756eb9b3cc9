"""Attributes and items that a function or a method reads, replaces or gives back."""

from dataclasses import dataclass

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, total, vector


@dataclass
class Net:
    w: Tensor[f32]
    done: bool = False

    def step(self) -> None:
        self.w = self.w.reshape((2, 4))

    def look(self) -> float:
        w = self.w
        return total(w.borrow())

    def get(self) -> Tensor[f32]:
        return self.w

    def swap(self, w: Tensor[f32]) -> Tensor[f32]:
        old, self.w = self.w, w
        return old

    def drain(self) -> None:
        eat(self.w)

    def refill(self) -> None:
        self.drain()
        self.w = vector()

    def take(self) -> object:
        return eat(self.w)


def drain(net: Net) -> None:
    eat(net.w)


def methods() -> None:
    net = Net(vector())
    net.step()
    net.step()
    print(net.look(), net.look(), net.w.shape)
    print(net.get().shape)
    print(net.get().shape)
    net.swap(vector())
    print(net.w.shape)
    net.drain()
    net.w = vector()
    print(net.w.shape)
    net.refill()
    print(net.w.shape)
    net.drain()


def replaced_after_a_function() -> None:
    net = Net(vector())
    drain(net)
    net.w = vector()
    print(net.w.shape)


def look_at(*ts: Tensor[f32]) -> None:
    for t in ts:
        print(t.shape)


def starred_argument() -> None:
    ts = [vector(), vector()]
    look_at(*ts)
    print(ts[0].shape)


def mapped_function() -> None:
    ts = [vector(), vector()]

    def shape(t: Tensor[f32]) -> tuple[int, ...]:
        return t.shape

    print(list(map(shape, ts)))
    print(ts[0].shape)
    print(list(map(eat, ts)))
