"""Operators of classes of the program that only look at an operand, or give a tensor back."""

from collections.abc import Iterator

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, total, vector


class Looks:
    """Every operator looks at its operand."""

    def __init__(self) -> None:
        self.t = vector()

    def __add__(self, x: Tensor[f32]) -> int:
        return x.size

    def __iadd__(self, x: Tensor[f32]) -> "Looks":
        print(x.shape)
        return self

    def __contains__(self, x: Tensor[f32]) -> bool:
        return x.size > 3

    def __eq__(self, other: object) -> bool:
        return other is self

    def __hash__(self) -> int:
        return 1

    def __setitem__(self, n: int, x: Tensor[f32]) -> None:
        print(n, x.shape)

    def __getitem__(self, n: int) -> Tensor[f32]:
        return vector()

    def __len__(self) -> int:
        return self.t.size

    def __iter__(self) -> Iterator[int]:
        return iter(self.t.shape)

    def __sub__(self, r: TensorRef[f32]) -> float:
        return total(r)

    def __ior__(self, x: Tensor[f32]) -> "Looks":
        eat(self.t)
        self.t = x
        return self


def looked_at() -> None:
    t, x = Looks(), vector()
    print(t + x, x in t, x not in t, t == x, t != x, x is None)
    t += x
    t[0] = x
    eat(x)


def of_the_object() -> None:
    t = Looks()
    for n in t:
        print(n, len(t), bool(t), 1 if t else 2)
    print(t - t.t.borrow(), [n for n in t if t])
    eat(t.t)


def items() -> None:
    t = Looks()
    eat(t[0])
    eat(t[0])


def replaced_in_place() -> None:
    t = Looks()
    t |= vector()
    t |= vector()
    eat(t.t)


def formatted_in_place() -> None:
    t = vector()
    text = "%s"
    text %= t
    print(text)
    eat(t)


def formatted_in_place_with_others(text: str = "%s %s") -> str:
    t = vector()
    text %= (t, t.borrow())
    eat(t)
    return text
