"""What `lend` and `lend_mut` lend for a block is used after it, or leaves it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceOp, TensorRef, f32, lend, lend_mut, lent_out
from tests.typing.plugin.kernels import eat, scale, vector


def numbers(count: int) -> NDArray[f32]:
    return np.ones(count, f32)


def used_after_its_block() -> None:
    with lend(numbers(8)) as r:
        print(r.shape)
    print(r.shape)  # E: dagpu-use-after-move


def written_after_its_block() -> None:
    with lend_mut(numbers(8)) as w:
        scale(w.partition((4,)), 2.0).sync()
    scale(w.partition((4,)), 2.0).sync()  # E: dagpu-use-after-move


def kept_in_a_list() -> None:
    kept = []
    with lend(numbers(8)) as r:
        kept.append(r)
    print(kept[0].shape)  # E: dagpu-use-after-move


def op_run_after_the_block() -> None:
    with lend(numbers(8)) as r:
        op = r.to_host()
    op.sync()  # E: dagpu-use-after-move


def after_a_break() -> None:
    while True:
        with lend(numbers(8)) as r:
            if r.size:
                break
    print(r.shape)  # E: dagpu-use-after-move


def asked_by_a_closure() -> None:
    with lend(numbers(8)) as r:

        def size() -> int:
            return r.size

    print(size())  # E: dagpu-use-after-move


def returned() -> None:  # R: runs
    def lent(a: NDArray[f32]) -> TensorRef[f32]:
        with lend(a) as r:
            return r  # E: dagpu-borrow-escape

    lent(numbers(8))


def op_returned() -> None:  # R: runs
    def lent(a: NDArray[f32]) -> DeviceOp[Any, Any, Any]:
        with lend(a) as r:
            return r.to_host()  # E: dagpu-borrow-escape

    _ = lent(numbers(8))


def put_into_a_list_of_the_caller() -> None:  # R: runs
    def lent(a: NDArray[f32], into: list[TensorRef[f32]]) -> None:
        with lend(a) as r:
            into.append(r)  # E: dagpu-borrow-escape

    lent(numbers(8), [])


def lent_out_and_moved() -> None:  # R: runs
    t = vector()
    with lent_out(t.borrow()):
        eat(t)  # E: dagpu-conflicting-borrow
