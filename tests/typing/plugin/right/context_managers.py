"""Functions that `contextmanager` decorates get a tensor as other functions do: one that only lends it leaves it."""

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


def lends() -> None:
    x = vector()
    with lent(x) as r:
        print(r.shape, x.shape)
    print(x.shape)
    eat(x)


def looks() -> None:
    x = vector()
    with logged(x):
        print(x.shape)
    eat(x)


async def lends_and_waits() -> None:
    x = await async_vector()
    async with lent_async(x) as r:
        print(r.shape)
    eat(x)


def method_lends() -> None:
    x = vector()
    with Holder().lent(x) as r:
        print(r.shape)
    eat(x)


def entered_in_a_stack() -> None:
    x = vector()
    with ExitStack() as stack:
        r = stack.enter_context(lent(x))
        print(r.shape, x.shape)


def callback_later() -> None:
    with ExitStack() as stack:
        t = vector()
        print(t.shape)
        stack.callback(eat, t)


@contextmanager
def spent_at_the_end(t: Tensor[f32]) -> Iterator[None]:
    try:
        yield
    finally:
        t.share()


def used_before_the_end() -> None:
    t = vector()
    with spent_at_the_end(t):
        print(t.shape)
