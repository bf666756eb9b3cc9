"""What the Rust originals' documentation shows, row by row: their construct, ours, and a program that does it here.

The rows are cuda-async's (readme, older documentation, the source of its CUDA graphs), cutile's introduction to async
execution with its three exercises, and async-cuda-core's. docs/parity.md is made of them, and tests/test_parity.py runs
each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    CaptureError,
    CudaGraph,
    DeviceError,
    DeviceOp,
    In,
    ListSchedule,
    MayAlloc,
    Module,
    MovedError,
    NoAlloc,
    Out,
    OutOfMemoryError,
    OwnershipError,
    Partition,
    RoundRobin,
    SharedTensor,
    SingleStream,
    Static,
    Tensor,
    TensorMut,
    TensorRef,
    Tile,
    arange,
    current_device,
    device,
    dup,
    empty,
    f32,
    from_host,
    full,
    kernel,
    memcpy,
    ones,
    plan_of,
    randn,
    spawn,
    trace,
    value,
    zeros,
    zip_ops,
)

Check: TypeAlias = Callable[[], None]


@final
@dataclass(frozen=True)
class Row:
    """One construct: of which document, as it stands there, as it is here, and what shows it."""

    source: str
    theirs: str
    ours: str
    check: Check


ROWS: Final[list[Row]] = []


def row(source: str, theirs: str, ours: str) -> Callable[[Check], Check]:
    """The decorated function shows that we have it."""

    def add(check: Check) -> Check:
        ROWS.append(Row(source, theirs, ours, check))
        return check

    return add


OPS, MODES, COMBINE, SCHEDULE, RUN, GRAPHS, TUTORIAL, BUFFERS = (
    "Device operations",
    "Kernel input modes",
    "Combinators",
    "Scheduling",
    "Running",
    "CUDA graphs",
    "The async tutorial",
    "Asynchronous buffers and streams (async-cuda-core)",
)

# ---- the kernels of the examples there


@kernel(
    cuda="""__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}"""
)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None: ...


@saxpy.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    y[...] += np.float32(a) * x[y.at]


@kernel(
    cuda="""__global__ void add(Tile<float, 2> z, View<const float, 2> x, View<const float, 2> y) {
    for (auto i : z) z[i] = x[i] + y[i];
}"""
)
def add(z: Out[f32], x: In[f32], y: In[f32]) -> None: ...


@add.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32]) -> None:
    z[...] = x[z.at] + y[z.at]


SHAPE, TILE = (16, 16), (4, 4)


def numbers(op: DeviceOp[Any, Any, Any]) -> NDArray[Any]:
    """The contents of what an op yields."""
    result: NDArray[Any] = op.to_host().sync()
    return result


def summed(out: Any, x: Any, y: Any) -> DeviceOp[Any, Any, Any]:
    return add(out, x, y)


# ---- device operations


@row(OPS, "`DeviceOp<Output = T>`: lazy, nothing runs until it is awaited", "`DeviceOp[T]`")
def _() -> None:
    calls: list[int] = []
    op = ones(SHAPE).inspect(lambda _: calls.append(1))
    assert calls == []
    op.sync()
    assert calls == [1]


@row(
    OPS, "`api::zeros`, `ones`, `arange`, `randn`, ...: functions of concrete values that give an op", "the same names"
)
def _() -> None:
    assert (numbers(zeros(SHAPE)) == 0).all()
    assert numbers(arange(4)).tolist() == [0, 1, 2, 3]
    assert numbers(randn((8,), mean=1.0, std=0.0, seed=1)).tolist() == [1.0] * 8


@row(OPS, "`.reshape()`, `.to_host_vec()`: extension methods on ops", "`.reshape()`, `.to_host()`")
def _() -> None:
    assert arange(6).reshape((2, 3)).to_host().sync().tolist() == [[0, 1, 2], [3, 4, 5]]


@row(OPS, "a kernel call takes tensors, scalars and lazy ops alike", "the same, checked when it is called")
def _() -> None:
    eager, lazy = ones(SHAPE).sync(), ones(SHAPE)
    assert (numbers(saxpy(zeros(SHAPE).partition(TILE), 2.0, eager).first().unpartition()) == 2).all()
    assert (numbers(saxpy(zeros(SHAPE).partition(TILE), 2.0, lazy).first().unpartition()) == 2).all()


@row(OPS, "`api::dup`, `memcpy`: device to device", "`dup(t)`, `memcpy(dst.borrow_mut(), src)`")
def _() -> None:
    t, target = full((4,), 3.0).sync(), zeros((4,)).sync()
    copy = dup(t.borrow()).sync()
    memcpy(target.borrow_mut(), copy).sync()
    assert target.to_host().sync().tolist() == t.to_host().sync().tolist() == [3.0] * 4


# ---- kernel input modes


@row(
    MODES,
    "`&Tensor` parameter, given `Tensor<T>`: comes back as `Tensor<T>`",
    "`Tensor`, which moves in and comes back",
)
def _() -> None:
    _, _, x = saxpy(zeros(SHAPE).partition(TILE), 1.0, ones(SHAPE).sync()).sync()
    assert type(x) is Tensor


@row(MODES, "given `Arc<Tensor<T>>`: comes back as `Arc<Tensor<T>>`", "`SharedTensor`")
def _() -> None:
    _, _, x = saxpy(zeros(SHAPE).partition(TILE), 1.0, ones(SHAPE).share()).sync()
    assert type(x) is SharedTensor


@row(
    MODES,
    "given `&Tensor<T>`: comes back as `&Tensor<T>`, and cannot be spawned",
    "`t.borrow()`, a `TensorRef`; `Borrowed`",
)
def _() -> None:
    lent = ones(SHAPE).sync()
    _, _, x = saxpy(zeros(SHAPE).partition(TILE), 1.0, lent.borrow()).sync()
    assert type(x) is TensorRef
    assert lent.shape == SHAPE


@row(MODES, "`&mut Tensor` parameter, given `Partition<Tensor<T>>`: comes back as that", "`Partition[Tensor]`")
def _() -> None:
    y = saxpy(zeros(SHAPE).partition(TILE), 1.0, ones(SHAPE)).first().sync()
    assert type(y) is Partition
    assert type(y.unpartition()) is Tensor


@row(
    MODES, "given `Partition<&mut Tensor<T>>`: writes in place, no `unpartition()`", "`t.borrow_mut().partition(tile)`"
)
def _() -> None:
    z = zeros(SHAPE).sync()
    y = saxpy(z.borrow_mut().partition(TILE), 2.0, ones(SHAPE)).first().sync()
    assert type(y) is Partition
    assert type(y.unpartition()) is TensorMut
    assert (z.to_host().sync() == 2).all()


@row(
    MODES,
    "`&Tensor` parameter, given `&mut Tensor<T>`: reborrowed, and free to be written when the read is over",
    "`t.borrow_mut()`: comes back as the `TensorMut` it was, to be cut; data flow orders the two",
)
def _() -> None:
    z = ones(SHAPE).sync()
    y, _, lent = saxpy(zeros(SHAPE).partition(TILE), 2.0, z.borrow_mut()).unzip()
    written = saxpy(lent.partition(TILE), 1.0, y.unpartition()).first().sync()
    assert type(written.unpartition()) is TensorMut
    assert (z.to_host().sync() == 3).all()


@row(
    MODES,
    "a moved tensor cannot be used again: refused by the compiler",
    "by mypy with the plugin, and a `MovedError` at run time",
)
def _() -> None:
    x = ones(SHAPE).sync()
    op = saxpy(zeros(SHAPE).partition(TILE), 1.0, x)
    with pytest.raises(MovedError, match="was moved by"):
        x.share()
    op.sync()


@row(MODES, "`Arc::try_unwrap` when it is the last one, then partition again", "`shared.try_unwrap()`")
def _() -> None:
    one = ones(SHAPE).share().sync()
    other = one.clone()
    with pytest.raises(OwnershipError, match="1 more handle"):
        one.try_unwrap()
    del other
    assert one.try_unwrap().partition(TILE).grid == (4, 4)


# ---- combinators


@row(COMBINE, "`op.then(|x| next(x))`", "`op.then(f)`")
def _() -> None:
    op = full((4,), 2.0).then(lambda t: dup(t)).then(lambda t: dup(t))
    assert numbers(op).tolist() == [2.0] * 4


@row(COMBINE, "`op.map(|x| ...)`: no GPU work", "`op.map(f)`")
def _() -> None:
    assert zeros((4, 2)).map(lambda t: t.shape).sync() == (4, 2)


@row(COMBINE, "`zip!(a, b)`", "`zip_ops(a, b)`, whose branches run on several streams")
def _() -> None:
    op = zip_ops(zeros(SHAPE).then(dup), ones(SHAPE).then(dup))
    assert len(plan_of(op).lanes) > 1
    a, b = op.sync()
    assert (a.to_host().sync() == 0).all()
    assert (b.to_host().sync() == 1).all()


@row(COMBINE, "`op.unzip()`: the inverse, whose source runs once", "`op.unzip()`")
def _() -> None:
    y, a, _x = saxpy(zeros(SHAPE).partition(TILE), 2.0, ones(SHAPE)).unzip()
    assert a.sync() == 2.0
    assert (numbers(y.unpartition()) == 2).all()


@row(COMBINE, "`op.shared()`: cloneable, executes once", "`op.shared()`")
def _() -> None:
    runs: list[int] = []
    x = ones(SHAPE).inspect(lambda _: runs.append(1)).shared()
    total = summed(empty(SHAPE).partition(TILE), x, x).first().unpartition()
    assert (numbers(total) == 2).all()
    assert (numbers(x) == 1).all()
    assert runs == [1]


@row(COMBINE, "`op.first()`, `.unpartition()`, `.arc()`", "`.first()`, `.unpartition()`, `.share()`")
def _() -> None:
    assert (
        type(saxpy(zeros(SHAPE).partition(TILE), 1.0, ones(SHAPE)).first().unpartition().share().sync()) is SharedTensor
    )


@row(COMBINE, "`value(x)`", "`value(x)`")
def _() -> None:
    assert value(3).sync() == 3


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


@row(SCHEDULE, "the data-parallel MLP over several devices", "`examples/mlp_data_parallel.py`")
def _() -> None:
    halves = [np.full(SHAPE, k, np.float32) for k in (1, 2)]
    gradients = [
        summed(empty(SHAPE).partition(TILE), from_host(half), ones(SHAPE)).first().unpartition().share().on(f"host:{k}")
        for k, half in enumerate(halves)
    ]
    here, there = gradients[0], gradients[1].then(dup).on("host:0")
    total = summed(empty(SHAPE).partition(TILE), here, there).first().unpartition()
    assert set(plan_of(total).devices) == {"host:0", "host:1"}
    assert (numbers(total) == 5).all()


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
    with pytest.raises(DeviceError, match=r"no room for .* bytes .*Let go of handles") as caught:
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


# ---- the tutorial


@row(TUTORIAL, "async vector addition, 32x32 in 4x4 tiles", "the same program; `examples/async_add.py`")
def _() -> None:
    async def main() -> float:
        x, y = await ones((32, 32)).share(), await ones((32, 32)).share()
        z: NDArray[f32] = await add(zeros((32, 32)).partition((4, 4)), x, y).first().unpartition().to_host()
        return float(z[0, 0])

    assert trio.run(main) == 2.0


@row(TUTORIAL, "exercise 1: async SAXPY", "`examples/saxpy.py`")
def _() -> None:
    async def main() -> NDArray[f32]:
        result: NDArray[f32] = await (
            saxpy(ones((4, 4)).partition((2, 2)), 2.0, arange(16).reshape((4, 4))).first().unpartition().to_host()
        )
        return result

    assert np.array_equal(trio.run(main), 1 + 2 * np.arange(16.0).reshape(4, 4))


@row(TUTORIAL, "exercise 2: four tensors in parallel", "`examples/parallel_tensors.py`")
def _() -> None:
    op = zip_ops(ones((10, 10)).share(), zeros((10, 10)).share(), randn((10, 10), seed=1).share(), arange(100).share())
    assert [t.size for t in op.sync()] == [100] * 4


@row(TUTORIAL, "exercise 3: measure the difference with `Instant`", "`dagpu.trace`, `examples/overlap_spawn.py`")
def _() -> None:
    with trace() as measured:
        zip_ops(ones((8,)).to_host(), zeros((8,)).to_host()).sync()
    assert [len(run.spans()) for run in measured.runs] == [4]


# ---- async-cuda-core


@row(
    BUFFERS,
    "`HostBuffer`, `DeviceBuffer`: allocated and copied asynchronously",
    "`from_host`, `empty`, `.to_host()`, awaited",
)
def _() -> None:
    async def main() -> list[float]:
        result: list[float] = (await (await from_host(np.array([1, 2], np.float32))).to_host()).tolist()
        return result

    assert trio.run(main) == [1, 2]


@row(BUFFERS, "`DeviceBuffer2D`: pitched copies", "strided views: `t.slice(rows, columns).to_host()`")
def _() -> None:
    t = arange(12).reshape((3, 4)).sync()
    assert t.slice(slice(1, 3), slice(1, 3)).to_host().sync().tolist() == [[5, 6], [9, 10]]


@row(BUFFERS, "a buffer filled with a value", "`full`, `fill`")
def _() -> None:
    assert numbers(full((3,), 7.0)).tolist() == [7.0] * 3


@row(
    BUFFERS,
    "`Stream::new().await`, `stream.synchronize().await`",
    "`device.stream()`; `await op` waits for its work alone",
)
def _() -> None:
    async def main() -> list[float]:
        result: list[float] = (await full((2,), 2.0).to_host()).tolist()
        return result

    stream = current_device().stream()
    with trace() as measured:
        assert zip_ops(ones((4,)).to_host(), zeros((4,)).to_host()).sync_on(stream)[0].tolist() == [1] * 4
    assert len(set(measured.runs[0].streams)) == 1
    assert trio.run(main) == [2.0, 2.0]


@row(
    BUFFERS,
    "a future that is leaked or forgotten is undefined behaviour",
    "runs are structured: nothing outlives its scope",
)
def _() -> None:
    async def main() -> None:
        with trio.move_on_after(0):
            await ones((4,)).to_host()

    before = current_device().memory_used()
    trio.run(main)
    assert current_device().memory_used() == before
