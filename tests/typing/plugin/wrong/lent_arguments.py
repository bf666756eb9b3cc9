"""A closure borrows its own argument, which ends with its call, and returns the borrow."""

# ruff: noqa: B008, E731, PLC3002, RET504  # the forms of lambdas are the subject

from collections.abc import Callable

from dagpu import Tensor, TensorRef, dup, f32
from tests.typing.plugin.kernels import total, vector


def closure_argument_lambda() -> None:
    lend: Callable[[Tensor[f32]], TensorRef[f32]] = lambda t: t.borrow()  # E: dagpu-borrow-escape
    print(total(lend(vector())))


def closure_argument_def() -> None:
    def lend(t: Tensor[f32]) -> TensorRef[f32]:
        return t.borrow()  # E: dagpu-borrow-escape

    print(total(lend(vector())))


def closure_argument_through_name() -> None:
    def lend(t: Tensor[f32]) -> TensorRef[f32]:
        r = t.borrow()
        return r  # E: dagpu-borrow-escape

    print(total(lend(vector())))


def immediately_called() -> None:
    print(total((lambda t: t.borrow())(vector())))  # E: dagpu-borrow-escape


def escapes_in_list() -> None:
    make: Callable[[Tensor[f32]], list[TensorRef[f32]]] = lambda t: [t.borrow()]  # E: dagpu-borrow-escape
    print(len(make(vector())))


def escape_in_tuple() -> None:
    def f(t: Tensor[f32]) -> tuple[TensorRef[f32], int]:
        return t.borrow(), 1  # E: dagpu-borrow-escape

    f(vector())


def default_argument() -> None:
    def f(t: Tensor[f32] = vector()) -> TensorRef[f32]:
        return t.borrow()  # E: dagpu-borrow-escape

    print(total(f()))


def op_that_borrows() -> None:
    f: Callable[[Tensor[f32]], object] = lambda t: dup(t.borrow())  # E: dagpu-borrow-escape
    print(f(vector()))


def lambda_that_is_returned() -> None:
    def lender() -> Callable[[Tensor[f32]], TensorRef[f32]]:
        return lambda t: t.borrow()  # E: dagpu-borrow-escape

    print(total(lender()(vector())))


def lambda_in_a_table() -> None:
    table: dict[str, Callable[[Tensor[f32]], TensorRef[f32]]] = {
        "whole": lambda t: t.borrow(),  # E: dagpu-borrow-escape
        "rows": lambda t: t.slice(slice(0, 4)),  # E: dagpu-borrow-escape
    }
    print(total(table["whole"](vector())))
