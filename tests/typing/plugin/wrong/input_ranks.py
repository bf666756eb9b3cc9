"""Inputs of kernels whose rank is not that of the CUDA declaration."""

from dagpu import zeros
from tests.typing.plugin.kernels import add, gemm, saxpy, vector


def op_of_another_rank() -> None:
    saxpy(zeros((8,)).partition((4,)), 1.0, zeros((4, 4))).sync()  # E: dagpu-input-rank


def vector_for_a_matrix() -> None:
    gemm(zeros((4, 4)).partition((2, 2)), zeros((4,)), zeros((4, 4))).sync()  # E: dagpu-input-rank


def tensor_of_another_rank() -> None:
    x = zeros((2, 4)).sync()
    saxpy(vector().partition((4,)), 1.0, x).sync()  # E: dagpu-input-rank


def loan_of_another_rank() -> None:
    x = zeros((2, 4)).sync()
    saxpy(vector().partition((4,)), 1.0, x.borrow()).sync()  # E: dagpu-input-rank


def shared_tensor_of_another_rank() -> None:
    x = zeros((2, 4)).sync().share()
    add(vector().partition((4,)), x, zeros((8,))).sync()  # E: dagpu-input-rank


def named_argument_of_another_rank() -> None:
    x = zeros((8,)).sync().reshape((2, 4))
    add(vector().partition((4,)), y=x, x=zeros((8,))).sync()  # E: dagpu-input-rank


# ---- of what kernel.new returns


def new_of_another_rank() -> None:
    gemm.new((4, 4), (2, 2))(zeros((4,)), zeros((4, 4))).sync()  # E: dagpu-input-rank


def new_in_a_variable() -> None:
    make = gemm.new((4, 4), (2, 2))
    make(zeros((4,)), zeros((4, 4))).sync()  # E: dagpu-input-rank


def new_of_a_tensor() -> None:
    x = vector()
    add.new((8,), (4,))(x, zeros((4, 4))).sync()  # E: dagpu-input-rank


def new_by_name() -> None:
    add.block(64).new((8,), (4,))(vector(), y=zeros((4, 4))).sync()  # E: dagpu-input-rank


def new_of_an_unknown_shape() -> None:
    n = int("8")
    add.new((n,), (4,))(vector(), zeros((4, 4))).sync()  # E: dagpu-input-rank
