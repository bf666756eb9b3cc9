"""Ops that may be run again: recipes, ops on loans, shared ones; and ops that own a handle, run once."""

from dagpu import DagpuError, DeviceOp, Tensor, dup, f32, fill, value, zeros, zip_ops
from tests.typing.plugin.kernels import add, saxpy, scale, vector, yes


def lent_and_run_twice() -> None:
    y, x = vector(), vector().share()
    op = zeros((8,)).then(lambda t: add(t.partition((4,)), y.borrow(), x))
    op.sync()
    op.sync()


def recipe_run_twice() -> None:
    op = saxpy(zeros((8,)).partition((4,)), 1.0, vector().share())
    op.sync()
    op.sync()


def shared_run_twice() -> None:
    op = value(vector()).shared()
    op.sync()
    op.sync()


def built_anew_in_each_round() -> None:
    t = vector()
    for _ in range(2):
        op = fill(t, 2.0)
        t = op.sync()


def retried_after_a_refused_run() -> None:
    op = vector().to_host()
    try:
        op.sync()
    except DagpuError:
        op.sync()


def run_in_one_arm_each() -> None:
    op = vector().to_host()
    if yes():
        op.sync()
    else:
        print(op.explain())
        op.sync()


def looked_at_and_run() -> None:
    op = saxpy(vector().partition((4,)), 1.0, vector())
    print(op, op.explain(), op.to_dot())
    op.sync()


def composed_under_the_same_name() -> None:
    op = dup(vector())
    op = op.then(lambda t: scale(t.partition((4,)), 2.0).first().unpartition())
    op = op.on("host:0")
    print(op.to_host().sync())


def run_as_part_of_one() -> None:
    first, second = dup(vector()), dup(vector())
    zip_ops(first, second).sync()


def run_until_it_is_made_anew() -> None:
    op = vector().to_host()
    for _ in range(2):
        op.sync()
        op = vector().to_host()


def made_by_a_function_each_time() -> None:
    def step() -> DeviceOp[Tensor[f32]]:
        return dup(vector())

    step().sync()
    step().sync()


def borrowed_by_an_op_that_is_run_often() -> None:
    y, x = vector(), vector()
    op = dup(y.borrow()).then(lambda copy: saxpy(copy.partition((4,)), 1.0, x.borrow()))
    op.sync()
    op.sync()


def owned_and_borrowed_in_a_list() -> None:
    ops = [dup(vector()) for _ in range(3)]
    for op in ops:
        op.sync()
