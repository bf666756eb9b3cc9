"""Changes that a call may make to variables, the time at which arguments move, and attributes computed again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import trio

from dagpu import SharedTensor, Tensor, TensorRef, f32
from tests.typing.plugin.kernels import async_eat, async_vector, eat, no, saxpy, scale, total, vector, yes


class Model:
    """Weights that its methods make anew."""

    def __init__(self) -> None:
        self.weights = vector()
        self.made = 0

    @property
    def fresh(self) -> Tensor[f32]:
        return vector()

    @cached_property
    def table(self) -> SharedTensor[f32]:
        return vector().share()

    def refill(self) -> None:
        self.weights = vector()

    def cycle(self) -> None:
        eat(self.weights)
        self.refill()
        print(self.weights.shape)

    def cycle_in_a_loop(self) -> None:
        for _ in range(2):
            eat(self.weights)
            self.refill()

    def cycle_on_failure(self) -> None:
        try:
            eat(self.weights)
        finally:
            self.refill()
        print(self.weights.shape)

    async def load(self) -> None:
        self.weights = await async_vector()

    async def cycle_in_a_task(self) -> None:
        await async_eat(self.weights)
        await self.load()
        print(self.weights.shape)

    def take(self) -> Tensor[f32]:
        try:
            return self.weights
        finally:
            self.weights = vector()


def method_makes_it_anew() -> None:
    Model().cycle()


def method_makes_it_anew_in_each_round() -> None:
    Model().cycle_in_a_loop()


def method_makes_it_anew_at_last() -> None:
    Model().cycle_on_failure()


def method_makes_it_anew_in_a_task() -> None:
    trio.run(Model().cycle_in_a_task)


def method_of_a_local_makes_it_anew() -> None:
    model = Model()
    eat(model.weights)
    model.refill()
    print(model.weights.shape)


def function_makes_it_anew() -> None:
    def refill(model: Model) -> None:
        model.weights = vector()

    model = Model()
    eat(model.weights)
    refill(model)
    print(model.weights.shape)


def taken_and_replaced() -> None:
    model = Model()
    eat(model.take())
    eat(model.take())


def nonlocal_is_made_anew_by_a_call() -> None:
    t = vector()

    def renew() -> None:
        nonlocal t
        t = vector()

    eat(t)
    renew()
    print(t.shape)


current = vector()


def renew_current() -> None:
    """Makes the module's tensor anew."""
    global current
    current = vector()


def global_is_made_anew_by_a_call() -> None:
    eat(current)
    renew_current()
    print(current.shape)


def property_gives_another_each_time() -> None:
    model = Model()
    eat(model.fresh)
    eat(model.fresh)
    print(model.table.shape, model.table.to_host().sync())


def call_gives_another_each_time() -> None:
    eat(vector())
    eat(vector())


def read_beside_the_move_in_a_return() -> None:
    def make() -> tuple[Tensor[f32], int]:
        t = vector()
        return t, t.size

    t, size = make()
    print(t.shape, size)


def read_beside_the_move_in_a_pair() -> None:
    t = vector()
    pair = (t, t.ndim)
    print(pair)


def read_beside_the_move_in_a_call() -> None:
    def use(t: Tensor[f32], size: int) -> None:
        print(t.shape, size)

    t = vector()
    use(t, t.size)


def read_beside_the_move_in_a_kernel_call() -> None:
    y, x = vector(), vector()
    saxpy(y.partition((4,)), 1.0 / x.size, x).sync()


def read_in_the_argument_of_its_own_method() -> None:
    t = vector()
    p = t.partition((t.shape[0] // 2,))
    print(p.grid)
    u = vector()
    u = u.reshape((u.size // 4, 4))
    print(u.shape)


class Named(NamedTuple):
    """A tensor with its size."""

    tensor: Tensor[f32]
    size: int


@dataclass(frozen=True)
class Batch:
    """A tensor and where it came from."""

    tensor: Tensor[f32]
    source: str


def read_beside_the_move_in_a_constructor() -> None:
    t = vector()
    named = Named(t, t.size)
    print(named.size, named._replace(size=1).size)


def dataclass_with_another_field() -> None:
    batch = Batch(vector(), "here")
    batch = replace(batch, source="there")
    eat(batch.tensor)


def dataclass_by_a_pattern() -> None:
    match Batch(vector(), "here"):
        case Batch(tensor=t, source="here"):
            eat(t)
        case Batch(source=other):
            print(other)


def reader_outlives_the_name() -> None:
    t = vector()
    read = t.borrow()
    t = vector()
    scale(t.borrow_mut().partition((4,)), 2.0).sync()
    print(total(read), total(t.borrow()))


def reader_outlives_a_deleted_name() -> None:
    t = vector()
    read = t.borrow()
    del t
    print(total(read))


def neighbours_in_a_list() -> None:
    tensors = [vector() for _ in range(4)]
    for i in range(3):
        saxpy(tensors[i + 1].borrow_mut().partition((4,)), 1.0, tensors[i].borrow()).sync()
    saxpy(tensors[0].borrow_mut().partition((4,)), 1.0, tensors[1].borrow()).sync()
    print([total(t.borrow()) for t in tensors])


def neighbours_in_a_dictionary() -> None:
    tensors = {"a": vector(), "b": vector()}
    saxpy(tensors["a"].borrow_mut().partition((4,)), 1.0, tensors["b"].borrow()).sync()
    for name, other in (("a", "b"), ("b", "a")):
        saxpy(tensors[name].borrow_mut().partition((4,)), 1.0, tensors[other].borrow()).sync()


def attributes_of_list_elements() -> None:
    models = [Model(), Model()]
    saxpy(models[0].weights.borrow_mut().partition((4,)), 1.0, models[1].weights.borrow()).sync()
    for model in models:
        eat(model.weights)


def dictionary_get() -> None:
    tensors = {"a": vector()}
    t = tensors.get("a")
    if t is not None:
        eat(t)
    other = tensors.get("b")
    if other is None:
        other = vector()
    eat(other)


def star_call() -> None:
    def use(a: Tensor[f32], b: Tensor[f32]) -> int:
        return eat(a).size + eat(b).size

    pair = (vector(), vector())
    print(use(*pair))


def endless_until_it_returns() -> None:
    t = vector()
    while True:
        if yes():
            eat(t)
            return
        print(t.shape)


def walrus_in_a_comprehension() -> None:
    sizes = [t.size for _ in range(3) if (t := vector()).ndim == 1]
    print(sizes)


def default_of_a_lambda() -> None:
    t = vector()
    later: list[Callable[[], SharedTensor[f32]]] = []
    later.append(lambda: eat(t))
    print([use().shape for use in later])


def flag_guards_both() -> None:
    t = vector()
    if no():
        eat(t)
        t = vector()
    read: TensorRef[f32] = t.borrow()
    print(total(read))
