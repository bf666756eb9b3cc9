"""Closures that borrow for as long as they run, or return borrows of what lives longer."""

# ruff: noqa: C417, E731, FURB192  # the forms of lambdas are the subject

from collections.abc import Callable

from dagpu import SharedTensor, Tensor, TensorRef, dup, f32, value, zeros
from tests.typing.plugin.kernels import total, vector


def tensors_of_a_list_are_lent() -> None:
    print(list(map(lambda t: t.borrow(), [vector()])))


def then_keeps_its_tensor() -> None:
    zeros((8,)).then(lambda t: dup(t.borrow())).sync()


def loan_is_passed_through() -> None:
    f: Callable[[TensorRef[f32]], TensorRef[f32]] = lambda r: r.slice(slice(0, 4))
    t = vector()
    print(total(f(t.borrow())))


def number_is_mapped() -> None:
    value(1).map(lambda n: n + 1).sync()


def map_returns_a_borrow() -> None:
    print(zeros((8,)).map(lambda t: t.borrow()).sync())


def sorted_by_a_loan() -> None:
    ts = [vector(), vector()]
    print(sorted(ts, key=lambda t: total(t.borrow()))[0].shape)


def captured_tensor_is_lent() -> None:
    t = vector()
    lend: Callable[[], TensorRef[f32]] = lambda: t.borrow()
    print(total(lend()))


def lambda_returns_the_tensor() -> None:
    same: Callable[[Tensor[f32]], Tensor[f32]] = lambda t: t
    print(same(vector()).shape)


def lambda_returns_a_number() -> None:
    size: Callable[[Tensor[f32]], int] = lambda t: t.borrow().size
    print(size(vector()))


def lambda_shares() -> None:
    share: Callable[[Tensor[f32]], SharedTensor[f32]] = lambda t: t.share()
    print(share(vector()).shape)
