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
