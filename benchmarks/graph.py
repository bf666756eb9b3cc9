"""Repeated runs of a plan as a CUDA graph, compared with the same graph in C++, launch loops, and the peers' graphs.

    python -m benchmarks.graph               keeps results/graph.json and graph.md
    python -m benchmarks.graph --rehearse    dagpu's part on the host: measures nothing, keeps nothing

The chain multiplies 2,048 floats in place, as in benchmarks/launch.py. The fork-join is that of benchmarks/forkjoin.py.
dagpu gets each as a pipeline, and is measured from its third call on. A call is timed from its arguments to its result,
including the update of changed nodes and the wait.
"""

from collections.abc import Callable
from functools import partial
from typing import final

from benchmarks.peers.gpu_peers import Peer, all_peers
from benchmarks.peers.graph_floor import GraphFloor
from benchmarks.peers.graph_peers import graph_peers
from benchmarks.support.gpu import Bench, Measure, medians, rounds
from benchmarks.support.gpu_kernels import (
    BLOCK,
    BRANCHES,
    DEPTH,
    FACTOR,
    SIZE,
    SPIN_US,
    Op,
    build_fork_join,
    same,
    scale,
    scaled,
)
from benchmarks.support.rehearsal import start_or_rehearse
from benchmarks.support.table import Grid, Span, Table
from dagpu import DeviceOp, Tensor, f32, ones, pipeline, use_device, value

SIZES = (1, 10, 100, 1000)
REHEARSED = (1, 10)
WITHIN, NODE_US, FIRST_US, FORK_WITHIN = 1.05, 1.6, 3.0, 1.03
"""Targets: ratio to the C++ graph for the longest chain; us a node if all change; us more than C++ for one node; ratio
to the C++ graph for the fork-join."""

GRAPH_NAME, CHANGED_NAME = "C++, CUDA graph", "C++, CUDA graph, every node set anew"
SAME_NAME = "dagpu: pipeline, nothing changed"
MOVED_NAME = "dagpu: pipeline, every address changed"
NUMBER_NAME = "dagpu: pipeline, every number changed"
LOOP_NAME = "dagpu: pipeline, launched one by one"
CAPTURED_NAME = "dagpu: op.graph(), launch()"


# ---- dagpu's chains


Chain = Callable[[Tensor[f32], float], DeviceOp[Tensor[f32]]]


def chain_of(n: int, graph_from: int | None = 2) -> Chain:
    """Return a pipeline of `n` launches in a row on one tensor, in place. Every node has the address and the number."""

    @pipeline(graph_from=graph_from)
    def chain(x: Tensor[f32], a: float) -> Op:
        op: Op = value(x)
        for _ in range(n):
            op = scale(op.partition((BLOCK,)), a).first().unpartition()
        return op

    return chain


@final
class Replays:
    """Calls of a chain, on `memories` tensors in turn, with a constant or a changing number."""

    def __init__(self, chain: Chain, memories: int, changing: bool) -> None:
        self._chain = chain
        self._tensors = [ones((SIZE,)).sync() for _ in range(memories)]
        self._numbers = (FACTOR, 1 / FACTOR) if changing else (FACTOR, FACTOR)
        self._turn = 0

    def __call__(self) -> None:
        turn = self._turn
        self._turn += 1
        tensors, number = self._tensors, self._numbers[turn % 2]
        at = turn % len(tensors)
        tensors[at] = self._chain(tensors[at], number).sync()

    def check(self, n: int) -> None:
        """Raise an error unless the first two calls, one of a plan and one of a graph, have the right results."""
        applied: list[list[float]] = [[] for _ in self._tensors]
        for number in self._numbers:
            applied[self._turn % len(self._tensors)].append(number)
            self()
        for tensor, factors in zip(self._tensors, applied, strict=True):
            same(f"a chain of {n}", tensor.borrow().to_host().sync(), _multiplied(n, factors))


def _multiplied(n: int, factors: list[float]) -> float:
    """Multiply 1 by each of the factors `n` times, in float32."""
    y = f32(1)
    for factor in factors:
        for _ in range(n):
            y *= f32(factor)
    return float(y)


def checked_replays(n: int) -> dict[str, Replays]:
    """Return all ways to call a chain of `n`, after each has run twice with the right result."""
    found = {
        LOOP_NAME: Replays(chain_of(n, graph_from=None), 1, changing=False),
        SAME_NAME: Replays(chain_of(n), 1, changing=False),
        MOVED_NAME: Replays(chain_of(n), 2, changing=False),
        NUMBER_NAME: Replays(chain_of(n), 1, changing=True),
    }
    for replays in found.values():
        replays.check(n)
    return found


def captured(n: int) -> Callable[[], None]:
    """Return a launch of the same chain captured by hand, with its wait."""
    tensor = ones((SIZE,)).sync()
    op: Op = value(tensor.borrow_mut())
    for _ in range(n):
        op = scale(op.partition((BLOCK,)), FACTOR).first().unpartition()
    graph = op.graph()  # this runs it once
    graph.launch().sync()
    same(f"a captured chain of {n}", tensor.borrow().to_host().sync(), scaled(2 * n))
    return lambda: graph.launch().sync()


@pipeline
def fork_join() -> Op:
    """Return an op of the four branches, without any mention of streams."""
    return build_fork_join()


# ---- measuring


def chain_contenders(bench: Bench, graphs: GraphFloor | None, peers: list[Peer], n: int) -> list[Measure]:
    """Return all contenders for a chain of `n`. A round takes some milliseconds, and has at least 5 chains."""
    count = bench.many(min(100, max(5, 1000 // n)))
    found: list[Measure] = []
    if bench.floor is not None:
        found.append(partial(bench.floor.rounds, GRAPH_NAME, f"chain {n} graph", count))
    if graphs is not None:
        found.append(partial(graphs.changed_rounds, CHANGED_NAME, n, count))
    found += [partial(peer.chain_rounds, n, count) for peer in peers if peer.chain is not None]
    found += [partial(rounds, name, call, count) for name, call in checked_replays(n).items()]
    return [*found, partial(rounds, CAPTURED_NAME, captured(n), count)]


def fork_contenders(bench: Bench) -> list[Measure]:
    """Return all contenders for the fork-join as one graph."""
    count = bench.many(10)
    for _ in range(2):
        for branch in fork_join().sync():
            same("a branch", branch.to_host().sync(), DEPTH)
    found: list[Measure] = [partial(rounds, SAME_NAME, lambda: fork_join().sync(), count)]
    if bench.floor is not None:
        found.insert(0, partial(bench.floor.rounds, GRAPH_NAME, "forkjoin graph", count))
    return found


def median_us(samples: dict[str, list[Span]], name: str) -> float | None:
    """Return the median in microseconds; None for a contender that was not measured."""
    return medians(samples[name]).wall * 1e6 if name in samples else None


def tabled(title: str, unit: str, samples: dict[str, list[Span]], nodes: int, targets: dict[str, float]) -> Table:
    """Return the table of a chain or fork-join. The remark of a peer is the ratio of its time to dagpu's."""
    table = Table(title, unit, ratio_to=GRAPH_NAME, remarks="times dagpu's")
    own = medians(samples[SAME_NAME]).wall
    for name, spans in samples.items():
        theirs = "" if name.startswith("dagpu") else f"{medians(spans).wall / own:.2f}"
        base = samples.get(GRAPH_NAME)
        table.add(name, spans, 1e6 / nodes, target=targets.get(name), base=base, remark=theirs)
    return table


def chain_tables(found: dict[int, dict[str, list[Span]]], bench: Bench) -> list[Table | Grid]:
    """Return the tables: the longest chain by the node, the shortest as a whole, and all chains."""
    most, least = max(found), min(found)
    floor, first = median_us(found[most], GRAPH_NAME), median_us(found[least], GRAPH_NAME)
    targets = {MOVED_NAME: NODE_US} if floor is not None else {}
    if floor is not None:
        targets[SAME_NAME] = round(WITHIN * floor / most, 3)
    long = tabled(f"A graph of {most:,} tiny kernels in a row", "us/node", found[most], most, targets)
    long.note = (
        f"Targets: {WITHIN} times the C++ graph with nothing changed, {NODE_US} us a node with every address changed; "
        f"launch loops should take twice dagpu's time or more, graphs no less.{bench.missing()}"
    )
    one = {SAME_NAME: round(first + FIRST_US, 2)} if first is not None else {}
    short = tabled("A graph of one kernel", "us", found[least], 1, one)
    short.note = f"From the call to the result. Target: {FIRST_US:g} us more than C++."
    grid = Grid("A chain of N tiny kernels, us in all", [f"N={n:,}" for n in found], "Medians.")
    for name in found[most]:
        grid.rows[name] = [medians(found[n][name]).wall * 1e6 for n in found]
    return [long, short, grid]


def main() -> None:
    """Measure, print the results, and save them."""
    bench = start_or_rehearse("graph", "What a plan costs that runs again as a CUDA graph, beside its peers.")
    peers = [*all_peers(bench), *graph_peers(bench)]
    graphs = None if bench.floor is None else GraphFloor(bench.floor)
    with use_device(bench.where):
        sizes = SIZES if bench.floor is not None else REHEARSED
        found = {n: bench.measure(chain_contenders(bench, graphs, peers, n), 9) for n in sizes}
        forks = bench.measure(fork_contenders(bench), 11)
    floor = median_us(forks, GRAPH_NAME)
    fork_targets = {SAME_NAME: round(FORK_WITHIN * floor, 1)} if floor is not None else {}
    title = f"{BRANCHES} branches of {DEPTH} kernels of {SPIN_US:g} us, as one graph"
    forked = tabled(title, "us", forks, 1, fork_targets)
    forked.note = f"Eight in a row take {DEPTH * SPIN_US:g} us. Target: {FORK_WITHIN} times the C++ graph."
    bench.finish("A plan that runs again, as a CUDA graph", [*chain_tables(found, bench), forked])


if __name__ == "__main__":
    main()
