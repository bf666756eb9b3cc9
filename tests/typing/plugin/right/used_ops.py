"""Ops that are run, passed on, returned, kept or thrown away on purpose; and statements that are no ops."""

# What a statement drops is what is tested.
# pyright: reportUnusedExpression=false

from collections.abc import Iterator

import trio
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    Flow,
    RoundRobin,
    Tensor,
    current_device,
    dup,
    f32,
    fill,
    flow,
    observe,
    ones,
    plan_of,
    source,
    spawn,
    trace,
    value,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import eat, saxpy, scale, vector, yes


def run_for_its_effect() -> None:
    y = vector()
    scale(y.borrow_mut().partition((4,)), 2.0).sync()


def run_on_a_stream() -> None:
    zeros((8,)).sync_on(current_device().stream())


def thrown_away_on_purpose() -> None:
    _ = zeros((8,))


def kept_for_later() -> None:
    op = zeros((8,))
    print(op)


def kept_in_a_list() -> None:
    ops: list[DeviceOp[Tensor[f32]]] = []
    ops.append(zeros((8,)))
    ops.extend([ones((8,))])
    ops += [fill(vector(), 2.0)]
    print(len(zip_ops(*ops).sync()))


def kept_in_a_dictionary() -> None:
    ops: dict[str, DeviceOp[Tensor[f32]]] = {}
    ops["a"] = zeros((8,))
    ops.setdefault("b", ones((8,)))
    ops.update(c=zeros((8,)))
    print({name: op.sync() for name, op in ops.items()})


def kept_in_an_attribute() -> None:
    class Step:
        def __init__(self) -> None:
            self.op = zeros((8,))
            self.ops = [ones((8,))]

    step = Step()
    print(step.op.sync(), step.ops[0].sync())


def given_to_a_function() -> None:
    def run(op: DeviceOp[Tensor[f32]]) -> Tensor[f32]:
        return op.sync()

    eat(run(zeros((8,))))


def given_to_print() -> None:
    print(zeros((8,)))


def returned() -> None:
    def fresh() -> DeviceOp[Tensor[f32]]:
        return zeros((8,))

    eat(fresh().sync())


def returned_by_a_lambda() -> None:
    zeros((8,)).then(lambda t: dup(t)).sync()


def yielded() -> None:
    def ops() -> Iterator[DeviceOp[Tensor[f32]]]:
        yield zeros((8,))
        yield ones((8,))

    for op in ops():
        op.sync()


def looked_at() -> None:
    op = saxpy(zeros((8,)).partition((4,)), 1.0, ones((8,)))
    op.explain()
    op.to_dot()
    plan_of(op)
    repr(op)


def saved_as_a_picture() -> None:
    zeros((8,)).to_svg()


def kernel_is_warmed() -> None:
    scale.block(64)
    scale.spec  # no op


def host_function_in_a_statement() -> None:
    value(1).map(print).sync()


def placed_and_run() -> None:
    zeros((8,)).on("host:0").schedule(RoundRobin(streams=2)).sync()


def handles_in_statements() -> None:
    t = vector()
    t.borrow()
    t.shape  # metadata
    t.share()


def conditional_run() -> None:
    op = zeros((8,)) if yes() else ones((8,))
    op.sync()


def traced() -> None:
    with trace() as found:
        zeros((8,)).sync()
    print(found)


def shared_and_used_twice() -> None:
    x = ones((8,)).shared()
    x.sync()
    x.sync()


def unzipped_in_part() -> None:
    a, _ = zip_ops(zeros((8,)), ones((8,))).unzip()
    a.sync()


def asserted() -> None:
    assert isinstance(zeros((8,)), DeviceOp)


def compared() -> None:
    op = zeros((8,))
    print(op is op.schedule(RoundRobin()), op == op, {op: 1})  # identity is what is shown


async def awaited_for_its_effect() -> None:
    y = await zeros((8,))
    await scale(y.borrow_mut().partition((4,)), 2.0)


async def awaited_and_dropped() -> None:
    await zeros((8,))


async def spawned_for_its_effect() -> None:
    async with trio.open_nursery() as nursery:
        spawn(nursery, zeros((8,)))
        spawn(nursery, saxpy(zeros((8,)).partition((4,)), 1.0, ones((8,))))


async def awaited_in_an_expression() -> None:
    print((await zeros((8,))).shape, [await op for op in (zeros((8,)), ones((8,)))])


async def given_to_a_task() -> None:
    async def run(op: DeviceOp[NDArray[f32]]) -> None:
        await op

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, zeros((8,)).to_host())


async def flow_opened() -> None:
    async with observe(source(1)) as feed:
        print(await feed.next())


async def flow_opened_for_its_effect() -> None:
    async with flow([1, 2]).map(print):
        pass


async def flow_sent_to_a_source() -> None:
    last = source(0)
    await flow([1, 2]).into(last)
    print(last.get())


def flow_returned() -> Flow[int]:
    return flow([1]).map(lambda n: n + 1)


def flows_kept_and_thrown_away_on_purpose() -> None:
    kept = [flow([1])]
    kept.append(flow([2]).take(1))
    _ = flow([1]).latest()
    kept.pop()


def dictionary_of_ops() -> None:
    ops = {"a": zeros((8,)), "b": ones((8,))}
    for op in ops.values():
        op.sync()


def conditional_op(late: bool = True) -> None:
    op = zeros((8,)) if late else ones((8,))
    op.sync()


def walrus_and_run() -> None:
    (op := zeros((8,)))  # noqa: PLW0131
    op.sync()


def deleted_on_purpose() -> None:
    op = zeros((8,))
    del op


def operators_of_ones_own() -> None:
    class Queue:
        """Keeps what is added to it."""

        def __init__(self) -> None:
            self.ops: list[DeviceOp[Tensor[f32]]] = []

        def __lshift__(self, op: DeviceOp[Tensor[f32]]) -> DeviceOp[Tensor[f32]]:
            self.ops.append(op)
            return op

    queue = Queue()
    queue << zeros((8,))
    for op in queue.ops:
        op.sync()
