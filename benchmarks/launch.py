"""The cost of a launch on the GPU, in a chain of tiny ones, compared with the C++ driver API and launches from Python.

    python -m benchmarks.launch                  keeps results/launch.json and launch.md
    python -m benchmarks.launch --device host    a dry run without a GPU: measures nothing, keeps nothing

The kernel multiplies 2,048 floats. A launch of dagpu includes its `partition`, `first` and `unpartition`. A new DAG is
timed from the construction of the op to its result, and a repeated op from `sync()` to its result. Memory is freed
after the clock has stopped. Every contender waits once, at its end, unless the table says otherwise.
"""

from functools import partial

from benchmarks.peers.gpu_peers import Peer, all_peers
from benchmarks.support.gpu import Bench, Measure, medians, rounds, start
from benchmarks.support.gpu_kernels import Op, build_chain
from benchmarks.support.table import Grid, Span, Table
from dagpu import Tensor, f32, use_device

FRESH, AGAIN = 25.0, 3.4
"""Targets in us a launch, in a chain of 1,000: a new op, and a repeated one."""

SIZES = (1, 10, 100, 300, 1000)
FLOOR_NAME, EACH_NAME, GRAPH_NAME = "C++, one sync at the end", "C++, sync after each", "C++, CUDA graph replay"
FRESH_NAME, AGAIN_NAME = "dagpu: a fresh DAG", "dagpu: the same op again"


def fresh(n: int) -> tuple[Op, Tensor[f32]]:
    """Build an op of `n` launches and run it."""
    op = build_chain(n)
    return op, op.sync()


def contenders(bench: Bench, n: int, peers: list[Peer]) -> list[Measure]:
    """Return all contenders for `n` launches. A round takes some milliseconds, and has at least 5 chains."""
    count = bench.many(min(100, max(5, 1000 // n)))
    op = build_chain(n)
    found: list[Measure] = [
        partial(rounds, FRESH_NAME, partial(fresh, n), min(count, 40)),
        partial(rounds, AGAIN_NAME, op.sync, count),
    ]
    if bench.floor is not None:
        for name, how in ((FLOOR_NAME, "end"), (EACH_NAME, "each"), (GRAPH_NAME, "graph")):
            found.append(partial(bench.floor.rounds, name, f"chain {n} {how}", count))
    return [*found, *(partial(peer.chain_rounds, n, count) for peer in peers if peer.chain is not None)]


def one_size(title: str, unit: str, n: int, samples: dict[str, list[Span]]) -> Table:
    """Return the table of one chain, per launch."""
    table = Table(title, unit, ratio_to=FLOOR_NAME)
    targets = {FRESH_NAME: FRESH, AGAIN_NAME: AGAIN} if n == max(SIZES) else {}
    for name in sorted(samples, key=lambda name: (name.startswith("dagpu"), name)):
        target = targets.get(name)
        table.add(name, samples[name], 1e6 / n, target=target, base=samples.get(FLOOR_NAME))
    return table


def main() -> None:
    """Measure, print the results, and save them."""
    bench = start("launch", "What a launch costs on the GPU, beside its peers.")
    peers = all_peers(bench)
    found: dict[int, dict[str, list[Span]]] = {}
    with use_device(bench.where):
        for n in SIZES:
            found[n] = bench.measure(contenders(bench, n, peers), 9)
    most = max(SIZES)
    chain = one_size(f"A chain of {most:,} tiny launches", "us/launch", most, found[most])
    chain.note = "A sample is the median of several chains in a row; the contenders take turns." + bench.missing()
    one = one_size("One tiny launch, with its wait", "us", 1, found[1])
    one.note = "From the first call to the result: the latency of the way to launch and of waiting together."
    grid = Grid("A chain of N tiny launches, us in all", [f"N={n:,}" for n in SIZES], "Medians.")
    grid.columns.append(f"each of {most:,}")
    for row in chain.rows:
        grid.rows[row.name] = [*(medians(found[n][row.name]).wall * 1e6 for n in SIZES), row.median]
    bench.finish("What a launch costs", [chain, one, grid])


if __name__ == "__main__":
    main()
