"""Lambdas and nested functions capture handles; what they move is gone when they have been called."""

import functools
from collections.abc import Callable
from functools import partial

from dagpu import DeviceOp, SharedTensor, Tensor, TensorRef, dup, f32, value, zeros
from tests.typing.plugin.kernels import add, eat, saxpy, total, vector


def lambda_reads_what_is_moved() -> None:
    t = vector()
    eat(t)
    value(1).map(lambda number: number + t.ndim).sync()  # E: dagpu-use-after-move


def lambda_moves() -> None:
    t = vector()
    shared = value(1).map(lambda _: eat(t)).sync()
    print(shared.shape, t.shape)  # E: dagpu-use-after-move


def lambda_moves_what_is_moved() -> None:
    t = vector()
    eat(t)
    value(1).map(lambda _: eat(t)).sync()  # E: dagpu-use-after-move


def two_lambdas_move() -> None:
    t = vector()
    first = value(1).map(lambda _: eat(t))
    second = value(1).map(lambda _: eat(t))  # E: dagpu-use-after-move
    first.sync()
    second.sync()


def lambda_in_then_moves() -> None:
    t = vector()
    zeros((8,)).partition((4,)).then(lambda p: saxpy(p, 1.0, t)).sync()
    print(t.shape)  # E: dagpu-use-after-move


def lambda_moves_its_parameter_twice() -> None:
    zeros((8,)).map(lambda t: (t.share(), t.share())).sync()  # E: dagpu-use-after-move


def lambda_moves_and_reads_its_parameter() -> None:
    zeros((8,)).map(lambda t: (t.partition((4,)), t.shape)).sync()  # E: dagpu-use-after-move


def then_uses_its_parameter_twice() -> None:
    zeros((8,)).then(lambda t: add(zeros((8,)).partition((4,)), t, t)).sync()  # E: dagpu-use-after-move


def then_copies_and_reads() -> None:
    zeros((8,)).then(lambda t: dup(t).map(lambda copy: (copy, t.shape))).sync()  # E: dagpu-use-after-move


def inspect_moves() -> None:
    t = vector()
    value(1).inspect(lambda _: t.share()).sync()
    total(t.borrow())  # E: dagpu-use-after-move


def host_map_moves() -> None:
    t = vector()
    value(1).host_map(lambda _: eat(t)).sync()
    print(t.shape)  # E: dagpu-use-after-move


def function_given_to_then() -> None:
    t = vector()

    def use(number: int) -> DeviceOp[Tensor[f32]]:
        print(number)
        return dup(t)

    value(1).then(use).sync()
    print(t.shape)  # E: dagpu-use-after-move


def function_moves_its_own_parameter_twice() -> None:
    def use(t: Tensor[f32]) -> tuple[SharedTensor[f32], SharedTensor[f32]]:
        return t.share(), t.share()  # E: dagpu-use-after-move

    zeros((8,)).map(use).sync()


def nested_function_reads_what_is_moved() -> None:
    t = vector()
    eat(t)

    def look() -> int:
        return t.ndim  # E: dagpu-use-after-move

    print(look())


def nested_function_moves() -> None:
    t = vector()

    def finish() -> None:
        eat(t)

    finish()
    print(t.shape)  # E: dagpu-use-after-move


def nested_function_is_called_twice() -> None:
    t = vector()

    def finish() -> None:
        eat(t)

    finish()
    finish()  # E: dagpu-use-after-move


def nested_function_is_called_in_a_loop() -> None:
    t = vector()

    def finish() -> None:
        eat(t)

    for _ in range(2):
        finish()  # E: dagpu-use-after-move


def lambda_in_a_variable_is_called_twice() -> None:
    t = vector()
    finish: Callable[[], object] = lambda: eat(t)  # noqa: E731
    finish()
    finish()  # E: dagpu-use-after-move


def lambda_in_a_variable_moves() -> None:
    t = vector()
    finish: Callable[[], object] = lambda: eat(t)  # noqa: E731
    finish()
    t.borrow()  # E: dagpu-use-after-move


def moved_between_definition_and_call() -> None:
    t = vector()

    def look() -> int:
        return t.ndim

    eat(t)
    print(look())  # E: dagpu-use-after-move


def moved_by_its_own_statements() -> None:
    def work() -> None:
        t = vector()
        eat(t)
        print(t.shape)  # E: dagpu-use-after-move

    work()


def moved_by_a_parameter_of_a_lambda() -> None:
    twice: Callable[[Tensor[f32]], object] = lambda t: (eat(t), t.ndim)  # noqa: E731  # E: dagpu-use-after-move
    twice(vector())


def nonlocal_is_moved() -> None:
    t = vector()

    def finish() -> None:
        nonlocal t
        eat(t)
        print(t.shape)  # E: dagpu-use-after-move

    finish()


def nonlocal_is_used_and_made_anew() -> None:
    t = vector()

    def advance() -> None:
        nonlocal t
        t = t.reshape((2, 4))

    eat(t)
    advance()  # E: dagpu-use-after-move


def lambda_in_a_loop() -> None:
    t = vector()
    for _ in range(2):
        value(1).map(lambda _: eat(t)).sync()  # E: dagpu-use-after-move


def bound_by_partial() -> None:
    t = vector()
    later = partial(eat, t)
    later()
    print(t.shape)  # E: dagpu-use-after-move


def given_as_a_default() -> None:
    t = vector()

    def finish(mine: Tensor[f32] = t) -> None:
        eat(mine)

    finish()
    print(t.shape)  # E: dagpu-use-after-move


def in_a_lambda_inside_a_lambda() -> None:
    t = vector()
    value(1).then(lambda a: value(2).map(lambda b: (a, b, eat(t)))).sync()
    print(t.shape)  # E: dagpu-use-after-move


def map_over_a_list() -> None:
    t = vector()
    print(list(map(lambda _: eat(t), range(2))))  # noqa: C417 # E: dagpu-use-after-move
    print(t.shape)


def reduce_over_a_list() -> None:
    t = vector()
    print(functools.reduce(lambda n, _: n + eat(t).size, range(2), 0))  # E: dagpu-use-after-move


def key_of_a_sort() -> None:
    t = vector()
    numbers = [2, 1]
    numbers.sort(key=lambda _: eat(t).size)  # E: dagpu-use-after-move


def named_function_over_a_list() -> None:
    t = vector()

    def take(n: int) -> int:
        return n + eat(t).size

    print(list(map(take, range(2))))  # E: dagpu-use-after-move


def sorted_by_a_moved_handle() -> None:
    t = vector()
    eat(t)
    print(sorted([2, 1], key=lambda number: number * t.ndim))  # E: dagpu-use-after-move


def called_through_its_method() -> None:
    t = vector()
    share = t.share
    share()
    print(t.shape)  # E: dagpu-use-after-move


def moved_before_a_callback() -> None:
    def read(t: Tensor[f32], how: Callable[[TensorRef[f32]], float]) -> float:
        eat(t)
        return how(t.borrow())  # E: dagpu-use-after-move

    read(vector(), total)
