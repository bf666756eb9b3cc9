"""Fields of frozen classes are stored, however the class is made: a mistake with one is a mistake."""

from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import attrs

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, total, vector

T = TypeVar("T")


@dataclass(frozen=True)
class Frozen:
    """One tensor."""

    t: Tensor[f32]


@dataclass(frozen=True, slots=True)
class Derived(Frozen):
    """One tensor more."""

    u: Tensor[f32]


@dataclass(frozen=True)
class Outer:
    """A frozen object in another."""

    inner: Frozen


@dataclass(frozen=True)
class Box(Generic[T]):
    """Anything."""

    item: T


@attrs.frozen
class Attrs:
    """One tensor."""

    t: Tensor[f32]


class Pair(NamedTuple):
    """Two tensors."""

    a: Tensor[f32]
    b: Tensor[f32]


def used_after_move() -> None:
    s = Frozen(vector())
    s.t.share()
    print(s.t.shape)  # E: dagpu-use-after-move


def moved_in_a_loop() -> None:
    s = Frozen(vector())
    for _ in range(2):
        eat(s.t)  # E: dagpu-use-after-move


def moved_while_lent() -> None:
    s = Frozen(vector())
    before = s.t.borrow()
    s.t.share()  # E: dagpu-conflicting-borrow
    total(before)


def escapes() -> TensorRef[f32]:
    s = Frozen(vector())
    return s.t.borrow()  # E: dagpu-borrow-escape


def escapes_from_attrs() -> TensorRef[f32]:
    s = Attrs(vector())
    return s.t.borrow()  # E: dagpu-borrow-escape


def of_an_inherited_field() -> None:
    s = Derived(vector(), vector())
    eat(s.t)
    eat(s.u)
    print(s.t.shape)  # E: dagpu-use-after-move


def nested() -> None:
    s = Outer(Frozen(vector()))
    eat(s.inner.t)
    print(s.inner.t.shape)  # E: dagpu-use-after-move


def generic() -> None:
    s = Box(vector())
    eat(s.item)
    print(s.item.shape)  # E: dagpu-use-after-move


def of_attrs() -> None:
    s = Attrs(vector())
    eat(s.t)
    print(s.t.shape)  # E: dagpu-use-after-move


def of_a_named_tuple() -> None:
    s = Pair(vector(), vector())
    eat(s.a)
    print(s.a.shape)  # E: dagpu-use-after-move


def by_a_pattern() -> None:
    s = Frozen(vector())
    match s:
        case Frozen(t=t):
            eat(t)
    print(s.t.shape)  # E: dagpu-use-after-move


def of_a_copy() -> None:
    s = Derived(vector(), vector())
    other = replace(s, u=vector())
    eat(other.t)
    print(s.t.shape)  # E: dagpu-use-after-move


def moved_in_a_guard() -> None:
    b: Tensor[f32] | None = vector()
    match b:
        case Tensor() as t if t.share().shape == (3,):
            print(1)
        case Tensor() as t:
            eat(t)  # E: dagpu-use-after-move
        case _:
            pass


def moved_in_a_guard_out_of_a_call() -> None:
    match vector():
        case t if eat(t).shape == (3,):
            print(1)
        case t:
            eat(t)  # E: dagpu-use-after-move


class Lender:
    """A tensor, which it lends by a method."""

    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t

    def lend(self) -> TensorRef[f32]:
        """Lend it."""
        return self.t.borrow()


def escapes_by_a_method() -> TensorRef[f32]:
    b = Lender(vector())
    return b.lend()  # E: dagpu-borrow-escape


def escapes_from_a_comprehension() -> list[TensorRef[f32]]:
    ts = [vector(), vector()]
    return [t.borrow() for t in ts]  # E: dagpu-borrow-escape


class Drained(NamedTuple):
    """A tensor, which a method moves."""

    t: Tensor[f32]

    def drain(self) -> None:
        """Move the tensor."""
        eat(self.t)


def moved_by_a_method_of_a_named_tuple(s: Drained) -> None:
    s.drain()
    print(s.t.shape)  # E: dagpu-use-after-move
