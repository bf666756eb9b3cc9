"""A call at the driver's cost: each way to call dagpu beside the same work in C++ and beside the best peer.

    python -m benchmarks.calls                  half a minute; keeps results/calls.json and calls.md
    python -m benchmarks.calls --decode         the decode step too, with PyTorch's compiled one
    python -m benchmarks.calls --device host    measures the rows of the host alone; dagpu's part of the others runs
                                                without being measured; keeps nothing

A sample is the mean of some hundred calls in a row, from the first call's arguments to the last one's result; the
contenders of a table take turns, and a row is the median of their samples. The floor in C++ launches a CUDA graph of
the same kernels that waits for nothing else, and polls its stream until it is done; where every number changes, it sets
the parameters of every kernel before. Peers are written as their users write them, and wait for their stream. With two
GPUs in the machine, a graph over both has a table. Results are checked before and after the times are taken.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias, final

import numpy as np
import trio

from benchmarks import arrays, copies, decoding, interop
from benchmarks.graph import CAPTURED_NAME, captured, chain_of
from benchmarks.peers.gpu_peers import Peer, all_peers, installed
from benchmarks.peers.graph_floor import GraphFloor
from benchmarks.peers.graph_peers import graph_peers
from benchmarks.peers.update_peers import HAND_NAME, update_peers
from benchmarks.support import workloads
from benchmarks.support.goals import Goal, Section, in_a_row, in_trio, repeated, table_of_goals
from benchmarks.support.gpu import Bench, Measure, start
from benchmarks.support.gpu_kernels import BLOCK, FACTOR, SIZE, Op, same, saxpy, scale, scaled, shared
from benchmarks.support.table import Grid, Span, Table, measure, now, pin_to_one_core
from benchmarks.updates import DIRTY, N, OpenFeed, chain
from dagpu import (
    Device,
    DeviceOp,
    SharedTensor,
    Tensor,
    device,
    devices,
    empty,
    f32,
    from_host,
    ones,
    pipeline,
    source,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.common.compiled import WHY_NOT, served

TITLE: Final = "A call at the driver's cost"

IDLE, SET_ANEW = "C++: an idle graph, launched and polled", "C++: the same, its number set before"
CHECKPOINT = "trio: a checkpoint alone"
SAME, NUMBER, ADDRESS = "dagpu: pipeline(x, a).sync()", "dagpu: its number changed", "dagpu: its address changed"
AWAITED = "dagpu: await pipeline(x, a)"
LAUNCHED, RAW_KERNEL = "C++: a launch and a stream sync", "CuPy RawKernel"
AGAIN, FRESH = "dagpu: a plain op again", "dagpu: a fresh op of known structure"
BUILT = "dagpu: a fresh op, built and not run"
EAGER = "PyTorch eager mul(out=)"

CALLS: Final = 200
"""Calls in a row."""
BATCHES: Final = 40
MANY: Final = 1000
"""Kernels of the long chain, launches of the feed's op, and ops on the host."""
WARM: Final = 320
"""Calls after which every plan is called in its shortest way."""
MIB: Final = 1 << 20

FUNCTIONS: Final = ("x / (1 + exp(-1.702 x))", "sum", "sum of columns", "softmax of rows", "fft of rows")
"""The functions of arrays that are called on 2^20 elements."""


# ---- a pipeline of kernels in a row


def of_peer(peer: Peer, calls: int) -> Measure:
    """Return the measurement of a peer's one kernel with its wait. Its stream is current outside of the clock."""
    assert peer.chain is not None
    loop = repeated(partial(peer.chain, 1))

    def measured() -> dict[str, Span]:
        with peer.scope():
            return in_a_row(peer.name, loop, calls)

    return measured


@final
class Chained:
    """Calls of a pipeline of kernels in a row, each of which multiplies the same tensor by the number."""

    def __init__(self, bench: Bench, kernels: int) -> None:
        self._kernels = kernels
        self._step = chain_of(kernels)
        self._tensors = [ones((SIZE,)).sync() for _ in range(2)]
        self.check()
        self.same(bench.many(WARM if kernels == 1 else 8))

    def same(self, count: int) -> None:
        """Call it with the same number, on the tensor that it has returned."""
        x, step = self._tensors[0], self._step
        for _ in range(count):
            x = step(x, 1.0).sync()
        self._tensors[0] = x

    def numbers(self, count: int) -> None:
        """Call it with another number each time."""
        x, step = self._tensors[0], self._step
        for turn in range(count):
            x = step(x, -1.0 if turn & 1 else 1.0).sync()
        self._tensors[0] = x

    def addresses(self, count: int) -> None:
        """Call it on two tensors in turns."""
        tensors, step = self._tensors, self._step
        for turn in range(count):
            tensors[turn & 1] = step(tensors[turn & 1], 1.0).sync()

    async def awaits(self, count: int) -> None:
        """Await it with the same number."""
        x, step = self._tensors[0], self._step
        for _ in range(count):
            x = await step(x, 1.0)
        self._tensors[0] = x

    def check(self) -> None:
        """Raise an error unless two calls give the right result, and the calls so far have kept their tensors."""
        x = ones((SIZE,)).sync()
        for _ in range(2):
            x = self._step(x, FACTOR).sync()
        same(f"dagpu, {self._kernels} kernels", x.to_host().sync(), scaled(2 * self._kernels))
        for tensor in self._tensors:
            same("dagpu, all calls", np.abs(tensor.borrow().to_host().sync()), 1.0)


async def checkpoints(count: int) -> None:
    """Pass this many checkpoints."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


def one_kernel(bench: Bench, graphs: GraphFloor | None, peers: list[Peer]) -> Section:
    """Measure the calls of a pipeline of one kernel."""
    calls = bench.many(CALLS)
    ways = {name: Chained(bench, 1) for name in (SAME, NUMBER, ADDRESS, AWAITED)}
    contenders: list[Measure] = []
    if graphs is not None:
        idle, anew = graphs.chain(1), graphs.chain(1)
        for graph in (idle, anew):
            graph.calls(2, FACTOR, 2.0)
            same("C++, a graph of one kernel", graph.read(0), 2 * FACTOR)
        contenders += [
            partial(in_a_row, IDLE, idle.calls, calls),
            partial(in_a_row, SET_ANEW, lambda count: anew.calls(count, 1.0, -1.0), calls),
        ]
    contenders += [
        *[of_peer(peer, calls) for peer in peers],
        partial(in_trio, CHECKPOINT, checkpoints, calls),
        partial(in_a_row, SAME, ways[SAME].same, calls),
        partial(in_a_row, NUMBER, ways[NUMBER].numbers, calls),
        partial(in_a_row, ADDRESS, ways[ADDRESS].addresses, calls),
        partial(in_trio, AWAITED, ways[AWAITED].awaits, calls),
        partial(in_a_row, CAPTURED_NAME, repeated(captured(1)), calls),
    ]
    samples = bench.measure(contenders, BATCHES)
    for way in ways.values():
        way.check()
    goals = [
        Goal("a pipeline of one kernel", SAME, 1.35, (IDLE,)),
        Goal("its number changed", NUMBER, 1.45, (IDLE,)),
        Goal("its address changed", ADDRESS, 1.45, (IDLE,)),
        Goal("await of it", AWAITED, 1.15, (CHECKPOINT, IDLE)),
        Goal("graph.launch()", CAPTURED_NAME, 1.35, (IDLE,)),
    ]
    return Section("A pipeline of one kernel", samples, goals)


def long_chain(bench: Bench, graphs: GraphFloor | None) -> Section:
    """Measure a pipeline of many kernels, of which each gets another number in each call."""
    kernels, calls = bench.many(MANY, 8), bench.many(10)
    ours = Chained(bench, kernels)
    name, floor = "dagpu: every number changed, for each kernel", "C++: every number set, launched and polled, each"
    contenders: list[Measure] = []
    if graphs is not None:
        graph = graphs.chain(kernels)
        graph.calls(2, FACTOR, 1.0)
        same("C++, many kernels", graph.read(0), scaled(kernels))
        contenders.append(partial(in_a_row, floor, lambda count: graph.calls(count, 1.0, -1.0), calls, kernels))
    contenders.append(partial(in_a_row, name, ours.numbers, calls, kernels))
    samples = bench.measure(contenders, 20)
    ours.check()
    return Section(
        f"A pipeline of {MANY:,} kernels, for each kernel",
        samples,
        [Goal(f"{MANY:,} kernels, every number changed, each", name, 1.15, (floor,))],
    )


# ---- several tensors, numbers and kernels


Four: TypeAlias = "tuple[Tensor[f32], Tensor[f32], Tensor[f32], Tensor[f32]]"


def summed(y: Tensor[f32], a: float, x: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
    """Return the op of one kernel, y += a x."""
    op: DeviceOp[Tensor[f32]] = saxpy(y.partition((SIZE,)), a, x).first().unpartition()
    return op


@pipeline
def four(
    p: Tensor[f32],
    q: Tensor[f32],
    r: Tensor[f32],
    s: Tensor[f32],
    t: SharedTensor[f32],
    u: SharedTensor[f32],
    v: SharedTensor[f32],
    w: SharedTensor[f32],
    a: float,
    b: float,
    c: float,
    d: float,
) -> DeviceOp[Four]:
    """Return the op of four kernels that know nothing of each other."""
    return zip_ops(summed(p, a, t), summed(q, b, u), summed(r, c, v), summed(s, d, w))


def four_kernels(bench: Bench, graphs: GraphFloor | None) -> Section:
    """Measure a pipeline with many arguments, whose numbers change in each call."""
    calls = bench.many(CALLS)
    t, u, v, w = (shared(np.ones(SIZE, np.float32)) for _ in range(4))

    def new() -> Tensor[f32]:
        return ones((SIZE,)).sync()

    kept: list[Four] = [(new(), new(), new(), new())]

    def ours(count: int, even: float = 1.0, odd: float = -1.0) -> None:
        p, q, r, s = kept.pop()
        for turn in range(count):
            a = odd if turn & 1 else even
            p, q, r, s = four(p, q, r, s, t, u, v, w, a, a, a, a).sync()
        kept.append((p, q, r, s))

    def check() -> None:
        """Raise an error unless four calls add what they should; an even number of others has added nothing."""
        ours(4, 2.0, -1.0)
        for tensor in kept[0]:
            same("dagpu, four kernels", tensor.borrow().to_host().sync(), 3.0)
        ours(4, -2.0, 1.0)

    check()
    ours(bench.many(WARM))
    name, floor = "dagpu: 8 tensors, 4 numbers, 4 kernels", "C++: a graph of 4, all arguments set, launched and polled"
    contenders: list[Measure] = [partial(in_a_row, name, ours, calls)]
    if graphs is not None:
        graph = graphs.side_by_side(4)
        graph.calls(4, 2.0, -1.0)
        for kernel in range(4):
            same("C++, four kernels", graph.read(kernel), 3.0)
        contenders.insert(0, partial(in_a_row, floor, lambda count: graph.calls(count, 1.0, -1.0), calls))
    samples = bench.measure(contenders, BATCHES)
    check()
    goals = [Goal("8 tensors, 4 numbers, 4 kernels, every number changed", name, 1.3, (floor,))]
    return Section("A pipeline of 4 kernels on 8 tensors with 4 numbers", samples, goals)


# ---- plain ops


def scaled_once() -> Op:
    """Return an op of one kernel on new memory."""
    return scale(empty((SIZE,)).partition((BLOCK,)), FACTOR).first().unpartition()


def plain_ops(bench: Bench, peers: list[Peer]) -> Section:
    """Measure the runs of ops that are in no pipeline."""
    calls, op = bench.many(CALLS), scaled_once()

    def fresh(count: int) -> None:
        for _ in range(count):
            scale(empty((SIZE,)).partition((BLOCK,)), FACTOR).first().unpartition().sync()

    again = repeated(op.sync)
    for loop in (again, fresh):
        loop(bench.many(WARM))
    contenders: list[Measure] = []
    if bench.floor is not None:
        contenders.append(partial(launched_in_cpp, bench, calls))
    contenders += [
        *[of_peer(peer, calls) for peer in peers],
        partial(in_a_row, AGAIN, again, calls),
        partial(in_a_row, FRESH, fresh, calls),
        partial(in_a_row, BUILT, repeated(scaled_once), calls),
    ]
    goals = [
        Goal("a plain op again", AGAIN, 1.0, (RAW_KERNEL,)),
        Goal("a fresh op of known structure", FRESH, 1.7, (RAW_KERNEL,)),
    ]
    return Section("A plain op of one kernel", bench.measure(contenders, BATCHES), goals)


def launched_in_cpp(bench: Bench, calls: int) -> dict[str, Span]:
    """Return the mean time of a launch with its wait in C++, of `calls` in a row."""
    assert bench.floor is not None
    (span,) = bench.floor.rounds(LAUNCHED, f"chain {calls} each", 1).values()
    return {LAUNCHED: Span(span.wall / calls, span.cpu / calls)}


# ---- feeds


def feed(bench: Bench, graphs: GraphFloor | None) -> Section:
    """Measure the updates of a feed, of whose launches a few change."""
    launches, count = bench.many(MANY, 8), bench.many(CALLS)
    early, late = source(1.0), source(2.0)
    given = source(from_host(np.ones(N, np.float32)).sync().share())
    ours, name = OpenFeed(chain(given, launches, DIRTY, early, late), late), f"dagpu: {DIRTY} of {MANY:,}, set and next"
    contenders: list[Measure] = []
    if graphs is not None:
        found, left_out = update_peers(DIRTY, N, count, graphs)
        contenders += [partial(as_dict, each) for each in found]
        bench.left_out += left_out
    contenders.append(partial(as_dict, partial(ours.updates, name, count, bench.many(WARM))))
    goal = Goal(f"a feed, {DIRTY} of {MANY:,} inputs changed", name, 1.15, (HAND_NAME,))
    return Section(f"An update of {DIRTY} of {MANY:,} launches", bench.measure(contenders, 11), [goal])


def as_dict(contender: Callable[[], Mapping[str, Span]]) -> dict[str, Span]:
    """Return the times that a contender of the updates gives."""
    return dict(contender())


# ---- functions of arrays, and ops of other libraries


def functions(bench: Bench) -> Iterator[Section]:
    """Measure functions of arrays on 2^20 elements."""
    size, on_gpu = (1 << 20 if bench.floor is not None else 1 << 14), bench.where.kind == "cuda"
    for case in arrays.CASES:
        if case.name not in FUNCTIONS:
            continue
        make = partial(arrays.contenders, case, arrays.contents(case, size), on_gpu)
        contenders = installed(bench, case.name, make)
        if contenders:
            samples = bench.measure(contenders if on_gpu else contenders[:1], 15)
            goal = Goal(f"dagpu.array, 2^20 elements: {case.name}", "dagpu", 1.0, ("PyTorch",))
            yield Section(f"{case.name}, {size:,} elements", samples, [goal])


def foreign_op(bench: Bench, peers: list[Peer]) -> Iterator[Section]:
    """Measure an op whose work PyTorch does, in a graph, beside PyTorch's call. Nothing without PyTorch."""
    calls, library = bench.many(CALLS), "torch" if bench.where.kind == "cuda" else "host"
    name, capture = "dagpu: a pipeline of one foreign op", "required" if library == "torch" else "never"

    def make() -> list[Measure]:
        loop = repeated(interop.chain_of(interop.scaled_by(capture, library), 1, 2))
        loop(bench.many(WARM))
        return [partial(in_a_row, name, loop, calls)]

    contenders = installed(bench, "an op of PyTorch's", make)
    if contenders:
        theirs = [of_peer(peer, calls) for peer in peers if peer.name == EAGER]
        goal = Goal("a foreign op in a graph", name, 1.0, (EAGER,), 1.5)
        yield Section("An op of PyTorch's in a graph", bench.measure([*theirs, *contenders], BATCHES), [goal])


# ---- two GPUs


def two_devices(bench: Bench, graphs: GraphFloor | None, other: Device) -> Section:
    """Measure a pipeline of one kernel on each of two devices."""

    @pipeline
    def two(x: Tensor[f32], y: Tensor[f32], a: float) -> DeviceOp[tuple[Tensor[f32], Tensor[f32]]]:
        far: Op = scale(y.partition((BLOCK,)), a).first().unpartition().on(other)
        return zip_ops(scale(x.partition((BLOCK,)), a).first().unpartition(), far)

    def pair() -> tuple[Tensor[f32], Tensor[f32]]:
        return ones((SIZE,)).sync(), ones((SIZE,)).on(other).sync()

    kept = [pair()]

    def ours(count: int) -> None:
        x, y = kept.pop()
        for _ in range(count):
            x, y = two(x, y, 1.0).sync()
        kept.append((x, y))

    def check() -> None:
        x, y = pair()
        for a in (3.0, 0.5, 7.0):
            x, y = two(x, y, a).sync()
        for tensors, expected in (((x, y), 10.5), (kept[0], 1.0)):
            for tensor in tensors:
                same("dagpu, two devices", tensor.borrow().to_host().sync(), expected)

    check()
    ours(bench.many(WARM))
    name, floor = "dagpu: a kernel on each of two GPUs", "C++: one graph over both, launched and polled"
    calls = bench.many(CALLS)
    contenders: list[Measure] = [partial(in_a_row, name, ours, calls)]
    if graphs is not None:
        graph = graphs.on_two_gpus()
        graph.calls(3, 3.0, 0.5)
        for kernel in range(2):
            same("C++, two GPUs", graph.read(kernel), 4.5)
        contenders.insert(0, partial(in_a_row, floor, graph.calls, calls))
    samples = bench.measure(contenders, BATCHES)
    check()
    goals = [Goal("a kernel on each of two GPUs", name, 1.4, (floor,))]
    return Section("A pipeline of one kernel on each of two GPUs", samples, goals)


# ---- copies to the device


def copies_in(bench: Bench) -> Iterator[Section]:
    """Measure `from_host` of 1 MiB, of an array that the GPU reaches and of an ordinary one."""
    count = bench.many(20)
    ours = copies.ours_in(bench, MIB, count)
    theirs: list[list[Measure]] = []
    if bench.floor is not None:
        for name, make in (("CuPy", copies.cupy_copies), ("PyTorch", copies.torch_copies)):
            found = installed(bench, name, partial(make, "h2d", MIB, count))
            theirs += [found] * bool(found)
    for kind, number, times, name, peer in (
        ("an ordinary array", 1, 1.0, "dagpu from_host, an ordinary array", "CuPy, pageable"),
        ("a pinned array", 0, 1.1, "dagpu from_host, an array from to_host", "CuPy, pinned"),
    ):
        contenders = [*[found[number] for found in theirs], ours[number]]
        if bench.floor is not None:
            contenders.insert(0, partial(bench.floor.rounds, copies.FLOOR_NAME, f"copy h2d {MIB}", count))
        goal = Goal(f"from_host of 1 MiB, {kind}", name, times, (peer,))
        yield Section(f"from_host of 1 MiB, {kind}", bench.measure(contenders, 15), [goal])


# ---- the host


def on_the_host(bench: Bench) -> Section:
    """Measure ops on the host beside futures, on one core. It is measured without a GPU too."""
    each, alone_too = f"concurrent.futures: each of {MANY:,} in a row", "concurrent.futures: a future by itself"
    piped, alone = f"dagpu: an op in a pipeline of {MANY:,}", "dagpu: an op by itself"

    @pipeline
    def launches(y: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
        op: DeviceOp[Tensor[f32]] = value(y)
        for _ in range(MANY):
            op = touched(op)
        return op

    def touched(y: Any) -> DeviceOp[Tensor[f32]]:
        op: DeviceOp[Tensor[f32]] = workloads.touch(y.partition((workloads.SIZE,)), 1.0).first().unpartition()
        return op

    def in_a_pipeline(count: int) -> None:
        y = zeros((workloads.SIZE,)).sync()
        for _ in range(count):
            y = launches(y).sync()

    def by_itself(count: int) -> None:
        y = zeros((workloads.SIZE,)).sync()
        for _ in range(count):
            y = workloads.touch(y.partition((workloads.SIZE,)), 1.0).first().unpartition().sync()

    with use_device("host"), on_one_core(), ThreadPoolExecutor(workloads.WORKERS) as pool:
        array = np.zeros(workloads.SIZE, np.float32)
        in_a_pipeline(4)
        by_itself(WARM)
        contenders: list[Measure] = [
            partial(in_a_row, each, repeated(partial(workloads.futures_chain, pool, MANY)), 1, MANY),
            partial(in_a_row, alone_too, repeated(lambda: pool.submit(workloads.nothing, array, 1.0).result()), CALLS),
            partial(in_a_row, piped, in_a_pipeline, 4, MANY),
            partial(in_a_row, alone, by_itself, CALLS),
        ]
        samples = measure(contenders, 2 if bench.quick else 25)
    goals = [
        Goal("host: an op in a pipeline", piped, 1.0, (each,)),
        Goal("host: an op by itself", alone, 3.0, (alone_too,)),
    ]
    return Section("Ops on the host, on one core", samples, goals)


@contextmanager
def on_one_core() -> Iterator[None]:
    """Within the `with` block this thread, and those that it starts, run on the idlest core where the system can pin
    them."""
    before = os.sched_getaffinity(0) if sys.platform == "linux" else None
    pin_to_one_core()
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


# ---- the tables


def grid_of_parts(pipelines: Section, plain: Section) -> Grid:
    """Return where the time of one call goes, in microseconds: the driver in C++, trio's checkpoint, the construction
    of the op, and the rest."""
    grid = Grid("Where the time of one call goes, us", ["whole", "driver", "trio", "build", "rest"])
    grid.note = (
        "Medians. The driver's part is the launch and the wait in C++. The rest is the difference: dagpu finds the "
        "plan, checks the arguments, takes locks and memory, and makes the result; and it builds a pipeline's op."
    )
    for section, name, driver, others in (
        (pipelines, SAME, IDLE, {}),
        (pipelines, NUMBER, SET_ANEW, {}),
        (pipelines, ADDRESS, SET_ANEW, {}),
        (pipelines, AWAITED, IDLE, {"trio": CHECKPOINT}),
        (pipelines, CAPTURED_NAME, IDLE, {}),
        (plain, AGAIN, LAUNCHED, {}),
        (plain, FRESH, LAUNCHED, {"build": BUILT}),
    ):
        parts = {part: section.median(of) or 0.0 for part, of in ({"driver": driver} | others).items()}
        whole = section.median(name) or 0.0
        row = [parts.get(part, 0.0) for part in ("driver", "trio", "build")]
        grid.rows[name.removeprefix("dagpu: ")] = [whole, *row, whole - sum(row)]
    return grid


def sections_of(bench: Bench, decode: bool) -> Iterator[Callable[[], list[Section]]]:
    """Yield functions that measure one or several sections, in the order of the tables. The first two are those whose
    parts `grid_of_parts` has."""
    graphs = None if bench.floor is None else GraphFloor(bench.floor)
    launches = all_peers(bench)
    yield lambda: [one_kernel(bench, graphs, graph_peers(bench))]
    yield lambda: [plain_ops(bench, launches)]
    yield lambda: [feed(bench, graphs)]
    yield lambda: [four_kernels(bench, graphs)]
    yield lambda: [long_chain(bench, graphs)]
    yield lambda: list(functions(bench))
    yield lambda: list(foreign_op(bench, launches))
    second = [each for each in devices() if each.kind == bench.where.kind and each.index == 1]
    if bench.where.kind == "host":
        second = [device("host:1")]
    yield lambda: [two_devices(bench, graphs, other) for other in second]
    yield lambda: list(copies_in(bench))
    if decode:
        yield lambda: [decode_step(bench)]
    yield lambda: [on_the_host(bench)]


def decode_step(bench: Bench) -> Section:
    """Measure a decode step, and the time in which a copy moves as many bytes."""
    samples, note = decoding.measured(bench)
    goal = Goal("a decode step", decoding.PIPELINE_NAME, 1 / 0.80, (decoding.ROOF,))
    return Section("A decode step", samples, [goal], note)


def main() -> None:
    """Measure, print the results, and save them. What fails is reported, and the others are measured."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # `start` has the other options
    parser.add_argument("--decode", action="store_true")
    chosen, rest = parser.parse_known_args()
    bench = start("calls", f"{TITLE}. --decode: the decode step too.", rest)
    sections: list[Section] = []
    failed: list[str] = []
    with use_device(bench.where):
        for make in sections_of(bench, chosen.decode):
            begin = now()
            try:
                made = make()
            except Exception:  # one table less, on a machine that is lent for minutes
                traceback.print_exc()
                failed.append(traceback.format_exc(limit=0).strip())
                continue
            sections += made
            titles = "; ".join(each.title for each in made) or "nothing"
            print(f"{now().since(begin).wall:6.1f} s: {titles}", flush=True)
    bench.left_out = list(dict.fromkeys([*bench.left_out, *failed]))
    tables: list[Table | Grid] = [
        table_of_goals(TITLE, sections, bench.missing()),
        *[each.table() for each in sections],
    ]
    if not failed:
        tables.insert(1, grid_of_parts(sections[0], sections[1]))
    in_c, by_python = served()
    bench.about["calls of sync() and await read by"] = (
        WHY_NOT or f"the compiled reader: {in_c:,}, Python: {by_python:,}"
    )
    bench.quick = bench.quick or bool(failed)  # parts of a result are not kept
    bench.finish(TITLE, tables)
    if failed:
        raise SystemExit(f"{len(failed)} of the tables could not be measured")


if __name__ == "__main__":
    main()
