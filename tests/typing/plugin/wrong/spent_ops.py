"""An op that owns handles is used up by its run."""

from dagpu import DeviceOp, Tensor, dup, f32, fill, value, zeros, zip_ops
from tests.typing.plugin.kernels import async_vector, eat, saxpy, scale, vector, yes


def run_twice() -> None:
    op = vector().to_host()
    op.sync()
    op.sync()  # E: dagpu-use-after-move


def run_in_a_loop() -> None:
    y, x = vector(), vector()
    op = saxpy(y.partition((4,)), 1.0, x)
    for _ in range(2):
        op.sync()  # E: dagpu-use-after-move


def run_on_one_path_and_behind() -> None:
    op = dup(vector())
    if yes():
        op.sync()
    op.sync()  # E: dagpu-use-after-move


def composed_and_run_twice() -> None:
    op = scale(vector().partition((4,)), 2.0).first().unpartition().to_host()
    print(op.sync())
    print(op.sync())  # E: dagpu-use-after-move


async def awaited_twice() -> None:
    t = await async_vector()
    op = value(t)
    await op
    await op  # E: dagpu-use-after-move


def filled_twice() -> None:
    op = fill(vector(), 2.0)
    op.sync()
    op.sync()  # E: dagpu-use-after-move


def run_by_hand_and_in_a_larger_op() -> None:
    op = vector().to_host()
    op.sync()
    zip_ops(op, zeros((8,))).sync()  # E: dagpu-use-after-move


def closure_that_moves_runs_twice() -> None:
    t = vector()
    op = value(1).map(lambda _: eat(t))
    op.sync()
    op.sync()  # E: dagpu-use-after-move


def passed_on_and_run() -> None:
    def run(op: DeviceOp[Tensor[f32]]) -> None:
        op.sync()

    op = dup(vector())
    run(op)
    op.sync()  # E: dagpu-use-after-move


def part_of_two_ops() -> None:
    op = dup(vector())
    first = op.to_host()
    second = op.to_host()
    first.sync()
    second.sync()  # E: dagpu-use-after-move


def attribute_run_twice() -> None:
    class Step:
        def run(self) -> None:
            self.op = vector().to_host()
            self.op.sync()
            self.op.sync()  # E: dagpu-use-after-move

    Step().run()
