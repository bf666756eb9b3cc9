"""Outputs of every form, rank and tile that fits."""

from typing import Final

from numpy.typing import NDArray

from dagpu import (
    In,
    Kernel,
    Out,
    Partition,
    Tensor,
    TensorMut,
    Tile,
    arange,
    empty,
    f32,
    kernel,
    ones,
    value,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import add, eat, gemm, matrix, no, saxpy, scale, split, vector, yes

TILE: Final = (4,)
WIDTH = 4
WIDE: tuple[int, ...] = (4,)


@kernel(
    cuda="""
__global__ void fold(float* sum, const float* x, int n) {
    float s = 0;
    for (int i = 0; i < n; ++i) s += x[i];
    sum[0] = s;
}
""",
    abi="pointers",
    block=1,
)
def fold(total: Out[f32], x: In[f32], n: int) -> None:
    """total[0] = the sum of x, of any rank."""


@fold.host
def _(total: Tile[f32], x: NDArray[f32], n: int) -> None:
    assert x.size == n
    total[...] = x.sum()


def owned() -> None:
    saxpy(vector().partition((4,)), 1.0, vector()).sync()


def lent() -> None:
    y = vector()
    saxpy(y.borrow_mut().partition((4,)), 1.0, vector()).sync()


def lazy() -> None:
    saxpy(zeros((8,)).partition((4,)), 1.0, vector()).sync()


def lazy_from_a_closure() -> None:
    saxpy(zeros((8,)).map(lambda t: t.partition((4,))), 1.0, vector()).sync()


def lazy_from_a_kernel() -> None:
    y = saxpy(zeros((8,)).partition((4,)), 1.0, vector()).first()
    scale(y, 2.0).sync()


def lazy_from_a_value() -> None:
    scale(value(vector().partition((4,))), 2.0).sync()


def lazy_number() -> None:
    scale(zeros((8,)).partition((4,)), value(2.0)).sync()


def of_another_result() -> None:
    p, _, _ = saxpy(vector().partition((4,)), 1.0, vector()).sync()
    saxpy(p, 2.0, vector()).sync()


def tile_of_all() -> None:
    scale(zeros((8,)).partition((8,)), 2.0).sync()
    gemm(zeros((4, 4)).partition((4, 4)), matrix(), matrix()).sync()


def tile_of_one() -> None:
    scale(zeros((8,)).partition((1,)), 2.0).sync()


def tile_of_rows() -> None:
    gemm(zeros((4, 4)).partition((1, 4)), matrix(), matrix()).sync()


def tile_that_is_partial() -> None:
    scale(zeros((8,)).partition((3,), partial=True), 2.0).sync()
    t = ones((7,)).sync()
    scale(t.partition((4,), partial=True), 2.0).sync()


def tile_that_may_be_partial() -> None:
    zeros((8,)).partition((4,), partial=yes()).sync()
    zeros((8,)).partition((3,), partial=not no()).sync()


def tile_in_a_constant() -> None:
    scale(zeros((8,)).partition(TILE), 2.0).sync()


def tile_in_a_variable() -> None:
    tile = (2,)
    scale(zeros((8,)).partition(tile), 2.0).sync()


def tile_that_is_computed() -> None:
    t = vector()
    scale(t.partition((t.shape[0] // 2,)), 2.0).sync()
    scale(zeros((WIDTH * 2,)).partition((WIDTH,)), 2.0).sync()


def tile_of_unknown_rank() -> None:
    scale(zeros((8,)).partition(WIDE), 2.0).sync()


def shape_of_unknown_rank() -> None:
    def scaled(shape: tuple[int, ...], tile: tuple[int, ...]) -> None:
        scale(ones(shape).partition(tile), 2.0).sync()

    scaled((8,), (4,))
    scaled((6,), (3,))


def shape_that_is_computed() -> None:
    n = vector().size
    zeros((n, n + 1)).partition((n, 3)).sync()


def reshaped_and_cut() -> None:
    arange(12).reshape((3, 4)).partition((3, 2)).sync()
    t = ones((12,)).sync()
    t = t.reshape((3, 4))
    t.partition((1, 4))


def reshaped_into_the_rank() -> None:
    scale(matrix().reshape((16,)).partition((4,)), 2.0).sync()
    gemm(ones((16,)).reshape((4, 4)).partition((2, 2)), matrix(), matrix()).sync()


def named_anew_with_another_shape() -> None:
    t = ones((8,)).sync()
    print(t.partition((4,)).grid)
    t = ones((6,)).sync()
    print(t.partition((3,)).grid)


def narrowed_by_a_branch() -> None:
    op = zeros((8,)) if yes() else zeros((12,))
    op.partition((4,)).sync()


def two_outputs() -> None:
    split(zeros((8,)).partition((4,)), zeros((8,)).partition((4,)), vector()).sync()


def two_outputs_lent() -> None:
    low, high = vector(), vector()
    split(low.borrow_mut().partition((2,)), high.borrow_mut().partition((2,)), vector()).sync()


def one_owned_one_lent() -> None:
    high = vector()
    split(vector().partition((4,)), high.borrow_mut().partition((4,)), vector()).sync()


def same_op_in_two_calls() -> None:
    z = zeros((8,))
    first = scale(z.partition((4,)), 2.0)
    second = saxpy(z.partition((4,)), 1.0, vector())
    first.sync()
    second.sync()


def shared_op_as_both_inputs() -> None:
    x = ones((8,)).shared()
    add(zeros((8,)).partition((4,)), x, x).sync()


def value_of_a_shared_tensor_as_both_inputs() -> None:
    x = value(vector().share())
    add(zeros((8,)).partition((4,)), x, x).sync()


def parts_of_one_op() -> None:
    a, b = zip_ops(zeros((8,)), ones((8,))).unzip()
    saxpy(a.partition((4,)), 1.0, b).sync()


def output_named_by_keyword() -> None:
    saxpy(x=vector(), y=vector().partition((4,)), a=1.0).sync()


def output_with_another_grid() -> None:
    scale.block(32)(zeros((8,)).partition((4,)), 2.0).sync()


def pointers_take_any_rank() -> None:
    fold(zeros((1,)).partition((1,)), vector(), 8).sync()
    fold(zeros((1, 1)).partition((1, 1)), matrix(), 16).sync()


def either_form_of_output() -> None:
    y = vector()
    p: Partition[Tensor[f32]] | Partition[TensorMut[f32]]
    p = vector().partition((4,)) if no() else y.borrow_mut().partition((4,))
    saxpy(p, 1.0, vector()).sync()


def helper_that_takes_an_output() -> None:
    def doubled(y: Out[f32]) -> None:
        scale(y, 2.0).sync()

    doubled(vector().partition((4,)))
    doubled(zeros((8,)).partition((4,)))


def helper_that_takes_an_input() -> None:
    def summed(x: In[f32]) -> None:
        saxpy(zeros((8,)).partition((4,)), 1.0, x).sync()

    t = vector()
    summed(t.borrow())
    summed(ones((8,)))
    summed(t)


def empty_and_filled() -> None:
    z = empty((8,)).partition((4,))
    out = add(z, vector(), vector()).first().unpartition().to_host().sync()
    assert (out == 2).all()


def unpartitioned_lazily() -> None:
    t = zeros((8,)).partition((4,)).unpartition().sync()
    eat(t)


def by_a_kernel_without_names(k: Kernel[[Out[f32], In[f32]]]) -> None:
    x = ones((8,))
    y = zeros((8,)).partition((4,))
    k(y, x).sync()
