"""The overlap of four independent branches of eight kernels of 47 us each, and its cost.

    python -m benchmarks.forkjoin                  keeps results/forkjoin.json and forkjoin.md
    python -m benchmarks.forkjoin --device host    a dry run without a GPU: measures nothing, keeps nothing

dagpu gets one plain `zip_ops` of four chains, without any mention of streams. Its peers are written by hand: on one
stream, and on four with events to fork and to join. Every branch first zeroes its buffer of 1,024 floats. Each kernel
has four blocks, so that all branches fit on the GPU together, and adds 1, so that the result shows all eight.
"""

from functools import partial

from benchmarks.peers.gpu_peers import all_peers
from benchmarks.support.gpu import Bench, Measure, medians, rounds, start
from benchmarks.support.gpu_kernels import BRANCHES, DEPTH, SPIN_US, Op, build_fork_join
from benchmarks.support.table import Table
from dagpu import SingleStream, StreamInterpreter, use_device, use_interpreter

OVERHEAD = 1.10
"""Target: the largest ratio to the time of the C++ on four streams."""

ONE, FOUR, GRAPH = "C++, one stream", "C++, four streams and events", "C++, one CUDA graph"
FRESH_NAME, AGAIN_NAME = "dagpu: zip_ops, a fresh DAG", "dagpu: zip_ops, the same op again"
SINGLE_NAME = "dagpu: the same op again, on one stream"


def fresh() -> tuple[Op, object]:
    """Build the op and run it."""
    op = build_fork_join()
    return op, op.sync()


def on_one_stream(op: Op) -> object:
    """Run the op without overlap. The difference shows that the policy causes the overlap."""
    with use_interpreter(_SINGLE):
        return op.sync()


_SINGLE = StreamInterpreter(policy=SingleStream())


def contenders(bench: Bench) -> list[Measure]:
    """Return all contenders, with dagpu's own last."""
    count = bench.many(10)
    found: list[Measure] = []
    if bench.floor is not None:
        for name, how in ((ONE, "one"), (FOUR, "four"), (GRAPH, "graph")):
            found.append(partial(bench.floor.rounds, name, f"forkjoin {how}", count))
    found += [partial(peer.rounds, peer.fork_join, count) for peer in all_peers(bench) if peer.fork_join is not None]
    op = build_fork_join()
    return [
        *found,
        partial(rounds, SINGLE_NAME, partial(on_one_stream, build_fork_join()), count),
        partial(rounds, FRESH_NAME, fresh, count),
        partial(rounds, AGAIN_NAME, op.sync, count),
    ]


def main() -> None:
    """Measure, print the results, and save them."""
    bench = start("forkjoin", "Do independent branches overlap on the GPU, and at what cost?")
    title = f"{BRANCHES} branches of {DEPTH} kernels of {SPIN_US:g} us"
    table = Table(title, "us", ratio_to=FOUR)
    with use_device(bench.where):
        samples = bench.measure(contenders(bench), 11)
    floor = samples.get(FOUR)
    for name, spans in samples.items():
        target = None
        if name == AGAIN_NAME and floor is not None:
            target = round(OVERHEAD * 1e6 * medians(floor).wall, 1)
        row = name if name.startswith(("C++", "dagpu")) else f"{name.split()[0]} by hand, four streams and events"
        table.add(row, spans, 1e6, target=target, base=floor)
    table.note = (
        f"Eight kernels one after another take {DEPTH * SPIN_US:g} us, which is the least; the target is "
        f"{OVERHEAD:g} times the C++ on four streams. PyTorch runs torch.cuda._sleep, for as many cycles as took "
        f"{SPIN_US:g} us when the benchmark began.{bench.missing()}"
    )
    bench.finish("Fork and join", [table])


if __name__ == "__main__":
    main()
