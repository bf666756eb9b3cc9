"""Inputs of kernels that are reshaped to the rank of the CUDA declaration, or have one that is not known."""

from dagpu import zeros
from tests.typing.plugin.kernels import add, gemm, matrix, saxpy, vector, yes


def reshaped() -> None:
    x = zeros((2, 4)).sync().reshape((8,))
    add(vector().partition((4,)), y=x, x=zeros((8,))).sync()


def one_of_two_ranks() -> None:
    x = zeros((2, 4)).sync()
    if yes():
        x = vector()
    saxpy(vector().partition((4,)), 1.0, x).sync()


def matrices() -> None:
    gemm(zeros((4, 4)).partition((2, 2)), zeros((4, 4)), matrix()).sync()


def flattened_op() -> None:
    saxpy(zeros((8,)).partition((4,)), 1.0, zeros((2, 4)).reshape((8,))).sync()


def loan_of_a_view() -> None:
    t = zeros((2, 4)).sync()
    saxpy(vector().partition((4,)), 1.0, t.view((8,))).sync()


def shape_is_a_tuple_of_numbers() -> None:
    shape = (8,)
    add(zeros(shape).partition((4,)), zeros(shape), vector()).sync()


def new_of_these_ranks() -> None:
    gemm.new((4, 4), (2, 2))(zeros((4, 4)), matrix()).sync()
    add.new((8,), (4,))(vector(), y=zeros((8,))).sync()


def new_in_a_variable() -> None:
    make = add.new((8,), (4,)) if yes() else add.new((8,), (2,))
    make(vector(), vector()).sync()
