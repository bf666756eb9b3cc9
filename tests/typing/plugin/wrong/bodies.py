"""Functions of this file that take a tensor by value and move it, at once or in the end."""

from collections.abc import Callable, Iterator

from dagpu import DeviceOp, SharedTensor, Tensor, f32
from tests.typing.plugin.kernels import eat, no, saxpy, total, vector, yes

KEPT: list[Tensor[f32]] = []


def spend(t: Tensor[f32]) -> None:
    """Moves it."""
    eat(t)


def spend_on_one_path(t: Tensor[f32]) -> int:
    """Moves it or reads it."""
    if yes():
        eat(t)
        return 0
    return t.size


def spend_in_a_helper(t: Tensor[f32]) -> None:
    """Reads it, and has another function move it."""
    print(t.shape)
    spend(t)


def spend_in_a_closure(t: Tensor[f32]) -> SharedTensor[f32]:
    """Moves it in a function of its own."""

    def finish() -> SharedTensor[f32]:
        return t.share()

    return finish()


def give_back(t: Tensor[f32]) -> Tensor[f32]:
    """Return the same handle, for another name."""
    return t


def keep(t: Tensor[f32]) -> None:
    """Puts it aside."""
    KEPT.append(t)


def build(t: Tensor[f32]) -> DeviceOp[object]:
    """Puts it into an op."""
    return saxpy(t.partition((4,)), 1.0, vector())


class Owner:
    """Takes a tensor over."""

    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t

    def replace(self, t: Tensor[f32]) -> None:
        self.t = t

    def spend(self) -> None:
        eat(self.t)


def windows(t: Tensor[f32]) -> Iterator[float]:
    """Lends parts of it, one after the other, when it is asked."""
    for start in range(0, t.size, 4):
        yield total(t.slice(slice(start, start + 4)))


def drained(t: Tensor[f32]) -> Iterator[int]:
    """Moves it when it is asked."""
    yield t.size
    yield eat(t).size


def by_default(t: Tensor[f32], how: Callable[[Tensor[f32]], object] = eat) -> object:
    """Hands it to whatever it is told."""
    return how(t)


def moved_while_a_generator_lends_it() -> None:
    t = vector()
    parts = windows(t)
    eat(t)  # E: dagpu-conflicting-borrow
    print(next(parts))


def moved_by_a_generator() -> None:
    t = vector()
    print(list(drained(t)))
    print(t.shape)  # E: dagpu-use-after-move


def moved_by_a_callback() -> None:
    t = vector()
    by_default(t)
    print(t.shape)  # E: dagpu-use-after-move


def moved_by_a_function() -> None:
    t = vector()
    spend(t)
    print(t.shape)  # E: dagpu-use-after-move


def moved_by_a_function_on_one_path() -> None:
    t = vector()
    spend_on_one_path(t)
    print(t.shape)  # E: dagpu-use-after-move


def moved_by_a_function_of_a_function() -> None:
    t = vector()
    spend_in_a_helper(t)
    print(t.shape)  # E: dagpu-use-after-move


def moved_by_a_closure_of_a_function() -> None:
    t = vector()
    spend_in_a_closure(t)
    print(t.shape)  # E: dagpu-use-after-move


def moved_under_another_name() -> None:
    t = vector()
    other = give_back(t)
    eat(other)
    print(t.shape)  # E: dagpu-use-after-move


def moved_aside() -> None:
    t = vector()
    keep(t)
    eat(KEPT.pop())
    print(t.shape)  # E: dagpu-use-after-move


def moved_into_an_op() -> None:
    t = vector()
    build(t).sync()
    print(t.shape)  # E: dagpu-use-after-move


def moved_into_an_object() -> None:
    t = vector()
    owner = Owner(t)
    owner.spend()
    print(t.shape)  # E: dagpu-use-after-move


def moved_into_an_object_by_a_method() -> None:
    t, owner = vector(), Owner(vector())
    owner.replace(t)
    owner.spend()
    print(t.shape)  # E: dagpu-use-after-move


def moved_by_a_nested_function() -> None:
    def use(t: Tensor[f32]) -> int:
        return eat(t).size

    t = vector()
    use(t)
    use(t)  # E: dagpu-use-after-move


def moved_by_recursion() -> None:
    def use(t: Tensor[f32], left: int) -> int:
        if left == 0:
            return eat(t).size
        return use(t, left - 1)

    t = vector()
    print(use(t, 2))
    print(t.shape)  # E: dagpu-use-after-move


def moved_by_a_function_below() -> None:
    t = vector()
    defined_below(t)
    print(t.shape)  # E: dagpu-use-after-move


def defined_below(t: Tensor[f32]) -> None:
    """Moves it."""
    if not no():
        t.share()
