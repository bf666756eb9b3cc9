"""Several devices: copies, collectives, rims, weak scaling of a data-parallel step, graphs and a factorisation.

    python -m benchmarks.mesh [--devices cuda:0 cuda:1]     all GPUs by default; keeps results/mesh.json and mesh.md.
                                                            With one GPU: graphs and the factorisation, not kept
    python -m benchmarks.mesh --device host                 a dry run on four host devices: keeps nothing

Each contender is timed on the host's clock from the call to the end of the wait, in steady state. dagpu's are
pipelines, which are planned once. The floor of a collective is its bytes over the link, `Links().peer`: each device
receives 2 (n - 1) / n of them in an all-reduce. NCCL is that of PyTorch, driven from this one process; NVLink's
multicast is off.
On the host, where the devices share one memory and its cores, the floor is NumPy on one thread.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.gpu import Bench, Measure, medians, optional, rounds, start
from benchmarks.support.mesh_graphs import chain_table, factorisation_table
from benchmarks.support.table import Span, Table, now, show
from dagpu import (
    Blocks,
    Device,
    DeviceOp,
    Haloed,
    Links,
    Mesh,
    Partials,
    Rank,
    Replicated,
    ShardedRef,
    SharedTensor,
    Tensor,
    TensorRef,
    all_reduce,
    array,
    as_partials,
    broadcast,
    device,
    devices,
    dup,
    each,
    expr,
    f32,
    from_host,
    halo,
    pipeline,
    shard_host,
    use_device,
    zip_ops,
)

KIB: Final = 1 << 10
SIZES: Final = (16 * KIB, 256 * KIB, 1 << 20, 16 << 20, 256 << 20)
"""Bytes of a summand."""
COPIES: Final = (64 * KIB, 64 << 20, 1 << 30)
"""Bytes of a copy."""
PLATE: Final = 8192
"""Extent of the plate of the rims."""
WORK: Final = 8
"""Rounds of element-wise work of the data-parallel step."""


@final
class Load(NamedTuple):
    """The sizes of a data-parallel step."""

    name: str
    rows: int
    """Rows on each device."""
    features: int
    """Elements of a row and of the gradient of a layer."""
    layers: int


LOADS: Final = (
    Load("mostly work", 1 << 14, 1 << 10, 1),
    # On four H200s two rows of a feature take 32 ps of work, and the exchange of its gradient 16 ps.
    Load("with an exchange of half of the work's time", 2, 2 << 20, 8),
)

busy = expr(f32, f32)(lambda x, w: array.tanh(x * w) + x)


def small(bench: Bench, sizes: Sequence[int]) -> Sequence[int]:
    """Return the sizes of a real run, or the first ones of a dry run."""
    return sizes if bench.floor is not None and not bench.quick else sizes[:2]


# ---- copies


def copy_table(bench: Bench, one: Device, other: Device, nbytes: int) -> Table:
    """Measure the copy of a tensor to the next device."""
    bench.left_out.clear()
    tensor = from_host(np.ones(nbytes // 4, f32)).on(one).sync()
    op = pipeline(lambda t: dup(t).on(other))
    floor = nbytes / Links().peer.bandwidth + Links().peer.latency
    contenders: list[Measure] = [partial(rounds, "dagpu dup", lambda: op(tensor.borrow()).sync(), bench.many(20))]
    if one.kind == "cuda":
        contenders += _peers(bench, "PyTorch", partial(_torch_copy, one, other, nbytes, bench.many(20)))
    samples = bench.measure(contenders, 7)
    table = Table(f"A copy of {_named(nbytes)} to the next device", "us", ratio_to="the first", remarks="GB/s")
    table.note = f"The link's own time is {1e6 * floor:.1f} us.{bench.missing()}"
    _fill(table, samples, nbytes, floor / 0.97 if one.kind == "cuda" else None)
    return table


def _torch_copy(one: Device, other: Device, nbytes: int, count: int) -> list[Measure]:
    torch = optional("torch")
    source = torch.ones(nbytes // 4, device=one.name)
    target = torch.empty_like(source, device=other.name)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(other.index)

    return [partial(rounds, "PyTorch copy_", copy, count)]


# ---- collectives


def reduce_table(bench: Bench, mesh: Mesh, nbytes: int) -> Table:
    """Measure an all-reduce of one summand a device: of summands that exist, as NCCL's, and with their making."""
    bench.left_out.clear()
    count = len(mesh)
    summand = broadcast(from_host(np.ones(nbytes // 4, f32)), mesh).sync()

    def own(part: SharedTensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
        return dup(part)

    @pipeline
    def reduced(summands: Partials[f32]) -> DeviceOp[Replicated[f32]]:
        return all_reduce(summands)

    @pipeline
    def whole(s: Replicated[f32]) -> DeviceOp[Replicated[f32]]:
        return all_reduce(as_partials(each(own, s)))

    @pipeline
    def copied(s: Replicated[f32]) -> DeviceOp[Partials[f32]]:
        return as_partials(each(own, s))

    times = bench.many(20)
    contenders: list[Measure] = [
        partial(_each_once, "dagpu all_reduce", lambda: copied(summand).sync(), lambda p: reduced(p).sync(), times),
        partial(rounds, "dagpu, the summands copied before", lambda: whole(summand).sync(), times),
        partial(rounds, "dagpu, the copies alone", lambda: copied(summand).sync(), times),
    ]
    moved = 2 * (count - 1) / count * nbytes
    floor = moved / Links().peer.bandwidth
    if mesh.devices[0].kind == "cuda":
        contenders += _peers(bench, NCCL, partial(_nccl, mesh, nbytes, times))
    else:
        contenders.append(partial(rounds, "NumPy on one thread", partial(_numpy_reduce, count, nbytes), times))
    samples = bench.measure(contenders, 7)
    table = Table(f"all_reduce of {_named(nbytes)} on {count} devices", "us", ratio_to="the first", remarks="bus GB/s")
    table.note = f"The links' own time is {1e6 * floor:.1f} us.{bench.missing()}"
    nccl = samples.get(NCCL)
    target = None if nccl is None else medians(nccl).wall
    _fill(table, samples, moved, target)
    return table


def _each_once(name: str, make: Callable[[], Any], use: Callable[[Any], object], count: int) -> dict[str, Span]:
    """Return the median time in which `use` uses what `make` has made before: it moves, so there is one for each
    call."""
    spans = []
    for turn in range(2 + count):
        given = make()
        start = now()
        result = use(given)
        span = now().since(start)
        del given, result
        if turn >= 2:
            spans.append(span)
    return {name: medians(spans)}


NCCL, NCCL_AFTER_COPIES = "NCCL", "NCCL, the summands copied before"


def _nccl(mesh: Mesh, nbytes: int, count: int) -> list[Measure]:
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch = optional("torch")
    nccl = optional("torch.cuda.nccl")
    tensors = [torch.ones(nbytes // 4, device=each.name) for each in mesh.devices]
    if not nccl.is_available(tensors):
        raise ImportError("PyTorch has no NCCL")
    outputs = [torch.empty_like(tensor) for tensor in tensors]

    def run() -> None:
        nccl.all_reduce(tensors, outputs)
        for place in mesh.devices:
            torch.cuda.synchronize(place.index)

    def run_after_copies() -> None:
        nccl.all_reduce([tensor.clone() for tensor in tensors], outputs)
        for place in mesh.devices:
            torch.cuda.synchronize(place.index)

    return [partial(rounds, NCCL, run, count), partial(rounds, NCCL_AFTER_COPIES, run_after_copies, count)]


def _numpy_reduce(count: int, nbytes: int) -> list[NDArray[f32]]:
    summands = [np.ones(nbytes // 4, f32)] * count
    total = reduce(np.add, summands)
    return [total.copy() for _ in summands]


# ---- rims


def halo_table(bench: Bench, mesh: Mesh) -> Table:
    """Measure the exchange of a rim of 1 against a copy of the blocks without one."""
    bench.left_out.clear()
    extent = PLATE if bench.floor is not None and not bench.quick else 256
    plate = shard_host(np.ones((extent, extent), f32), mesh, Blocks(0, partial=True)).sync()
    rims: Callable[[ShardedRef[f32]], DeviceOp[Haloed[f32], Any]] = pipeline(lambda s: halo(s, (1, 0)))
    alone = pipeline(lambda s: each(_copied, s))
    times = bench.many(20)
    contenders: list[Measure] = [
        partial(rounds, "dagpu, copies of the blocks", lambda: alone(plate.borrow()).sync(), times),
        partial(rounds, "dagpu halo", lambda: rims(plate.borrow()).sync(), times),
    ]
    samples = bench.measure(contenders, 7)
    table = Table(f"Rims of {extent:,} x {extent:,} floats on {len(mesh)} devices", "us", ratio_to="the first")
    table.note = f"A rim is one row of {4 * extent:,} bytes on both sides of a block.{bench.missing()}"
    _fill(table, samples, 0)
    return table


def _copied(part: TensorRef[f32], rank: Rank) -> DeviceOp[Any, Any]:
    return dup(part)


# ---- weak scaling


def scaling_table(bench: Bench, mesh: Mesh, load: Load) -> Table:
    """Measure one data-parallel step with the same rows on each device, on one device and on more of them."""
    bench.left_out.clear()
    if bench.floor is None or bench.quick:
        load = load._replace(rows=min(load.rows, 64), features=1 << 10)
    times = bench.many(20)
    contenders = [partial(_scaled, mesh.devices[:count], load, times) for count in _counts(len(mesh))]
    samples = bench.measure(contenders, 7)
    table = Table(f"A data-parallel step, {load.name}", "us", ratio_to="one device", remarks="efficiency")
    table.note = (
        f"The same {load.rows:,} rows on each device, of {load.features:,} floats in each of {load.layers} layers: "
        f"{WORK} element-wise kernels, a sum over the rows, the mean over all devices. Layers are independent of each "
        f"other.{bench.missing()}"
    )
    base = samples[_on(1)]
    for name, spans in samples.items():
        efficiency = medians(base).wall / medians(spans).wall
        target = 1e6 * medians(base).wall / 0.9 if mesh.devices[0].kind == "cuda" and name != _on(1) else None
        table.add(name, spans, 1e6, base=base, target=target, remark=f"{100 * efficiency:.0f} %")
    return table


def _counts(most: int) -> list[int]:
    return [count for count in (1, 2, 4, 8) if count <= most]


def _on(count: int) -> str:
    return f"dagpu, {count} device{'s' if count > 1 else ''}"


def _scaled(names: Sequence[Device], load: Load, times: int) -> dict[str, Span]:
    mesh = Mesh(names)
    rows = load.rows * len(mesh)
    batches = [shard_host(np.ones((rows, load.features), f32), mesh).sync() for _ in range(load.layers)]
    weights = [broadcast(from_host(np.full(load.features, 0.5, f32)), mesh).sync() for _ in range(load.layers)]

    def gradient(part: TensorRef[f32], w: SharedTensor[f32], rank: Rank) -> DeviceOp[Any, Any]:
        op = busy(part, w)
        for _ in range(WORK - 1):
            op = busy(op, w)
        return op.then(lambda t: array.sum(t, 0))

    @pipeline
    def step(*given: Any) -> DeviceOp[Any, Any]:
        pairs = zip(given[: load.layers], given[load.layers :], strict=True)
        return zip_ops(*[all_reduce(as_partials(each(gradient, xs, w)), "mean") for xs, w in pairs])

    return rounds(_on(len(mesh)), lambda: step(*[batch.borrow() for batch in batches], *weights).sync(), times)


# ---- the tables


def _peers(bench: Bench, name: str, make: Callable[[], list[Measure]]) -> list[Measure]:
    """Return a peer's measurements; none if it is not installed, which the table then says."""
    try:
        return make()
    except ImportError as error:
        bench.left_out.append(f"{name} ({error})")
        return []


def _fill(table: Table, samples: dict[str, list[Span]], moved: float, target: float | None = None) -> None:
    """Add a row for each contender. The target, in seconds, is that of the first one."""
    base = next(iter(samples.values()))
    for number, (name, spans) in enumerate(samples.items()):
        goal = None if target is None or number else round(1e6 * target, 1)
        rate = f"{moved / medians(spans).wall / 1e9:.1f}" if moved else ""
        table.add(name, spans, 1e6, base=base, target=goal, remark=rate)


def _named(nbytes: int) -> str:
    return f"{nbytes >> 20:,} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10:,} KiB"


def _all_of(kind: str) -> list[str]:
    """Return the names of all GPUs, or of four host devices."""
    gpus = [one.name for one in devices() if one.kind == kind == "cuda"]
    return gpus or [f"{kind}:{number}" for number in range(1 if kind == "cuda" else 4)]


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # --device is another option
    parser.add_argument("--devices", nargs="+", default=None)
    chosen, rest = parser.parse_known_args(sys.argv[1:])
    bench = start("mesh", "Several devices: copies, collectives, rims and scaling. --devices names them.", rest)
    mesh = Mesh([device(name) for name in chosen.devices or _all_of(bench.where.kind)])
    if len(mesh) < 2:
        if mesh.devices[0].kind == "host":
            sys.exit("benchmarks.mesh needs two devices of one kind, and found one. --device host makes a dry run.")
        print(show([chain_table(bench, mesh), factorisation_table(bench, mesh)], bench.about))
        print("\none GPU: its part alone, of which nothing is kept. Several GPUs have the other tables.")
        return
    with use_device(mesh.devices[0]):
        tables = [copy_table(bench, mesh.devices[0], mesh.devices[1], nbytes) for nbytes in small(bench, COPIES)]
        tables += [reduce_table(bench, mesh, nbytes) for nbytes in small(bench, SIZES)]
        tables += [halo_table(bench, mesh), *[scaling_table(bench, mesh, load) for load in LOADS]]
        tables += [chain_table(bench, mesh), factorisation_table(bench, mesh)]
    bench.finish("Several devices", tables)


if __name__ == "__main__":
    main()
