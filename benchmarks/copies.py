"""Rates of copies between host and GPU in GB/s, and the cost of `Tile` and `View` compared with raw pointers.

    python -m benchmarks.copies                  keeps results/copies.json and copies.md
    python -m benchmarks.copies --device host    a dry run without a GPU: measures nothing, keeps nothing

Copies are timed on the host's clock from the call to the end of the wait, in steady state. Pinned memory is memory that
the GPU accesses directly: the arrays that dagpu's `to_host` returns. All others are ordinary NumPy arrays. dagpu
allocates the target of a copy; its peers copy into existing memory.

A kernel's time is measured on the GPU's clock. A kernel of 10 ms blocks a stream, an event is recorded, a chain of
launches follows (dagpu's through `op.sync_on(stream)`), and a second event ends it. So the host's time for submission
does not count. Constant costs of a chain cancel out in the difference between a chain of 3 n and one of n launches,
which is divided by 2 n.
"""

from collections.abc import Callable
from functools import partial
from math import nan
from typing import Any, TypeAlias

import numpy as np

from benchmarks.peers.gpu_peers import PyCuda, installed
from benchmarks.support.gpu import Bench, Floor, Measure, medians, optional, rounds, start
from benchmarks.support.gpu_kernels import BLOCK, EDGE, STRETCH, Array, Op, build_gemms, build_saxpys, shared
from benchmarks.support.table import Span, Table, now
from dagpu import Stream, Tensor, f32, from_host, use_device

REACH, OVERHEAD = 0.95, 1.02
"""Targets: the fraction of the pinned rate; the ratio to the time of the same kernel on pointers."""

MIB = 2**20
SIZES = (1, 16, 128, 1024)
"""Sizes of the copies in MiB."""

SAXPY_SIZE, GEMM_SIZE = 2**26, 2048
HOLD = 0.010
"""Seconds for which a stream is blocked: longer than the submission of the longest chain."""

FLOOR_NAME = "C++ cuMemcpyAsync, pinned"
TILES_NAME, POINTERS_NAME, RAW_NAME = "dagpu, Tile and View", 'dagpu, abi="pointers"', "PyCUDA prepared_async_call"

ByHand: TypeAlias = Callable[[Floor, PyCuda], Callable[[], object]]
"""Returns a function that launches a kernel once with PyCUDA."""


# ---- copies


def ours_in(bench: Bench, nbytes: int, count: int) -> list[Measure]:
    """Return measurements of `from_host` for both kinds of arrays."""
    ordinary = np.ones(nbytes // 4, np.float32)
    pinned = from_host(ordinary).to_host().sync()

    def copy(array: Array) -> Tensor[f32]:
        return from_host(array).sync()

    return [
        partial(rounds, "dagpu from_host, an array from to_host", partial(copy, pinned), count),
        partial(rounds, "dagpu from_host, an ordinary array", partial(copy, ordinary), count),
    ]


def ours_out(bench: Bench, nbytes: int, count: int) -> list[Measure]:
    """Return measurements of `to_host`."""
    tensor = from_host(np.ones(nbytes // 4, np.float32)).sync()

    def copy() -> Array:
        return tensor.borrow().to_host().sync()

    return [partial(rounds, "dagpu to_host", copy, count)]


def cupy_copies(way: str, nbytes: int, count: int) -> list[Measure]:
    """Return measurements of CuPy, on a stream, into existing memory."""
    cupy = optional("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    there = cupy.ones(nbytes // 4, f32)
    cupy.cuda.Device(0).synchronize()

    def copy(array: Array) -> None:
        if way == "h2d":
            there.set(array, stream=stream)
        else:
            there.get(stream=stream, out=array, blocking=False)
        stream.synchronize()

    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.float32, nbytes // 4)
    pinned[:] = 1
    return [
        partial(rounds, "CuPy, pinned", partial(copy, pinned), count),
        partial(rounds, "CuPy, pageable", partial(copy, np.ones(nbytes // 4, np.float32)), count),
    ]


def torch_copies(way: str, nbytes: int, count: int) -> list[Measure]:
    """Return measurements of PyTorch, into existing memory."""
    torch = optional("torch")
    if not torch.cuda.is_available():
        raise ImportError("it has no CUDA")
    there = torch.ones(nbytes // 4, device="cuda:0")

    def copy(array: Any) -> None:
        if way == "h2d":
            there.copy_(array, non_blocking=True)
        else:
            array.copy_(there, non_blocking=True)
        torch.cuda.current_stream().synchronize()

    pageable = torch.ones(nbytes // 4)
    return [
        partial(rounds, "PyTorch, pinned", partial(copy, pageable.pin_memory()), count),
        partial(rounds, "PyTorch, pageable", partial(copy, pageable), count),
    ]


def copy_table(bench: Bench, way: str, mebibytes: int) -> Table:
    """Measure all copies of one size in one direction."""
    nbytes = mebibytes * MIB
    count = bench.many(max(2, min(20, 256 // mebibytes)))
    bench.left_out.clear()
    contenders: list[Measure] = []
    if bench.floor is not None:
        contenders = [
            partial(bench.floor.rounds, FLOOR_NAME, f"copy {way} {nbytes}", count),
            *installed(bench, "CuPy", partial(cupy_copies, way, nbytes, count)),
            *installed(bench, "PyTorch", partial(torch_copies, way, nbytes, count)),
        ]
    contenders += (ours_in if way == "h2d" else ours_out)(bench, nbytes, count)
    samples = bench.measure(contenders, 7 if mebibytes < 512 else 3)
    direction = "Host to GPU" if way == "h2d" else "GPU to host"
    table = Table(f"{direction}, {mebibytes:,} MiB", "us", ratio_to="C++ pinned", remarks="GB/s")
    table.note = f"A target is the time of C++ over {REACH:g}.{bench.missing()}"
    floor = samples.get(FLOOR_NAME)
    for name, spans in samples.items():
        target = None
        if floor is not None and name.startswith("dagpu") and "ordinary" not in name:
            target = round(medians(floor).wall * 1e6 / REACH, 1)
        table.add(name, spans, 1e6, target=target, base=floor, remark=f"{nbytes / medians(spans).wall / 1e9:.1f}")
    return table


# ---- kernels


def each(name: str, chain_seconds: Callable[[int], Span], n: int) -> dict[str, Span]:
    """Return the seconds of one launch, from the difference between a chain of 3 n and one of n."""
    short, long = chain_seconds(n), chain_seconds(3 * n)
    return {name: Span((long.wall - short.wall) / (2 * n), (long.cpu - short.cpu) / (2 * n))}


def our_seconds(bench: Bench, stream: Stream, ops: dict[int, Op], n: int) -> Span:
    """Return the seconds of the op of `n` launches on the stream; on the host, those of the whole run."""
    if bench.floor is not None:
        return Span(bench.floor.device_seconds(stream.handle, partial(ops[n].sync_on, stream), HOLD), nan)
    begin = now()
    ops[n].sync()
    return now().since(begin)


def raw_seconds(floor: Floor, hand: PyCuda, launch: Callable[[], object], n: int) -> Span:
    """Return the seconds of `n` launches by hand on PyCUDA's stream."""

    def submit() -> None:
        for _ in range(n):
            launch()

    with hand.scope():
        return Span(floor.device_seconds(hand.streams[0].handle, submit, HOLD), nan)


def kernel_table(bench: Bench, title: str, n: int, build: Callable[[int, bool], Op], raw: ByHand) -> Table:
    """Measure one kernel in three ways. `build(n, pointers)` returns a chain of `n` launches."""
    bench.left_out.clear()
    stream = bench.where.stream()
    contenders: list[Measure] = []
    for name, pointers in ((POINTERS_NAME, True), (TILES_NAME, False)):
        ops = {length: build(length, pointers) for length in (n, 3 * n)}
        contenders.append(partial(each, name, partial(our_seconds, bench, stream, ops), n))
    floor = bench.floor
    if floor is None:
        bench.left_out.append("PyCUDA, which needs the GPU")
    else:
        hands = installed(bench, "PyCUDA", partial(_pycuda, floor))
        runs = [partial(raw_seconds, floor, hand, raw(floor, hand)) for hand in hands]
        contenders += [partial(each, RAW_NAME, run, n) for run in runs]
    samples = bench.measure(contenders, 15)
    base = samples[POINTERS_NAME]
    table = Table(title, "us", ratio_to="pointers")
    table.note = "One launch, on the GPU's clock; the head of copies.py says how. "
    table.note += f"The target is {OVERHEAD:g} times the same kernel on pointers.{bench.missing()}"
    for name, spans in samples.items():
        target = round(medians(base).wall * 1e6 * OVERHEAD, 2) if name == TILES_NAME else None
        table.add(name, spans, 1e6, target=target, base=base)
    return table


def _pycuda(floor: Floor) -> list[PyCuda]:
    return [PyCuda(floor)]


def saxpy_table(bench: Bench) -> Table:
    """Measure saxpy of 2^26 floats, which moves 12 bytes for each."""
    size = SAXPY_SIZE if bench.floor is not None else 2 * STRETCH
    x = shared(np.ones(size, np.float32))

    def raw(floor: Floor, hand: PyCuda) -> Callable[[], object]:
        y, other, grid, call = floor.ones(size), floor.ones(size), (size // STRETCH, 1), hand.saxpy.prepared_async_call
        return lambda: call(grid, (BLOCK, 1, 1), hand.streams[0], y, 0.5, other, size)

    return kernel_table(bench, f"saxpy, {size:,} floats", 10, lambda n, pointers: build_saxpys(n, x, pointers), raw)


def gemm_table(bench: Bench) -> Table:
    """Measure a product of two square matrices through shared memory, in plain float."""
    size = GEMM_SIZE if bench.floor is not None else 2 * EDGE
    a, b = shared(np.ones((size, size), np.float32)), shared(np.ones((size, size), np.float32))

    def raw(floor: Floor, hand: PyCuda) -> Callable[[], object]:
        memory, grid = [floor.ones(size * size) for _ in range(3)], (size // EDGE, size // EDGE)
        call = hand.gemm.prepared_async_call
        return lambda: call(grid, (BLOCK, 1, 1), hand.streams[0], *memory, size, size, size)

    return kernel_table(bench, f"gemm, {size:,} cubed", 3, lambda n, pointers: build_gemms(n, a, b, pointers), raw)


def main() -> None:
    """Measure, print the results, and save them."""
    bench = start("copies", "Copies between host and GPU, and what Tile and View cost a kernel.")
    sizes = SIZES if bench.floor is not None else SIZES[:1]
    with use_device(bench.where):
        tables = [copy_table(bench, way, size) for way in ("h2d", "d2h") for size in sizes]
        tables += [saxpy_table(bench), gemm_table(bench)]
    bench.finish("Copies and kernels", tables)


if __name__ == "__main__":
    main()
