"""A tensor that one assignment gives several items, of which one is replaced."""

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, vector


def other_item_replaced() -> None:
    a: list[Tensor[f32]] = [vector(), vector()]
    a[0] = a[1] = vector()
    eat(a[0])
    a[1] = vector()
    print(a[1].shape)
