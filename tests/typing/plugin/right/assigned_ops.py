"""Ops that are assigned, and used on some path, by a closure, or once in each run."""

# ruff: noqa: B007, F841, RUF059  # some variables are named and not used on purpose

from typing import Any

import trio

from dagpu import DeviceOp, Tensor, dup, f32, ones, source, spawn, value, zeros, zip_ops
from tests.typing.plugin.kernels import no, saxpy, vector, yes


def overwritten_after_use_right() -> None:
    op = zeros((8,))
    op.sync()
    op = ones((8,))
    op.sync()


def loop_overwritten() -> None:
    for _ in range(3):
        op = zeros((8,))
    op.sync()  # pyright: ignore[reportPossiblyUnboundVariable]  # reason: the loop has rounds


def branch_right() -> None:
    op = zeros((8,))
    if yes():
        op = ones((8,))
    op.sync()


def unpacked_underscore() -> None:
    a, _ = zeros((8,)), ones((8,))
    a.sync()


def unzip_right() -> None:
    a, b = zip_ops(zeros((8,)), ones((8,))).unzip()
    a.sync()


def underscored() -> None:
    _op = zeros((8,))
    _ = zeros((8,))


def captured_right() -> None:
    op = zeros((8,))

    def run() -> None:
        op.sync()

    run()


def nonlocal_right() -> None:
    op = zeros((8,))

    def change() -> None:
        nonlocal op
        op = ones((8,))

    change()
    op.sync()


def append_only() -> None:
    ops: list[DeviceOp[Tensor[f32]]] = []
    ops.append(zeros((8,)))


def only_explained() -> None:
    op = zeros((8,))
    print(op.explain())


def only_asserted() -> None:
    op = zeros((8,))
    assert op is not None


def early_return() -> None:
    op = zeros((8,))
    if no():
        return
    op.sync()


def try_finally() -> None:
    op = zeros((8,))
    try:
        vector()
    except ValueError:
        op = ones((8,))
    op.sync()


async def spawned() -> None:
    async with trio.open_nursery() as n:
        p = spawn(n, zeros((8,)))


async def awaited_later() -> None:
    op = zeros((8,))
    t = await op
    print(t.shape)


def taken_out_right() -> None:
    ops = [zeros((8,))]
    first = ops[0]
    ops[0].sync()


def taken_out_pop() -> None:
    ops = [zeros((8,)), ones((8,))]
    dropped = ops.pop()
    ops[0].sync()


def for_variable() -> None:
    for op in [zeros((8,)), ones((8,))]:
        pass


def tensor_assigned_right() -> None:
    t = vector()


def twice_shared_right() -> None:
    op = dup(vector()).shared()
    zip_ops(op, op).sync()


def twice_branch_right() -> None:
    op = dup(vector())
    (zip_ops(op, value(1)) if yes() else zip_ops(op, value(2))).sync()


def twice_unzipped_right() -> None:
    a, _, c = saxpy(vector().partition((4,)), 1.0, vector()).unzip()
    zip_ops(a, c).sync()


def held_and_dropped() -> None:
    op = zeros((8,))
    print(op is not None)
    del op


def declared_as_any() -> None:
    op: Any = zeros((8,))
    op.sync()


def built_in_each_round() -> None:
    x = ones((8,)).to_host()
    for _ in range(3):
        x = zip_ops(x, ones((8,)).to_host()).map(lambda pair: pair[0])
    x.sync()


def host_value_twice() -> None:
    n = value(1)
    zip_ops(n, n).sync()


def shared_tensor_twice() -> None:
    v = value(vector().share())
    zip_ops(v, v).sync()


def source_twice() -> None:
    s = source(1)
    zip_ops(s, s).sync()


def one_of_two_on_each_path() -> None:
    x = ones((8,))
    if yes():
        a, b = x, zeros((8,))
    else:
        a, b = zeros((8,)), x
    zip_ops(a, b).sync()


def run_in_turn() -> None:
    op = ones((8,))
    print(op.sync().shape, op.to_host().sync())


def memory_until_the_end() -> None:
    op = dup(vector().share())
    print("held")
    del op
