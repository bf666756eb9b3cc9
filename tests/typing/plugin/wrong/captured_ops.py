"""Ops that a closure uses, which are overwritten before it runs, or after."""

# ruff: noqa: E731, C400  # the lambda and the generator are the forms that are checked

from collections.abc import Callable

import trio

from dagpu import ones, zeros


def overwritten_before_a_lambda() -> None:
    op = zeros((8,))  # E: dagpu-unused-op
    op = ones((8,))
    run: Callable[[], object] = lambda: op.sync()
    run()


def overwritten_before_a_function() -> None:
    op = zeros((8,))  # E: dagpu-unused-op
    op = ones((8,))

    def run() -> None:
        op.sync()

    run()


async def overwritten_before_a_task() -> None:
    op = zeros((8,))  # E: dagpu-unused-op
    op = ones((8,))

    async def run() -> None:
        await op

    async with trio.open_nursery() as n:
        n.start_soon(run)


def overwritten_after_the_last_call() -> None:
    op = zeros((8,))
    run: Callable[[], object] = lambda: op.sync()
    run()
    op = ones((8,))  # E: dagpu-unused-op


def overwritten_before_a_generator() -> None:
    op = zeros((8,))  # E: dagpu-unused-op
    op = ones((8,))
    print(list(op.sync().shape for _ in range(2)))
