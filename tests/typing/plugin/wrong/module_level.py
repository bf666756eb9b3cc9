"""Mistakes at module level, and with a module's tensors. Importing it fails: it is checked, not run."""

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, no, saxpy, total, vector, yes

weights = vector()
eat(weights)
print(weights.shape)  # E: dagpu-use-after-move

for _ in range(2):
    bias = vector()
    eat(bias)
    print(bias.shape)  # E: dagpu-use-after-move

lent = vector()
reader = lent.borrow()
writer = lent.borrow_mut()  # E: dagpu-conflicting-borrow
print(total(reader), writer.shape)

output = vector()
saxpy(output.partition((4,)), 1.0, vector())  # E: dagpu-unused-op

if yes():
    model = vector()
    eat(model)
    if no():
        model = vector()
    print(model.shape)  # E: dagpu-use-after-move

loaded = vector()
try:
    eat(loaded)
finally:
    print(loaded.shape)  # E: dagpu-use-after-move


class Settings:
    """A class body runs when it is met."""

    table = vector()
    eat(table)
    rank = table.ndim  # E: dagpu-use-after-move


cache: Tensor[f32] = vector()


def spend_twice() -> None:
    """The module's tensor, spent by a function."""
    global cache
    eat(cache)
    print(cache.shape)  # E: dagpu-use-after-move
    cache = vector()


current = vector()


def advance() -> None:
    """Uses the module's tensor, and makes it anew."""
    global current
    current = current.reshape((2, 4))


advance()
eat(current)
advance()  # E: dagpu-use-after-move


eaten = vector()
print([eat(eaten) for _ in range(2)])  # E: dagpu-use-after-move

by_number = vector()
print({n: eat(by_number) for n in range(2)})  # E: dagpu-use-after-move

summed = vector()
print(sum(eat(summed).ndim for _ in range(2)))  # E: dagpu-use-after-move

layers = [vector() for _ in range(3)]
print([eat(layer) for layer in layers])
print([layer.shape for layer in layers])  # E: dagpu-use-after-move

pairs = [(vector(), vector()) for _ in range(2)]
print([eat(x) for x, _ in pairs], [y.shape for _, y in pairs])
print([x.shape for x, _ in pairs])  # E: dagpu-use-after-move

read = vector()
readers = [read.borrow() for _ in range(2)]
eat(read)  # E: dagpu-conflicting-borrow
print([total(r) for r in readers])

written = vector()
writers = [written.borrow_mut() for _ in range(2)]  # E: dagpu-conflicting-borrow
print(writers)
