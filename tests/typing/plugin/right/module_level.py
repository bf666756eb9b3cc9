"""Tensors of a module: made, lent, moved and made anew while it is imported, and used by its functions."""

from typing import Final

from dagpu import SharedTensor, Tensor, TensorRef, f32, ones, value, zeros, zip_ops
from tests.typing.plugin.kernels import add, eat, saxpy, total, vector, yes

weights = vector()
for rate in (0.5, 0.25):
    saxpy(weights.borrow_mut().partition((4,)), rate, ones((8,))).sync()
print(total(weights.borrow()), weights.shape)

table: Final[SharedTensor[f32]] = vector().share()
add(zeros((8,)).partition((4,)), table, table).sync()

temporary = vector()
eat(temporary)
temporary = vector()
print(temporary.shape)
del temporary

if yes():
    chosen = vector()
else:
    chosen = vector().reshape((2, 4))
eat(chosen)

first, second = zip_ops(zeros((8,)), ones((8,))).sync()
first, second = second, first
eat(first)

try:
    loaded = vector()
except RuntimeError:
    loaded = zeros((8,)).sync()
print(loaded.shape)

layers = [vector() for _ in range(3)]
sums = [total(layer.borrow()) for layer in layers]

model: Tensor[f32] | None = None


class Settings:
    """A class body runs when it is met."""

    table = vector()
    rank = table.ndim
    sums = total(table.borrow())


def get_model() -> TensorRef[f32]:
    """Made at its first use."""
    global model
    if model is None:
        model = vector()
    return model.borrow()


def lends_a_global() -> None:
    print(total(get_model()), total(get_model()))


def replaces_a_global() -> None:
    global weights
    p, *_ = saxpy(weights.partition((4,)), 1.0, table).sync()
    weights = p.unpartition()
    print(weights.shape)


def spends_a_global_and_makes_it_anew() -> None:
    global loaded
    eat(loaded)
    loaded = vector()


def reads_globals() -> None:
    print(weights.shape, table.shape, total(weights.borrow()), Settings.rank, Settings.table.shape)


def hides_a_global() -> None:
    weights = vector()
    eat(weights)


def reads_a_global_in_a_closure() -> None:
    print(value(1).map(lambda number: number + table.ndim + weights.ndim).sync())


def lends_the_second() -> float:
    return total(second.borrow())


layers = [vector() for _ in range(3)]
print([layer.shape for layer in layers], [total(layer.borrow()) for layer in layers])
layers = [layer.reshape((2, 4)) for layer in layers]
shared = {number: layer.share() for number, layer in enumerate(layers)}
print([layer.shape for layer in shared.values()])
print([eat(fresh) for fresh in (vector(), vector())], sum(eat(vector()).ndim for _ in range(2)))
