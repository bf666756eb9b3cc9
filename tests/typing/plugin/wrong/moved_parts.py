"""Attributes and items that a function or a method has moved."""

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, vector


class Net:
    def __init__(self) -> None:
        self.w = vector()

    def drain(self) -> None:
        eat(self.w)

    def both(self) -> None:
        self.drain()
        print(self.w.shape)  # E: dagpu-use-after-move

    def chained(self) -> None:
        self.drain()


def drain(net: Net) -> None:
    eat(net.w)


def method() -> None:
    net = Net()
    net.drain()
    print(net.w.shape)  # E: dagpu-use-after-move


def method_of_a_method() -> None:
    net = Net()
    net.chained()
    print(net.w.shape)  # E: dagpu-use-after-move


def function() -> None:
    net = Net()
    drain(net)
    print(net.w.shape)  # E: dagpu-use-after-move


def function_by_name() -> None:
    net = Net()
    drain(net=net)
    print(net.w.shape)  # E: dagpu-use-after-move


def starred_argument() -> None:
    ts = [vector(), vector()]

    def many(*a: Tensor[f32]) -> None:
        for t in a:
            eat(t)

    many(*ts)
    print(ts[0].shape)  # E: dagpu-use-after-move


def mapped_function() -> None:
    ts = [vector(), vector()]
    list(map(eat, ts))
    print(ts[0].shape)  # E: dagpu-use-after-move
