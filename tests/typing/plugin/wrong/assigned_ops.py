"""Ops that are assigned and never used, or overwritten before they are."""

# ruff: noqa: F841, RUF059  # variables that are assigned and not used are the mistake

from dagpu import DeviceOp, Tensor, f32, flow, ones, zeros, zip_ops
from tests.typing.plugin.kernels import async_vector, saxpy, vector, yes


def assigned_never_used() -> None:
    op = zeros((8,))  # E: dagpu-unused-op


def assigned_overwritten() -> None:
    op = zeros((8,))  # E: dagpu-unused-op
    op = ones((8,))
    op.sync()


def loop_never_run() -> None:
    for _ in range(3):
        op = zeros((8,))  # E: dagpu-unused-op


def chained_overwritten() -> None:
    op = zeros((8,))
    op = op.reshape((2, 4))  # E: dagpu-unused-op


def kernel_assigned() -> None:
    y, x = vector(), vector()
    step = saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow())  # E: dagpu-unused-op
    print(y.shape)


def kernel_result_forgotten() -> None:
    y, x = vector(), vector()
    done = saxpy(y.partition((4,)), 1.0, x)  # E: dagpu-unused-op


def branch_both() -> None:
    op = zeros((8,))  # E: dagpu-unused-op
    if yes():
        op = ones((8,))
    else:
        op = zeros((4,))
    op.sync()


def unpacked() -> None:
    a, b = zeros((8,)), ones((8,))  # E: dagpu-unused-op
    a.sync()


def unzip_wrong() -> None:
    a, b = zip_ops(zeros((8,)), ones((8,))).unzip()  # E: dagpu-unused-op


def annotated() -> None:
    op: DeviceOp[Tensor[f32]] = zeros((8,))  # E: dagpu-unused-op


def list_of_ops_never() -> None:
    ops = [zeros((8,)), ones((8,))]  # E: dagpu-unused-op


def list_comp_never() -> None:
    ops = [zeros((8,)) for _ in range(3)]  # E: dagpu-unused-op


def zipped_never() -> None:
    both = zip_ops(zeros((8,)), ones((8,)))  # E: dagpu-unused-op


def parts_used_in_dropped() -> None:
    a = zeros((8,))
    b = ones((8,))
    both = zip_ops(a, b)  # E: dagpu-unused-op


def from_function() -> None:
    def make() -> DeviceOp[Tensor[f32]]:
        return zeros((8,))

    op = make()  # E: dagpu-unused-op


def shared_never() -> None:
    x = zeros((8,)).shared()  # E: dagpu-unused-op


def flow_assigned() -> None:
    numbers = flow([1, 2])  # E: dagpu-unused-op


def op_of_a_method() -> None:
    class Step:
        """Builds an op and forgets it."""

        def run(self) -> None:
            op = zeros((8,))  # E: dagpu-unused-op

    Step().run()


async def assigned_in_a_task() -> None:
    t = await async_vector()
    host = t.to_host()  # E: dagpu-unused-op


def by_operators() -> None:
    s = vector().share()
    more = s + 1  # E: dagpu-unused-op
    less = ~(s < 2)  # E: dagpu-unused-op
