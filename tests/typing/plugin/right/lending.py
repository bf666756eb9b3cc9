"""Functions that borrow, write, build and give parts; loans that end before the next begins."""

from numpy.typing import NDArray

from dagpu import Borrowed, DeviceOp, Partition, Tensor, TensorMut, TensorRef, dup, f32, zeros, zip_ops
from tests.typing.plugin.kernels import eat, saxpy, scale, total, vector


def helper_that_borrows() -> None:
    def norm(x: TensorRef[f32]) -> float:
        return float((x.to_host().sync() ** 2).sum())

    t = vector()
    print(norm(t.borrow()))
    scale(t.borrow_mut().partition((4,)), 2.0).sync()
    print(norm(t.borrow()), norm(t.view((2, 4))))
    eat(t)


def helper_that_writes() -> None:
    def double(y: TensorMut[f32]) -> None:
        scale(y.partition((4,)), 2.0).sync()

    def increase(p: Partition[TensorMut[f32]], x: TensorRef[f32]) -> None:
        saxpy(p, 1.0, x).sync()

    y, x = vector(), vector()
    double(y.borrow_mut())
    double(y.borrow_mut())
    increase(y.borrow_mut().partition((4,)), x.borrow())
    eat(y)


def helper_that_builds() -> None:
    def step(y: TensorMut[f32], x: TensorRef[f32]) -> DeviceOp[object, Borrowed]:
        return saxpy(y.partition((4,)), 1.0, x)

    y, x = vector(), vector()
    for _ in range(2):
        step(y.borrow_mut(), x.borrow()).sync()
        step(x.borrow_mut(), y.borrow()).sync()


def helper_that_gives_a_part() -> None:
    def front(x: TensorRef[f32]) -> TensorRef[f32]:
        return x.slice(slice(0, 4))

    t = vector()
    total(front(t.borrow()))
    eat(t)


def helper_that_gives_a_number() -> None:
    def size(x: TensorRef[f32]) -> int:
        return x.size

    t = vector()
    n = size(t.borrow())
    eat(t)
    print(n)


def helper_that_gives_a_copy() -> None:
    def copy(x: TensorRef[f32]) -> Tensor[f32]:
        return dup(x).sync()

    t = vector()
    other = copy(t.borrow())
    eat(t)
    eat(other)


def op_is_run_before_the_next_is_built() -> None:
    y, x = vector(), vector()
    op = saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow())
    op.sync()
    op = saxpy(y.borrow_mut().partition((4,)), 2.0, x.borrow())
    op.sync()
    eat(y)


def ping_pong() -> None:
    a, b = vector(), vector()
    for number in range(4):
        target, source = (a, b) if number % 2 else (b, a)
        saxpy(target.borrow_mut().partition((4,)), 1.0, source.borrow()).sync()
        if number % 2:
            a, b = target, source
        else:
            b, a = target, source
    print(total(a.borrow()), total(b.borrow()))


def first_come_first_kept() -> None:
    cache: dict[str, Tensor[f32]] = {}

    def get(name: str) -> TensorRef[f32]:
        if name not in cache:
            cache[name] = vector()
        return cache[name].borrow()

    print(total(get("a")), total(get("a")), total(get("b")))


def read_and_then_written_by_condition() -> None:
    y = vector()
    if total(y.borrow()) > 1:
        scale(y.borrow_mut().partition((4,)), 0.5).sync()
    while total(y.borrow()) > 1:
        scale(y.borrow_mut().partition((4,)), 0.5).sync()
    eat(y)


async def awaited_one_after_the_other() -> None:
    y, x = await zip_ops(zeros((8,)), zeros((8,)))
    await saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow())
    array: NDArray[f32] = await y.borrow().to_host()
    await saxpy(x.borrow_mut().partition((4,)), 1.0, y.borrow())
    print(array)
    await y.to_host()


def in_a_closure_of_the_same_run() -> None:
    y = vector()
    zeros((8,)).then(lambda x: saxpy(y.borrow_mut().partition((4,)), 1.0, x)).sync()
    total(y.borrow())


def borrow_of_a_borrowed_parameter() -> None:
    def deep(x: TensorRef[f32]) -> float:
        inner = x.reshape((2, 4)).slice(slice(0, 1))
        return total(inner) + total(x)

    t = vector()
    print(deep(t.borrow()))
