"""What a called function does to its parameters: it writes one that is lent, calls one twice, or moves one of any
type."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from dagpu import SharedTensor, Tensor, TensorRef, empty, f32, ones, zeros
from tests.typing.plugin.kernels import add, async_vector, eat, total, vector, yes

T = TypeVar("T")


def step(y: Tensor[f32], g: TensorRef[f32]) -> None:
    """Write y."""
    add(y.borrow_mut().partition((4,)), g, ones((8,))).sync()


def step_inside(g: TensorRef[f32], y: Tensor[f32]) -> None:
    """Write y, in a function that this one calls."""
    step(y, g)


async def async_step(y: Tensor[f32], g: TensorRef[f32]) -> None:
    """Write y."""
    await add(y.borrow_mut().partition((4,)), g, ones((8,)))


def clear(y: Tensor[f32]) -> None:
    """Write y."""
    add(y.borrow_mut().partition((4,)), ones((8,)), ones((8,))).sync()


class Holder:
    """A tensor."""

    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t

    def set_from(self, r: TensorRef[f32]) -> None:
        """Write the tensor."""
        add(self.t.borrow_mut().partition((4,)), r, ones((8,))).sync()


def twice(f: Callable[[], object]) -> None:
    """Call f two times."""
    f()
    f()


def in_rounds(f: Callable[[], object]) -> None:
    """Call f several times."""
    for _ in range(2):
        f()


def twice_inside(f: Callable[[], object]) -> None:
    """Let another function call f two times."""
    twice(f)


def eat_any(t: Any) -> None:
    """Move it."""
    eat(t)


def eat_any_inside(t: Any) -> None:
    """Move it in a function that this one calls."""
    eat_any(t)


def share_any(t: Any) -> None:
    """Move it by a method."""
    t.share()


def into_a_kernel(t: Any) -> None:
    """Move it into a kernel."""
    add(empty((8,)).partition((4,)), t, ones((8,))).sync()


def eat_object(t: object) -> None:
    """Move it if it is a tensor."""
    if isinstance(t, Tensor):
        eat(t)


def eat_generic(t: T) -> None:
    """Move it if it is a tensor."""
    if isinstance(t, Tensor):
        eat(t)


def shared(n: int, x: Tensor[f32]) -> SharedTensor[f32]:
    """Move x."""
    return x.share()


# ---- functions that write


def argument_lent() -> None:
    y = vector()
    step(y, y.borrow())  # E: dagpu-conflicting-borrow


def argument_lent_by_name() -> None:
    y = vector()
    step(g=y.borrow(), y=y)  # E: dagpu-conflicting-borrow


def lent_to_a_function_that_calls_it() -> None:
    y = vector()
    step_inside(y.borrow(), y)  # E: dagpu-conflicting-borrow


def lent_before() -> None:  # R: runs
    y = vector()
    r = y.borrow()
    clear(y)  # E: dagpu-conflicting-borrow
    total(r)


def attribute_lent() -> None:
    b = Holder(vector())
    b.set_from(b.t.borrow())  # E: dagpu-conflicting-borrow


async def in_a_coroutine() -> None:
    y = await async_vector()
    await async_step(y, y.borrow())  # E: dagpu-conflicting-borrow


# ---- functions that call a function twice


def passed_on() -> None:
    x = vector()
    twice(lambda: eat(x))  # E: dagpu-use-after-move


def passed_on_to_a_loop() -> None:
    x = vector()
    in_rounds(lambda: eat(x))  # E: dagpu-use-after-move


def passed_on_to_a_function_that_passes_it_on() -> None:
    x = vector()

    def once() -> None:
        eat(x)

    twice_inside(once)  # E: dagpu-use-after-move


def bound_by_partial() -> None:
    twice(partial(eat, vector()))  # E: dagpu-use-after-move


# ---- functions of any type


def by_any() -> None:
    x = vector()
    eat_any(x)
    print(x.shape)  # E: dagpu-use-after-move


def by_any_inside() -> None:
    x = vector()
    eat_any_inside(x)
    print(x.shape)  # E: dagpu-use-after-move


def by_a_method() -> None:
    x = vector()
    share_any(x)
    print(x.shape)  # E: dagpu-use-after-move


def by_a_kernel() -> None:
    x = vector()
    into_a_kernel(x)
    print(x.shape)  # E: dagpu-use-after-move


def by_object() -> None:
    x = vector()
    eat_object(x)
    print(x.shape)  # E: dagpu-use-after-move


def by_a_type_variable() -> None:
    x = vector()
    eat_generic(x)
    print(x.shape)  # E: dagpu-use-after-move


# ---- functions that partial makes


def passed_at_the_call() -> None:
    x = vector()
    finish = partial(shared, 1)
    finish(x)
    print(x.shape)  # E: dagpu-use-after-move


def passed_at_once() -> None:
    x = vector()
    partial(shared, n=1)(x=x)
    print(x.shape)  # E: dagpu-use-after-move


def passed_on_one_path() -> None:
    x = vector()
    finish = partial(shared, 1)
    if yes():
        finish(x)
    print(x.shape, zeros((2,)).sync())  # E: dagpu-use-after-move


def look_at(y: Tensor[f32]) -> None:
    """Read y."""
    print(total(y.borrow()))


def read_while_lent_for_writing(y: Tensor[f32]) -> None:
    m = y.borrow_mut()
    look_at(y)  # E: dagpu-conflicting-borrow
    print(m.shape)


def write_by_a_partial(y: Tensor[f32]) -> None:
    finish = partial(step, g=y.borrow())
    finish(y)  # E: dagpu-conflicting-borrow


def write_by_the_partial_of_a_method(b: Holder) -> None:
    finish = partial(b.set_from)
    finish(b.t.borrow())  # E: dagpu-conflicting-borrow
