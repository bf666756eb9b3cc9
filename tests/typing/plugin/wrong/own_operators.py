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


class Counter:
    """An iterator, which is equal to anything once, and true once."""

    def __init__(self) -> None:
        self.t = vector()

    def __iter__(self) -> "Counter":
        return self

    def __next__(self) -> int:
        eat(self.t)
        raise StopIteration

    def __bool__(self) -> bool:
        eat(self.t)
        return True

    def __eq__(self, other: object) -> bool:
        eat(self.t)
        return other is self

    def __hash__(self) -> int:
        eat(self.t)
        return 1

    def __float__(self) -> float:
        eat(self.t)
        return 1.0


class Lender:
    """What is asked of it borrows the tensor in it."""

    def __init__(self) -> None:
        self.t = vector()

    def __neg__(self) -> TensorRef[f32]:
        return self.t.borrow()

    def __call__(self) -> TensorRef[f32]:
        return self.t.borrow()


def gone_over_as_its_own_iterator(c: Counter) -> None:
    for n in c:
        print(n)
    print(c.t.shape)  # E: dagpu-use-after-move


def unpacked(box: Box) -> None:
    (n,) = box
    print(n, box.t.shape)  # E: dagpu-use-after-move


def made_a_list(box: Box) -> None:
    print(list(box), box.t.shape)  # E: dagpu-use-after-move


def unequal(c: Counter) -> None:
    print(c != 3, c.t.shape)  # E: dagpu-use-after-move


def as_a_key(c: Counter) -> None:
    print(hash(c), c.t.shape)  # E: dagpu-use-after-move


def as_a_number(c: Counter) -> None:
    print(float(c), c.t.shape)  # E: dagpu-use-after-move


def and_then(c: Counter) -> None:
    print(c and 1, c.t.shape)  # E: dagpu-use-after-move


def borrow_by_a_sign() -> TensorRef[f32]:
    lender = Lender()
    return -lender  # E: dagpu-borrow-escape


def borrow_by_a_call() -> TensorRef[f32]:
    lender = Lender()
    return lender()  # E: dagpu-borrow-escape
