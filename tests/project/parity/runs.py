"""Rows of scheduling, running and CUDA graphs."""

from typing import final

import numpy as np
import pytest
import trio

from dagpu import (
    Borrowed,
    CaptureError,
    CudaGraph,
    DeviceError,
    DeviceOp,
    ListSchedule,
    MayAlloc,
    Mesh,
    Module,
    MovedError,
    NoAlloc,
    OutOfMemoryError,
    Rank,
    RoundRobin,
    SharedTensor,
    SingleStream,
    Static,
    Tensor,
    all_reduce,
    as_partials,
    broadcast,
    current_device,
    device,
    dup,
    each,
    empty,
    f32,
    full,
    memcpy,
    ones,
    plan_of,
    shard_host,
    spawn,
    value,
    zeros,
    zip_ops,
)
from tests.project.parity.rows import GRAPHS, RUN, SCHEDULE, SHAPE, TILE, Table, numbers, saxpy, summed

TABLE = Table()
row = TABLE.row

# ---- scheduling


@row(
    SCHEDULE,
    "`SchedulingPolicy`, `StreamPoolRoundRobin`: four streams in turn",
    "`RoundRobin(4)`; the default is `ListSchedule(4)`",
)
def _() -> None:
    op = zip_ops(*(ones(SHAPE).then(dup) for _ in range(4)))
    assert len(plan_of(op.schedule(RoundRobin(4))).lanes) == 4
    assert len(plan_of(op.schedule(SingleStream())).lanes) == 1
    assert len(plan_of(op.schedule(ListSchedule(2))).lanes) == 2


@row(SCHEDULE, "`op.schedule(&policy)` on another device", '`op.on("cuda:1")`, `.schedule(policy)`; the innermost wins')
def _() -> None:
    assert ones((4,)).on("host:1").sync().device is device("host:1")


@row(SCHEDULE, "dependencies across streams are the caller's", "in the plan, with events, and proved before it runs")
def _() -> None:
    x = ones(SHAPE).shared()
    op = summed(empty(SHAPE).partition(TILE), x.then(dup), x.then(dup)).first().unpartition()
    assert (numbers(op.schedule(RoundRobin(4))) == 2).all()


@row(
    SCHEDULE,
    "the data-parallel MLP over several devices",
    "`each(f, shards, weights)`, `all_reduce`: `examples/mlp_data_parallel.py`",
)
def _() -> None:
    mesh = Mesh(["host:0", "host:1"])

    def gradient(part: Tensor[f32], w: SharedTensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
        made: DeviceOp[Tensor[f32]] = summed(empty(SHAPE).partition(TILE), part, w).first().unpartition()
        return made

    halves = np.concatenate([np.full(SHAPE, k, f32) for k in (1, 2)])
    total = all_reduce(as_partials(each(gradient, shard_host(halves, mesh), broadcast(ones(SHAPE), mesh))))
    assert set(plan_of(total).devices) == {"host:0", "host:1"}
    assert (total.sync().to_host().sync() == 5).all()


# ---- running


@row(RUN, "`op.sync()`", "`op.sync()`")
def _() -> None:
    assert ones((2,)).to_host().sync().tolist() == [1, 1]


@row(RUN, "`op.sync_on(&stream)`", "`op.sync_on(stream)`")
def _() -> None:
    assert ones((2,)).to_host().sync_on(current_device().stream()).tolist() == [1, 1]


@row(RUN, "`op.await`: other tasks run meanwhile", "`await op`, under trio")
def _() -> None:
    async def main() -> list[float]:
        result: list[float] = (await ones((2,)).to_host()).tolist()
        return result

    assert trio.run(main) == [1, 1]


@row(
    RUN,
    "`tokio::spawn(op.into_future())`: overlaps with what comes next",
    "`spawn(nursery, op)`, which ends with its nursery",
)
def _() -> None:
    async def main() -> float:
        async with trio.open_nursery() as nursery:
            first = spawn(nursery, ones((4,)).to_host())
            second = await full((4,), 2.0).to_host()
            return float((await first).sum() + second.sum())

    assert trio.run(main) == 12.0


@row(
    RUN, "spawn wants `'static`: a borrowed input does not compile", "`spawn` takes `DeviceOp[T, Static]`: a type error"
)
def _() -> None:
    lent = ones((4,)).sync()
    free: DeviceOp[Tensor[f32], Static] = ones((4,))
    borrows: DeviceOp[Tensor[f32], Static] = dup(lent.borrow())  # type: ignore[assignment]  # reason: refused, as wanted
    assert zip_ops(free, borrows).sync()


@row(RUN, "an error from the driver is a `DeviceError`", "`DeviceError`, with the CUresult, the op's line and the cure")
def _() -> None:
    with pytest.raises(DeviceError, match=r"no room for .* bytes .*Drop handles") as caught:
        zeros((1 << 50,)).sync()
    assert type(caught.value) is OutOfMemoryError


# ---- CUDA graphs


@row(GRAPHS, "`op.graph_on(stream)?`: executes once, records it all", "`op.graph()`, `op.graph_on(stream)`")
def _() -> None:
    stream = current_device().stream()
    graph = ones((4,)).share().graph_on(stream)
    assert graph.stream is stream
    assert graph.take_output().to_host().sync().tolist() == [1.0] * 4


@row(GRAPHS, "`graph.take_output()`: once", "the same; a second time is a `MovedError`")
def _() -> None:
    graph = ones((4,)).graph()
    graph.take_output()
    with pytest.raises(MovedError):
        graph.take_output()


@row(
    GRAPHS,
    "`graph.update(memcpy(&mut input, &new))?; graph.launch()?`",
    "the same; `launch()` is an op: `await graph.launch()`",
)
def _() -> None:
    given = zeros(SHAPE).sync()
    graph = saxpy(ones(SHAPE).partition(TILE), 2.0, given.borrow()).first().unpartition().share().graph()
    out = graph.take_output()
    for token in (1.0, 2.0, 3.0):
        graph.update(memcpy(given.borrow_mut(), full(SHAPE, token).sync()))
        graph.launch().sync()
        assert (out.to_host().sync() == 1 + 2 * token).all()


@row(GRAPHS, "`CudaGraph::scope(&stream, |s| s.record(op))`", "`with CudaGraph.scope(stream) as s: s.record(op)`")
def _() -> None:
    x, y = ones(SHAPE).sync(), zeros(SHAPE).sync()
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(saxpy(y.borrow_mut().partition(TILE), 1.0, x.borrow()))
        scope.record(saxpy(x.borrow_mut().partition(TILE), 1.0, y.borrow()))  # the borrows of the first are back
    scope.graph.launch().sync()
    assert (x.to_host().sync() == 2).all()


@row(GRAPHS, "`GraphNode`: an op that allocates cannot be recorded", "`NoAlloc` in the types, and a `CaptureError`")
def _() -> None:
    allowed: DeviceOp[int, Static, NoAlloc] = value(1)
    recorded: DeviceOp[Tensor[f32], Static, NoAlloc] = zeros((4,))  # type: ignore[assignment]  # reason: refused, as wanted
    assert allowed.sync() == 1
    with pytest.raises(CaptureError, match="makes memory"), CudaGraph.scope(current_device().stream()) as scope:
        scope.record(recorded)


@final
class Doubling(Module[Tensor[f32], SharedTensor[f32]]):
    """The `Module` pattern: the forward pass is a graph that was captured once."""

    def __init__(self) -> None:
        self.input = zeros(SHAPE).sync()
        forward = summed(empty(SHAPE).partition(TILE), self.input.borrow(), self.input.borrow())
        self.graph: CudaGraph[SharedTensor[f32]] = forward.first().unpartition().share().graph()
        self.output = self.graph.take_output()

    def forward(self, input: Tensor[f32], /) -> DeviceOp[SharedTensor[f32], Borrowed, MayAlloc]:  # noqa: A002  # reason: the protocol's name
        copied = memcpy(self.input.borrow_mut(), input)
        return copied.then(lambda _: self.graph.launch()).map(lambda _: self.output.clone())


@row(GRAPHS, "`trait Module { fn forward(...) }` over a captured graph", "`Module`, whose `forward` gives an op")
def _() -> None:
    model = Doubling()
    for number in (1.0, 5.0):
        assert (model.forward(full(SHAPE, number).sync()).sync().to_host().sync() == 2 * number).all()
