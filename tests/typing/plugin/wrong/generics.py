"""Moves in generic functions, methods of every kind, overloads and code behind a platform check."""

import sys
from collections.abc import Callable
from typing import Generic, TypeVar, final

import numpy as np

from dagpu import DeviceOp, Partition, SharedTensor, Tensor, TensorMut, f32, f64, value
from tests.typing.plugin.kernels import eat, saxpy, vector

D = TypeVar("D", bound=np.generic)
K = TypeVar("K", f32, f64)
T = TypeVar("T")


def of_any_element_type() -> None:
    def use(t: Tensor[D]) -> Tensor[D]:
        t.share()
        return t  # E: dagpu-use-after-move

    print(use(vector()).shape)


def of_one_of_two_element_types() -> None:
    def use(t: Tensor[K]) -> None:
        t.share()
        print(t.shape)  # E: dagpu-use-after-move

    use(vector())


def applied() -> None:
    def apply(f: Callable[[Tensor[f32]], T], t: Tensor[f32]) -> T:
        return f(t)

    t = vector()
    apply(eat, t)
    print(t.shape)  # E: dagpu-use-after-move


def passed_through() -> None:
    def same(t: Tensor[D]) -> Tensor[D]:
        return t

    t = vector()
    again = same(t)
    eat(again)
    print(t.shape)  # E: dagpu-use-after-move


@final
class Box(Generic[T]):
    """Holds one thing."""

    def __init__(self, content: T) -> None:
        self.content = content


def given_to_a_box() -> None:
    t = vector()
    box = Box(t)
    eat(box.content)
    print(t.shape)  # E: dagpu-use-after-move


def taken_out_of_a_box_twice() -> None:
    box = Box(vector())
    eat(box.content)
    eat(box.content)  # E: dagpu-use-after-move


class Methods:
    """One mistake in every kind of method."""

    @property
    def size(self) -> int:
        t = vector()
        eat(t)
        return t.size  # E: dagpu-use-after-move

    @staticmethod
    def static(t: Tensor[f32]) -> int:
        eat(t)
        return t.size  # E: dagpu-use-after-move

    @classmethod
    def of_the_class(cls, t: Tensor[f32]) -> int:
        eat(t)
        return t.size  # E: dagpu-use-after-move

    def __call__(self, t: Tensor[f32]) -> int:
        eat(t)
        return t.size  # E: dagpu-use-after-move

    def __enter__(self) -> int:
        t = vector()
        eat(t)
        return t.size  # E: dagpu-use-after-move

    def __exit__(self, *_: object) -> None: ...

    class Inner:
        """A class in a class."""

        def deep(self, t: Tensor[f32]) -> int:
            eat(t)
            return t.size  # E: dagpu-use-after-move


def in_a_property() -> None:
    print(Methods().size)


def in_a_static_method() -> None:
    Methods.static(vector())


def in_a_class_method() -> None:
    Methods.of_the_class(vector())


def in_a_call() -> None:
    Methods()(vector())


def in_a_context_manager() -> None:
    with Methods():
        pass


def in_an_inner_class() -> None:
    Methods.Inner().deep(vector())


def consumed_by_a_method() -> None:
    class Model:
        def load(self, t: Tensor[f32]) -> None:
            eat(t)

    t = vector()
    Model().load(t)
    print(t.shape)  # E: dagpu-use-after-move


def consumed_by_a_call() -> None:
    t = vector()
    print(Eater()(t))
    print(t.shape)  # E: dagpu-use-after-move


class Eater:
    """Takes a tensor by value when it is called."""

    def __call__(self, t: Tensor[f32]) -> SharedTensor[f32]:
        return eat(t)


if sys.platform != "no such platform":

    def behind_a_platform_check() -> None:
        t = vector()
        eat(t)
        print(t.shape)  # E: dagpu-use-after-move


def partition_of_a_loan() -> None:
    def use(p: Partition[TensorMut[f32]]) -> Partition[TensorMut[f32]]:
        saxpy(p, 1.0, vector()).sync()
        return p  # E: dagpu-use-after-move

    y = vector()
    print(use(y.borrow_mut().partition((4,))).grid)


def optional_parameter() -> None:
    def use(t: Tensor[f32] | None = None) -> int:
        if t is None:
            return 0
        eat(t)
        return t.ndim  # E: dagpu-use-after-move

    use(vector())


def keyword_only_parameter() -> None:
    def use(*, t: Tensor[f32]) -> int:
        eat(t)
        return t.ndim  # E: dagpu-use-after-move

    use(t=vector())


def union_parameter() -> None:
    def use(t: Tensor[f32] | Tensor[f64]) -> int:
        t.share()
        return t.ndim  # E: dagpu-use-after-move

    use(vector())


def value_of_a_generic_op() -> None:
    def wrap(x: T) -> DeviceOp[T]:
        return value(x)

    t = vector()
    wrap(t).sync()
    print(t.shape)  # E: dagpu-use-after-move
