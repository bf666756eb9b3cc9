"""Ops that a closure uses when it runs, at once or at any later time."""

from collections.abc import Callable, Iterator

import trio

from dagpu import ones, zeros
from tests.typing.plugin.kernels import yes


def before_and_after() -> None:
    op = zeros((8,))

    def run() -> None:
        op.sync()

    run()
    op = ones((8,))
    run()


def kept_in_a_list() -> None:
    op = zeros((8,))
    fs: list[Callable[[], object]] = []

    def run() -> None:
        op.sync()

    fs.append(run)
    op.sync()
    op = ones((8,))
    fs[0]()


def returned() -> Callable[[], None]:
    op = zeros((8,))

    def run() -> None:
        op.sync()

    return run


def one_for_each_branch() -> None:
    op = zeros((8,))

    def run() -> None:
        op.sync()

    if yes():
        op = ones((8,))
        run()
    else:
        run()


def used_two_levels_down() -> None:
    op = zeros((8,))

    def run() -> None:
        def inner() -> None:
            op.sync()

        inner()

    run()


def replaced_by_the_closure() -> None:
    op = zeros((8,))

    def put() -> None:
        nonlocal op
        op.sync()
        op = ones((8,))

    put()
    op.sync()


def used_by_a_method() -> None:
    op = zeros((8,))

    class Runs:
        def run(self) -> None:
            op.sync()

    Runs().run()


def decorated() -> None:
    def call(f: Callable[[], None]) -> Callable[[], None]:
        f()
        return f

    op = zeros((8,))

    @call
    def run() -> None:
        op.sync()


async def run_by_a_task() -> None:
    op = zeros((8,))

    async def run() -> None:
        await op

    async with trio.open_nursery() as n:
        n.start_soon(run)


async def awaited_later() -> None:
    op = zeros((8,))

    async def run() -> None:
        await op

    c = run()
    op = ones((8,))
    await c


def asked_later() -> None:
    op = zeros((8,))

    def run() -> Iterator[object]:
        yield op.sync()

    g = run()
    op = ones((8,))
    print(list(g))
