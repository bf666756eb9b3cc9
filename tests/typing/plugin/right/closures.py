"""Closures that read what they capture, move what is theirs, or move a capture once."""

from collections.abc import Callable
from functools import partial, reduce

from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    Partition,
    SharedTensor,
    Tensor,
    TensorRef,
    dup,
    f32,
    fill,
    ones,
    value,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import add, eat, no, saxpy, scale, total, vector


def lambda_reads() -> None:
    t = vector()
    print(value(1).map(lambda number: number + t.ndim).sync(), t.shape)
    eat(t)


def lambda_moves_once() -> None:
    t = vector()
    value(1).map(lambda _: eat(t)).sync()


def lambda_moves_its_parameter() -> None:
    zeros((8,)).map(lambda t: t.share()).sync()


def lambda_reads_and_moves_its_parameter() -> None:
    zeros((8,)).map(lambda t: (t.shape, t.partition((4,)))).sync()


def two_lambdas_move_two_tensors() -> None:
    a, b = vector(), vector()
    zip_ops(value(1).map(lambda _: eat(a)), value(2).map(lambda _: eat(b))).sync()


def then_passes_it_on() -> None:
    zeros((8,)).then(lambda t: fill(t, 1.0)).then(lambda t: scale(t.partition((4,)), 2.0)).sync()


def then_borrows_its_parameter() -> None:
    zeros((8,)).then(lambda t: dup(t.borrow())).sync()


def then_uses_and_returns_its_parameter() -> None:
    out, x = zeros((8,)).then(lambda x: saxpy(ones((8,)).partition((4,)), 1.0, x).map(lambda r: (r[0], r[2]))).sync()
    print(out, x)


def then_captures_a_shared_tensor() -> None:
    s = vector().share()
    a = zeros((8,)).partition((4,)).then(lambda p: saxpy(p, 1.0, s))
    b = zeros((8,)).partition((4,)).then(lambda p: saxpy(p, 2.0, s))
    zip_ops(a, b).sync()
    print(s.shape)


def then_captures_a_borrow() -> None:
    x = vector()
    lent = x.borrow()
    zeros((8,)).partition((4,)).then(lambda p: saxpy(p, 1.0, lent)).sync()
    eat(x)


def then_borrows_a_capture() -> None:
    x = vector()
    zeros((8,)).partition((4,)).then(lambda p: saxpy(p, 1.0, x.borrow())).sync()
    zeros((8,)).partition((4,)).then(lambda p: saxpy(p, 1.0, x.borrow())).sync()
    eat(x)


def function_given_to_then() -> None:
    def double(t: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
        return scale(t.partition((4,)), 2.0).first().unpartition()

    zeros((8,)).then(double).then(double).sync()


def function_given_to_map() -> None:
    def halves(t: Tensor[f32]) -> tuple[int, SharedTensor[f32]]:
        return t.size // 2, t.share()

    print(zeros((8,)).map(halves).sync())


def function_with_statements() -> None:
    def step(t: Tensor[f32]) -> DeviceOp[Partition[Tensor[f32]]]:
        shape = t.shape
        p = t.partition((shape[0] // 2,))
        return saxpy(p, 1.0, ones(shape)).first()

    zeros((8,)).then(step).unpartition().sync()


def host_map_reads_an_array() -> None:
    t = vector()
    norm = t.borrow().to_host().host_map(lambda array: float((array**2).sum())).sync()
    print(norm, t.shape)


def inspect_looks_only() -> None:
    shapes: list[tuple[int, ...]] = []
    t = zeros((8,)).inspect(lambda t: shapes.append(t.shape)).sync()
    print(shapes, t.shape)


def nested_function_reads() -> None:
    t = vector()

    def look() -> int:
        return t.ndim

    print(look(), look())
    eat(t)


def nested_function_moves_at_the_end() -> None:
    t = vector()

    def finish() -> None:
        eat(t)

    print(t.shape)
    finish()


def nested_function_is_defined_before_the_tensor() -> None:
    def look() -> tuple[int, ...]:
        return t.shape

    t = vector()
    print(look())
    eat(t)


def nested_function_is_called_last() -> None:
    t = vector()

    def finish() -> None:
        eat(t)

    print(t.shape)
    if no():
        finish()


def nested_function_with_its_own_variable() -> None:
    t = vector()
    eat(t)

    def work() -> int:
        t = vector()
        return t.ndim

    print(work())


def nonlocal_is_made_anew() -> None:
    t = vector()

    def advance() -> None:
        nonlocal t
        t = t.reshape((2, 4))

    advance()
    advance()
    print(t.shape)


def lambda_is_called_in_a_loop() -> None:
    double: Callable[[Tensor[f32]], Tensor[f32]] = lambda t: fill(t, 2.0).sync()  # noqa: E731
    t = vector()
    for _ in range(3):
        t = double(t)
    eat(t)


def function_with_a_default() -> None:
    t = vector()

    def shape_of(shape: tuple[int, ...] = t.shape) -> tuple[int, ...]:
        return shape

    eat(t)
    print(shape_of())


def sorted_by_a_read() -> None:
    t = vector()
    print(sorted([3, 1, 2], key=lambda number: number % t.size))
    eat(t)


def sorted_tensors() -> None:
    tensors = [vector(), vector()]
    tensors.sort(key=lambda t: t.nbytes)
    for t in tensors:
        eat(t)


def bound_by_partial() -> None:
    x = vector().share()
    step = partial(saxpy, a=2.0, x=x)
    print(step, x.shape)


def partial_is_called_once() -> None:
    t = vector()
    later = partial(eat, t)
    later()


def callback_that_takes_a_tensor() -> None:
    def each(count: int, use: Callable[[Tensor[f32]], object]) -> None:
        for _ in range(count):
            use(vector())

    each(2, eat)
    each(2, lambda t: t.share())


def callback_that_borrows() -> None:
    def measured(t: Tensor[f32], how: Callable[[TensorRef[f32]], float]) -> float:
        result = how(t.borrow())
        eat(t)
        return result

    print(measured(vector(), total))


def factory_of_closures() -> None:
    def scaled_by(factor: float) -> Callable[[Tensor[f32]], DeviceOp[Tensor[f32]]]:
        return lambda t: scale(t.partition((4,)), factor).first().unpartition()

    print(zeros((8,)).then(scaled_by(2.0)).then(scaled_by(3.0)).sync().shape)


def composed_functions() -> None:
    steps: list[Callable[[DeviceOp[Tensor[f32]]], DeviceOp[Tensor[f32]]]] = [
        lambda op: op.then(lambda t: fill(t, 1.0)),
        lambda op: scale(op.partition((4,)), 2.0).first().unpartition(),
    ]
    result = reduce(lambda op, step: step(op), steps, zeros((8,)))
    assert (result.to_host().sync() == 2).all()


def decorated() -> None:
    def logged(f: Callable[[Tensor[f32]], DeviceOp[NDArray[f32]]]) -> Callable[[Tensor[f32]], DeviceOp[NDArray[f32]]]:
        def wrapper(t: Tensor[f32]) -> DeviceOp[NDArray[f32]]:
            print(f"download of {t.shape}")
            return f(t)

        return wrapper

    @logged
    def download(t: Tensor[f32]) -> DeviceOp[NDArray[f32]]:
        return t.to_host()

    print(download(vector()).sync())


def deferred_reads() -> None:
    t = vector()
    readers: list[Callable[[], int]] = [lambda: t.ndim, lambda: t.size]
    print([read() for read in readers])
    eat(t)


def recursion() -> None:
    def halve(t: Tensor[f32], depth: int) -> Tensor[f32]:
        if depth == 0:
            return t
        return halve(t.reshape((2**depth, 8 // 2**depth)), depth - 1)

    eat(halve(vector(), 2))


def op_that_borrows_in_a_function() -> None:
    def both(x: TensorRef[f32], y: TensorRef[f32]) -> DeviceOp[NDArray[f32], Borrowed]:
        return add(zeros((8,)).partition((4,)), x, y).first().unpartition().to_host()

    a, b = vector(), vector()
    print(both(a.borrow(), b.borrow()).sync())
    print(both(a.borrow(), a.borrow()).sync())
    eat(a)
    eat(b)


def zip_then_unpacks() -> None:
    def combine(pair: tuple[Tensor[f32], Tensor[f32]]) -> DeviceOp[Tensor[f32]]:
        x, y = pair
        return saxpy(x.partition((4,)), 1.0, y).first().unpartition()

    print(zip_ops(zeros((8,)), ones((8,))).then(combine).sync().shape)


def lambda_in_a_lambda() -> None:
    x = vector()
    value(1).then(lambda a: value(2).map(lambda b: a + b + x.ndim)).sync()
    eat(x)


def map_over_tensors() -> None:
    print([s.shape for s in map(eat, [vector(), vector()])])
    print(list(map(lambda t: t.shape, [vector(), vector()])))  # noqa: C417


def map_that_reads() -> None:
    t = vector()
    print(list(map(lambda n: t.size + n, range(2))))  # noqa: C417
    eat(t)


def key_that_takes_what_it_makes() -> None:
    print(sorted(range(2), key=lambda _: eat(vector()).size))
