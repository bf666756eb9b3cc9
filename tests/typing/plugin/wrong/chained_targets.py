"""A tensor that one assignment gives several items or attributes, and that moves out of one of them."""

from dataclasses import dataclass

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, vector


@dataclass
class Box:
    first: Tensor[f32]
    second: Tensor[f32]

    def drain(self) -> None:
        eat(self.first)

    def twice(self) -> None:
        eat(self.first)
        eat(self.first)  # E: dagpu-use-after-move


def two_items() -> None:
    a: list[Tensor[f32]] = [vector(), vector()]
    a[0] = a[1] = vector()
    eat(a[0])
    print(a[1].shape)  # E: dagpu-use-after-move


def two_items_by_name() -> None:
    a: list[Tensor[f32]] = [vector(), vector()]
    v = vector()
    a[0] = a[1] = v
    eat(a[1])
    print(a[0].shape)  # E: dagpu-use-after-move


def name_and_item() -> None:
    a: list[Tensor[f32]] = [vector(), vector()]
    x = a[0] = vector()
    eat(a[0])
    print(x.shape)  # E: dagpu-use-after-move


def item_and_name() -> None:
    a: list[Tensor[f32]] = [vector(), vector()]
    a[0] = x = vector()
    eat(a[0])
    print(x.shape)  # E: dagpu-use-after-move


def two_attributes(box: Box) -> None:
    box.first = box.second = vector()
    eat(box.first)
    print(box.second.shape)  # E: dagpu-use-after-move


def two_keys() -> None:
    d: dict[str, Tensor[f32]] = {}
    d["a"] = d["b"] = vector()
    eat(d["a"])
    print(d["b"].shape)  # E: dagpu-use-after-move
