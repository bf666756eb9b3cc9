"""A tensor is used after a function under `contextmanager` has taken it, or moves while one lends it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import async_vector, eat, vector


@contextmanager
def lent(t: Tensor[f32]) -> Iterator[TensorRef[f32]]:
    yield t.borrow()


@contextmanager
def logged(t: Tensor[f32]) -> Iterator[None]:
    print(t.shape)
    yield


@asynccontextmanager
async def lent_async(t: Tensor[f32]) -> AsyncIterator[TensorRef[f32]]:
    yield t.borrow()


@contextmanager
def spent(t: Tensor[f32]) -> Iterator[None]:
    eat(t)
    yield


@contextmanager
def given(t: Tensor[f32]) -> Iterator[Tensor[f32]]:
    yield t


class Holder:
    @contextmanager
    def lent(self, t: Tensor[f32]) -> Iterator[TensorRef[f32]]:
        yield t.borrow()


def spends() -> None:
    x = vector()
    with spent(x):
        print(x.shape)  # E: dagpu-use-after-move


def moved_while_lent() -> None:
    x = vector()
    with lent(x) as r:
        eat(x)  # E: dagpu-conflicting-borrow
        print(r.shape)


def gives() -> None:
    x = vector()
    with given(x) as y:
        eat(y)
    print(x.shape)  # E: dagpu-use-after-move


async def moved_while_lent_and_waited() -> None:
    x = await async_vector()
    async with lent_async(x) as r:
        eat(x)  # E: dagpu-conflicting-borrow
        print(r.shape)


def moved_inside() -> None:
    x = vector()
    with logged(x):
        eat(x)
    print(x.shape)  # E: dagpu-use-after-move


def callback_later() -> None:
    t = vector()
    with ExitStack() as stack:
        stack.callback(eat, t)
        print(stack)
    print(t.shape)  # E: dagpu-use-after-move


@contextmanager
def spent_at_the_end(t: Tensor[f32]) -> Iterator[None]:
    try:
        yield
    finally:
        t.share()


def used_after_the_end() -> None:
    t = vector()
    with spent_at_the_end(t):
        print(t.shape)
    print(t.shape)  # E: dagpu-use-after-move
