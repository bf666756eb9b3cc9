"""A tensor that the container of a function has given away, or that has moved by its name."""

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, total, vector

KEPT: list[Tensor[f32]] = []


def given_away() -> None:
    held: list[Tensor[f32]] = []
    t = vector()
    held.append(t)
    eat(held.pop())
    total(t.borrow())  # E: dagpu-use-after-move


def given_away_in_a_loop() -> None:
    held: list[Tensor[f32]] = []
    t = vector()
    held.append(t)
    for u in held:
        eat(u)
    total(t.borrow())  # E: dagpu-use-after-move


def item_of_a_dict_given_away() -> None:
    held: dict[str, Tensor[f32]] = {}
    t = vector()
    held["t"] = t
    eat(held["t"])
    total(t.borrow())  # E: dagpu-use-after-move


def moved_by_its_name() -> None:
    held: list[Tensor[f32]] = []
    t = vector()
    held.append(t)
    eat(t)
    eat(held.pop())  # E: dagpu-use-after-move


def moved_while_lent_by_its_name() -> None:
    held: list[Tensor[f32]] = []
    t = vector()
    held.append(t)
    r = t.borrow()
    eat(held.pop())  # E: dagpu-conflicting-borrow
    total(r)


def kept_by_the_module() -> None:  # R: runs
    t = vector()
    KEPT.append(t)
    print(t.shape)  # E: dagpu-use-after-move


def given_away_by_a_display(x: Tensor[f32]) -> None:
    held = [x]
    eat(held.pop())
    print(x.shape)  # E: dagpu-use-after-move


def given_away_by_a_dict(x: Tensor[f32]) -> None:
    named = {"x": x}
    for t in named.values():
        eat(t)
    print(x.shape)  # E: dagpu-use-after-move


def given_away_in_order(x: Tensor[f32], y: Tensor[f32]) -> None:
    both = [x, y]
    for t in sorted(both, key=lambda t: t.shape):
        eat(t)
    print(y.shape)  # E: dagpu-use-after-move


def returned_in_a_display(x: Tensor[f32]) -> list[Tensor[f32]]:
    held = [x]
    eat(x)  # E: dagpu-use-after-move
    return held
