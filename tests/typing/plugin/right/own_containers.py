"""A tensor in a container that the function alone knows is used by its name, until the container has given it away."""

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, total, vector


class Holder:
    """A tensor."""

    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t


def in_a_list() -> None:
    held: list[Tensor[f32]] = []
    t = vector()
    held.append(t)
    total(t.borrow())


def in_a_loop() -> list[Tensor[f32]]:
    held = list[Tensor[f32]]()
    for _ in range(2):
        t = vector()
        held.append(t)
        print(t.shape, total(t.borrow()))
    return held


def in_a_dict() -> None:
    held: dict[str, Tensor[f32]] = {}
    t = vector()
    held["t"] = t
    total(t.borrow())
    print(len(held), t.shape)


def in_an_attribute() -> None:
    t = vector()
    b = Holder(vector())
    b.t = t
    total(t.borrow())


def another_is_given_away() -> None:
    held: list[Tensor[f32]] = []
    a, b = vector(), vector()
    held.append(a)
    held.append(b)
    eat(held.pop())
    total(a.borrow())


def moved_by_its_name() -> None:
    held: list[Tensor[f32]] = []
    t = vector()
    held.append(t)
    eat(t)


def in_a_tuple(x: Tensor[f32], y: Tensor[f32]) -> None:
    pair = (x, y)
    print(pair[0].shape, [t.shape for t in pair])
    eat(x)
    eat(y)


def in_a_dict_display(x: Tensor[f32], y: Tensor[f32]) -> None:
    named = {"x": x, "y": y}
    for name, t in named.items():
        print(name, t.shape, "x" in named)
    eat(named["x"])
    eat(y)


def in_a_list_that_is_ordered(x: Tensor[f32], y: Tensor[f32]) -> None:
    both = [x, y]
    for number, t in enumerate(sorted(both, key=lambda t: t.shape)):
        print(number, t.shape)
    eat(x)
    eat(y)


def in_a_set(x: Tensor[f32]) -> None:
    held = set[Tensor[f32]]()
    held.add(x)
    total(x.borrow())


def in_front() -> None:
    held: list[Tensor[f32]] = []
    t = vector()
    held.insert(0, t)
    held += [vector()]
    total(t.borrow())
