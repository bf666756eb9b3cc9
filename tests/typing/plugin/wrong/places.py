"""Handles in attributes, tuples, lists and dictionaries; star-unpacking, swapping, deleting."""

from dataclasses import dataclass
from typing import NamedTuple

from dagpu import Partition, Tensor, f32, value
from tests.typing.plugin.kernels import eat, no, saxpy, total, vector, yes


class Layer:
    """Weights and a bias."""

    def __init__(self) -> None:
        self.weights = vector()
        self.bias = vector()

    def measure_after_sharing(self) -> None:
        self.weights.share()
        print(self.weights.shape)  # E: dagpu-use-after-move

    def share_twice(self) -> None:
        eat(self.bias)
        eat(self.bias)  # E: dagpu-use-after-move

    def share_in_a_loop(self) -> None:
        for _ in range(2):
            eat(self.weights)  # E: dagpu-use-after-move

    def share_on_one_path(self) -> None:
        if yes():
            eat(self.weights)
        total(self.weights.borrow())  # E: dagpu-use-after-move

    def alias(self) -> None:
        weights = self.weights
        eat(weights)
        print(self.weights.shape)  # E: dagpu-use-after-move

    def replace_too_late(self) -> None:
        eat(self.weights)
        print(self.weights.shape)  # E: dagpu-use-after-move
        self.weights = vector()

    def capture(self) -> None:
        eat(self.weights)
        value(1).map(lambda number: number + self.weights.ndim).sync()  # E: dagpu-use-after-move


def attribute_is_measured_after_sharing() -> None:
    Layer().measure_after_sharing()


def attribute_is_shared_twice() -> None:
    Layer().share_twice()


def attribute_is_shared_in_a_loop() -> None:
    Layer().share_in_a_loop()


def attribute_is_shared_on_one_path() -> None:
    Layer().share_on_one_path()


def attribute_is_aliased() -> None:
    Layer().alias()


def attribute_is_replaced_too_late() -> None:
    Layer().replace_too_late()


def attribute_is_captured() -> None:
    Layer().capture()


class Owner:
    """Takes a tensor over."""

    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t


class Careless:
    """Takes a tensor over, and spends it."""

    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t
        eat(self.t)
        print(t.shape)  # E: dagpu-use-after-move


def careless_constructor() -> None:
    Careless(vector())


def attribute_of_a_local() -> None:
    layer = Layer()
    eat(layer.weights)
    print(layer.weights.shape)  # E: dagpu-use-after-move


def attribute_of_a_local_passed_to_a_kernel() -> None:
    layer = Layer()
    saxpy(layer.bias.partition((4,)), 1.0, layer.weights).sync()
    total(layer.weights.borrow())  # E: dagpu-use-after-move


def given_to_an_owner() -> None:
    t = vector()
    owner = Owner(t)
    eat(owner.t)
    print(t.shape)  # E: dagpu-use-after-move


def stored_in_an_attribute() -> None:
    t, layer = vector(), Layer()
    layer.weights = t
    eat(layer.weights)
    print(t.shape)  # E: dagpu-use-after-move


@dataclass
class Pair:
    """Two tensors."""

    first: Tensor[f32]
    second: Tensor[f32]


class Named(NamedTuple):
    """A tensor and what it is called."""

    name: str
    tensor: Tensor[f32]


def field_of_a_dataclass() -> None:
    pair = Pair(vector(), vector())
    eat(pair.first)
    print(pair.second.shape, pair.first.shape)  # E: dagpu-use-after-move


def given_to_a_dataclass() -> None:
    t = vector()
    pair = Pair(t, vector())
    eat(pair.first)
    print(t.shape)  # E: dagpu-use-after-move


def given_to_a_dataclass_twice() -> None:
    t = vector()
    pair = Pair(t, t)  # E: dagpu-use-after-move
    eat(pair.first)
    eat(pair.second)


def given_to_a_named_tuple() -> None:
    t = vector()
    named = Named("weights", t)
    eat(named.tensor)
    print(t.shape)  # E: dagpu-use-after-move


def put_into_a_list() -> None:
    t = vector()
    tensors = [t]
    eat(tensors[0])
    print(t.shape)  # E: dagpu-use-after-move


def put_into_a_list_twice() -> None:
    t = vector()
    tensors = [t, t]  # E: dagpu-use-after-move
    for tensor in tensors:
        eat(tensor)


def appended() -> None:
    t = vector()
    tensors: list[Tensor[f32]] = []
    tensors.append(t)
    eat(tensors.pop())
    print(t.shape)  # E: dagpu-use-after-move


def put_into_a_dictionary() -> None:
    t = vector()
    weights = {"hidden": t}
    eat(weights["hidden"])
    print(t.shape)  # E: dagpu-use-after-move


def set_in_a_dictionary() -> None:
    t = vector()
    weights: dict[str, Tensor[f32]] = {}
    weights["hidden"] = t
    eat(weights.pop("hidden"))
    print(t.shape)  # E: dagpu-use-after-move


def put_into_a_tuple() -> None:
    t = vector()
    pair = (t, vector())
    eat(pair[0])
    print(t.shape)  # E: dagpu-use-after-move


def unpacked() -> None:
    pair = (vector(), vector())
    a, b = pair
    eat(a)
    print(b.shape, a.shape)  # E: dagpu-use-after-move


def element_of_a_tuple_twice() -> None:
    pair = (vector(), vector())
    eat(pair[1])
    eat(pair[0])
    eat(pair[0])  # E: dagpu-use-after-move


def field_of_a_named_tuple_twice() -> None:
    named = Named("weights", vector())
    eat(named.tensor)
    eat(named.tensor)  # E: dagpu-use-after-move


def captured_by_a_pattern() -> None:
    pair = Pair(vector(), vector())
    match pair:
        case Pair(first=a):
            eat(a)
            eat(a)  # E: dagpu-use-after-move


def both_arguments_of_a_call() -> None:
    def use(a: Tensor[f32], b: Tensor[f32]) -> None:
        eat(a)
        eat(b)

    t = vector()
    use(t, t)  # E: dagpu-use-after-move


def unpacked_with_a_star() -> None:
    a, *rest = [vector(), vector(), vector()]
    eat(a)
    print(len(rest), a.shape)  # E: dagpu-use-after-move


def passed_with_a_star() -> None:
    def use(*tensors: Tensor[f32]) -> None:
        for tensor in tensors:
            eat(tensor)

    a, b = vector(), vector()
    use(a, b)
    print(b.shape)  # E: dagpu-use-after-move


def passed_with_two_stars() -> None:
    def use(**tensors: Tensor[f32]) -> None:
        for tensor in tensors.values():
            eat(tensor)

    t = vector()
    use(weights=t)
    print(t.shape)  # E: dagpu-use-after-move


def swapped() -> None:
    a, b = vector(), vector()
    a, b = b, a
    eat(a)
    print(b.shape, a.shape)  # E: dagpu-use-after-move


def swapped_after_a_move() -> None:
    a, b = vector(), vector()
    eat(a)
    a, b = b, a  # E: dagpu-use-after-move
    print(a.shape, b.shape)


def overwritten_by_itself() -> None:
    t = vector()
    eat(t)
    t = t.reshape((2, 4))  # E: dagpu-use-after-move
    print(t.shape)


def overwritten_on_one_path() -> None:
    t = vector()
    eat(t)
    if no():
        t = vector()
    t.borrow()  # E: dagpu-use-after-move


def returned_in_a_list() -> None:
    def tensors() -> list[Tensor[f32]]:
        made = [vector()]
        t = made[0]
        eat(t)
        return [t]  # E: dagpu-use-after-move

    print(tensors()[0].shape)


def returned_after_a_move() -> None:
    def make() -> Tensor[f32]:
        t = vector()
        eat(t)
        return t  # E: dagpu-use-after-move

    print(make().shape)


def put_into_a_conditional_pair() -> None:
    a, b = vector(), vector()
    pair = (a, b) if yes() else (b, a)
    eat(pair[0])
    print(a.shape)  # E: dagpu-use-after-move


def augmented_list() -> None:
    t = vector()
    tensors: list[Tensor[f32]] = []
    tensors += [t]
    eat(tensors.pop())
    print(t.shape)  # E: dagpu-use-after-move


def partition_of_an_attribute() -> None:
    class Buffers:
        def __init__(self) -> None:
            self.out: Partition[Tensor[f32]] = vector().partition((4,))

    buffers = Buffers()
    saxpy(buffers.out, 1.0, vector()).sync()
    print(buffers.out.grid)  # E: dagpu-use-after-move
