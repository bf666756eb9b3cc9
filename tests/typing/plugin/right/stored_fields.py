"""What a property or a descriptor makes at each access is computed, also in a frozen class."""

from dataclasses import dataclass, replace

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, total, vector


class Fresh:
    """A descriptor that makes a tensor at each access."""

    def __get__(self, instance: object, owner: object = None) -> Tensor[f32]:
        return vector()


@dataclass(frozen=True)
class Frozen:
    """A stored tensor, and computed ones."""

    t: Tensor[f32]

    @property
    def fresh(self) -> Tensor[f32]:
        """A new one."""
        return vector()


class Holder:
    """No stored tensor."""

    made = Fresh()
    also = property(lambda self: vector())


def by_property() -> None:
    s = Frozen(vector())
    eat(s.fresh)
    eat(s.fresh)


def by_descriptor() -> None:
    s = Holder()
    s.made.share()
    print(s.made.shape)


def by_descriptor_of_the_class() -> None:
    Holder.made.share()
    print(Holder.made.shape)


def fields_of_two_objects() -> None:
    s, other = Frozen(vector()), Frozen(vector())
    eat(s.t)
    eat(other.t)


def replaced() -> None:
    s = Frozen(vector())
    other = replace(s, t=vector())
    eat(other.t)
    print(s.t.shape)


def lent_to_a_call() -> float:
    s = Frozen(vector())
    return total(s.t.borrow())


def lent_by_a_parameter(s: Frozen) -> TensorRef[f32]:
    return s.t.borrow()


def looked_at_by_a_guard() -> None:
    b: Tensor[f32] | None = vector()
    match b:
        case Tensor() as t if t.shape == (3,):
            print(1)
        case Tensor() as t:
            eat(t)
        case _:
            pass


def named_by_each_case() -> None:
    match vector():
        case t if t.shape == (3,):
            eat(t)
        case t:
            eat(t)
