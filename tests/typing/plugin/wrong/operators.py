"""Operators and parts of tensors: operands that move, borrows that parts are, and what is run twice."""

from dagpu import Borrowed, DeviceOp, Tensor, TensorRef, f32, fill, ones, zeros, zip_ops
from tests.typing.plugin.kernels import vector


def added_and_used_again() -> None:
    t = vector()
    more = t + 1
    print(more.sync(), t.shape)  # E: dagpu-use-after-move


def squared_and_used_again() -> None:
    t = vector()
    squared = t * t
    print(squared.sync(), t + 1)  # E: dagpu-use-after-move


def negated_and_used_again() -> None:
    t = vector()
    (-t).sync()
    print(t.shape)  # E: dagpu-use-after-move


def compared_and_used_again() -> None:
    t = vector()
    mask = t < ones((8,))
    print(mask.sync(), t.ndim)  # E: dagpu-use-after-move


def an_operand_on_the_right() -> None:
    t = vector()
    rest = 2 - (1 - t)
    print(rest.sync(), t.size)  # E: dagpu-use-after-move


def moved_on_one_path(flag: bool) -> None:
    t = vector()
    if flag:
        (1 / t).sync()
    print(t.shape)  # E: dagpu-use-after-move


def a_part_of_what_is_moved() -> None:
    t = vector()
    part = t[1:]
    t.share()  # E: dagpu-conflicting-borrow
    print(part.shape)


def a_part_is_returned() -> TensorRef[f32]:
    t = vector()
    return t[::2]  # E: dagpu-borrow-escape


def an_op_of_a_borrow_is_returned() -> DeviceOp[Tensor[f32], Borrowed]:
    t = vector()
    return t.borrow() + zeros((8,))  # E: dagpu-borrow-escape


def lent_for_writing_beside_a_part() -> None:
    t = vector()
    part = t[:4]
    mine = t.borrow_mut()  # E: dagpu-conflicting-borrow
    zip_ops(fill(mine, 0.0), part + 1).sync()


def the_op_of_an_operator_runs_twice() -> None:
    op = vector() + 1
    t = vector() * 2
    op.sync()
    held = t.sync()
    more = held - 1
    more.sync()
    more.sync()  # E: dagpu-use-after-move
