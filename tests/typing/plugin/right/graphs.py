"""CUDA graphs as a user records and replays them."""

from collections.abc import Iterator

import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    CudaGraph,
    DeviceOp,
    MayAlloc,
    Module,
    NoAlloc,
    Partition,
    Tensor,
    TensorRef,
    current_device,
    dup,
    f32,
    fill,
    from_host,
    memcpy,
    ones,
    value,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import add, saxpy, scale, total, vector


def captured_and_launched() -> None:
    y, x = vector(), vector()
    graph = saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow()).graph()
    for _ in range(3):
        graph.launch().sync()
    print(total(y.borrow()))


def captured_with_its_own_memory() -> None:
    x = vector().share()
    graph = add(zeros((8,)).partition((4,)), x, x).first().unpartition().graph()
    out = graph.take_output()
    for _ in range(2):
        graph.launch().sync()
    print(total(out.borrow()))


def captured_on_a_stream() -> None:
    graph = ones((8,)).graph_on(current_device().stream())
    graph.launch().sync()
    print(graph.stream)


def updated_between_launches() -> None:
    x, y = vector(), vector()
    graph = scale(y.borrow_mut().partition((4,)), 2.0).graph()
    for number in range(2):
        source = ones((8,)).sync()
        graph.update(memcpy(x.borrow_mut(), source))
        graph.launch().sync()
        print(number, total(x.borrow()))


def recorded_step_by_step() -> None:
    y, x = vector(), vector()
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(scale(y.borrow_mut().partition((4,)), 2.0))
        scope.record(saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow()))
        scope.record(memcpy(x.borrow_mut(), y.borrow()))
    scope.graph.launch().sync()
    print(total(x.borrow()))


def recorded_in_a_loop() -> None:
    front, back = vector(), vector()
    with CudaGraph.scope(current_device().stream()) as scope:
        for _ in range(4):
            scope.record(saxpy(back.borrow_mut().partition((4,)), 0.5, front.borrow()))
            front, back = back, front
    scope.graph.launch().sync()


def recorded_results_go_on() -> None:
    p, x = vector().partition((4,)), vector().share()
    with CudaGraph.scope(current_device().stream()) as scope:
        p, _, _ = scope.record(saxpy(p, 1.0, x))
        p, _, _ = scope.record(saxpy(p, 2.0, x))
    scope.graph.launch().sync()
    print(p.grid)


def recorded_without_allocation() -> None:
    t = vector()
    with CudaGraph.scope(current_device().stream()) as scope:
        t = scope.record(fill(t, 2.0))
        scope.record(zip_ops(value(1), scale(t.borrow_mut().partition((4,)), 2.0)))
        scope.record(value(3).map(str))
    print(t.shape)


def recorded_from_a_helper() -> None:
    def step(p: Partition[Tensor[f32]]) -> DeviceOp[Partition[Tensor[f32]], Borrowed, NoAlloc]:
        return scale(p, 2.0).first()

    p = vector().partition((4,))
    with CudaGraph.scope(current_device().stream()) as scope:
        p = scope.record(step(p))
        p = scope.record(step(p))
    scope.graph.launch().sync()
    print(p.grid)


def launched_in_a_task() -> None:
    y = vector()
    graph = scale(y.borrow_mut().partition((4,)), 2.0).graph()

    async def launch() -> None:
        for _ in range(2):
            await graph.launch()
        print(await y.borrow().to_host())

    trio.run(launch)


def allocated_outside_of_the_scope() -> None:
    scratch = zeros((8,)).sync()
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(scale(scratch.borrow_mut().partition((4,)), 2.0))
    copy = dup(scratch.borrow()).sync()
    print(copy.shape)


class Doubler:
    """A model whose forward pass is a captured graph."""

    def __init__(self) -> None:
        self.input = zeros((8,)).sync()
        self.output = zeros((8,)).sync()
        self.graph = saxpy(self.output.borrow_mut().partition((4,)), 2.0, self.input.borrow()).graph()

    def forward(self, x: TensorRef[f32], /) -> DeviceOp[NDArray[f32], Borrowed, MayAlloc]:
        self.graph.update(memcpy(self.input.borrow_mut(), x))
        return self.graph.launch().then(lambda _: self.output.borrow().to_host())


def model_with_a_graph() -> None:
    model: Module[TensorRef[f32], NDArray[f32]] = Doubler()
    x = vector()
    print(model.forward(x.borrow()).sync(), model.forward(x.borrow()).sync())


def batches_through_a_graph() -> None:
    def batches() -> Iterator[NDArray[f32]]:
        for _ in range(2):
            yield vector().to_host().sync()

    x, y = vector(), vector()
    graph = saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow()).graph()
    for batch in batches():
        staged = from_host(batch).sync()
        graph.update(memcpy(x.borrow_mut(), staged.borrow()))
        graph.launch().sync()
    print(total(y.borrow()))
