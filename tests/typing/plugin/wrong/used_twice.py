"""An op whose result two parts of one op use."""

from dagpu import dup, ones, value, zeros, zip_ops
from tests.typing.plugin.kernels import add, async_vector, saxpy, vector


def run_twice_in_one_1() -> None:
    op = dup(vector())
    zip_ops(op, op).sync()  # E: dagpu-use-after-move


def run_twice_in_one_2() -> None:
    op = dup(vector())
    a, b = op.to_host(), op.to_host()
    zip_ops(a, b).sync()  # E: dagpu-use-after-move


def run_twice_in_one_kernel() -> None:
    x = vector().to_host()
    zip_ops(x, value(1), x).sync()  # E: dagpu-use-after-move


def twice_in_kernel() -> None:
    x = dup(vector())
    add(zeros((8,)).partition((4,)), x, x).sync()  # E: dagpu-use-after-move


def twice_in_nested() -> None:
    op = dup(vector())
    zip_ops(op.to_host(), zip_ops(op, value(1))).sync()  # E: dagpu-use-after-move


async def twice_awaited() -> None:
    op = dup(await async_vector())
    await zip_ops(op, op)  # E: dagpu-use-after-move


def without_moved_tensors() -> None:
    op = zeros((8,))
    zip_ops(op, op).sync()  # E: dagpu-use-after-move


def of_a_loan() -> None:
    t = vector()
    op = dup(t.borrow())
    zip_ops(op, op).sync()  # E: dagpu-use-after-move


def both_ends_of_a_kernel() -> None:
    op = saxpy(zeros((8,)).partition((4,)), 1.0, ones((8,)))
    zip_ops(op.first(), op.last()).sync()  # E: dagpu-use-after-move


def twice_in_a_chain() -> None:
    x = ones((8,))
    y = add(zeros((8,)).partition((4,)), x, ones((8,))).first().unpartition()
    add(zeros((8,)).partition((4,)), y, x).sync()  # E: dagpu-use-after-move


def in_each_round() -> None:
    x = ones((8,)).to_host()
    both = ones((8,)).to_host()
    for _ in range(2):
        both = zip_ops(both, x).map(lambda pair: pair[0])  # E: dagpu-use-after-move
    both.sync()


def host_value_twice() -> None:
    n = value(1).map(lambda n: n + 1)
    zip_ops(n, n).sync()  # E: dagpu-use-after-move
