"""Operators of classes of the program are calls: of methods that move an operand, or an attribute."""

from collections.abc import Iterator

from dagpu import Tensor, TensorRef, f32, ones
from tests.typing.plugin.kernels import add, eat, vector


class Box:
    """What is asked of it moves the tensor in it, or writes it."""

    def __init__(self) -> None:
        self.t = vector()

    def __len__(self) -> int:
        eat(self.t)
        return 1

    def __neg__(self) -> int:
        eat(self.t)
        return 1

    def __iter__(self) -> Iterator[int]:
        eat(self.t)
        return iter([1])

    def __sub__(self, r: TensorRef[f32]) -> int:
        add(self.t.borrow_mut().partition((4,)), r, ones((8,))).sync()
        return 1


class Total:
    """Every operator moves its operand."""

    def __add__(self, x: Tensor[f32]) -> int:
        eat(x)
        return 1

    def __rmul__(self, x: Box) -> int:
        eat(x.t)
        return 1

    def __iadd__(self, x: Tensor[f32]) -> "Total":
        eat(x)
        return self

    def __contains__(self, x: Tensor[f32]) -> bool:
        eat(x)
        return True

    def __lt__(self, x: Tensor[f32]) -> bool:
        eat(x)
        return True

    def __getitem__(self, x: Tensor[f32]) -> int:
        eat(x)
        return 1

    def __setitem__(self, n: int, x: Tensor[f32]) -> None:
        eat(x)

    def __matmul__(self, x: Tensor[f32]) -> int:
        eat(x)
        return 1


def added() -> None:
    t, x = Total(), vector()
    print(t + x)
    print(x.shape)  # E: dagpu-use-after-move


def multiplied_from_the_left() -> None:
    t, b = Total(), Box()
    print(b * t)
    print(b.t.shape)  # E: dagpu-use-after-move


def added_in_place() -> None:
    t, x = Total(), vector()
    t += x
    print(x.shape)  # E: dagpu-use-after-move


def asked() -> None:
    t, x = Total(), vector()
    print(x in t, 1 if x.shape else 2)  # E: dagpu-use-after-move


def compared_in_a_condition() -> None:
    t, x = Total(), vector()
    if t < x:
        print(x.shape)  # E: dagpu-use-after-move


def multiplied() -> None:
    t, x = Total(), vector()
    print(t @ x)
    print(x.shape)  # E: dagpu-use-after-move


def indexed() -> None:
    t, x = Total(), vector()
    print(t[x])
    print(x.shape)  # E: dagpu-use-after-move


def item_set() -> None:
    t, x = Total(), vector()
    t[0] = x
    print(x.shape)  # E: dagpu-use-after-move


def counted() -> None:
    b = Box()
    print(len(b))
    print(b.t.shape)  # E: dagpu-use-after-move


def negated() -> None:
    b = Box()
    print(-b)
    print(b.t.shape)  # E: dagpu-use-after-move


def asked_whether_it_is_true() -> None:
    b = Box()
    if not b:
        return
    print(b.t.shape)  # E: dagpu-use-after-move


def gone_over() -> None:
    b = Box()
    for n in b:
        print(n)
    print(b.t.shape)  # E: dagpu-use-after-move


def written_while_lent() -> None:
    b = Box()
    print(b - b.t.borrow())  # E: dagpu-conflicting-borrow
