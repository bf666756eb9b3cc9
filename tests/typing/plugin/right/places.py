"""Handles in attributes and dataclasses, moved and made anew one by one."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict

from dagpu import Partition, SharedTensor, Tensor, TensorRef, f32, zeros
from tests.typing.plugin.kernels import add, eat, saxpy, total, vector


class Layer:
    """Weights and a bias, and what is done with them."""

    def __init__(self) -> None:
        self.weights = vector()
        self.bias = vector()

    def measure(self) -> int:
        return self.weights.size + self.bias.size

    def replace_weights(self) -> None:
        self.weights = self.weights.reshape((2, 4))

    def step(self, rate: float, gradient: TensorRef[f32]) -> None:
        saxpy(self.weights.borrow_mut().partition((4,)), -rate, gradient).sync()

    def step_by_move(self, gradient: SharedTensor[f32]) -> None:
        p, *_ = saxpy(self.weights.partition((4,)), 1.0, gradient).sync()
        self.weights = p.unpartition()

    def lend(self) -> TensorRef[f32]:
        return self.weights.borrow()

    def swap(self) -> None:
        self.weights, self.bias = self.bias, self.weights

    def take(self) -> Tensor[f32]:
        weights = self.weights
        self.weights = vector()
        return weights

    def export(self) -> SharedTensor[f32]:
        shared = self.weights.share()
        self.weights = vector()
        return shared

    def forward(self, x: TensorRef[f32]) -> float:
        sums = add(zeros((8,)).partition((4,)), self.weights.borrow(), x).first().unpartition()
        return float(sums.to_host().sync().sum())


def attribute_is_measured() -> None:
    layer = Layer()
    print(layer.measure(), layer.measure(), layer.weights.shape)


def attribute_is_replaced() -> None:
    layer = Layer()
    layer.replace_weights()
    layer.replace_weights()
    print(layer.weights.shape)


def attribute_is_stepped() -> None:
    layer, gradient = Layer(), vector()
    for _ in range(3):
        layer.step(0.1, gradient.borrow())
    print(layer.forward(gradient.borrow()))


def attribute_is_stepped_by_move() -> None:
    layer, gradient = Layer(), vector().share()
    for _ in range(3):
        layer.step_by_move(gradient)
    print(layer.weights.shape)


def attribute_is_lent() -> None:
    layer = WideLayer()
    print(total(layer.lend()), total(layer.lend_bias()))


class WideLayer(Layer):
    """A layer of a subclass."""

    def lend_bias(self) -> TensorRef[f32]:
        return self.bias.borrow()


def attributes_are_swapped() -> None:
    layer = Layer()
    layer.swap()
    print(total(layer.weights.borrow()))


def attribute_is_taken() -> None:
    layer = Layer()
    eat(layer.take())
    eat(layer.take())


def attribute_is_exported() -> None:
    layer = Layer()
    print(layer.export().shape, layer.export().shape)


def attribute_moves_the_other_stays() -> None:
    layer = Layer()
    eat(layer.weights)
    print(layer.bias.shape)


def attribute_of_a_local_is_replaced() -> None:
    layer = Layer()
    eat(layer.weights)
    layer.weights = vector()
    print(layer.weights.shape)


def attributes_of_two_locals() -> None:
    a, b = Layer(), Layer()
    eat(a.weights)
    print(b.weights.shape)


def object_is_replaced() -> None:
    layer = Layer()
    eat(layer.weights)
    layer = Layer()
    print(layer.weights.shape)


def both_attributes_in_one_kernel_call() -> None:
    layer = Layer()
    saxpy(layer.weights.borrow_mut().partition((4,)), 1.0, layer.bias.borrow()).sync()
    saxpy(layer.bias.borrow_mut().partition((4,)), 1.0, layer.weights.borrow()).sync()


class Owner:
    """Takes a tensor over."""

    def __init__(self, t: Tensor[f32]) -> None:
        print(t.shape)
        self.t = t

    def set(self, t: Tensor[f32]) -> "Owner":
        self.t = t
        return self


def given_to_an_owner() -> None:
    owner = Owner(vector())
    owner.set(vector()).set(vector())
    print(owner.t.shape)


@dataclass
class Pair:
    """Two tensors."""

    first: Tensor[f32]
    second: Tensor[f32]
    history: list[float] = field(default_factory=list)

    def sums(self) -> tuple[float, float]:
        return total(self.first.borrow()), total(self.second.borrow())


@dataclass(frozen=True)
class Config:
    """Numbers only."""

    size: int
    rate: float


class Named(NamedTuple):
    """A tensor and what it is called."""

    name: str
    tensor: Tensor[f32]


class Weights(TypedDict):
    """A dictionary of known keys."""

    hidden: Tensor[f32]
    output: Tensor[f32]


def fields_of_a_dataclass() -> None:
    pair = Pair(vector(), vector())
    print(pair.sums(), pair.sums())
    eat(pair.first)
    eat(pair.second)


def field_is_replaced() -> None:
    pair = Pair(vector(), vector())
    pair.first = pair.first.reshape((2, 4))
    pair.first, pair.second = pair.second, pair.first
    print(pair)


def numbers_are_replaced() -> None:
    config = Config(8, 0.1)
    print(replace(config, rate=0.2), config)


def named_tuple() -> None:
    named = Named("weights", vector())
    print(named.name, named.tensor.shape)
    name, tensor = named
    print(name)
    eat(tensor)


def typed_dictionary() -> None:
    weights: Weights = {"hidden": vector(), "output": vector()}
    print(weights["hidden"].shape, total(weights["output"].borrow()))
    weights["hidden"] = weights["hidden"].reshape((2, 4))
    print(weights["hidden"].shape)


def optional_attribute() -> None:
    class Lazily:
        def __init__(self) -> None:
            self.made: Tensor[f32] | None = None

        def get(self) -> TensorRef[f32]:
            if self.made is None:
                self.made = vector()
            return self.made.borrow()

        def close(self) -> None:
            if self.made is not None:
                eat(self.made)
                self.made = None

    lazily = Lazily()
    print(total(lazily.get()), total(lazily.get()))
    lazily.close()
    lazily.close()


def partition_in_an_attribute() -> None:
    class Accumulator:
        def __init__(self) -> None:
            self.out: Partition[Tensor[f32]] = zeros((8,)).sync().partition((4,))

        def add(self, x: SharedTensor[f32]) -> None:
            self.out, _, _ = saxpy(self.out, 1.0, x).sync()

    sums, x = Accumulator(), vector().share()
    sums.add(x)
    sums.add(x)
    print(sums.out.grid)


def slots_and_properties() -> None:
    class Vector:
        __slots__ = ("_t",)

        def __init__(self, t: Tensor[f32]) -> None:
            self._t = t

        @property
        def shape(self) -> tuple[int, ...]:
            return self._t.shape

        @property
        def ref(self) -> TensorRef[f32]:
            return self._t.borrow()

        def __len__(self) -> int:
            return self._t.size

        def __add__(self, other: "Vector") -> "Vector":
            sums = add(zeros(self.shape).partition((4,)), self.ref, other.ref).first().unpartition()
            return Vector(sums.sync())

    a, b = Vector(vector()), Vector(vector())
    print(len(a + b + a), a.shape, total(b.ref))


def list_of_layers() -> None:
    layers = [Layer() for _ in range(3)]
    x = vector()
    print(sum(layer.forward(x.borrow()) for layer in layers))
    for layer in layers:
        layer.step(0.1, x.borrow())
    eat(x)
