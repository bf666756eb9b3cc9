"""Values on several devices as users meet them: ownership, one plan for many calls, axes of a mesh, failures."""

import gc
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import (
    Blocks,
    Borrowed,
    BorrowError,
    Cyclic,
    DeviceOp,
    Each,
    Mesh,
    MeshError,
    MovedError,
    Out,
    OutOfMemoryError,
    Rank,
    Replicated,
    Sharded,
    SharedTensor,
    Tensor,
    TensorRef,
    Tile,
    all_gather,
    all_reduce,
    as_partials,
    as_shards,
    broadcast,
    current_device,
    device,
    dup,
    each,
    expr,
    f32,
    from_host,
    full,
    gather,
    halo,
    kernel,
    observe,
    ones,
    pipeline,
    plan_of,
    reduce_scatter,
    reshard,
    shard,
    shard_host,
    sharded_empty,
    source,
    spawn,
    unzip_each,
    use_mesh,
    value,
    zip_ops,
)
from dagpu.testing import CopyDtoD, Execute, Launch, Plan, View, parts_of
from tests.programs.meshes import mesh
from tests.simulated.cuda import driver, installed
from tests.support.gates import GATES, Gate, run
from tests.support.gates import gate as gate

pytestmark = pytest.mark.host_only("it names the devices of its meshes")

ARRAY = np.arange(48, dtype=f32).reshape(12, 4)
add = expr(f32, f32)(lambda x, y: x + y)
times = expr(f32, f32)(lambda x, y: x * y)
GRID = ("rows", "columns")


def scaled(part: Tensor[f32], w: SharedTensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return times(part, w)


def kept(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return value(part)


def read(part: Any, rank: Rank) -> DeviceOp[Any]:
    return dup(part)


def host(value_of: Any) -> list[NDArray[Any]]:
    return [part.to_host().sync() for part in parts_of(value_of)]


def test_a_whole_moves_as_a_tensor_does() -> None:
    """An op owns what is passed to it; a refused call moves nothing; a borrow is void once the whole has moved."""
    s = shard_host(ARRAY, mesh(3)).sync()
    lent: Any = s.borrow()
    with pytest.raises(MeshError):
        as_partials(each(read, lent)).then(lambda p: all_reduce(p, axis="rows")).sync()
    assert (gather(lent).to_host().sync() == ARRAY).all()
    with pytest.raises(MeshError, match=r"test_sharded_values.py:\d+: Blocks\(1\) does not cut the shape \(12, 4\)"):
        reshard(s, Blocks(1))  # 4 columns on 3 devices
    assert (gather(lent).to_host().sync() == ARRAY).all()
    op = reshard(s, Blocks(1, partial=True))
    with pytest.raises(MovedError):
        gather(s)
    with pytest.raises(MovedError):
        gather(lent).sync()
    assert (op.sync().to_host().sync() == ARRAY).all()
    t = ones((4,)).sync()
    for _ in range(2):  # the op owns the tensor still
        with pytest.raises(MeshError):
            shard(t.borrow(), mesh(3)).sync()
    assert t.to_host().sync().tolist() == [1.0] * 4


def test_replicas_are_shared_and_never_written() -> None:
    """They may be read in any number of ops at once; the tensor that was there is its own device's replica."""
    there = mesh(3)
    t = ones((12, 4)).on("host:1").sync()
    replicas = broadcast(t, there).sync()
    with pytest.raises(MovedError):
        dup(t)
    first, second = zip_ops(each(read, replicas), each(read, replicas)).sync()
    assert all((part == 1).all() for part in [*map(as_array, first), *map(as_array, second)])
    assert all(part.device == at for part, at in zip(parts_of(replicas), there.devices, strict=True))
    assert repr(replicas) == "Replicated(float32, (12, 4), on host:0, host:1, host:2)"
    for part in parts_of(replicas):
        assert type(part) is SharedTensor  # which no kernel writes


def as_array(t: Tensor[Any]) -> NDArray[Any]:
    found: NDArray[Any] = t.to_host().sync()
    return found


def test_a_pipeline_is_planned_once() -> None:
    """Its plan serves other values on the same mesh, in the same layout; another layout or mesh has one of its own."""

    @pipeline
    def step(xs: Sharded[f32], w: Replicated[f32]) -> DeviceOp[Any]:
        return zip_ops(all_reduce(as_partials(each(scaled, xs, w)), "mean"), value(w))

    def check(count: int, layout: Any) -> None:
        there = mesh(count)
        rows = 12 // count
        for number in (1, 2):
            w = broadcast(from_host(np.full((rows, 4), number, f32)), there).sync()
            mean, w = step(shard_host(ARRAY + number, there, layout).sync(), w).sync()
            parts = [(ARRAY + number)[slice(*box)] * number for box in boxes(count)]
            assert all(np.allclose(each, np.mean(parts, axis=0)) for each in host(mean))

    def boxes(count: int) -> list[tuple[int, int]]:
        return [(12 // count * n, 12 // count * (n + 1)) for n in range(count)]

    check(3, Blocks(0))
    assert step.cache_info().currsize == 1
    check(3, Cyclic((4, 4)))
    check(2, Blocks(0))
    assert (step.cache_info().currsize, step.cache_info().hits) == (3, 3)

    @pipeline
    def uploaded(array: NDArray[f32]) -> DeviceOp[Replicated[f32]]:
        return all_gather(shard_host(array, mesh(3)))

    assert (uploaded(ARRAY).sync().to_host().sync() == ARRAY).all()
    assert (uploaded(ARRAY + 1).sync().to_host().sync() == ARRAY + 1).all()
    assert uploaded.cache_info().hits == 1


def test_repeated_calls_are_direct() -> None:
    """From some calls on a pipeline has a function of its own for them. It moves values as any call does, and refuses a
    value in another layout, even if the parts have the same shapes."""
    there = mesh(3)

    @pipeline
    def doubled(s: Sharded[f32]) -> DeviceOp[Sharded[f32]]:
        return as_shards(each(added, s, s_one), (12, 4))

    @pipeline
    def turned(s: Any) -> DeviceOp[Any]:
        return reshard(s, Blocks(1, partial=True))

    def added(part: Tensor[f32], one: SharedTensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
        return times(part, one)

    s_one = broadcast(from_host(np.full((4, 4), 2, f32)), there).sync()
    s: Any = shard_host(ARRAY, there).sync()
    for _ in range(10):
        before, s = s, doubled(s).sync()
        with pytest.raises(MovedError):
            doubled(before)
    assert (s.to_host().sync() == 1024 * ARRAY).all()
    assert ", Sharded, " in doubled.source
    rows, tiles = shard_host(ARRAY, there).sync(), shard_host(ARRAY, there, Cyclic((2, 4))).sync()
    assert [part.shape for part in parts_of(rows)] == [part.shape for part in parts_of(tiles)]
    for number in range(12):
        assert (turned((rows, tiles)[number > 9].borrow()).sync().to_host().sync() == ARRAY).all()


def test_collectives_along_an_axis() -> None:
    """Rows of a mesh of two axes reduce and gather apart from each other, and the result says so."""
    grid = Mesh([f"host:{n}" for n in range(6)], (2, 3), GRID)

    def number(part: Any, rank: Rank) -> DeviceOp[Tensor[f32]]:
        return from_host(np.full(5, 10 * rank.coordinate("rows") + rank.coordinate("columns"), f32))

    def summands() -> Any:
        return as_partials(each(number, broadcast(ones((1,)), grid)))

    rows = all_reduce(summands(), axis="columns").sync()
    assert [part[0] for part in host(rows)] == [3, 3, 3, 33, 33, 33]
    columns = all_reduce(summands(), "max", axis="rows").sync()
    assert [part[0] for part in host(columns)] == [10, 11, 12] * 2
    assert repr(columns).startswith("Replicated(float32, (5,), along 'rows', on host:0")
    with pytest.raises(MeshError, match="equal along one axis alone"):
        rows.to_host()
    layout = Blocks({0: "rows", 1: "columns"})
    array = np.arange(24, dtype=f32).reshape(4, 6)
    gathered = all_gather(shard_host(array, grid, layout), axis="columns").sync()
    assert gathered.shape == (2, 6)
    assert all((part == array[:2] if n < 3 else part == array[2:]).all() for n, part in enumerate(host(gathered)))
    assert all((part == 36 - 0).all() for part in host(all_reduce(summands()).sync()))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_every_reduction_goes_in_the_order_of_the_devices(count: int) -> None:
    """Sums of numbers of very different size show the order. More summands than a kernel takes are reduced in turn."""
    there = mesh(count)
    random = np.random.default_rng(count)
    summands = [(10.0 ** random.integers(-8, 8, 33) * random.normal(size=33)).astype(f32) for _ in range(count)]

    def made(part: Any, rank: Rank) -> DeviceOp[Tensor[f32]]:
        return from_host(summands[rank.number])

    def reduced(how: Any) -> NDArray[Any]:
        found = all_reduce(as_partials(each(made, broadcast(ones((1,)), there))), how).sync()
        return found.to_host().sync()

    total, product, low, high = summands[0], summands[0], summands[0], summands[0]
    for summand in summands[1:]:
        total, product = total + summand, product * summand
        low, high = np.minimum(low, summand), np.maximum(high, summand)
    for how, wanted in (("sum", total), ("prod", product), ("min", low), ("max", high), ("mean", total / f32(count))):
        assert reduced(how).tobytes() == wanted.tobytes(), how


def test_results_of_each_come_apart() -> None:
    """Tuples are taken apart by the annotation or a number; ranks know their place; any result is an `Each`."""
    grid = Mesh([f"host:{n}" for n in range(4)], (2, 2), GRID)

    def pair(part: Tensor[f32], rank: Rank) -> DeviceOp[tuple[Tensor[f32], int]]:
        assert part.device == rank.device
        assert rank.boxes == (np.s_[3 * rank.number : 3 * rank.number + 3, 0:4],)
        return zip_ops(value(part), value(2 * rank.coordinate("rows") + rank.coordinate("columns")))

    parts, numbers = unzip_each(each(pair, shard_host(ARRAY, grid)))
    together, found = zip_ops(as_shards(parts, (12, 4)), numbers).sync()
    assert (together.to_host().sync() == ARRAY).all()
    assert list(found) == [0, 1, 2, 3]
    assert isinstance(found, Each)
    assert found.mesh == grid

    def lent(part: TensorRef[f32], rank: Rank) -> DeviceOp[Tensor[f32], Borrowed]:
        return dup(part.slice(slice(0, 1)))

    s = shard_host(ARRAY, grid).sync()
    heads = as_shards(each(lent, s.borrow()), (4, 4)).sync()
    assert (heads.to_host().sync() == ARRAY[::3]).all()
    assert s.nbytes == ARRAY.nbytes
    blank = sharded_empty((6, 2), np.float64, grid, Blocks(0, partial=True)).sync()
    assert [part.shape[0] for part in parts_of(blank)] == [2, 2, 2, 0]
    assert not blank.to_host().sync().any()


def test_a_large_broadcast_goes_in_chunks() -> None:
    """Each of several devices takes a chunk from the source, and the others' chunks from each other."""
    array = np.arange(200_003, dtype=f32)
    replicas = broadcast(from_host(array).on("host:1"), mesh(4)).sync()
    assert all((each == array).all() for each in host(replicas))
    assert all((each == array).all() for each in host(broadcast(replicas._on(2), mesh(5)).sync()))  # noqa: SLF001


@pytest.mark.parametrize("spread", [False, True])
def test_no_more_bytes_cross_than_have_to(spread: bool) -> None:
    """An all-reduce reads a chunk of each peer in its kernel, and copies the other chunks: 2 (n - 1) / n of the bytes
    arrive at each device. Resharding moves what lies elsewhere. A policy that chooses devices adds nothing to that."""
    there = mesh(4)

    def summand(part: Any, rank: Rank) -> DeviceOp[Tensor[f32]]:
        return full((1 << 18,), float(rank.number))

    reduced = all_reduce(as_partials(each(summand, broadcast(ones((1,)).on("host:0"), there))))
    s = shard_host(np.ones((64, 64), f32), there).sync()
    with use_mesh(there) if spread else nullcontext():
        plan, again = plan_of(reduced), plan_of(reshard(s.borrow(), Blocks(1)))
        assert (reduced.sync().to_host().sync() == 6).all()
    assert _copied(plan) == 3 * (1 << 20) + 3 * 4  # and the broadcast of one float
    assert _read(plan) == 3 * (1 << 20)
    assert _copied(again) == 64 * 64 * 4 * 3 // 4


def _copied(plan: Plan) -> int:
    """The bytes of the plan's copies between devices."""
    found = [step.instruction for step in plan.steps if isinstance(step, Execute)]
    return sum(each.source.layout.nbytes for each in found if isinstance(each, CopyDtoD) and _crosses(plan, each))


def _crosses(plan: Plan, copy: CopyDtoD) -> bool:
    return plan.buffers[copy.source.buffer].device != plan.buffers[copy.out.buffer].device


def _read(plan: Plan) -> int:
    """The bytes that the plan's kernels read on other devices."""
    launches = [step.instruction for step in plan.steps if isinstance(step, Execute)]
    views = [(each.device, arg) for each in launches if isinstance(each, Launch) for arg in each.args]
    return sum(
        arg.layout.nbytes for at, arg in views if isinstance(arg, View) and plan.buffers[arg.buffer].device != at
    )


def test_a_feed_has_every_part() -> None:
    """A whole is put together in a feed from parts of two sources: after each change all parts are up to date, also
    those that did not change."""
    there = mesh(3)
    a, b = source(ARRAY), source(ARRAY)

    def from_source(found: Any) -> Any:
        return found.then(from_host)

    def follow() -> Any:
        summed = as_shards(each(plus, shard(from_source(a), there), shard(from_source(b), there)), (12, 4))
        return zip_ops(all_gather(reshard(summed, Cyclic((3, 4)))), gather(shard(from_source(b), there)).share())

    def plus(one: Tensor[f32], other: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
        return add(one, other)

    async def body() -> None:
        first, second = ARRAY, ARRAY
        async with observe(follow()) as feed:
            for number in range(5):
                whole, copy = await feed.next()
                for part in parts_of(whole):
                    assert (await part.to_host() == first + second).all()
                assert (await copy.to_host() == second).all()
                if number % 2:
                    first = first + 1
                    a.set(first)
                else:
                    second = second * 2
                    b.set(second)

    run(body)


# ---- failures


@kernel(cuda="__global__ void hold(Tile<float, 1> y, int gate) {}")
def hold(y: Out[f32], gate: int) -> None:
    """Waits for the gate, if it has a number."""


@hold.host
def _(y: Tile[f32], gate: int) -> None:
    if gate >= 0:
        GATES[gate](None)
    y[...] += 1


def test_a_collective_is_cancelled_and_drained(gate: Gate) -> None:
    """One device is still at its summand: what was submitted is drained, what was made is freed, and the next run of
    the op has its result."""
    there = mesh(3)
    number = next(iter(GATES))
    gc.collect()
    before = [each.memory_used() for each in there.devices]

    def summand(part: Any, rank: Rank) -> DeviceOp[Any]:
        return hold(ones((64,)).partition((64,)), number if rank.number == 1 else -1).first().unpartition()

    op = all_reduce(as_partials(each(summand, broadcast(ones((1,)), there))))

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, op)
            await gate.reached()
            pending.cancel()
            gate.open.set()
        gate.open.set()
        result = await op
        assert all([(await part.to_host() == 6).all() for part in parts_of(result)])

    run(body)
    gc.collect()
    assert [each.memory_used() for each in there.devices] == before


@pytest.mark.parametrize("peers", [True, False])
def test_on_gpus_the_bits_are_those_of_the_host(peers: bool) -> None:
    """On simulated GPUs, also where they do not read each other's memory: strided parts then go in one piece."""
    array = np.random.default_rng(0).normal(size=(9, 7)).astype(f32)

    def program(kind: str) -> list[bytes]:
        grid = Mesh([f"{kind}:{n}" for n in range(4)], (2, 2), GRID)
        columns = Blocks({0: "columns", 1: "rows"}, partial=True)
        s = shard_host(array, grid, columns)
        again = reshard(s, Cyclic((2, 3))).sync()
        rims = halo(reshard(again.borrow(), columns), 2, wrap=True).sync()
        sums = all_reduce(as_partials(each(read, broadcast(from_host(array), grid)))).sync()
        parts = reduce_scatter(as_partials(each(read, sums)), columns, "mean").sync()
        return [each.tobytes() for each in (*host(again), *host(rims), *host(sums), *host(parts))]

    wanted = program("host")
    with installed(seed=3, gpus=4) as machine:
        machine.peers = peers
        assert program("cuda") == wanted
    assert len(wanted) == 16


def test_out_of_memory_on_one_device_loses_nothing() -> None:
    """The run that does not fit on one GPU fails before it begins, names the device, and leaves its op its values."""
    with installed(seed=1, gpus=3, memory=1 << 20):
        there = mesh(3, "cuda")
        s = shard_host(ARRAY, there).sync()
        with driver(1).gpu.current():
            held = driver(1).memory.take(900 << 10)
        wide = broadcast(ones((1 << 16,)), there)
        with pytest.raises(OutOfMemoryError, match="cuda:1"):
            wide.sync()
        op = zip_ops(all_gather(s), broadcast(ones((1 << 16,)), there))
        with pytest.raises(OutOfMemoryError, match="cuda:1"):
            op.sync()
        del held
        gathered, _ = op.sync()
        assert (gathered.to_host().sync() == ARRAY).all()
        assert current_device() == device("cuda:0")


def test_a_whole_is_locked_while_it_is_read() -> None:
    """As for any borrow: a run that writes a part waits for nobody, it is refused."""
    s = shard_host(ARRAY, mesh(2)).sync()
    part = parts_of(s)[0]
    lent = part.borrow_mut()
    with pytest.raises(BorrowError):
        zip_ops(gather(s.borrow()), hold(lent.reshape((24,)).partition((24,)), -1)).sync()
    assert (s.to_host().sync() == ARRAY).all()
