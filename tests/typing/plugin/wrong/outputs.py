"""A kernel's output is no partition, of another rank, cut by a tile that does not fit, or on an input's memory."""

# pyright: reportArgumentType=false
# What mypy refuses with a code of ours, pyright refuses as a plain wrong argument.

from numpy.typing import NDArray

from dagpu import In, Out, Tile, arange, empty, f32, kernel, ones, zeros, zip_ops
from tests.typing.plugin.kernels import add, gemm, matrix, saxpy, scale, split, vector


@kernel(
    cuda="""
__global__ void copy(Tile<float, 2> to, View<const float, 2> from) {
    for (auto i : to) to[i] = from[i];
}
"""
)
def copy(to: Out[f32], source: In[f32]) -> None: ...


@copy.host
def _(to: Tile[f32], source: NDArray[f32]) -> None:
    to[...] = source[to.at]


# ---- no partition


def owned_tensor() -> None:
    y, x = vector(), vector()
    saxpy(y, 1.0, x).sync()  # E: dagpu-output-partition


def lazy_tensor() -> None:
    saxpy(zeros((8,)), 1.0, vector()).sync()  # E: dagpu-output-partition


def tensor_lent_for_writing() -> None:
    y, x = vector(), vector()
    saxpy(y.borrow_mut(), 1.0, x).sync()  # E: dagpu-output-partition


def tensor_lent_for_reading() -> None:
    y, x = vector(), vector()
    saxpy(y.borrow(), 1.0, x).sync()  # E: dagpu-output-partition


def shared_tensor() -> None:
    y, x = vector().share(), vector()
    saxpy(y, 1.0, x).sync()  # E: dagpu-output-partition


def lazy_shared_tensor() -> None:
    saxpy(zeros((8,)).shared(), 1.0, vector()).sync()  # E: dagpu-output-partition


def put_together_too_early() -> None:
    p = vector().partition((4,))
    saxpy(p.unpartition(), 1.0, vector()).sync()  # E: dagpu-output-partition


def second_output() -> None:
    split(zeros((8,)).partition((4,)), zeros((8,)), vector()).sync()  # E: dagpu-output-partition


def result_of_another_kernel() -> None:
    y = saxpy(zeros((8,)).partition((4,)), 1.0, vector()).first().unpartition()
    scale(y, 2.0).sync()  # E: dagpu-output-partition


def whole_result_of_another_kernel() -> None:
    y = saxpy(zeros((8,)).partition((4,)), 1.0, vector())
    scale(y, 2.0).sync()  # E: dagpu-output-partition


def output_by_name() -> None:
    saxpy(x=vector(), a=1.0, y=vector()).sync()  # E: dagpu-output-partition


def tuned_kernel() -> None:
    saxpy.block(64)(vector(), 1.0, vector()).sync()  # E: dagpu-output-partition


# ---- the tile does not divide the shape


def tile_of_an_op() -> None:
    zeros((8,)).partition((3,)).sync()  # E: dagpu-output-partition


def tile_of_a_tensor() -> None:
    t = ones((8,)).sync()
    t.partition((5,))  # E: dagpu-output-partition


async def tile_of_an_awaited_tensor() -> None:
    t = await ones((8,))
    t.partition((5,))  # E: dagpu-output-partition


def tile_of_a_loan() -> None:
    t = ones((8,)).sync()
    t.borrow_mut().partition((3,))  # E: dagpu-output-partition


def tile_of_the_second_axis() -> None:
    zeros((4, 6)).partition((2, 4)).sync()  # E: dagpu-output-partition


def tile_larger_than_the_shape() -> None:
    zeros((4,)).partition((8,)).sync()  # E: dagpu-output-partition


def tile_after_reshape() -> None:
    arange(12).reshape((3, 4)).partition((2, 2)).sync()  # E: dagpu-output-partition


def tile_after_reshaping_a_tensor() -> None:
    t = ones((12,)).sync()
    t.reshape((3, 4)).partition((2, 2))  # E: dagpu-output-partition


def tile_of_an_argument() -> None:
    saxpy(empty((8,)).partition((3,)), 1.0, vector()).sync()  # E: dagpu-output-partition


def tile_in_a_variable() -> None:
    tile = (3,)
    zeros((8,)).partition(tile).sync()  # E: dagpu-output-partition


def tile_in_a_closure() -> None:
    zeros((8,)).map(lambda t: t.partition((3,))).sync()  # E: dagpu-output-partition


def tile_of_an_unzipped_part() -> None:
    a, b = zip_ops(zeros((8,)), zeros((6,))).unzip()
    saxpy(b.partition((4,)), 1.0, a).sync()  # E: dagpu-output-partition


def tile_of_another_rank() -> None:
    zeros((8,)).partition((2, 2)).sync()  # E: dagpu-output-partition


def tile_of_a_lower_rank() -> None:
    zeros((4, 4)).partition((4,)).sync()  # E: dagpu-output-partition


# ---- the rank is not the kernel's


def matrix_for_a_vector() -> None:
    saxpy(zeros((4, 4)).partition((2, 2)), 1.0, vector()).sync()  # E: dagpu-output-partition


def vector_for_a_matrix() -> None:
    gemm(zeros((8,)).partition((4,)), matrix(), matrix()).sync()  # E: dagpu-output-partition


def vector_for_a_matrix_of_a_kernel_of_this_file() -> None:
    copy(zeros((8,)).partition((4,)), matrix()).sync()  # E: dagpu-output-partition


def owned_matrix_for_a_vector() -> None:
    t = ones((4, 4)).sync()
    saxpy(t.partition((2, 2)), 1.0, vector()).sync()  # E: dagpu-output-partition


def lent_matrix_for_a_vector() -> None:
    t = ones((4, 4)).sync()
    saxpy(t.borrow_mut().partition((2, 2)), 1.0, vector()).sync()  # E: dagpu-output-partition


def reshaped_for_a_vector() -> None:
    scale(zeros((8,)).reshape((2, 4)).partition((2, 2)), 2.0).sync()  # E: dagpu-output-partition


def second_output_of_another_rank() -> None:
    low, high = zeros((8,)).partition((4,)), zeros((2, 4)).partition((1, 4))
    split(low, high, vector()).sync()  # E: dagpu-output-partition


# ---- on the memory of another argument


def op_is_output_and_input() -> None:
    z = zeros((8,))
    saxpy(z.partition((4,)), 1.0, z).sync()  # E: dagpu-output-partition


def op_is_both_outputs() -> None:
    z = zeros((8,)).partition((4,))
    split(z, z, vector()).sync()  # E: dagpu-output-partition


def op_is_output_and_second_input() -> None:
    z = zeros((8,))
    add(z.partition((4,)), ones((8,)), z).sync()  # E: dagpu-output-partition


def op_is_cut_twice() -> None:
    z = zeros((8,))
    split(z.partition((4,)), z.partition((4,)), vector()).sync()  # E: dagpu-output-partition
