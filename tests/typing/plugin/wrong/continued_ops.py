"""Ops that a continuation of `then` returns, and that the same run has elsewhere."""

from dagpu import DeviceOp, Tensor, f32, ones, zeros, zip_ops


def beside_its_continuation() -> None:
    op = zeros((8,))
    zip_ops(op, ones((8,)).then(lambda _: op)).sync()  # E: dagpu-use-after-move


def by_two_continuations() -> None:
    op = ones((8,))
    zip_ops(zeros((8,)).then(lambda _: op), zeros((4,)).then(lambda _: op)).sync()  # E: dagpu-use-after-move


def by_a_function() -> None:
    op = ones((8,))

    def next_(t: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
        return op

    zip_ops(op, zeros((8,)).then(next_)).sync()  # E: dagpu-use-after-move
