"""Generic helpers, protocols, overloads, methods of every kind, and code that a type checker sees twice."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, final, overload

import numpy as np
from typing_extensions import override

from dagpu import Borrowed, DeviceOp, SharedTensor, Tensor, TensorRef, dup, f32, f64, ones, value, zeros
from tests.typing.plugin.kernels import eat, saxpy, total, vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

D = TypeVar("D", bound=np.generic)
K = TypeVar("K", f32, f64)
T = TypeVar("T")


def of_any_element_type() -> None:
    def keep(t: Tensor[D]) -> Tensor[D]:
        print(t.shape)
        return t

    a, b = keep(vector()), keep(ones((8,), f64).sync())
    print(a.shape, b.shape)


def of_one_of_two_element_types() -> None:
    def double(t: Tensor[K]) -> SharedTensor[K]:
        print(t.shape)
        return t.share()

    print(double(vector()).shape, double(ones((8,), f64).sync()).shape)


def applied() -> None:
    def apply(f: Callable[[Tensor[f32]], T], t: Tensor[f32]) -> T:
        return f(t)

    print(apply(eat, vector()).shape, apply(lambda t: t.ndim, vector()))


def of_anything() -> None:
    def pair(x: T) -> tuple[T, T]:
        return (x, x)

    def first(xs: list[T]) -> T:
        return xs[0]

    print(pair(1), first([vector()]).shape)


def passed_through() -> None:
    def same(x: T) -> T:
        return x

    t = same(vector())
    t = same(t)
    eat(same(t))


@final
class Box(Generic[T]):
    """Holds one thing."""

    def __init__(self, content: T) -> None:
        self.content = content

    def take(self) -> T:
        return self.content

    def map(self, f: "Callable[[T], D]") -> "Box[D]":
        return Box(f(self.content))


def in_a_box() -> None:
    box = Box(vector())
    print(box.content.shape)
    eat(box.take())
    box.content = vector()
    eat(box.content)


class Source(Protocol):
    """Whatever makes tensors."""

    def next(self) -> Tensor[f32]: ...


class Ones:
    """Makes ones."""

    def next(self) -> Tensor[f32]:
        return vector()


def through_a_protocol() -> None:
    def use(source: Source) -> int:
        a, b = source.next(), source.next()
        eat(a)
        return b.size

    print(use(Ones()))


class Layer(ABC):
    """A step of a model."""

    @abstractmethod
    def forward(self, x: TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]: ...


class Copy(Layer):
    """Gives what it gets."""

    @override
    def forward(self, x: TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
        return dup(x)


def through_a_base_class() -> None:
    layers: list[Layer] = [Copy(), Copy()]
    x = vector()
    for layer in layers:
        x = layer.forward(x.borrow()).sync()
    eat(x)


class Methods:
    """One of each kind of method."""

    count = 0

    @property
    def size(self) -> int:
        t = vector()
        return t.size

    @staticmethod
    def static(t: Tensor[f32]) -> SharedTensor[f32]:
        print(t.shape)
        return t.share()

    @classmethod
    def of_the_class(cls, t: Tensor[f32]) -> SharedTensor[f32]:
        cls.count += 1
        return t.share()

    def __call__(self, t: Tensor[f32]) -> SharedTensor[f32]:
        return t.share()

    def __matmul__(self, t: TensorRef[f32]) -> float:
        return total(t)


def every_kind_of_method() -> None:
    methods, t = Methods(), vector()
    print(methods @ t.borrow(), methods.size)
    print(methods(t).shape, Methods.static(vector()).shape, methods.of_the_class(vector()).shape)


@overload
def measured(t: Tensor[f32]) -> int: ...
@overload
def measured(t: TensorRef[f32]) -> float: ...
def measured(t: Tensor[f32] | TensorRef[f32]) -> int | float:
    if isinstance(t, Tensor):
        return t.share().size
    return total(t)


def through_an_overload() -> None:
    t = vector()
    print(measured(t.borrow()), measured(t.borrow()), measured(t))


def of_any_type() -> None:
    def use(x: Any) -> Any:
        return x

    anything: Any = vector()
    print(use(anything), use(anything), anything)


def without_annotations_of_locals() -> None:
    tensors = {}
    tensors["a"] = vector()
    sums = []
    sums.append(total(tensors["a"].borrow()))
    print(sums)


class Mode(Enum):
    """A way to read a tensor."""

    LEND = "lend"
    COPY = "copy"
    SPEND = "spend"


def by_an_enumeration() -> None:
    def read(t: Tensor[f32], mode: Mode) -> object:
        if mode is Mode.LEND:
            return total(t.borrow())
        if mode is Mode.COPY:
            return dup(t).sync()
        return eat(t)

    print([read(vector(), mode) for mode in Mode])


def by_a_table_of_functions() -> None:
    table: dict[str, Callable[[Tensor[f32]], object]] = {"share": eat, "cut": lambda t: t.partition((4,))}
    for use in table.values():
        use(vector())


def under_type_checking() -> None:
    def download(t: Tensor[f32]) -> "DeviceOp[NDArray[f32]]":
        return t.to_host()

    print(download(vector()).sync())


def under_a_platform_check() -> None:
    t = vector()
    if sys.platform == "win32" or sys.version_info < (3, 11):
        eat(t)
    else:
        print(t.shape)
        eat(t)


def parameters_of_every_kind() -> None:
    def use(a: Tensor[f32], /, b: Tensor[f32], *rest: Tensor[f32], c: Tensor[f32], **named: Tensor[f32]) -> int:
        eat(a)
        eat(b)
        eat(c)
        return len(rest) + len(named)

    print(use(vector(), vector(), vector(), c=vector(), d=vector()))


def optional_parameter() -> None:
    def use(t: Tensor[f32] | None = None) -> int:
        if t is None:
            t = vector()
        eat(t)
        return 1

    print(use(), use(vector()), use(t=None))


def lazy_or_not() -> None:
    def doubled(x: Tensor[f32] | DeviceOp[Tensor[f32]]) -> DeviceOp[object]:
        op = x if isinstance(x, DeviceOp) else value(x)
        return saxpy(zeros((8,)).partition((4,)), 2.0, op)

    doubled(vector()).sync()
    doubled(ones((8,))).sync()


def ops_in_a_loop() -> None:
    op = zeros((8,))
    for _ in range(100):
        op = saxpy(op.partition((4,)), 1.0, ones((8,))).first().unpartition()
    assert (op.to_host().sync() == 100).all()
